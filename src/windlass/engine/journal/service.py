"""A service in front of the engine that accepts new jobs into a journal first.

With the store up, a job under an id that we make is answered as soon as the journal has it; one that comes with an id
or key of its own is answered when the store has it too, for only the store knows whether it is new. Whoever looks
afterwards finds it: looking waits until the store has what was accepted before.

With the store down, new jobs are still accepted, a job that is only in the journal is shown with the reason `accepted`,
and everything else is refused at once.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from datetime import datetime
from operator import attrgetter
from typing import Any, cast

from msgspec import Raw
from msgspec.structs import asdict, replace

from windlass.engine import Engine
from windlass.engine.desk import no_job
from windlass.engine.drafts import check_terms, checked_parts, drafts_of, lines_of
from windlass.engine.estimates import at_the_door, before_the_door, through_the_door
from windlass.engine.following import life, log_entered
from windlass.engine.journal.drainer import Drainer
from windlass.engine.journal.journal import Journal
from windlass.engine.journal.runs import Entry
from windlass.engine.lines import Lines, sample_of
from windlass.engine.regime import Regime
from windlass.engine.sound import sound
from windlass.engine.sureness import accepted_all, taking
from windlass.model.errors import PartAway, Unavailable, WindlassError
from windlass.model.fresh_ids import SIZE, texts_like
from windlass.model.job import Job, Reason, State, Terms
from windlass.model.names import JobKey, check_id, key_of
from windlass.model.operations import (
    A,
    Accepted,
    Cancel,
    Count,
    Delete,
    Enqueue,
    Enqueued,
    EnqueueLines,
    EnqueueMany,
    GetEstimate,
    GetOutput,
    GetQueueEstimate,
    GetResult,
    GetStats,
    List,
    Operation,
    Result,
    Retry,
    Send,
    Show,
)
from windlass.model.ports import Clock
from windlass.store import Draft, Record
from windlass.store.micros import from_micros

LOOKING = (
    *(Show, GetResult, GetEstimate, GetQueueEstimate, GetOutput),
    *(List, Count, GetStats, Send, Cancel, Retry, Delete),
)
"""What is asked about jobs: those that were accepted before must be there."""

PATIENCE = 1.0
"""Seconds that whoever looks, or wants to know whether his job is new, waits for the store to take what came before."""

LOOK_AGAIN = 0.1

MOST_READ = 16_384
"""Bytes of a payload that is looked into for the sake of an estimate alone."""


class Journaled:
    """An engine with a journal in front of it."""

    def __init__(self, engine: Engine, journal: Journal, drainer: Drainer, clock: Clock) -> None:
        self._engine = engine
        self._journal = journal
        self._drainer = drainer
        self._clock = clock
        self._being_accepted: dict[JobKey, asyncio.Future[None]] = {}

    async def __call__(self, operation: Operation[A], /) -> A:
        answer: Any
        match operation:
            case Enqueue():
                answer = await self._enqueue(sound(operation))
            case EnqueueMany():
                answer = await self._enqueue_many(sound(operation))
            case EnqueueLines():
                answer = await self._enqueue_lines(sound(operation))
            case Show() | GetResult() if not self._drainer.flows or self._drainer.some_away:
                answer = await self._look(operation)
            case _:
                answer = await self._ask(operation)
        return cast("A", answer)

    async def check_ready(self) -> None:
        """Raise what keeps it from taking new jobs and telling of them."""
        self._journal.check_room()
        await self(GetStats(tenant="default"))

    async def met(self) -> None:
        """Until the store has been there."""
        await self._drainer.met.wait()

    # New jobs

    async def _enqueue(self, operation: Enqueue) -> Accepted:
        drafts = drafts_of(self._engine.desk, operation)
        await self._check_terms(drafts, "job")
        draft = drafts[0]
        regime = await self._regime()
        exact = regime is not None and regime.has_tiers(draft.tenant, draft.new.queue)
        if self._takes(draft) and not exact:
            await before_the_door(self._engine.desk, draft.new.queue, ask=not self._drainer.behind)
        existing = await self._accept(drafts, named=_is_named(operation))
        _log_entered(drafts, existing)
        if not existing:
            accepted = self._accepted(draft, created=True)
            estimate = await self._estimate(draft, accepted, _group(regime, draft), exact=exact)
            return accepted if estimate is None else replace(accepted, estimate=estimate)
        entry = self._find(key_of(draft))
        if entry is None or entry.draft is None:
            job = (await self._engine.desk.find(draft.id, operation.tenant)).job
            return Accepted(**asdict(job), created=False)
        return self._accepted(entry.draft, created=False)

    def _find(self, key: JobKey) -> Entry | None:
        """A job that the store does not have yet."""
        entry = self._journal.find(key)
        return entry if entry is not None and self._drainer.lacks(entry) else None

    def _takes(self, draft: Draft) -> bool:
        """Whether the store takes such a job now."""
        return self._drainer.flows and not self._drainer.is_away(draft)

    async def _enqueue_many(self, operation: EnqueueMany) -> Enqueued:
        ids: list[str] = []
        existing: list[str] = []
        created = 0
        for drafts in await checked_parts(self._engine.desk, operation, self._check_terms):
            some = [draft.id for draft in drafts]
            async with taking(ids, some):
                there = await self._accept(drafts, named=any(_is_own(one.new) for one in drafts)) if drafts else []
            _log_entered(drafts, there)
            ids += some
            existing += there
            created += len(set(some)) - len(there)
        return Enqueued(ids=ids, created=created, existing=existing)

    async def _enqueue_lines(self, operation: EnqueueLines) -> Enqueued:
        lines = lines_of(self._engine.desk, operation)
        if not lines:
            return Enqueued(ids=[], created=0)
        await self._check_terms([sample_of(lines)], "wishes")

        def ids() -> list[str]:
            return texts_like(lines.ids[:SIZE], len(lines))

        await self._keep(lines, ids)
        if life.isEnabledFor(logging.DEBUG):
            for id in ids():
                log_entered(id, lines.common.task, created=True)
        return Enqueued(ids=ids(), created=len(lines))

    async def _check_terms(self, drafts: Sequence[Draft], at: str) -> None:
        """Check what depends on the rules. While the store is down nobody knows them: a tier is taken as it comes then,
        but a job that must start at once is refused.
        """
        try:
            await check_terms(self._engine.desk, drafts, at)
        except Unavailable:
            if any(draft.new.yielding for draft in drafts):
                raise

    async def _accept(self, drafts: Sequence[Draft], *, named: bool) -> list[str]:
        """Keep jobs in the journal; the ids of those that were there already, as far as is known."""
        if not named:
            await self._keep(drafts, lambda: [draft.id for draft in drafts])
            return []
        keys = {key_of(draft) for draft in drafts}
        while others := [self._being_accepted[key] for key in keys if key in self._being_accepted]:
            await asyncio.wait(others)
        known = {key: entry for key in keys if (entry := self._find(key)) is not None}
        if known:
            await self._replicated(max(one.sequence for one in known.values()), lambda: [key.id for key in known])
        fresh = [draft for draft in _once(drafts) if key_of(draft) not in known]
        if not fresh:
            return [key.id for key in known]
        with self._drainer.anxious():
            last = await self._kept(fresh)
            first = last - len(fresh) + 1
            existing = await self._drainer.asked(first, last, PATIENCE) or []
            await self._replicated(last, lambda: [draft.id for draft in fresh])
        return [*(key.id for key in known), *(fresh[sequence - first].id for sequence in existing)]

    async def _kept(self, drafts: Sequence[Draft]) -> int:
        """Accept jobs under ids of others; whoever sends the same id meanwhile waits until it is known here."""
        known: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        for draft in drafts:
            self._being_accepted[key_of(draft)] = known
        try:
            return await self._journal.accept(drafts)
        finally:
            known.set_result(None)
            for draft in drafts:
                del self._being_accepted[key_of(draft)]

    async def _keep(self, jobs: Sequence[Draft] | Lines, ids: Callable[[], Sequence[str]]) -> None:
        """Accept jobs, and where replicas must have them too, wait for that."""
        if self._engine.desk.sure is None:
            await self._journal.accept(jobs)
            return
        with self._drainer.anxious():
            await self._replicated(await self._journal.accept(jobs), ids)

    async def _replicated(self, last: int, ids: Callable[[], Sequence[str]]) -> None:
        if self._engine.desk.sure is not None:
            with accepted_all(ids()):
                await self._drainer.replicated(last, PATIENCE)

    def _accepted(self, draft: Draft, *, created: bool) -> Accepted:
        reason = None if self._takes(draft) else Reason.ACCEPTED
        return Accepted(**_known(draft, self._clock.now()), reason=reason, created=created)

    async def _regime(self) -> Regime | None:
        """What is in force; null = the store does not say."""
        if not self._drainer.flows:
            return None
        try:
            return await self._engine.desk.regimes.current()
        except WindlassError:
            return None

    async def _estimate(self, draft: Draft, job: Job, group: str, *, exact: bool) -> float | None:
        """Seconds that a new job will wait. Where its queue has tiers, whoever sends it waits for the answer."""
        desk = self._engine.desk
        if not self._takes(draft):
            return None
        if not exact:
            before = self._journal.last - self._drainer.reached - 1
            return through_the_door(desk, Record(job, group=group), undrained=before)
        try:
            await self._drainer.reach(self._journal.last, PATIENCE)
            return await at_the_door(desk, await desk.find(job.id, job.tenant))
        except WindlassError:
            return None  # it is accepted, whoever can say how long it waits

    # Everything else

    async def _ask(self, operation: Operation[A]) -> A:
        if not self._drainer.up:
            raise Unavailable(f"{self._drainer.fault}; new jobs are accepted meanwhile")
        if isinstance(operation, LOOKING):
            await self._drainer.reach(self._journal.last, PATIENCE)
        try:
            return await self._engine(operation)
        except PartAway:
            raise
        except Unavailable:
            self._drainer.poke()
            raise

    async def _look(self, operation: Show | GetResult) -> Job | Result:
        """A job while the store, or a part of it, takes none. Whoever would wait for its end waits for the store."""
        check_id(operation.id)
        until = self._clock.monotonic() + operation.wait
        while (not self._drainer.flows or self._held_up(operation)) and self._clock.monotonic() < until:
            await self._clock.sleep(LOOK_AGAIN)
        entry = self._held_up(operation)
        if entry is None or self._drainer.may_have(entry.sequence):
            return cast("Job | Result", await self._ask(operation))
        job = accepted_job(entry)
        if job is None:
            raise no_job(operation.id)
        if isinstance(operation, GetResult):
            return Result(state=job.state)
        if operation.payload and entry.draft is not None:
            return replace(job, payload=Raw(bytes(entry.draft.new.payload)))
        return job

    def _held_up(self, operation: Show | GetResult) -> Entry | None:
        """A job that the store, or the part of it that it is for, does not take now."""
        if self._drainer.flows and not self._drainer.some_away:
            return None
        entry = self._journal.find(key_of(operation))
        if entry is None or not self._drainer.flows:
            return entry
        late = entry.draft is not None and self._drainer.is_away(entry.draft) and self._drainer.lacks(entry)
        return entry if late else None


def _log_entered(drafts: Sequence[Draft], existing: Sequence[str]) -> None:
    if life.isEnabledFor(logging.DEBUG):
        for draft in drafts:
            log_entered(draft.id, draft.new.task, created=draft.id not in existing)


def _is_named(operation: Enqueue) -> bool:
    return operation.job.id is not None or operation.job.key is not None


def _is_own(new: Any) -> bool:
    return new.id is not None or new.key is not None


def _group(regime: Regime | None, draft: Draft) -> str:
    """What will bound a job, as far as that is quickly said."""
    if regime is None or not regime.rules.edition:
        return ""
    new = draft.new
    if len(memoryview(new.payload)) > MOST_READ and regime.needs_payload(draft.tenant, new.queue, new.task):
        return ""
    return regime.group(draft.tenant, new, bytes(new.payload))


def _once(drafts: Sequence[Draft]) -> list[Draft]:
    """The first of each id."""
    return list({draft.id: draft for draft in reversed(drafts)}.values())[::-1]


def accepted_job(entry: Entry) -> Job | None:
    """A job that is only in the journal; null if it cannot be read."""
    if entry.draft is None:
        return None
    return Job(**_known(entry.draft, from_micros(entry.accepted)), reason=Reason.ACCEPTED)


_TERMS = Terms.__struct_fields__
_terms = attrgetter(*_TERMS)


def _known(draft: Draft, now: datetime) -> dict[str, Any]:
    """The job that a draft becomes, as far as is known before the store has it."""
    new = draft.new
    run_at = new.run_at
    if new.delay is not None:
        run_at = from_micros(round((now.timestamp() + new.delay) * 1_000_000))
    state = State.QUEUED
    if new.after:
        state, run_at = State.BLOCKED, None
    elif run_at is not None:
        state, run_at = (State.SCHEDULED, run_at) if run_at > now else (State.QUEUED, None)
    return {
        **dict(zip(_TERMS, _terms(new), strict=True)),
        "id": draft.id,
        "tenant": draft.tenant,
        "state": state,
        "waits_for": new.after,
        "created_at": now,
        "updated_at": now,
        "run_at": run_at,
        "size": len(memoryview(new.payload)),
    }
