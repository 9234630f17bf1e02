"""The periodic duties: promote, reclaim, expire, purge.

Each duty takes one bounded step and says how much it did, so that a backlog is worked off without a pause and an idle
queue costs next to nothing. Any number of processes may keep house at once: every step is guarded by the store.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from datetime import datetime

from windlass.engine import Engine
from windlass.model import lifecycle
from windlass.model.errors import WindlassError
from windlass.model.lifecycle import Move
from windlass.model.ports import Clock
from windlass.store import Overdue, Record

log = logging.getLogger("windlass.upkeep")

Duty = Callable[[Engine], Awaitable[int]]

STEP = 500
"""Jobs that one step of a duty takes on."""


async def promote(engine: Engine) -> int:
    """Queue scheduled jobs whose time has come."""
    return await engine.desk.store.promote(STEP)


async def reclaim(engine: Engine) -> int:
    """Take jobs back whose worker was not heard of for a whole lease."""

    def lost(record: Record, now: datetime) -> Move:
        return lifecycle.lose(record.job, now)

    reading = await engine.desk.store.overdue(Overdue.LEASE, STEP)
    return await engine.desk.settle_read(reading.records, reading.now, lost)


async def expire(engine: Engine) -> int:
    """End jobs that nobody started in time."""

    def expired(record: Record, now: datetime) -> Move:
        return lifecycle.expire(record.job, now)

    reading = await engine.desk.store.overdue(Overdue.WAIT, STEP)
    return await engine.desk.settle_read(reading.records, reading.now, expired)


async def purge(engine: Engine) -> int:
    """Drop finished jobs that have been kept long enough."""
    return await engine.desk.store.purge(STEP)


DUTIES: dict[Duty, float] = {promote: 0.25, reclaim: 1.0, expire: 1.0, purge: 5.0}
"""Each duty and the seconds between its rounds."""


async def every(seconds: float, duty: Duty, engine: Engine, clock: Clock) -> None:
    """Do a duty for ever: all there is to do, then a pause. One failing round does not end it."""
    while True:
        try:
            while await duty(engine) >= STEP:
                await clock.sleep(0)
        except WindlassError as error:
            log.warning("%s: %s", getattr(duty, "__name__", duty), error)
        await clock.sleep(seconds)


async def keep_house(engine: Engine, clock: Clock) -> None:
    """All duties at once, until cancelled."""
    async with asyncio.TaskGroup() as group:
        for duty, seconds in DUTIES.items():
            group.create_task(every(seconds, duty, engine, clock))
