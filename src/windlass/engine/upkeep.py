"""Upkeep: the periodic duties of an engine.

Promote, reclaim, expire, abandon, resolve dependencies, purge; and the duties of flow control, estimates, schedules and
the history. Each duty takes one bounded step and returns how much it did, so that a backlog is worked off without a
pause and an idle queue costs next to nothing. Any number of processes may do upkeep at once: the store guards every
step.
"""

import asyncio
import logging
import math
from collections import defaultdict
from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime, timedelta

from msgspec.structs import replace

from windlass.engine import new_jobs
from windlass.engine.context import POLL_EVERY
from windlass.engine.dependencies import follow_ups, unblock
from windlass.engine.engine import Engine
from windlass.engine.estimate.forecast import refresh_forecasts
from windlass.engine.estimate.learn import learn_run_times, measure_accuracy
from windlass.engine.flow.apply import regroup_jobs, update_tier_caps
from windlass.engine.flow.tiers import rebalance_all
from windlass.engine.history import NOTE_EVERY, Historian
from windlass.engine.reports import read_on_lost
from windlass.engine.schedules import Scheduler
from windlass.model import lifecycle
from windlass.model.errors import PartAway, WindlassError
from windlass.model.job import State
from windlass.model.lifecycle import Move
from windlass.model.names import EVERY_TENANT, JobKey, key_of
from windlass.model.ports import Clock
from windlass.store.data import MOST_CHILDREN, CompletedParent, ListScope, Overdue, OverdueJobs, Record, Sweep
from windlass.store.encoding import PARENTS
from windlass.store.protocol import Listener

log = logging.getLogger("windlass.upkeep")

Duty = Callable[[Engine], Awaitable[int]]
Interval = float | Callable[[], float]
"""Seconds between two rounds, or a function that returns them after each round."""

STEP = 500
"""Jobs of one step."""

MOST_PARENTS = 100
"""Completed parents of one step: each may have a hundred children."""

PROMOTE_EVERY = 0.25
"""Seconds between two rounds of `promote` that find nothing due."""

BACK_OFF_ROUNDS = 4
"""Rounds for which a process that was not the first to promote leaves scheduled jobs to others: a second."""

LEAST_PAUSE = 0.01
"""Seconds between two looks at scheduled jobs, however many are due."""

TIMERS_EARLY = 0.001
"""Seconds by which an event loop may be early."""

AWAY = 3.0
"""Seconds without an answer after which the store may have been away, at least. One answer may get lost."""

SETTLE = 2.0
"""Seconds that workers get to renew their leases afterwards, at least: they retry every half second."""


async def promote(engine: Engine) -> int:
    """Queue scheduled jobs that are due."""
    return await engine.context.writes.sweep(Sweep.PROMOTE, STEP)


class TimedPromote:
    """Promotes on time: waits exactly for the next due job if that is sooner than the next round.

    Of several processes one is the first. The others found nothing to do, and back off for some rounds.
    """

    __name__ = promote.__name__

    def __init__(self) -> None:
        self.pause = PROMOTE_EVERY
        """Seconds until the next round."""
        self._awaited = False
        """Whether it has waited for a due time."""
        self._back_off = 0
        """Rounds for which it leaves the next job to others, unless the job is overdue."""

    async def __call__(self, engine: Engine) -> int:
        awaited, self._awaited = self._awaited, False
        self.pause = PROMOTE_EVERY
        due_in = 0.0 if awaited else await engine.context.store.jobs.next_due(Sweep.PROMOTE)
        if due_in == 0:
            done = await promote(engine)
            self._back_off = 0 if done else BACK_OFF_ROUNDS
            self.pause = LEAST_PAUSE if done else self.pause
            return done
        if self._back_off:
            self._back_off -= 1
        elif due_in is not None and due_in < self.pause:
            self._awaited, self.pause = True, due_in + TIMERS_EARLY
        return 0


async def reclaim(engine: Engine) -> int:
    """Reclaim jobs whose lease ran out."""
    return await _reclaim(engine, await engine.context.store.jobs.overdue(Overdue.LEASE, STEP))


class ReclaimGuard:
    """A grace period after an outage, before jobs are reclaimed.

    While the store is away no worker can renew, and all leases run out. So jobs are reclaimed only after the store has
    answered for a while without a break. Knows only when the store answered, by the store's clock.
    """

    def __init__(self, lease: float, *, trust_first: bool = False) -> None:
        """`trust_first`: no grace period before the first answer."""
        # A break much shorter than a lease ends no lease. Workers on a dead connection need seconds to notice.
        self._away = timedelta(seconds=max(AWAY, lease / 3))
        self._settle = timedelta(seconds=max(SETTLE, lease / 2))
        self._trust_first = trust_first
        self._last: datetime | None = None
        self._since: datetime | None = None

    def may_reclaim(self, now: datetime) -> bool:
        """Record an answer at the store's time; whether jobs may be reclaimed.

        A clock that jumps forward ends leases as an outage does. One that jumps back must not prolong the grace period.
        """
        first = self._last is None
        if self._last is None or abs(now - self._last) > self._away:
            self._since = None if first and self._trust_first else now
        self._last = now
        return self._since is None or now - self._since >= self._settle


def guarded_reclaim(lease: float, *, trust_first: bool) -> Duty:
    """Reclaims, except in partitions of the store that were away until a moment ago.

    `trust_first`: no grace period for partitions that answer in the first round.
    """
    guards: dict[int, ReclaimGuard] = {}

    async def reclaim(engine: Engine) -> int:
        reading = await engine.context.store.jobs.overdue(Overdue.LEASE, STEP)
        first_round = not guards
        for part in reading.answered:
            if part not in guards:
                guards[part] = ReclaimGuard(lease, trust_first=trust_first and first_round)
        settled = {part for part in reading.answered if guards[part].may_reclaim(reading.now)}
        sources = reading.sources or [0] * len(reading.records)
        ready = [one for one, part in zip(reading.records, sources, strict=True) if part in settled]
        return await _reclaim(engine, replace(reading, records=ready))

    return reclaim


async def _reclaim(engine: Engine, reading: OverdueJobs) -> int:
    if not reading.records:
        return 0
    on_lost = await read_on_lost(engine.context)

    def lost(record: Record, now: datetime) -> Move:
        return lifecycle.lose(record.job, now, on_lost(record.job))

    return await engine.context.move_records(reading.records, reading.now, lost)


async def expire(engine: Engine) -> int:
    """End jobs that did not start in time."""

    def expired(record: Record, now: datetime) -> Move:
        return lifecycle.expire(record.job, now)

    reading = await engine.context.store.jobs.overdue(Overdue.EXPIRY, STEP)
    return await engine.context.move_records(reading.records, reading.now, expired)


async def abandon(engine: Engine) -> int:
    """Cancel jobs whose owner timeout ran out."""

    def abandoned(record: Record, _: datetime) -> Move:
        return lifecycle.abandon(record.job)

    reading = await engine.context.store.jobs.overdue(Overdue.OWNER, STEP)
    return await engine.context.move_records(reading.records, reading.now, abandoned)


async def purge(engine: Engine) -> int:
    """Delete finished jobs and results whose retention is over."""
    return await engine.context.writes.sweep(Sweep.PURGE, STEP)


async def resolve_dependencies(engine: Engine) -> int:
    """Add the jobs that follow completed parents, and decide the jobs that waited for them."""
    parents = await engine.context.store.jobs.completed_parents([], MOST_PARENTS)
    if parents:
        await _resolve_each(engine, parents)
    more = len(parents) == MOST_PARENTS or any(len(one.children) == MOST_CHILDREN for one in parents)
    return STEP if more else len(parents)


async def _resolve_each(engine: Engine, parents: Sequence[CompletedParent]) -> None:
    """A child in a partition that is away does not hold up the children of other parents."""
    try:
        await _resolve(engine, parents)
    except PartAway as fault:
        late = [one for one in parents if not await _is_resolved(engine, one)]
        if late:
            raise PartAway(f"the children of {len(late)} jobs wait: {fault}") from fault


async def _is_resolved(engine: Engine, parent: CompletedParent) -> bool:
    try:
        await _resolve(engine, [parent])
    except PartAway:
        return False
    return True


async def _resolve(engine: Engine, parents: Sequence[CompletedParent]) -> None:
    """Do what is due after these parents, and remove them from the index of completed parents."""
    if following := await follow_ups(engine.context, parents):
        await new_jobs.add(engine.context, following)
    ended: defaultdict[JobKey, dict[str, State | None]] = defaultdict(dict)
    for one in parents:
        for child in one.children:
            ended[JobKey(child, one.tenant)][one.id] = one.state
    undecided = await unblock(engine.context, [*ended], ended)
    done = parents
    if undecided:
        done = [
            replace(one, children=[child for child in one.children if JobKey(child, one.tenant) not in undecided])
            for one in parents
        ]
    await engine.context.store.jobs.completed_parents(done, 0)


async def recheck_blocked(engine: Engine) -> int:
    """Decide all blocked jobs again: a process may have died between adding one and writing its dependencies."""
    counts = (await engine.context.store.jobs.counts(EVERY_TENANT)).jobs
    for tenant, queue in sorted({(count.tenant, count.queue) for count in counts if count.state is State.BLOCKED}):
        await _recheck_queue(engine, ListScope(tenant, queue, frozenset({State.BLOCKED})))
    return 0


async def _recheck_queue(engine: Engine, scope: ListScope) -> None:
    after = None
    while True:
        piece = await engine.context.store.jobs.list(scope, after, MOST_PARENTS)
        await unblock(engine.context, [key_of(record.job) for record in piece.records])
        if (after := piece.next) is None:
            return


async def unblock_lanes(engine: Engine) -> int:
    """Let jobs be claimed whose limit has room again, or whose pause is over."""
    if await _has_no_rules(engine):
        return 0
    return await engine.context.writes.sweep(Sweep.UNBLOCK, STEP)


async def regroup(engine: Engine) -> int:
    """Continue the regrouping of waiting jobs after a change of limits."""
    if not await _has_no_rules(engine):
        await regroup_jobs(engine.context)
    return 0


async def _has_no_rules(engine: Engine) -> bool:
    """Whether there were no rules a second ago, when `update_caps` looked: then no lane is blocked or regrouping."""
    return (await engine.context.flow_config.current()).rules.version == 0


async def rebalance(engine: Engine) -> int:
    """Let flexible and yielding jobs make room for waiting ones."""
    return await rebalance_all(engine.context)


async def update_caps(engine: Engine) -> int:
    """Adapt the caps of tiers to the live workers."""
    return await update_tier_caps(engine.context)


async def learn(engine: Engine) -> int:
    """Store learned run times and the accuracy of estimates."""
    await learn_run_times(engine.context)
    return await measure_accuracy(engine.context)


async def estimate(engine: Engine) -> int:
    """Make new forecasts of watched queues."""
    return await refresh_forecasts(engine.context)


def all_duties(lease: float, *, short_lived: bool) -> list[tuple[Duty, Interval]]:
    """Each duty, and the seconds between its rounds. One that remembers something is made for each call."""
    timed_promote, scheduler = TimedPromote(), Scheduler()
    return [
        (timed_promote, lambda: timed_promote.pause),
        (guarded_reclaim(lease, trust_first=short_lived), 1.0),
        (expire, 1.0),
        (abandon, 1.0),
        (resolve_dependencies, 0.02),
        (recheck_blocked, 60.0),
        (purge, 5.0),
        (unblock_lanes, 0.25),
        (regroup, 1.0),
        (rebalance, 0.25),
        (update_caps, 1.0),
        (learn, 1.0),
        (estimate, 1.0),
        (scheduler, lambda: scheduler.pause),
        (Historian(), NOTE_EVERY),
    ]


NOTICES: dict[Duty, str] = {resolve_dependencies: PARENTS}
"""Duties that rest until a notice says that there is something to do, and its topic."""

APART = 0.005
"""Seconds between the first rounds of two duties, so that they do not all start at once."""


async def repeat(
    seconds: Interval, duty: Duty, engine: Engine, clock: Clock, *, first: float = 0.0, listener: Listener | None = None
) -> None:
    """Do a duty until cancelled: all there is to do, then a pause. With a listener, an idle duty waits for a notice.

    A duty with a listener is one that others wait for: it rests for twice as long as it took, at most for `seconds`.

    A failed round does not end it, whatever failed: the process also serves or works.
    """
    await clock.sleep(first)
    name = getattr(duty, "__name__", duty)
    logged = ""
    while True:
        done, began, most = STEP, clock.monotonic(), math.inf
        try:
            while (done := await duty(engine)) >= STEP:
                await clock.sleep(0)
            logged = ""
            if listener is not None:
                most = 2 * (clock.monotonic() - began)
        except WindlassError as error:
            if str(error) != logged:  # a store that is away is logged once by each duty, not ten times a second
                log.warning("upkeep: %s: %s", name, error)
            logged = str(error)
        except Exception:
            log.exception("upkeep: %s failed and will be retried", name)
        if listener is not None and not done:
            await listener.wait(POLL_EVERY)
        else:
            await clock.sleep(min(most, seconds() if callable(seconds) else seconds))


async def repeat_on_notice(
    topic: str, seconds: Interval, duty: Duty, engine: Engine, clock: Clock, *, first: float
) -> None:
    """Do a duty until cancelled, each time a notice comes under a topic."""
    async with engine.context.store.events.listen([topic]) as listener:
        await repeat(seconds, duty, engine, clock, first=first, listener=listener)


async def run_upkeep(engine: Engine, clock: Clock, *, short_lived: bool = False) -> None:
    """All duties at once, until cancelled. `short_lived`: the process may end soon, so reclaim without grace period."""
    async with asyncio.TaskGroup() as group:
        for place, (duty, seconds) in enumerate(all_duties(engine.context.settings.lease, short_lived=short_lived)):
            first, topic = place * APART, NOTICES.get(duty)
            if topic is None:
                group.create_task(repeat(seconds, duty, engine, clock, first=first))
            else:
                group.create_task(repeat_on_notice(topic, seconds, duty, engine, clock, first=first))
