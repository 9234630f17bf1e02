"""Carries jobs from the journal into the store, in order.

The store keeps, for each journal, how far it has been drained (its mark), and moves the mark in the same step that
keeps the jobs. So a batch whose reply was lost is not drained twice, and a store that has lost its newest jobs has lost
the mark with them: the journal sees that and gives it exactly those again.

A store may keep its queues in several strands, each with a mark of its own. A batch names the mark that it follows on
and the one that it leads to; between those two it is all that the journal has for the strand.

A strand that is away while others answer is left out, from where it was left on; when it is back, the journal is read
from there once more, and the others pass over what they have.
"""

import asyncio
import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from windlass.engine.desk import Desk
from windlass.engine.journal.asking import Asking
from windlass.engine.journal.hauling import ANSWER_WITHIN, Hauling
from windlass.engine.journal.journal import Journal
from windlass.engine.journal.reserving import Reservations
from windlass.engine.journal.runs import Entry
from windlass.model.errors import Full, NotReplicated, PartAway, Unavailable, WindlassError
from windlass.model.ports import Clock
from windlass.store import Draft
from windlass.store.beside import Ledger

log = logging.getLogger("windlass.journal")

MOST_AT_ONCE = 250
"""Jobs of one haul: this program and the store answer nobody else while they are busy with it, some milliseconds."""
CHECK_EVERY = 1.0
"""Seconds between two looks at the marks."""
TRY_EVERY = 0.2
"""The same while the store is down."""
MOMENT = 0.01
LONGEST_PAUSE = 0.05
"""Seconds that are left to those who enqueue, at the most, before more of what waits is drained."""


class Drainer:
    """Drains one journal into one store."""

    def __init__(self, journal: Journal, ledger: Ledger, desk: Desk, clock: Clock) -> None:
        self._journal = journal
        self._hauling = Hauling(journal.id.hex(), ledger, desk, clock)
        self._clock = clock
        self._reservations = Reservations(journal, clock, desk.chance)
        self._marks: list[int] = []
        self._away: dict[int, int] = {}
        """Strands that do not answer, and the sequence behind which they may lack jobs."""
        self._told_away = 0
        self._asking = Asking()
        self._poked = asyncio.Event()
        self._moved = asyncio.Condition()
        self._checked_at = -CHECK_EVERY
        self._found = self._seen = journal.last
        self._anxious = 0
        """How many want to know that replicas have their jobs."""
        self._unsure: set[int] = set()
        """Strands of which something was hauled that replicas may not have."""
        self._sure_upto = 0
        self._shortfall = ""
        self.met = asyncio.Event()
        """Set when it is known how far the store is."""
        self.up = True
        """Whether the store answers."""
        self.flows = True
        """Whether it takes jobs."""
        self.fault = ""
        """Why not, it or a part of it."""
        self.reached = journal.drained
        """Up to where the store has everything but what is for strands that are away."""
        journal.on_accepted = self._poked.set

    async def start(self) -> None:
        """Learn how far the store is; raises if it does not answer."""
        journal = self._journal
        await self._hauling.ready()
        self._marks = await self._all_marks()
        if (newest := max(self._marks)) > self._found:
            log.error("the store has jobs of this journal up to %d, the journal ended with %d", newest, self._found)
            await self._number_anew(newest)
        self._go_back(min(self._marks))
        self.met.set()
        if waiting := journal.last - journal.drained:
            log.info("%d jobs in the journal are to be drained", waiting)

    async def _number_anew(self, newest: int) -> None:
        """Numbers up to there are used: what was accepted under them before that was known is accepted once more."""
        journal = self._journal
        journal.skip(newest)
        while journal.last < newest:
            await self._clock.sleep(MOMENT)
        at = self._found
        while entries := [one for one in await journal.read(at, MOST_AT_ONCE) if one.sequence <= newest]:
            await journal.accept([one.draft for one in entries if one.draft is not None])
            at = entries[-1].sequence

    def do_without(self, fault: WindlassError) -> None:
        """The store was not there at the start: `run` finds out how far it is when it comes."""
        log.warning("new jobs are accepted, and nothing else until the store is there: %s", fault)
        self._is_down(fault)

    async def run(self) -> None:
        """Drain for ever."""
        while True:
            try:
                if not self.met.is_set():
                    await self.start()
                began = self._clock.monotonic()
                busy = await self._step()
                self._is_up()
                await self._give_way(began)
            except (WindlassError, OSError) as fault:
                self._is_down(fault)
                await self._clock.sleep(TRY_EVERY)
                continue
            except Exception as fault:
                log.exception("the journal cannot be drained")  # whatever it is, what is accepted must not be given up
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

    @contextmanager
    def anxious(self) -> Iterator[None]:
        """Somebody accepts jobs and wants to know that replicas have them: see `replicated`."""
        self._anxious += 1
        try:
            yield
        finally:
            self._anxious -= 1

    async def replicated(self, sequence: int, patience: float) -> None:
        """Until enough replicas have all up to a sequence; raises if that is not known in time."""
        within = patience + self._hauling.replicated_within
        await self.reach(sequence, within)
        if self._sure_upto >= sequence:
            return
        if not (self.up and self.flows):
            raise NotReplicated(f"only into the journal so far: {self.fault}")
        if self.reached < sequence:
            raise NotReplicated(f"only into the journal so far: the store has not taken it within {within:g} s")
        raise NotReplicated(self._shortfall)

    @property
    def behind(self) -> bool:
        """Whether the store lacks so much of what was accepted that what it says of its queues is not worth asking."""
        return self._journal.last - self.reached > MOST_AT_ONCE

    @property
    def some_away(self) -> bool:
        """Whether some strands take no jobs, though others do."""
        return bool(self._away)

    def is_away(self, draft: Draft) -> bool:
        """Whether a job is for a strand that takes none now, though others do."""
        return bool(self._away) and self._hauling.ledger.strand(draft) in self._away

    def lacks(self, entry: Entry) -> bool:
        """Whether the store does not have a job that is in the journal, as far as is known."""
        if not self._marks or entry.draft is None:
            return True
        return entry.sequence > self._marks[self._hauling.ledger.strand(entry.draft)]

    def may_have(self, sequence: int) -> bool:
        """Whether the store may have a job that is in the journal: nobody knows of old ones until it is there."""
        return not self.met.is_set() and sequence <= self._found

    def poke(self) -> None:
        """Somebody has reason to think that the store does not answer."""
        self._checked_at = -CHECK_EVERY
        self._poked.set()

    async def asked(self, first: int, last: int, within: float) -> list[int] | None:
        """Which of the jobs from one sequence to another the store had already; null = it cannot be said in time."""
        if not (self.up and self.flows) or first <= self.reached:
            return None
        return await self._asking.ask(first, last, within)

    async def reach(self, sequence: int, within: float) -> None:
        """Wait until the store has all up to a sequence, as long as it takes jobs at all, and not longer than that.

        What is for strands that are away is not waited for.
        """
        if self.reached >= sequence:
            return
        try:
            async with asyncio.timeout(within), self._moved:
                await self._moved.wait_for(lambda: self.reached >= sequence or not (self.up and self.flows))
        except TimeoutError:
            return

    # One step

    async def _step(self) -> bool:
        """Drain one batch; whether there was one. Now and then look whether the store still has everything."""
        if self._clock.monotonic() - self._checked_at >= CHECK_EVERY or not self.flows:
            await self._check()
        token = await self._reservations.reserve(MOST_AT_ONCE, 10 * ANSWER_WITHIN)
        if token is None:
            return False
        entries = self._reservations.read(token)
        await self._clock.sleep(0)  # whoever came while these were read is answered first
        try:
            drained = await self._drain(entries)
        except BaseException:
            self._reservations.cancel(token)
            raise
        if drained:
            self._reservations.commit(token)
            self.reached = entries[-1].sequence
            self._journal.forget(self._whole)
            await self._tell()
        return True

    @property
    def _whole(self) -> int:
        """Up to where all strands have everything."""
        return min((self.reached, *self._away.values()))

    async def _give_way(self, began: float) -> None:
        """While much waits and others come, they have as much of the time as the draining has."""
        others_came, self._seen = self._journal.last > self._seen, self._journal.last
        if others_came and self.behind:
            await self._clock.sleep(min(LONGEST_PAUSE, self._clock.monotonic() - began))

    async def _drain(self, entries: Sequence[Entry]) -> bool:
        upto = entries[-1].sequence
        created: dict[int, bool] = {}
        surely = self._anxious > 0 and self._hauling.can_be_sure
        for strand, some in self._by_strand(entries).items():
            try:
                haul = await self._hauling.carry(strand, self._marks[strand], upto, some, surely=surely)
            except PartAway as fault:
                self._leave_out(strand, fault)
                continue
            if haul.mark != upto:
                await self._differ()
                return False
            self._marks[strand] = upto
            self._note(strand, haul.shortfall)
            # None are told of if the mark was there already: then this batch was drained before, and the reply lost.
            created.update((entry.sequence, new) for entry, new in zip(some, haul.created, strict=False))
        if not self._unsure and not self._away:
            self._sure_upto = upto
        self._asking.answer(upto, created)
        return True

    def _leave_out(self, strand: int, fault: PartAway) -> None:
        self._away.setdefault(strand, self.reached)
        self.fault = self._shortfall = str(fault)

    def _note(self, strand: int, shortfall: str | None) -> None:
        """Whoever has the newest job of a strand has all of it."""
        if shortfall == "":
            self._unsure.discard(strand)
        else:
            self._unsure.add(strand)
            self._shortfall = shortfall or "nobody has asked the replicas"

    def _by_strand(self, entries: Sequence[Entry]) -> dict[int, list[Entry]]:
        """What each strand has not had yet. What no store will take is put aside."""
        strands: dict[int, list[Entry]] = {}
        strand_of = self._hauling.ledger.strand
        for entry in entries:
            if entry.draft is None:
                if entry.raw:
                    self._journal.reject(entry)
                continue
            strand = strand_of(entry.draft)
            # What a strand lacks that was away goes before anything newer: only `_check` lets it be hauled to again.
            if strand not in self._away and entry.sequence > self._marks[strand]:
                strands.setdefault(strand, []).append(entry)
        return strands

    async def _check(self) -> None:
        """Whether all marks are where we left them; idle ones are brought up to date, and those back that were away."""
        self._checked_at = self._clock.monotonic()
        drained = self._journal.drained
        back: list[int] = []
        for strand, mark in enumerate(self._marks):
            upto = mark if strand in self._away else max(mark, drained)
            try:
                found = await self._hauling.move(strand, mark, upto)
            except PartAway as fault:
                self._leave_out(strand, fault)
                continue
            if found != upto:
                await self._differ()
                return
            self._marks[strand] = found
            if strand in self._away:
                back.append(strand)
        if back:
            self._read_again(min(self._away.pop(strand) for strand in back))
        self._journal.forget(self._whole if self._away else drained)

    def _read_again(self, after: int) -> None:
        """For strands that lack what is behind a sequence."""
        self.reached = min(self.reached, after)
        self._reservations.rewind(self.reached)

    async def _differ(self) -> None:
        """A mark is not where we left it. Further on: a reply was lost. Further back: the store has lost jobs."""
        before, self._marks = self._marks, await self._all_marks(self._marks)
        back = [(old, new) for old, new in zip(before, self._marks, strict=True) if new < old]
        if back:
            old, new = min(back, key=lambda pair: pair[1])
            log.warning("the store has gone back from %d to %d: it is given what it lost again", old, new)
        self._go_back(min(self._marks))
        self._away = dict.fromkeys(self._away, self.reached)

    async def _all_marks(self, known: Sequence[int] = ()) -> list[int]:
        """Where they are; those of strands that are away, where they were known to be."""
        marks: list[int] = []
        for strand in range(self._hauling.ledger.strands):
            try:
                marks.append(await self._hauling.mark(strand))
            except PartAway as fault:
                if not known:
                    raise
                self._leave_out(strand, fault)
                marks.append(known[strand])
            else:
                self._away.pop(strand, None)
        return marks

    def _go_back(self, to: int) -> None:
        start = self._journal.rewind(min(to, self._journal.last))
        self._sure_upto = min(self._sure_upto, start)
        self.reached = start
        if start > to:
            log.error("the journal does not have jobs %d to %d any more: they may be lost", to + 1, start)
        self._reservations.rewind(start)

    # Who waits

    async def _tell(self) -> None:
        async with self._moved:
            self._moved.notify_all()

    async def _rest(self) -> None:
        try:
            async with asyncio.timeout(CHECK_EVERY):
                await self._poked.wait()
        except TimeoutError:
            pass
        self._poked.clear()

    def _is_up(self) -> None:
        if not (self.up and self.flows):
            log.info("the store is back; %d jobs are to be drained", self._journal.last - self.reached)
        self.up = self.flows = True
        if len(self._away) != self._told_away:
            self._tell_away()

    def _tell_away(self) -> None:
        self._told_away = len(self._away)
        if self._away:
            parts = f"{len(self._away)} of {len(self._marks)} parts of the store"
            log.warning("jobs for %s stay in the journal: %s", parts, self.fault)
        else:
            log.info("all parts of the store are back; %d jobs are looked through", self._journal.last - self.reached)

    def _is_down(self, fault: Exception) -> None:
        if self.up and self.flows and self.met.is_set():
            log.warning("jobs stay in the journal: %s", fault)
        self.flows, self.fault = False, str(fault)
        self.up = isinstance(fault, Full)
        self._asking.give_up(fault)
