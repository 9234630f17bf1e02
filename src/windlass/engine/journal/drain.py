"""Carries jobs from the journal into the store, in order.

The store keeps a watermark for each journal, how far it has been drained, and moves it in the same step that keeps the
jobs. So a batch whose reply was lost is not drained twice, and a store that has lost its newest jobs has lost the
watermark with them: the journal sees that and gives it exactly those jobs again.

A store may keep its queues in several partitions, each with a watermark of its own. A batch names the watermark that it
follows and the one that it leads to; between these two it is all that the journal has for the partition. A partition
that is away while others answer is left out. When it is back, the journal is read again from where it was left out, and
the others pass over what they have.
"""

import asyncio
import logging
from collections.abc import Awaitable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import NamedTuple, TypeVar

from msgspec.structs import replace

from windlass.engine.context import MOST_ROUNDS, EngineContext
from windlass.engine.dependencies import unblock
from windlass.engine.journal.batch import Entry
from windlass.engine.journal.journal import Journal
from windlass.model.errors import Conflict, Full, NotReplicated, PartAway, Unavailable, WindlassError
from windlass.model.names import JobKey, key_of
from windlass.model.ports import Clock, Randomness
from windlass.store.data import Draft, DrainReply, DrainRequest
from windlass.store.encoding import to_micros
from windlass.store.flow import StaleRules
from windlass.store.optional import JournalTarget

log = logging.getLogger("windlass.journal")

T = TypeVar("T")

MOST_AT_ONCE = 250
"""Jobs of one batch: this program and the store answer no other caller while they work at it, some milliseconds."""
CHECK_EVERY = 1.0
"""Seconds between two checks of the watermarks."""
TRY_EVERY = 0.2
"""The same while the store is down."""
LONGEST_PAUSE = 0.05
"""Seconds that the drain leaves to callers at the most before it goes on."""
ANSWER_WITHIN = 2.0
"""Seconds after which a store that does not answer counts as down."""
PART_AWAY_WITHIN = 6.0
"""The same of a store in partitions: longer than it takes to find out that only one of them does not answer."""
OLD = 1_000_000
"""Microseconds that a job must have waited in the journal before its delay is shortened by them."""

ANY = -1
"""The watermark of no store: asks for the one that it has."""


class _Asked(NamedTuple):
    """A caller that waits to learn which of its jobs the store had already."""

    first: int
    last: int
    existing: set[int]


class Drainer:
    """Drains one journal into one store."""

    def __init__(self, journal: Journal, store: JournalTarget, context: EngineContext, clock: Clock) -> None:
        self._journal = journal
        self._target = DrainTarget(journal.id.hex(), store, context, clock)
        self._clock = clock
        self._reservations = Reservations(journal, clock, context.chance)
        self._watermarks: list[int] = []
        self._away: dict[int, int] = {}
        """Partitions that do not answer, and the number behind which they may lack jobs."""
        self._reported_away = 0
        self._asked: list[_Asked] = []
        self._moved = asyncio.Event()
        self._checked_at = -CHECK_EVERY
        self._seen = journal.last
        self._waiting_for_replicas = 0
        """Callers that wait until replicas have their jobs."""
        self._not_replicated: set[int] = set()
        """Partitions whose newest jobs replicas may not have."""
        self._replicated_upto = 0
        self._shortfall = ""
        self.met = asyncio.Event()
        """Set when the watermarks of the store are known."""
        self.up = True
        """Whether the store answers."""
        self.flows = True
        """Whether it takes jobs."""
        self.fault = ""
        """Why the store, or a partition of it, does not take jobs."""
        self.reached = journal.drained
        """Up to which number the store has every job but those for partitions that are away."""
        self._had = self.reached
        """The same before this step drained anything, for the log."""

    async def start(self) -> None:
        """Learn how far the store is; raises if it does not answer."""
        journal = self._journal
        await self._target.ready()
        self._watermarks = await self._all_watermarks()
        newest = max(self._watermarks)
        if newest >= journal.unconfirmed:
            log.error(
                "journal: the store has jobs of it up to %d, but it ends with %d; numbering goes on behind them",
                newest,
                journal.unconfirmed - 1,
            )
        await journal.confirm(newest)
        self._go_back(min(self._watermarks))
        self.met.set()
        if waiting := await journal.count(journal.drained):
            log.info("journal: %d jobs wait to be drained", waiting)

    def start_without_store(self, fault: WindlassError) -> None:
        """The store was not there at the start: `run` learns how far it is when it comes."""
        log.warning("journal: only new jobs are accepted until the store is there: %s", fault)
        self._is_down(fault)

    async def run(self) -> None:
        """Drain until cancelled."""
        while True:
            try:
                if not self.met.is_set():
                    await self.start()
                began = self._clock.monotonic()
                busy = await self._step()
                await self._is_up()
                await self._give_way(began)
            except (WindlassError, OSError) as fault:
                self._is_down(fault)
                await self._clock.sleep(TRY_EVERY)
                continue
            except Exception as fault:
                log.exception("journal: draining failed")  # whatever it is, accepted jobs must not be given up
                self._is_down(fault)
                await self._clock.sleep(CHECK_EVERY)
                continue
            if not busy:
                await self._rest()

    async def drain(self) -> None:
        """Drain what there is, once; raises if the store does not take it."""
        while await self._step():
            pass
        if self._away:
            raise Unavailable(self.fault)

    @property
    def has_replicas(self) -> bool:
        """Whether callers wait for replicas at all."""
        return self._target.has_replicas

    @contextmanager
    def waiting_for_replicas(self) -> Iterator[None]:
        """A caller accepts jobs and waits until replicas have them: see `wait_for_replicas`."""
        self._waiting_for_replicas += 1
        try:
            yield
        finally:
            self._waiting_for_replicas -= 1

    async def wait_for_replicas(self, sequence: int, within: float) -> None:
        """Until enough replicas have all jobs up to a number; raises if that is not known in time."""
        within += self._target.replicated_within
        await self.reach(sequence, within)
        if self._replicated_upto >= sequence:
            return
        if not (self.up and self.flows):
            raise NotReplicated(f"only into the journal so far: {self.fault}")
        if self.reached < sequence:
            raise NotReplicated(f"only into the journal so far: the store has not taken it within {within:g} s")
        raise NotReplicated(self._shortfall)

    @property
    def behind(self) -> bool:
        """Whether the store lacks so many of the accepted jobs that its view of the queues is of no use."""
        return self._journal.last - self.reached > MOST_AT_ONCE

    @property
    def some_away(self) -> bool:
        """Whether some partitions take no jobs, though others do."""
        return bool(self._away)

    def is_away(self, draft: Draft) -> bool:
        """Whether a job is for a partition that takes none now, though others do."""
        return bool(self._away) and self._target.store.partition_of(draft) in self._away

    def lacks(self, entry: Entry) -> bool:
        """Whether the store does not have a job of the journal, as far as is known."""
        if not self._watermarks or entry.draft is None:
            return True
        return entry.sequence > self._watermarks[self._target.store.partition_of(entry.draft)]

    def may_have(self, sequence: int) -> bool:
        """Whether the store may have a job of the journal: before it answers, nothing is known of old jobs."""
        return not self.met.is_set() and sequence < self._journal.unconfirmed

    def check_soon(self) -> None:
        """Check the store now: a caller has reason to think that it does not answer."""
        self._checked_at = -CHECK_EVERY
        self._journal.accepted.set()

    async def existing(self, first: int, last: int, within: float) -> list[int] | None:
        """Which of the jobs from one number to another the store had already; null = not known in time."""
        if not (self.up and self.flows) or first <= self.reached:
            return None
        asked = _Asked(first, last, set())
        self._asked.append(asked)
        try:
            await self.reach(last, within)
        finally:
            self._asked.remove(asked)
        return sorted(asked.existing) if self.reached >= last else None

    async def reach(self, sequence: int, within: float) -> None:
        """Wait until the store has all jobs up to a number, while it takes jobs at all, and no longer than that.

        Jobs for partitions that are away are not waited for.
        """
        with suppress(TimeoutError):
            async with asyncio.timeout(within):
                while self.reached < sequence and self.up and self.flows:
                    await self._moved.wait()

    def _notify(self) -> None:
        self._moved.set()
        self._moved = asyncio.Event()

    # One step

    async def _step(self) -> bool:
        """Drain one batch; whether there was one. Now and then check whether the store still has everything."""
        if self._clock.monotonic() - self._checked_at >= CHECK_EVERY or not self.flows:
            await self._check()
        token = await self._reservations.reserve(MOST_AT_ONCE, 10 * ANSWER_WITHIN)
        if token is None:
            return False
        entries = self._reservations.read(token)
        await self._clock.sleep(0)  # callers that came while these were read are answered first
        try:
            drained = await self._drain(entries)
        except BaseException:
            self._reservations.cancel(token)
            raise
        if drained:
            self._reservations.commit(token)
            self.reached = entries[-1].sequence
            await self._journal.forget(self._complete_upto)
            self._notify()
        return True

    @property
    def _complete_upto(self) -> int:
        """Up to which number all partitions have everything."""
        return min((self.reached, *self._away.values()))

    async def _give_way(self, began: float) -> None:
        """While much waits and callers enqueue, they get as much of the time as the drain."""
        others_came, self._seen = self._journal.last > self._seen, self._journal.last
        if others_came and self.behind:
            await self._clock.sleep(min(LONGEST_PAUSE, self._clock.monotonic() - began))

    async def _drain(self, entries: Sequence[Entry]) -> bool:
        upto = entries[-1].sequence
        wait = self._waiting_for_replicas > 0 and self._target.has_replicas
        for partition, some in self._by_partition(entries).items():
            try:
                since = self._watermarks[partition]
                drained = await self._target.carry(partition, since, upto, some, wait_for_replicas=wait)
            except PartAway as fault:
                self._leave_out(partition, fault)
                continue
            if drained.mark != upto:
                await self._differ()
                return False
            self._watermarks[partition] = upto
            self._note_replicas(partition, drained.shortfall)
            # Nothing is answered if the watermark was there already: the batch was drained before and the reply lost.
            self._answer(entry.sequence for entry, new in zip(some, drained.created, strict=False) if not new)
        if not self._not_replicated and not self._away:
            self._replicated_upto = upto
        return True

    def _answer(self, existing: Iterable[int]) -> None:
        for sequence in existing:
            for asked in self._asked:
                if asked.first <= sequence <= asked.last:
                    asked.existing.add(sequence)

    def _leave_out(self, partition: int, fault: PartAway) -> None:
        self._away.setdefault(partition, self.reached)
        self.fault = self._shortfall = str(fault)

    def _note_replicas(self, partition: int, shortfall: str | None) -> None:
        """A replica that has the newest job of a partition has all of it."""
        if shortfall == "":
            self._not_replicated.discard(partition)
        else:
            self._not_replicated.add(partition)
            self._shortfall = shortfall or "the replicas were not asked"

    def _by_partition(self, entries: Sequence[Entry]) -> dict[int, list[Entry]]:
        """The jobs that each partition has not had yet. What no job can be made of is put aside."""
        partitions: dict[int, list[Entry]] = {}
        partition_of = self._target.store.partition_of
        for entry in entries:
            if entry.draft is None:
                if entry.raw:
                    self._journal.reject(entry)
                continue
            partition = partition_of(entry.draft)
            # A partition that was away gets what it lacks before anything newer: `_check` lets it in again.
            if partition not in self._away and entry.sequence > self._watermarks[partition]:
                partitions.setdefault(partition, []).append(entry)
        return partitions

    async def _check(self) -> None:
        """Check that all watermarks are where we left them, move idle ones on, and let in partitions that are back."""
        self._checked_at = self._clock.monotonic()
        drained = self._journal.drained
        back: list[int] = []
        for partition, watermark in enumerate(self._watermarks):
            upto = watermark if partition in self._away else max(watermark, drained)
            try:
                found = await self._target.move(partition, watermark, upto)
            except PartAway as fault:
                self._leave_out(partition, fault)
                continue
            if found != upto:
                await self._differ()
                return
            self._watermarks[partition] = found
            if partition in self._away:
                back.append(partition)
        if back:
            self._read_again(min(self._away.pop(partition) for partition in back))
        await self._journal.forget(self._complete_upto if self._away else drained)

    def _read_again(self, after: int) -> None:
        """For partitions that lack jobs behind a number."""
        self.reached = self._had = min(self.reached, after)
        self._reservations.rewind(self.reached)

    async def _differ(self) -> None:
        """A watermark is not where we left it. Further on: a reply was lost. Further back: the store lost jobs."""
        before, self._watermarks = self._watermarks, await self._all_watermarks(self._watermarks)
        back = [(old, new) for old, new in zip(before, self._watermarks, strict=True) if new < old]
        if back:
            old, new = min(back, key=lambda pair: pair[1])
            log.warning("journal: the store has gone back from %d to %d: what it lost is drained again", old, new)
        self._go_back(min(self._watermarks))
        self._away = dict.fromkeys(self._away, self.reached)

    async def _all_watermarks(self, known: Sequence[int] = ()) -> list[int]:
        """Where they are; those of partitions that are away, where they were known to be."""
        watermarks: list[int] = []
        for partition in range(self._target.store.partition_count):
            try:
                watermarks.append(await self._target.watermark(partition))
            except PartAway as fault:
                if not known:
                    raise
                self._leave_out(partition, fault)
                watermarks.append(known[partition])
            else:
                self._away.pop(partition, None)
        return watermarks

    def _go_back(self, to: int) -> None:
        start = self._journal.rewind(min(to, self._journal.last))
        self._replicated_upto = min(self._replicated_upto, start)
        self.reached = self._had = start
        if start > to:
            log.error("journal: jobs %d to %d are no longer in it: they may be lost", to + 1, start)
        self._reservations.rewind(start)

    # Callers that wait

    async def _rest(self) -> None:
        try:
            async with asyncio.timeout(CHECK_EVERY):
                await self._journal.accepted.wait()
        except TimeoutError:
            pass
        self._journal.accepted.clear()

    async def _is_up(self) -> None:
        if not (self.up and self.flows):
            log.info("journal: the store is back; %d jobs waited for it", await self._journal.count(self._had))
        self.up = self.flows = True
        if len(self._away) != self._reported_away:
            await self._report_away()
        self._had = self.reached

    async def _report_away(self) -> None:
        self._reported_away = len(self._away)
        if self._away:
            parts = f"{len(self._away)} of {len(self._watermarks)} parts of the store"
            log.warning("journal: jobs for %s stay in the journal: %s", parts, self.fault)
        else:
            waited = await self._journal.count(self._had)
            log.info("journal: all parts of the store are back; %d jobs are read again", waited)

    def _is_down(self, fault: Exception) -> None:
        if self.up and self.flows and self.met.is_set():
            log.warning("journal: jobs stay in the journal: %s", fault)
        self.flows, self.fault = False, str(fault)
        self.up = isinstance(fault, Full)
        self._notify()


# The store's side


class DrainTarget:
    """The store as one journal sees it: takes jobs in time, with their limit keys, aged by what they have waited."""

    def __init__(self, journal: str, store: JournalTarget, context: EngineContext, clock: Clock) -> None:
        self._journal = journal
        self._context = context
        self._clock = clock
        self.store = store

    @property
    def replicated_within(self) -> float:
        """Seconds that replicas have for a new job."""
        return self.store.replicated_within or 0.0

    @property
    def has_replicas(self) -> bool:
        """Whether callers wait for replicas at all."""
        return self.store.replicated_within is not None

    async def ready(self) -> None:
        """Raises if the store does not answer."""
        await in_time(self.store.ready(), ANSWER_WITHIN)

    async def watermark(self, partition: int) -> int:
        return (await self._send(partition, ANY, 0, ())).mark

    async def move(self, partition: int, watermark: int, upto: int) -> int:
        """Move a watermark on where there is nothing to carry; where it is then."""
        return (await self._send(partition, watermark, upto, ())).mark

    async def carry(
        self, partition: int, since: int, upto: int, entries: Sequence[Entry], *, wait_for_replicas: bool = False
    ) -> DrainReply:
        """Give a partition all jobs that the journal has for it between two watermarks, under the limits in force.

        Those that wait for other jobs are decided at once.
        """
        drafts = [aged(entry, self._clock) for entry in entries]
        for _ in range(MOST_ROUNDS):
            config = await self._context.flow_config.current()
            admitted = config.resolve_all(drafts)
            try:
                drained = await self._send(partition, since, upto, admitted, wait_for_replicas=wait_for_replicas)
            except StaleRules:
                self._context.flow_config.invalidate()
                continue
            if drained.mark == upto and (waiting := [key_of(draft) for draft in drafts if draft.new.after]):
                await self._unblock(waiting)
            return drained
        raise Unavailable("the limits change faster than jobs can be drained")

    async def _send(
        self, partition: int, since: int, upto: int, drafts: Sequence[Draft], *, wait_for_replicas: bool = False
    ) -> DrainReply:
        batch = DrainRequest(self._journal, partition, since, upto, drafts, wait_for_replicas)
        within = ANSWER_WITHIN if self.store.partition_count == 1 else PART_AWAY_WITHIN
        return await in_time(
            self._context.writes.drain(self.store, batch),
            within + (self.replicated_within if wait_for_replicas else 0.0),
        )

    async def _unblock(self, waiting: Sequence[JobKey]) -> None:
        """Jobs that wait for something in a partition that is away are decided when it is back."""
        try:
            await unblock(self._context, waiting)
        except PartAway:
            for key in waiting:
                with suppress(PartAway):
                    await unblock(self._context, [key])


async def in_time(answer: Awaitable[T], within: float) -> T:
    try:
        async with asyncio.timeout(within):
            return await answer
    except TimeoutError:
        raise Unavailable(f"the store does not answer: nothing came within {within:g} s") from None


def aged(entry: Entry, clock: Clock) -> Draft:
    """A job as the store is to take it: the time that it has waited in the journal counts."""
    draft = entry.draft
    assert draft is not None  # noqa: S101 - others are put aside
    new = draft.new
    if new.delay is None and new.expires is None:
        return draft
    waited = to_micros(clock.now()) - entry.accepted_at
    if waited < OLD:
        return draft
    seconds = waited / 1_000_000
    delay = None if new.delay is None else max(0.0, new.delay - seconds)
    expires = None if new.expires is None else max(0.0, new.expires - seconds)
    return replace(draft, new=replace(new, delay=delay, expires=expires))


# The journal's side


class _Reserved(NamedTuple):
    entries: list[Entry]
    until: float


class Reservations:
    """Jobs of a journal that readers have taken for a while.

    Committed jobs are never handed out again. Cancelled ones, and those not committed in time, are handed out again
    before anything newer.
    """

    def __init__(self, journal: Journal, clock: Clock, chance: Randomness) -> None:
        self._journal = journal
        self._clock = clock
        self._chance = chance
        self._position = journal.drained
        self._reserved: dict[str, _Reserved] = {}
        self._returned: list[Entry] = []

    async def reserve(self, count: int, seconds: float) -> str | None:
        """A token for the next jobs, valid for so long; null if there are none."""
        self._take_back_overdue()
        if self._returned:
            self._returned.sort()
            entries, self._returned = self._returned[:count], self._returned[count:]
        else:
            entries = await self._journal.read(self._position, count)
            if not entries:
                return None
            self._position = entries[-1].sequence
        token = self._chance.token().hex()
        self._reserved[token] = _Reserved(entries, self._clock.monotonic() + seconds)
        return token

    def read(self, token: str) -> list[Entry]:
        self._take_back_overdue()
        return self._known(token).entries

    def commit(self, token: str) -> None:
        """The reader is done with them."""
        self._take_back_overdue()
        self._known(token)
        del self._reserved[token]

    def cancel(self, token: str) -> None:
        """The reader gives them back."""
        self._returned += self._known(token).entries
        del self._reserved[token]

    def rewind(self, to: int) -> None:
        """Hand out all jobs behind a number again."""
        self._position = to
        self._reserved, self._returned = {}, []

    def _known(self, token: str) -> _Reserved:
        found = self._reserved.get(token)
        if found is None:
            raise Conflict("this reservation has been used or has expired", at="token")
        return found

    def _take_back_overdue(self) -> None:
        now = self._clock.monotonic()
        for token in [token for token, one in self._reserved.items() if one.until <= now]:
            self._returned += self._reserved.pop(token).entries
