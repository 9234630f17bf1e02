"""Schedules: their records, and the duty that makes the jobs of their ticks.

Every process with an engine computes the ticks and makes their jobs; there is no leader. The key of a tick's job is
made of the schedule and the tick, so it is one job whichever process makes it, and however often. What a schedule is
(`SCHEDULES`) and how far its ticks are decided (`STATES`) are two records. A process reads the schedules once, and
again when `CHANGES` says that they changed; a tick costs what is due, however many schedules there are.
"""

import asyncio
import heapq
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import datetime, timedelta
from itertools import islice
from typing import Any, NamedTuple

import msgspec
from msgspec import Raw, Struct
from msgspec.structs import asdict, replace

from windlass.engine import jobs, new_jobs
from windlass.engine.context import EngineContext, HasContext
from windlass.engine.flow.apply import is_paused, paused_since
from windlass.engine.records import OptionsByTask, change_record, job_with_options, read_task_options
from windlass.model.admission import check_new
from windlass.model.errors import Conflict, Invalid, Missing, Unavailable, WindlassError
from windlass.model.job import FINISHED, PENDING, Job
from windlass.model.limit import Pause
from windlass.model.names import EVERY_TENANT, JobKey, check_name, key_of, keyed_id
from windlass.model.new_job import NOTHING, NewJob
from windlass.model.operations import (
    Accepted,
    Enqueue,
    EnqueueMany,
    GetSchedule,
    Operation,
    PauseSchedule,
    PutSchedule,
    RemoveSchedule,
    RunSchedule,
    Schedules,
)
from windlass.model.schedule import (
    MOST_RUNS,
    NewSchedule,
    Schedule,
    ScheduleCard,
    ScheduleRun,
    check_schedule,
)
from windlass.model.worker import NewWorker
from windlass.policy.schedule import jitter_of, last_tick, next_tick, ticks
from windlass.store.data import ANYTHING

log = logging.getLogger("windlass.upkeep")

SCHEDULES, STATES, CHANGES = "schedule", "schedule-state", "schedule-changes"
"""Kinds of records: by `tenant/name`, the same, and one that is new after each change."""

MOST_SCHEDULES = 10_000
"""Of one tenant."""

HEADER = "schedule"
"""The header of a job that names its schedule."""

LOOK_EVERY = 2.0
"""Seconds between two looks at whether schedules have changed."""

LATE = 60.0
"""Seconds by which a tick may be late without being missed."""

JOINED = "joined a unique job that was there already"

KEEP_AT_LEAST = 600.0
"""Seconds that the record of a scheduled job stays: a process that was held up must find it, or would make it again."""

KEEPS = ("keep_success", "keep_failure")

MOST_CAUGHT_UP = 100
"""Ticks of one schedule that are made up for in one step."""

STEP = 500
"""Schedules of one step."""

SHOWN_TICKS = 5

READ_AT_ONCE = 100
"""Records that are decoded before others get a turn."""


class Stored(Struct, frozen=True):
    """A schedule as its record holds it: the payload is in its own encoding."""

    schedule: Schedule
    payload: bytes
    declared: NewSchedule | None = None
    """What the code of its app declares, if that differs; always with a payload in MessagePack."""


class TickProgress(Struct, frozen=True):
    """How far the ticks of a schedule are done."""

    last: datetime
    """The last tick that was decided."""
    runs: list[ScheduleRun] = []
    skipped: int = 0


_pack = msgspec.msgpack.Encoder().encode
_stored = msgspec.msgpack.Decoder(Stored)
_progress = msgspec.msgpack.Decoder(TickProgress)


def _read(data: bytes) -> Schedule:
    stored = _stored.decode(data)
    return replace(stored.schedule, job=replace(stored.schedule.job, payload=Raw(stored.payload)))


def _record(schedule: Schedule, declared: NewSchedule | None = None) -> bytes:
    payload = bytes(schedule.job.payload)
    return _pack(Stored(replace(schedule, job=replace(schedule.job, payload=NOTHING)), payload, declared))


def _name(tenant: str, name: str) -> str:
    return f"{tenant}/{name}"


# Answers


async def put_schedule(context: EngineContext, operation: PutSchedule) -> ScheduleCard:
    check_name(operation.name, at="name")
    if operation.tenant == EVERY_TENANT:
        raise Invalid("a schedule belongs to one tenant, not to '-'", at="tenant")
    new = checked(context, operation.schedule)
    now = (await context.store.jobs.read([])).now
    if next_tick(new, now) is None:
        raise Invalid("it has no tick in the future", at="cron" if new.cron is not None else "end")

    def changed(before: bytes | None) -> bytes:
        stored = None if before is None else _stored.decode(before)
        old = None if stored is None else stored.schedule
        declared = None if stored is None or not stored.schedule.app else stored.declared or _declaration(before or b"")
        return _record(_changed(operation, new, old, now), declared)

    await _change(context, operation.tenant, operation.name, changed)
    return await get_schedule(context, GetSchedule(tenant=operation.tenant, name=operation.name))


def checked(context: EngineContext, new: NewSchedule) -> NewSchedule:
    check_schedule(new)
    return replace(new, job=check_new(new.job, context.settings.most_payload, "job"))


def _changed(operation: PutSchedule, new: NewSchedule, old: Schedule | None, now: datetime) -> Schedule:
    same_times = old is not None and _timing(new) == _timing(old)
    return Schedule(
        **asdict(new),
        name=operation.name,
        tenant=operation.tenant,
        app=old.app if old is not None else "",
        edited=old is not None and bool(old.app),
        changed_at=old.changed_at if old is not None and same_times else now,
        **(asdict(_pause_of(old)) if old is not None else {}),
    )


def _timing(schedule: NewSchedule) -> tuple[object, ...]:
    return schedule.cron, schedule.every, schedule.tz, schedule.start, schedule.end


def _pause_of(schedule: Schedule) -> Pause:
    return Pause(paused=schedule.paused, until=schedule.until, why=schedule.why, since=schedule.since)


def _declaration(record: bytes) -> NewSchedule:
    found = _read(record)
    return NewSchedule(**{name: getattr(found, name) for name in NewSchedule.__struct_fields__})


async def _change(context: EngineContext, tenant: str, name: str, make: Callable[[bytes | None], bytes | None]) -> None:
    """Change the record of a schedule, and let every process know."""
    if not await context.store.records.list(SCHEDULES, [_name(tenant, name)]):
        there = await context.store.records.list(SCHEDULES)
        if sum(one.startswith(f"{tenant}/") for one in there) >= MOST_SCHEDULES:
            raise Conflict(f"there are {MOST_SCHEDULES} schedules already: remove one first", at="name")
    await change_record(context, SCHEDULES, _name(tenant, name), make)
    await _announce(context)


async def _announce(context: EngineContext) -> None:
    await context.store.records.swap(CHANGES, "", ANYTHING, context.chance.token())


async def get_schedule(context: EngineContext, operation: GetSchedule) -> ScheduleCard:
    (card,) = await _cards(context, [await _find(context, operation.tenant, operation.name)])
    return card


async def list_schedules(context: EngineContext, operation: Schedules) -> list[ScheduleCard]:
    found = [_read(data) for _, data in sorted((await context.store.records.list(SCHEDULES)).items())]
    return await _cards(context, [one for one in found if operation.tenant in (EVERY_TENANT, one.tenant)])


async def _find(context: EngineContext, tenant: str, name: str) -> Schedule:
    data = (await context.store.records.list(SCHEDULES, [_name(tenant, name)])).get(_name(tenant, name))
    if data is None:
        raise _no_schedule(name)
    return _read(data)


def _no_schedule(name: str) -> Missing:
    return Missing(f"there is no schedule {name[:60]!r}", at="name")


async def _cards(context: EngineContext, schedules: Sequence[Schedule]) -> list[ScheduleCard]:
    names = [_name(one.tenant, one.name) for one in schedules]
    states = await context.store.records.list(STATES, names)
    found = [_progress.decode(states[name]) if name in states else None for name in names]
    keys = [
        JobKey(run.job, schedule.tenant)
        for schedule, progress in zip(schedules, found, strict=True)
        for run in (progress.runs if progress is not None else ())
        if run.job is not None
    ]
    reading = await context.store.jobs.read(keys)
    jobs_now = {key: record.job for key, record in zip(keys, reading.records, strict=True) if record is not None}
    cards = []
    for schedule, progress in zip(schedules, found, strict=True):
        runs = progress.runs if progress is not None else []
        shown = [_shown(run, jobs_now.get(JobKey(run.job or "", schedule.tenant))) for run in reversed(runs)]
        card = ScheduleCard(
            **asdict(_without_ended_pause(schedule, reading.now)),
            next=_coming(schedule, reading.now),
            runs=shown,
            skipped=progress.skipped if progress is not None else 0,
        )
        cards.append(card)
        await asyncio.sleep(0)
    return cards


def _shown(run: ScheduleRun, job: Job | None) -> ScheduleRun:
    return _noted(run, job) if job is not None else replace(run, gone=run.job is not None)


def _noted(run: ScheduleRun, job: Job) -> ScheduleRun:
    return replace(run, state=job.state, attempt=job.attempt, started_at=job.started_at, finished_at=job.finished_at)


def _coming(schedule: Schedule, now: datetime) -> list[datetime]:
    after = now
    if is_paused(_pause_of(schedule), now):
        if schedule.until is None:
            return []
        after = schedule.until
    try:
        return list(islice(ticks(schedule, after), SHOWN_TICKS))
    except Invalid:
        return []


def _without_ended_pause(schedule: Schedule, now: datetime) -> Schedule:
    return schedule if is_paused(_pause_of(schedule), now) else replace(schedule, **asdict(Pause()))


async def pause_schedule(context: EngineContext, operation: PauseSchedule) -> ScheduleCard:
    now = (await context.store.jobs.read([])).now

    def changed(before: bytes | None) -> bytes:
        if before is None:
            raise _no_schedule(operation.name)
        stored, old = _stored.decode(before), _read(before)
        since = paused_since(operation.pause, _pause_of(old), now)
        pause = replace(operation.pause, since=since) if since else Pause()
        resumed = old.changed_at if since else now
        return _record(replace(old, **asdict(pause), changed_at=resumed), stored.declared)

    await _change(context, operation.tenant, operation.name, changed)
    return await get_schedule(context, GetSchedule(tenant=operation.tenant, name=operation.name))


async def remove_schedule(context: EngineContext, operation: RemoveSchedule) -> None:
    now = (await context.store.jobs.read([])).now

    def changed(before: bytes | None) -> bytes | None:
        if before is None:
            raise _no_schedule(operation.name)
        stored = _stored.decode(before)
        if not stored.schedule.app:
            return None
        if stored.declared is None:
            raise Conflict(f"the code of {stored.schedule.app} declares it: remove it there, or pause it", at="name")
        return _record(_of_app(stored.declared, operation.tenant, operation.name, stored.schedule.app, now))

    await _change(context, operation.tenant, operation.name, changed)
    if not await context.store.records.list(SCHEDULES, [_name(operation.tenant, operation.name)]):
        await context.store.records.swap(STATES, _name(operation.tenant, operation.name), ANYTHING, None)


async def run_schedule(context: EngineContext, operation: RunSchedule) -> Accepted:
    schedule = await _find(context, operation.tenant, operation.name)
    job = _resolved(schedule, await _options(context, [schedule])).job
    accepted = await new_jobs.enqueue(context, Enqueue(tenant=schedule.tenant, job=job))
    note = "run by hand" if accepted.created else f"run by hand, {JOINED}"
    run = ScheduleRun(tick=accepted.created_at, job=accepted.id, joined=not accepted.created, note=note)

    def noted(before: bytes | None) -> bytes:
        progress = TickProgress(schedule.changed_at) if before is None else _progress.decode(before)
        return _pack(replace(progress, runs=[*progress.runs, run][-MOST_RUNS:]))

    await change_record(context, STATES, _name(operation.tenant, operation.name), noted)
    return accepted


# Schedules that the code of an app declares


async def declare_schedules(context: EngineContext, tenant: str, worker: NewWorker) -> None:
    """Take over what a worker's app declares. A schedule that it no longer declares is retired; one that was changed at
    run time stays as it was changed.
    """
    if worker.schedules is None or not worker.app or tenant == EVERY_TENANT:
        return
    now = (await context.store.jobs.read([])).now
    there = await context.store.records.list(SCHEDULES)
    before = {name.partition("/")[2]: data for name, data in there.items() if name.startswith(f"{tenant}/")}
    for name, new in worker.schedules.items():
        fresh = _of_app(checked(context, new), tenant, name, worker.app, now)
        wanted = _declared(before.get(name), fresh)
        if wanted is not None and wanted != before.get(name):
            await context.store.records.swap(SCHEDULES, _name(tenant, name), before.get(name), wanted)
            await _announce(context)
    for name, data in before.items():
        if _stored.decode(data).schedule.app == worker.app and name not in worker.schedules:
            await context.store.records.swap(SCHEDULES, _name(tenant, name), data, None)
            await context.store.records.swap(STATES, _name(tenant, name), ANYTHING, None)
            await _announce(context)
            log.info("schedules: %s is retired: %s no longer declares it", name, worker.app)


def _declared(before: bytes | None, fresh: Schedule) -> bytes | None:
    """The record of a schedule that is declared like this; null = what is there stays."""
    if before is None:
        return _record(fresh)
    stored, old = _stored.decode(before), _read(before)
    if not old.app:
        log.warning("schedules: %s was made at run time and stays; %s declares it too", fresh.name, fresh.app)
        return None
    if old.edited:
        return _record(replace(old, app=fresh.app), _declaration(_record(fresh)))
    changed_at = old.changed_at if _timing(fresh) == _timing(old) else fresh.changed_at
    return _record(replace(fresh, **asdict(_pause_of(old)), changed_at=changed_at), stored.declared)


def _of_app(new: NewSchedule, tenant: str, name: str, app: str, now: datetime) -> Schedule:
    return Schedule(**asdict(new), name=name, tenant=tenant, app=app, changed_at=now)


# Ticks


class Decision(NamedTuple):
    """What becomes of the ticks of one schedule that are due."""

    schedule: Schedule
    before: bytes | None
    """The record of its progress."""
    progress: TickProgress
    jobs: list[NewJob]
    replaced: list[str]
    """Ids of pending jobs that the new one replaces."""


class Scheduler:
    """The duty of one process: makes the jobs of ticks that are due."""

    __name__ = "schedule"

    def __init__(self) -> None:
        self.pause = LOOK_EVERY
        """Seconds until the next round."""
        self._changes: bytes | None = None
        self._records: dict[str, bytes] = {}
        self._schedules: dict[str, Schedule] = {}
        self._next: dict[str, datetime] = {}
        self._heap: list[tuple[datetime, str]] = []
        """The next tick of each schedule, earliest first; one that `_next` does not name is out of date."""

    async def __call__(self, engine: HasContext) -> int:
        context = engine.context
        await self._refresh(context)
        self.pause = LOOK_EVERY
        if not self._heap:
            return 0
        now = (await context.store.jobs.read([])).now
        due = self._take_due(now)
        try:
            for name, until in (await self._decide(context, due, now)).items():
                self._plan(name, until)
        except BaseException:
            for name in due:  # they are still due
                heapq.heappush(self._heap, (self._next[name], name))
            raise
        if self._heap:
            self.pause = min(LOOK_EVERY, max(0.0, (self._heap[0][0] - now).total_seconds()))
        return len(due)

    async def _refresh(self, context: EngineContext) -> None:
        changes = (await context.store.records.list(CHANGES, [""])).get("", b"")
        if changes == self._changes:
            return
        found = await context.store.records.list(SCHEDULES)
        changed = [name for name, data in found.items() if self._records.get(name) != data]
        states = await context.store.records.list(STATES, changed)
        for name in self._records.keys() - found.keys():
            self._schedules.pop(name, None)
            self._next.pop(name, None)
        for place, name in enumerate(changed):
            self._schedules[name] = _read(found[name])
            self._plan(name, _done_until(self._schedules[name], states.get(name)))
            if place % READ_AT_ONCE == 0:
                await asyncio.sleep(0)
        self._records, self._changes = found, changes

    def _plan(self, name: str, after: datetime) -> None:
        """Note the next tick of a schedule."""
        schedule = self._schedules.get(name)
        self._next.pop(name, None)
        if schedule is None:
            return
        if is_paused(_pause_of(schedule), after):
            if schedule.until is None:
                return
            after = schedule.until
        try:
            tick = next_tick(schedule, after)
        except Invalid as fault:
            log.warning("schedules: %s has no ticks: %s", name, fault)
            return
        if tick is not None:
            self._next[name] = tick
            heapq.heappush(self._heap, (tick, name))

    def _take_due(self, now: datetime) -> list[str]:
        due: list[str] = []
        while self._heap and len(due) < STEP:
            tick, name = self._heap[0]
            if self._next.get(name) != tick:
                heapq.heappop(self._heap)
                continue
            if tick > now:
                break
            heapq.heappop(self._heap)
            due.append(name)
        return due

    async def _decide(self, context: EngineContext, due: Sequence[str], now: datetime) -> dict[str, datetime]:
        """Make the jobs of these schedules, then note how far they are; the time up to which each is decided.

        Another process may do the same meanwhile.
        """
        if not due:
            return {}
        states = await context.store.records.list(STATES, due)
        options = await _options(context, [self._schedules[name] for name in due])
        schedules = {name: _resolved(self._schedules[name], options) for name in due}
        earlier = await _earlier_jobs(context, schedules, states)
        made = [decide(one, states.get(name), now, earlier) for name, one in schedules.items()]
        replaced = [JobKey(id, one.schedule.tenant) for one in made for id in one.replaced]
        if replaced:
            await context.move_jobs(replaced, lambda record, _: jobs.cancel(record.job))
        made = await _make_jobs(context, made)
        swaps = [
            context.store.records.swap(STATES, _name(one.schedule.tenant, one.schedule.name), one.before, after)
            for one in made
            if (after := _pack(one.progress)) != one.before
        ]
        await asyncio.gather(*swaps)
        return {_name(one.schedule.tenant, one.schedule.name): one.progress.last for one in made}


def _done_until(schedule: Schedule, state: bytes | None) -> datetime:
    """The time up to which the ticks of a schedule are decided."""
    times = [schedule.changed_at]
    if schedule.paused and schedule.until is not None:
        times.append(schedule.until)
    if state is not None:
        times.append(_progress.decode(state).last)
    return max(times)


async def _options(context: EngineContext, schedules: Sequence[Schedule]) -> OptionsByTask:
    return {} if all(one.exact for one in schedules) else await read_task_options(context)


async def _earlier_jobs(
    context: EngineContext, schedules: Mapping[str, Schedule], states: Mapping[str, bytes]
) -> dict[JobKey, Job]:
    """The jobs of earlier ticks, as far as their records are there."""
    keys = [
        JobKey(run.job, schedules[name].tenant)
        for name, state in states.items()
        for run in _progress.decode(state).runs
        if run.job is not None
    ]
    records = (await context.store.jobs.read(list(dict.fromkeys(keys)))).records if keys else []
    return {key_of(record.job): record.job for record in records if record is not None}


def decide(schedule: Schedule, state: bytes | None, now: datetime, earlier: Mapping[JobKey, Job]) -> Decision:
    """Which of the ticks up to now make jobs, and how those of earlier ticks ended. Pure. `earlier`: their jobs."""
    progress = TickProgress(schedule.changed_at) if state is None else _progress.decode(state)
    before = [(run, earlier.get(JobKey(run.job or "", schedule.tenant))) for run in progress.runs]
    pending = [job.id for run, job in before if job is not None and job.state in PENDING and not run.joined]
    due = _due(schedule, _done_until(schedule, state), now)
    made: list[NewJob] = []
    runs: list[ScheduleRun] = []
    for tick in due.ticks[-1:] if schedule.overlap == "replace" else due.ticks:
        if schedule.overlap == "skip" and (pending or made):
            runs.append(ScheduleRun(tick=tick, note="skipped: the job of an earlier tick is pending"))
            continue
        made.append(_job_of_tick(schedule, tick, now))
        runs.append(ScheduleRun(tick=tick, job=keyed_id(schedule.tenant, made[-1].queue, made[-1].key or "")))
    if due.missed is not None:
        runs.append(ScheduleRun(tick=due.missed, note="missed: there was no process to make its job"))
    skipped = progress.skipped + sum(run.job is None for run in runs)
    noted = [_noted(run, job) if job is not None and job.state in FINISHED else run for run, job in before]
    after = TickProgress(due.until, [*noted, *runs][-MOST_RUNS:], skipped)
    replaced = pending if schedule.overlap == "replace" and made else []
    return Decision(schedule, state, after, made, replaced)


class Due(NamedTuple):
    """The ticks of a schedule that are due."""

    ticks: list[datetime]
    until: datetime
    """The time up to which they are decided with these."""
    missed: datetime | None = None
    """The last of those that are given up."""


def _due(schedule: Schedule, after: datetime, now: datetime) -> Due:
    if schedule.catch_up == "all":
        found = [tick for tick in islice(ticks(schedule, after), MOST_CAUGHT_UP) if tick <= now]
        return Due(found, found[-1] if found else max(after, now))
    last = last_tick(schedule, after, now)
    if last is None:
        return Due([], max(after, now))
    if schedule.catch_up == "skip" and now - last > timedelta(seconds=LATE):
        return Due([], last, missed=last)
    return Due([last], last)


def _job_of_tick(schedule: Schedule, tick: datetime, now: datetime) -> NewJob:
    key = f"schedule:{schedule.name}:{tick:%Y-%m-%dT%H:%M:%S.%fZ}"
    start = tick
    if schedule.jitter:
        start += timedelta(seconds=jitter_of(key, schedule.jitter))
    return replace(schedule.job, key=key, run_at=start if start > now else None)


def _resolved(schedule: Schedule, options: OptionsByTask) -> Schedule:
    """The schedule with its job as it is made: with the options of its task, where they count."""
    job = schedule.job if schedule.exact else job_with_options(options, schedule.tenant, schedule.job)
    kept = {name: max(KEEP_AT_LEAST, time) for name in KEEPS if (time := getattr(job, name)) is not None}
    return replace(schedule, job=replace(job, headers={**job.headers, HEADER: schedule.name}, **kept))


async def _make_jobs(context: EngineContext, made: Sequence[Decision]) -> list[Decision]:
    """Make the jobs, all of a tenant in one call; if that is refused, one schedule at a time."""
    done: list[Decision] = []
    for tenant in sorted({one.schedule.tenant for one in made}):
        mine = [one for one in made if one.schedule.tenant == tenant]
        try:
            done += await _enqueue(context, tenant, mine)
        except Unavailable:
            raise
        except WindlassError:
            done += [await _make_alone(context, one) for one in mine]
    return done


async def _make_alone(context: EngineContext, one: Decision) -> Decision:
    try:
        (one,) = await _enqueue(context, one.schedule.tenant, [one])
    except Unavailable:
        raise
    except WindlassError as fault:
        log.warning("schedules: %s made no job: %s", one.schedule.name, fault)
        ids = set(_own_ids(one))
        runs = [
            replace(run, job=None, note=f"refused: {fault}") if run.job in ids else run for run in one.progress.runs
        ]
        return one._replace(progress=replace(one.progress, runs=runs, skipped=one.progress.skipped + len(ids)))
    return one


async def _enqueue(context: EngineContext, tenant: str, made: Sequence[Decision]) -> list[Decision]:
    """Make the jobs; the decisions with the ids of the jobs that there are for them."""
    new = [job for one in made for job in one.jobs]
    own = [id for one in made for id in _own_ids(one)]
    found: list[str] = []
    for start in range(0, len(new), STEP):
        operation = EnqueueMany(tenant=tenant, jobs=new[start : start + STEP], exact=True)
        found += (await new_jobs.enqueue_many(context, operation)).ids
    joined = {id: other for id, other in zip(own, found, strict=True) if id != other}
    return [_joined(one, joined) for one in made] if joined else [*made]


def _own_ids(one: Decision) -> list[str]:
    """The ids of its jobs, unless they join others."""
    return [keyed_id(one.schedule.tenant, job.queue, job.key or "") for job in one.jobs]


def _joined(one: Decision, joined: Mapping[str, str]) -> Decision:
    runs = [
        run if (other := joined.get(run.job or "")) is None else replace(run, job=other, joined=True, note=JOINED)
        for run in one.progress.runs
    ]
    return one._replace(progress=replace(one.progress, runs=runs))


ANSWERS: dict[type[Operation[Any]], Callable[[EngineContext, Any], Awaitable[Any]]] = {
    PutSchedule: put_schedule,
    GetSchedule: get_schedule,
    Schedules: list_schedules,
    PauseSchedule: pause_schedule,
    RunSchedule: run_schedule,
    RemoveSchedule: remove_schedule,
}
