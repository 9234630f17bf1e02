"""The engine with a journal in front of it: accepts new jobs into the journal first, and answers everything else.

With the store up, a job under an id that we make is answered as soon as the journal has it. A job that comes with its
own id or key is answered when the store has it too, because only the store knows whether it is new. A read that follows
finds the job: it waits until the store has what was accepted before. With the store down, new jobs are still accepted,
a job that is only in the journal is shown with the reason `accepted`, and everything else is refused at once.

A folder holds several journals, one for each process that writes. A process takes the first free one, and drains those
that ended processes have left. Must not know how a journal is stored.
"""

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from datetime import datetime
from operator import attrgetter
from pathlib import Path
from typing import Any, cast

from msgspec import Raw
from msgspec.structs import asdict, replace

from windlass.engine import Engine
from windlass.engine.context import no_job
from windlass.engine.engine import validated
from windlass.engine.estimate.answers import NOT_KNOWN, estimate_at_enqueue, estimate_unstored
from windlass.engine.estimate.forecast import forecast_in_time
from windlass.engine.estimate.stats import Forecast
from windlass.engine.files import check_lines, with_files, with_files_of_many
from windlass.engine.flow.config import FlowConfig
from windlass.engine.journal.batch import Entry
from windlass.engine.journal.drain import Drainer
from windlass.engine.journal.file import volatile_file_system
from windlass.engine.journal.journal import Journal, JournalSettings
from windlass.engine.new_jobs import (
    JobBatch,
    check_terms,
    checked_parts,
    first_draft,
    job_log,
    log_entered,
    name_accepted,
    name_unreplicated,
    payloads_of,
    to_batch,
    to_drafts,
)
from windlass.model.errors import Conflict, Invalid, JournalFull, PartAway, Unavailable, WindlassError
from windlass.model.estimate import Estimate
from windlass.model.events import Event
from windlass.model.health import Health, JournalHealth
from windlass.model.job import Job, Reason
from windlass.model.lifecycle import enter
from windlass.model.match import Match
from windlass.model.names import EVERY_TENANT, ID_SIZE, JobKey, check_id, key_of, texts_like
from windlass.model.new_job import JobOptions, NewJob, Terms
from windlass.model.operations import (
    A,
    Accepted,
    BatchProgress,
    Cancel,
    Count,
    Delete,
    Edit,
    Enqueue,
    Enqueued,
    EnqueueLines,
    EnqueueMany,
    FailByHand,
    Failures,
    FinishByHand,
    GetEstimate,
    GetFile,
    GetFiles,
    GetHealth,
    GetOutput,
    GetProgress,
    GetQueueEstimate,
    GetResult,
    GetStats,
    GetSteps,
    List,
    LowerTimeout,
    Operation,
    Rerun,
    Resize,
    Result,
    Send,
    SendSignal,
    Show,
)
from windlass.model.ports import Clock
from windlass.store.data import Draft, Record
from windlass.store.encoding import from_micros
from windlass.store.optional import JournalTarget

log = logging.getLogger("windlass.journal")

OF_STORED_JOBS = (
    *(Show, GetResult, GetEstimate, GetQueueEstimate, GetOutput, GetFiles, GetFile, GetSteps),
    *(List, Failures, Count, GetStats, Send, Resize, SendSignal),
    *(Edit, Cancel, Rerun, Delete, FinishByHand, FailByHand, LowerTimeout),
)
"""Operations on jobs: those that were accepted before must be there."""

WAIT_FOR_STORE = 1.0
"""Seconds that a caller who reads, or asks whether his job is new, waits for the store to take what came before."""

LOOK_AGAIN = 0.1

MOST_READ = 16_384
"""Bytes of a payload that is decoded for an estimate alone."""

MOST_JOURNALS = 256
"""Processes that may write to one folder at once."""

TRY_LEFT_EVERY = 1.0
"""Seconds between two tries to drain what ended processes have left."""

LAST_DRAIN = 2.0
"""Seconds in which a process that ends drains what it has accepted."""


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
            case Enqueue() | EnqueueMany() | EnqueueLines() if _needs_store(operation):
                answer = await self._ask_at_once(operation)
            case Enqueue():
                answer = await self._enqueue(validated(operation))
            case EnqueueMany():
                answer = await self._enqueue_many(validated(operation))
            case EnqueueLines():
                answer = await self._enqueue_lines(validated(operation))
            case Show() | GetResult() if not self._drainer.flows or self._drainer.some_away:
                answer = await self._look(operation)
            case GetProgress():
                answer = await self._progress(operation)
            case GetHealth():
                answer = await self._health(validated(operation))
            case _:
                answer = await self._ask(operation)
        return cast("A", answer)

    def watch(self, tenant: str, match: Match) -> AsyncGenerator[Event, None]:
        return self._engine.watch(tenant, match)

    def follow_job(self, tenant: str, id: str, since: str = "") -> AsyncGenerator[Event, None]:
        return self._engine.follow_job(tenant, id, since)

    async def check_ready(self) -> None:
        """Raise what keeps it from accepting new jobs or showing them."""
        await self._journal.check_writable()
        await self(GetStats(tenant="default"))

    async def met(self) -> None:
        """Until the store has answered once."""
        await self._drainer.met.wait()

    # New jobs

    async def _enqueue(self, operation: Enqueue) -> Accepted:
        operation = await self._with_files(operation)
        drafts = to_drafts(self._engine.context, operation)
        await self._check_terms(drafts, "job")
        draft = drafts[0]
        config = await self._flow_config()
        exact = config is not None and config.has_tiers(draft.tenant, draft.new.queue)
        known = None
        if self._takes(draft) and not exact:
            known = await forecast_in_time(self._engine.context, draft.new.queue, ask=not self._drainer.behind)
        existing = await self._accept(drafts, named=_is_own(operation.job))
        _log_entered(drafts, existing)
        if not existing:
            accepted = self._accepted(draft, created=True)
            found = await self._estimate(draft, accepted, _group(config, draft), known, exact=exact)
            return replace(accepted, estimate=found.seconds, estimate_at_most=found.at_most)
        entry = await self._find(key_of(draft))
        if entry is None or entry.draft is None:
            job = (await self._engine.context.find(draft.id, operation.tenant)).job
            return Accepted(**asdict(job), created=False)
        return self._accepted(entry.draft, created=False)

    async def _find(self, key: JobKey) -> Entry | None:
        """A job that the store does not have yet."""
        entry = await self._journal.find(key)
        return entry if entry is not None and self._drainer.lacks(entry) else None

    def _takes(self, draft: Draft) -> bool:
        """Whether the store takes such a job now."""
        return self._drainer.flows and not self._drainer.is_away(draft)

    async def _enqueue_many(self, operation: EnqueueMany) -> Enqueued:
        ids: list[str] = []
        existing: list[str] = []
        created = 0
        operation = await self._with_files_of_many(operation)
        for drafts in await checked_parts(self._engine.context, operation, self._check_terms):
            some = [draft.id for draft in drafts]
            async with name_accepted(ids, some):
                there = await self._accept(drafts, named=any(_is_own(one.new) for one in drafts)) if drafts else []
            _log_entered(drafts, there)
            ids += some
            existing += there
            created += len(set(some)) - len(there)
        return Enqueued(ids=ids, created=created, existing=existing)

    async def _enqueue_lines(self, operation: EnqueueLines) -> Enqueued:
        lines = to_batch(self._engine.context, operation)
        if not lines:
            return Enqueued(ids=[], created=0)
        await self._check_lines(lines)
        await self._check_terms([first_draft(lines)], "options")

        def ids() -> list[str]:
            return texts_like(lines.ids[:ID_SIZE], len(lines))

        await self._accept_unnamed(lines, ids)
        if job_log.isEnabledFor(logging.DEBUG):
            for id in ids():
                log_entered(id, lines.common.task, created=True)
        return Enqueued(ids=ids(), created=len(lines))

    # While the store is down, the bounds of queues are not known if they were not read before: then those of the server
    # hold. Files that were sent before are in the store, so a job that names them has to wait for it.

    async def _with_files(self, operation: Enqueue) -> Enqueue:
        try:
            return await with_files(self._engine.context, operation)
        except Unavailable:
            if operation.job.hashes:
                raise
            return operation

    async def _with_files_of_many(self, operation: EnqueueMany) -> EnqueueMany:
        try:
            return await with_files_of_many(self._engine.context, operation)
        except Unavailable:
            if any(new.hashes for new in operation.jobs):
                raise
            return operation

    async def _check_lines(self, lines: JobBatch) -> None:
        with suppress(Unavailable):
            await check_lines(self._engine.context, lines.tenant, lines.common.queue, payloads_of(lines))

    async def _check_terms(self, drafts: Sequence[Draft], at: str) -> None:
        """Check what depends on settings in the store. While it is down any tier is accepted."""
        with suppress(Unavailable):
            await check_terms(self._engine.context, drafts, at)

    async def _accept(self, drafts: Sequence[Draft], *, named: bool) -> list[str]:
        """Keep jobs in the journal; the ids of those that were there already, as far as is known."""
        if not named:
            await self._accept_unnamed(drafts, lambda: [draft.id for draft in drafts])
            return []
        keys = {key_of(draft) for draft in drafts}
        while others := [self._being_accepted[key] for key in keys if key in self._being_accepted]:
            await asyncio.wait(others)
        known = {key: entry for key in keys if (entry := await self._find(key)) is not None}
        if known:
            await self._wait_for_replicas(
                max(one.sequence for one in known.values()), lambda: [key.id for key in known]
            )
        fresh = [draft for draft in _once(drafts) if key_of(draft) not in known]
        if not fresh:
            return [key.id for key in known]
        with self._drainer.waiting_for_replicas():
            last = await self._accept_named(fresh)
            first = last - len(fresh) + 1
            existing = await self._drainer.existing(first, last, WAIT_FOR_STORE) or []
            await self._wait_for_replicas(last, lambda: [draft.id for draft in fresh])
        return [*(key.id for key in known), *(fresh[sequence - first].id for sequence in existing)]

    async def _accept_named(self, drafts: Sequence[Draft]) -> int:
        """Accept jobs under their callers' ids. Callers that send the same id meanwhile wait until it is known here."""
        known: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        for draft in drafts:
            self._being_accepted[key_of(draft)] = known
        try:
            return await self._journal.accept(drafts)
        finally:
            known.set_result(None)
            for draft in drafts:
                del self._being_accepted[key_of(draft)]

    async def _accept_unnamed(self, jobs: Sequence[Draft] | JobBatch, ids: Callable[[], Sequence[str]]) -> None:
        """Accept jobs, and where replicas must have them too, wait for that."""
        if not self._drainer.has_replicas:
            await self._journal.accept(jobs)
            return
        with self._drainer.waiting_for_replicas():
            await self._wait_for_replicas(await self._journal.accept(jobs), ids)

    async def _wait_for_replicas(self, last: int, ids: Callable[[], Sequence[str]]) -> None:
        if self._drainer.has_replicas:
            with name_unreplicated(ids()):
                await self._drainer.wait_for_replicas(last, WAIT_FOR_STORE)

    def _accepted(self, draft: Draft, *, created: bool) -> Accepted:
        reason = None if self._takes(draft) else Reason.ACCEPTED
        return Accepted(**_known(draft, self._clock.now()), reason=reason, created=created)

    async def _flow_config(self) -> FlowConfig | None:
        """The limits in force; null = the store does not answer."""
        if not self._drainer.flows:
            return None
        try:
            return await self._engine.context.flow_config.current()
        except WindlassError:
            return None

    async def _estimate(self, draft: Draft, job: Job, group: str, known: Forecast | None, *, exact: bool) -> Estimate:
        """How long a new job will wait. Where its queue has tiers, the caller waits for the store's answer."""
        context = self._engine.context
        if not self._takes(draft):
            return NOT_KNOWN
        if not exact:
            before = self._journal.last - self._drainer.reached - 1
            return estimate_unstored(context, known, Record(job, group=group), undrained=before)
        try:
            await self._drainer.reach(self._journal.last, WAIT_FOR_STORE)
            return await estimate_at_enqueue(context, await context.find(job.id, job.tenant))
        except WindlassError:
            return NOT_KNOWN  # the job is accepted all the same

    # Everything else

    async def _ask_at_once(self, operation: Operation[A]) -> A:
        """Only the store knows whether yielding jobs can start at once, and whether unique jobs are the only ones."""
        if not self._drainer.up:
            raise Unavailable(
                f"{self._drainer.fault}; only the store can say whether a yielding or unique job is taken: "
                "try again later"
            )
        return await self._engine(operation)

    async def _health(self, operation: GetHealth) -> Health:
        health = await self._engine(operation) if self._drainer.up else Health()
        if operation.tenant != EVERY_TENANT:
            return health
        waiting = await self._journal.count(self._journal.drained)
        all_there = self._drainer.up and self._drainer.flows and not self._drainer.some_away
        return replace(health, journal=JournalHealth(waiting=waiting, fault="" if all_there else self._drainer.fault))

    async def _ask(self, operation: Operation[A]) -> A:
        if not self._drainer.up:
            raise Unavailable(f"{self._drainer.fault}; new jobs are accepted meanwhile")
        if isinstance(operation, OF_STORED_JOBS):
            await self._drainer.reach(self._journal.last, WAIT_FOR_STORE)
        try:
            return await self._engine(operation)
        except PartAway:
            raise
        except Unavailable:
            self._drainer.check_soon()
            raise

    async def _look(self, operation: Show | GetResult) -> Job | Result:
        """A job while the store, or a part of it, takes none. A caller that waits for its end waits for the store."""
        check_id(operation.id)
        until = self._clock.monotonic() + operation.wait
        while (not self._drainer.flows or await self._held_up(operation)) and self._clock.monotonic() < until:
            await self._clock.sleep(LOOK_AGAIN)
        entry = await self._held_up(operation)
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

    async def _progress(self, operation: GetProgress) -> BatchProgress:
        """Only once the store has all that was accepted before: a job that it lacks would count as gone."""
        last, until = self._journal.last, self._clock.monotonic() + max(operation.wait, WAIT_FOR_STORE)
        while self._drainer.reached < last:
            remaining = until - self._clock.monotonic()
            if remaining <= 0:
                raise Unavailable("the store does not have all accepted jobs yet: ask again")
            await self._drainer.reach(last, min(remaining, LOOK_AGAIN))
            if not self._drainer.flows:
                await self._clock.sleep(LOOK_AGAIN)
        remaining = max(0.0, until - self._clock.monotonic()) if operation.wait else 0.0
        return await self._ask(replace(operation, wait=min(operation.wait, remaining)))

    async def _held_up(self, operation: Show | GetResult) -> Entry | None:
        """A job that the store, or the part of it that the job is for, does not take now."""
        if self._drainer.flows and not self._drainer.some_away:
            return None
        entry = await self._journal.find(key_of(operation))
        if entry is None or not self._drainer.flows:
            return entry
        late = entry.draft is not None and self._drainer.is_away(entry.draft) and self._drainer.lacks(entry)
        return entry if late else None


def _log_entered(drafts: Sequence[Draft], existing: Sequence[str]) -> None:
    if job_log.isEnabledFor(logging.DEBUG):
        for draft in drafts:
            log_entered(draft.id, draft.new.task, created=draft.id not in existing)


def _needs_store(operation: Enqueue | EnqueueMany | EnqueueLines) -> bool:
    """Whether it brings jobs of which only the store knows whether they are taken."""
    match operation:
        case Enqueue():
            return _is_conditional(operation.job)
        case EnqueueMany():
            return any(map(_is_conditional, operation.jobs))
        case EnqueueLines():
            return _is_conditional(operation.options)


def _is_conditional(options: JobOptions) -> bool:
    return options.yielding or options.unique is not None


def _is_own(new: NewJob) -> bool:
    """Whether its caller has named it."""
    return new.id is not None or new.key is not None


def _group(config: FlowConfig | None, draft: Draft) -> str:
    """The limit keys of a new job, if they can be had quickly."""
    if config is None or not config.rules.version:
        return ""
    new = draft.new
    if len(memoryview(new.payload)) > MOST_READ and config.needs_payload(draft.tenant, new.queue, new.task):
        return ""
    return config.group(draft.tenant, new, bytes(new.payload))


def _once(drafts: Sequence[Draft]) -> list[Draft]:
    """The first of each id."""
    return list({draft.id: draft for draft in reversed(drafts)}.values())[::-1]


def accepted_job(entry: Entry) -> Job | None:
    """A job that is only in the journal; null if it cannot be read."""
    if entry.draft is None:
        return None
    return Job(**_known(entry.draft, from_micros(entry.accepted_at)), reason=Reason.ACCEPTED)


_TERMS = Terms.__struct_fields__
_terms = attrgetter(*_TERMS)


def _known(draft: Draft, now: datetime) -> dict[str, Any]:
    """The job that a draft becomes, as far as is known before the store has it."""
    new = draft.new
    state, run_at = enter(new, now)
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


# Opening


def _target(engine: Engine) -> JournalTarget:
    if engine.context.store.journal is None:
        raise Invalid("this store takes no journal: a journal stands in front of Redis", at="journal")
    return engine.context.store.journal


@asynccontextmanager
async def open_journaled(
    engine: Engine, folder: Path, clock: Clock, settings: JournalSettings | None = None
) -> AsyncIterator[Journaled]:
    """An engine with a journal in front of it, drained until the end."""
    target = _target(engine)

    def journal_at(path: Path) -> Journal:
        return Journal(path, clock, engine.context.chance, settings or JournalSettings())

    if kind := await asyncio.to_thread(volatile_file_system, folder):
        log.warning("journal: %s is on a %s: it does not outlast the machine or its container", folder, kind)
    own, left = await asyncio.to_thread(_take, folder, journal_at)
    try:
        drainer = Drainer(own, target, engine.context, clock)
        try:
            await drainer.start()
        except (Unavailable, JournalFull) as fault:
            drainer.start_without_store(fault)
        tasks = [asyncio.create_task(drainer.run())]
        tasks += [
            asyncio.create_task(_drain_left(Drainer(one, target, engine.context, clock), one, clock)) for one in left
        ]
        try:
            yield Journaled(engine, own, drainer, clock)
        finally:
            await drainer.reach(own.last, LAST_DRAIN)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
    finally:
        for journal in (own, *left):
            await journal.close()


def _take(folder: Path, journal_at: Callable[[Path], Journal]) -> tuple[Journal, list[Journal]]:
    """The first journal of a folder that is free, and the others that are."""
    known = [name for name in _names(folder) if name.isdigit()]
    free: list[Journal] = []
    fault = f"{MOST_JOURNALS} processes write there"
    for name in sorted({*known, *(str(number) for number in range(len(known) + 1))}, key=int)[:MOST_JOURNALS]:
        if free and name not in known:
            break
        journal = journal_at(folder / name)
        try:
            if journal.open():
                free.append(journal)
        except (OSError, JournalFull, Unavailable) as refused:
            fault = (refused.strerror if isinstance(refused, OSError) else None) or str(refused)
            log.warning("journal: %s cannot be opened and is left as it is: %s", journal.folder, fault)
    if not free:
        raise JournalFull(f"no journal can be kept in {folder}: {fault}")
    return free[0], free[1:]


def _names(folder: Path) -> list[str]:
    try:
        return [path.name for path in folder.iterdir()] if folder.exists() else []
    except OSError as fault:
        raise JournalFull(f"no journal can be kept in {folder}: {fault.strerror or fault}") from fault


async def drain_folder(engine: Engine, path: Path, clock: Clock) -> int:
    """Drain one journal that no process holds; how many of its jobs were not in the store yet."""
    journal = Journal(path, clock, engine.context.chance, JournalSettings())
    if not await asyncio.to_thread(journal.open):
        raise Conflict(f"{path} is held by another process, which drains it", at="FOLDER")
    try:
        drainer = Drainer(journal, _target(engine), engine.context, clock)
        await drainer.start()
        waiting = await journal.count(journal.drained)
        await drainer.drain()
        return waiting
    finally:
        await journal.close()


async def _drain_left(drainer: Drainer, journal: Journal, clock: Clock) -> None:
    """Drain a journal whose process has ended, and free it for the next process."""
    while True:
        try:
            await drainer.start()
            await drainer.drain()
        except Exception as fault:  # noqa: BLE001 - whatever it is, accepted jobs must not be given up
            log.warning("journal: %s cannot be drained yet: %s", journal.folder, fault)
            await clock.sleep(TRY_LEFT_EVERY)
        else:
            await journal.close()
            return
