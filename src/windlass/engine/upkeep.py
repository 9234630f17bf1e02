"""The periodic duties: promote, reclaim, expire, abandon, follow, look after blocked jobs, purge; and flow control's.

Each duty takes one bounded step and says how much it did, so that a backlog is worked off without a pause and an idle
queue costs next to nothing. Any number of processes may keep house at once: every step is guarded by the store.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime

from msgspec.structs import replace

from windlass.engine import Engine
from windlass.engine.following import follow_up, unblock
from windlass.engine.forecasts import foretell
from windlass.engine.jobs import LOOK_AGAIN
from windlass.engine.promises import keep_promises, learn_run_times
from windlass.engine.rules import keep_caps, sort_out
from windlass.engine.tiers import attend_all
from windlass.engine.vigil import Vigil
from windlass.model import lifecycle
from windlass.model.errors import PartAway, WindlassError
from windlass.model.job import State
from windlass.model.lifecycle import Move
from windlass.model.names import EVERY_TENANT, key_of, part_of
from windlass.model.ports import Clock
from windlass.store import MOST_CHILDREN, Listener, Overdue, Reading, Record, Ripe, Scope, Sweep

log = logging.getLogger("windlass.upkeep")

Duty = Callable[[Engine], Awaitable[int]]
Pause = float | Callable[[], float]
"""Seconds between two rounds; or who knows them after each."""

STEP = 500
"""Jobs that one step of a duty takes on."""

SHY = 4
"""Looks at which whoever was not the quickest leaves scheduled jobs to others: a second."""

AT_LEAST_APART = 0.01
"""Seconds between two looks at scheduled jobs, however many of them come due."""

TIMERS_EARLY = 0.001
"""Seconds by which an event loop may be early."""

MOST_RIPE = 100
"""The same where each of them may wait for a hundred others."""


async def promote(engine: Engine) -> int:
    """Queue scheduled jobs whose time has come."""
    return len(await engine.desk.store.sweep(Sweep.RUN, STEP))


class Promoting:
    """The same in time: knows when the next job is due, and wants to be called again then, or after `pause` seconds.

    Of those who keep house at once one is the quickest. The others were called in vain, and only look for a while.
    """

    __name__ = promote.__name__

    def __init__(self) -> None:
        self.pause = DUTIES[promote]
        self._awaited = False
        """Whether it has waited for the time of a job."""
        self._shy = 0
        """Looks at which it leaves the next job to others, unless that is overdue."""

    async def __call__(self, engine: Engine) -> int:
        awaited, self._awaited = self._awaited, False
        self.pause = DUTIES[promote]
        due_in = 0.0 if awaited else await engine.desk.timetable.next_run()
        if due_in == 0:
            done = await promote(engine)
            self._shy = 0 if done else SHY
            self.pause = AT_LEAST_APART if done else self.pause
            return done
        if self._shy:
            self._shy -= 1
        elif due_in is not None and due_in < self.pause:
            self._awaited, self.pause = True, due_in + TIMERS_EARLY
        return 0


async def reclaim(engine: Engine) -> int:
    """Take jobs back whose worker was not heard of for a whole lease."""
    return await _take_back(engine, await engine.desk.store.overdue(Overdue.LEASE, STEP))


def reclaiming(lease: float, *, trusting: bool) -> Duty:
    """The same, but nothing while workers may not have been able to make themselves heard.

    Each part of a store may be away on its own. `trusting`: not the parts that answer at first.
    """
    vigils: dict[int, Vigil] = {}

    async def reclaim(engine: Engine) -> int:
        reading = await engine.desk.store.overdue(Overdue.LEASE, STEP)
        at_first = not vigils
        for part in reading.answered:
            if part not in vigils:
                vigils[part] = Vigil(lease, trusting=trusting and at_first)
        settled = {part for part in reading.answered if vigils[part].answered(reading.now)}
        if len(settled) == reading.parts:
            return await _take_back(engine, reading)
        ready = [one for one in reading.records if one is not None and part_of(one.job.id, reading.parts) in settled]
        return await _take_back(engine, replace(reading, records=ready))

    return reclaim


async def _take_back(engine: Engine, reading: Reading) -> int:
    if not reading.records:
        return 0
    regime = await engine.desk.regimes.refreshed()

    def lost(record: Record, now: datetime) -> Move:
        return lifecycle.lose(record.job, now, regime.settings(record.job.tenant, record.job.queue).on_lost)

    return await engine.desk.settle_read(reading.records, reading.now, lost)


async def expire(engine: Engine) -> int:
    """End jobs that nobody started in time."""

    def expired(record: Record, now: datetime) -> Move:
        return lifecycle.expire(record.job, now)

    reading = await engine.desk.store.overdue(Overdue.WAIT, STEP)
    return await engine.desk.settle_read(reading.records, reading.now, expired)


async def abandon(engine: Engine) -> int:
    """Cancel jobs that nobody asked for."""

    def abandoned(record: Record, _: datetime) -> Move:
        return lifecycle.abandon(record.job)

    reading = await engine.desk.store.overdue(Overdue.OWNER, STEP)
    return await engine.desk.settle_read(reading.records, reading.now, abandoned)


async def purge(engine: Engine) -> int:
    """Drop finished jobs that have been kept long enough, and results that have."""
    return len(await engine.desk.store.sweep(Sweep.KEEP, STEP))


async def follow(engine: Engine) -> int:
    """Queue what was to follow jobs that have ended, and decide those that waited for them."""
    ripe = await engine.desk.store.ripe([], MOST_RIPE)
    if ripe:
        await _follow_up(engine, ripe)
    crowded = len(ripe) == MOST_RIPE or any(len(one.children) == MOST_CHILDREN for one in ripe)
    return STEP if crowded else len(ripe)


async def _follow_up(engine: Engine, ripe: Sequence[Ripe]) -> None:
    """Where what follows one of them lies in a part of the store that is away, it does not hold up the others."""
    try:
        await follow_up(engine.desk, ripe)
    except PartAway as fault:
        late = [one for one in ripe if not await _is_followed(engine, one)]
        if late:
            raise PartAway(f"what is to follow {len(late)} jobs waits: {fault}") from fault


async def _is_followed(engine: Engine, one: Ripe) -> bool:
    try:
        await follow_up(engine.desk, [one])
    except PartAway:
        return False
    return True


async def look_after(engine: Engine) -> int:
    """Decide all blocked jobs anew: whoever added one may have died before it was bound to what it waits for."""
    counts = await engine.desk.store.tally(EVERY_TENANT)
    for tenant, queue in sorted({(count.tenant, count.queue) for count in counts if count.state is State.BLOCKED}):
        await _look_after(engine, Scope(tenant, queue, frozenset({State.BLOCKED})))
    return 0


async def _look_after(engine: Engine, scope: Scope) -> None:
    after = None
    while True:
        piece = await engine.desk.store.page(scope, after, MOST_RIPE)
        await unblock(engine.desk, [key_of(record.job) for record in piece.records])
        if (after := piece.next) is None:
            return


async def rouse(engine: Engine) -> int:
    """Let jobs be claimed whose limit has room again, or whose pause is over."""
    if await _is_unruled(engine):
        return 0
    return await engine.desk.flow.rouse(STEP)


async def sort(engine: Engine) -> int:
    """Go on where whoever changed a limit left waiting jobs unsorted."""
    if not await _is_unruled(engine):
        await sort_out(engine.desk)
    return 0


async def _is_unruled(engine: Engine) -> bool:
    """Whether there were no rules a second ago, when `cap` looked: then nothing is held up, and nothing unsorted."""
    return (await engine.desk.regimes.current()).rules.edition == 0


async def attend(engine: Engine) -> int:
    """Take time and places from those who gave way beforehand, for jobs that wait."""
    return await attend_all(engine.desk)


async def cap(engine: Engine) -> int:
    """Let the caps of tiers follow the workers that come and go."""
    return await keep_caps(engine.desk)


async def learn(engine: Engine) -> int:
    """Write down how long jobs ran, and how right estimates were."""
    await learn_run_times(engine.desk)
    return await keep_promises(engine.desk)


async def estimate(engine: Engine) -> int:
    """Foretell anew how long jobs wait in the queues that somebody watches."""
    return await foretell(engine.desk)


DUTIES: dict[Duty, float] = {
    promote: 0.25,
    reclaim: 1.0,
    expire: 1.0,
    abandon: 1.0,
    follow: 0.1,
    look_after: 60.0,
    purge: 5.0,
    rouse: 0.25,
    sort: 1.0,
    attend: 0.25,
    cap: 1.0,
    learn: 1.0,
    estimate: 1.0,
}
"""Each duty and the seconds between its rounds."""

TOLD: dict[Duty, str] = {follow: "house/ripe"}
"""Duties that are told when there is something to do: what they listen to. They rest until then."""

APART = 0.005
"""Seconds between the first rounds of two duties: all at once would hold up whatever comes just then."""


async def every(
    seconds: Pause, duty: Duty, engine: Engine, clock: Clock, *, first: float = 0.0, listener: Listener | None = None
) -> None:
    """Do a duty for ever: all there is to do, then a pause; with a listener, after a round that found nothing, until
    there is something, or may be. One failing round does not end it, whatever failed: whoever keeps house also serves
    or works, and must not die of a duty.
    """
    await clock.sleep(first)
    told = ""
    while True:
        done = STEP
        try:
            while (done := await duty(engine)) >= STEP:
                await clock.sleep(0)
            told = ""
        except WindlassError as error:
            if str(error) != told:  # a store that is away is told once by each duty, not ten times a second
                log.warning("%s: %s", getattr(duty, "__name__", duty), error)
            told = str(error)
        except Exception:
            log.exception("%s failed; it is tried again", getattr(duty, "__name__", duty))
        if listener is not None and not done:
            await listener.wait(LOOK_AGAIN)
        else:
            await clock.sleep(seconds() if callable(seconds) else seconds)


async def whenever(topic: str, seconds: float, duty: Duty, engine: Engine, clock: Clock, *, first: float) -> None:
    """Do a duty for ever, each time that something is told of under a topic."""
    async with engine.desk.store.listen([topic]) as listener:
        await every(seconds, duty, engine, clock, first=first, listener=listener)


async def keep_house(engine: Engine, clock: Clock, *, briefly: bool = False) -> None:
    """All duties at once, until cancelled. `briefly`: whoever does so may be gone soon, and waits for nobody."""
    promoting = Promoting()
    patient = reclaiming(engine.desk.settings.lease, trusting=briefly)
    async with asyncio.TaskGroup() as group:
        for place, (duty, seconds) in enumerate(DUTIES.items()):
            chosen, first = patient if duty is reclaim else duty, place * APART
            if duty in TOLD:
                group.create_task(whenever(TOLD[duty], seconds, chosen, engine, clock, first=first))
            elif duty is promote:
                group.create_task(every(lambda: promoting.pause, promoting, engine, clock, first=first))
            else:
                group.create_task(every(seconds, chosen, engine, clock, first=first))
