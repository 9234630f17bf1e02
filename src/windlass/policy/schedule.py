"""The ticks of a schedule: the times at which it makes jobs. Pure, but for the time zones of this machine.

At a change of clocks a time that does not exist (02:30 on a night that goes from 02:00 to 03:00) ticks once, right
after the gap; a time that exists twice ticks once, the first time.
"""

import math
import zlib
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from cronsim import CronSim, CronSimError

from windlass.model.errors import Invalid
from windlass.model.schedule import Timing

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

WINDOWS = [timedelta(minutes=2), timedelta(hours=2), timedelta(days=2), timedelta(days=70), timedelta(days=4000)]
"""How far back the last tick is looked for, one after the other."""


def ticks(timing: Timing, after: datetime) -> Iterator[datetime]:
    """The ticks after a time, earliest first, in UTC. Raises `Invalid` if the times cannot be read."""
    found = _cron(timing, timing.cron, after) if timing.cron is not None else _every(timing, after)
    for tick in found:
        if timing.end is not None and tick > timing.end:
            return
        yield tick


def next_tick(timing: Timing, after: datetime) -> datetime | None:
    """Null = there are no more."""
    return next(ticks(timing, after), None)


def last_tick(timing: Timing, after: datetime, until: datetime) -> datetime | None:
    """The last tick after one time, up to another; null = there is none. Looks back step by step, so that a long time
    with many ticks costs no more than a short one.
    """
    for window in WINDOWS:
        begin = max(after, until - window)
        found = None
        for tick in ticks(timing, begin):
            if tick > until:
                break
            found = tick
        if found is not None or begin == after:
            return found
    return None


def jitter_of(key: str, most: float) -> float:
    """Seconds by which the job of a tick starts late: the same wherever it is computed. `key`: that of the job."""
    return most * zlib.crc32(key.encode()) / 2**32


def _cron(timing: Timing, cron: str, after: datetime) -> Iterator[datetime]:
    zone = _zone(timing.tz)
    if timing.start is not None:
        after = max(after, timing.start - timedelta(microseconds=1))
    try:
        for tick in CronSim(cron, after.astimezone(zone)):
            yield tick.astimezone(UTC)
    except CronSimError as fault:
        raise Invalid(f"{cron!r} is no cron expression: {fault} (five fields, as in '0 3 * * *')", at="cron") from None


def _every(timing: Timing, after: datetime) -> Iterator[datetime]:
    every, start = timing.every or 1.0, timing.start or EPOCH
    number = max(0, math.floor((after - start).total_seconds() / every) + 1)
    while True:
        tick = start + timedelta(seconds=number * every)
        if tick > after:
            yield tick
        number += 1


@lru_cache(maxsize=256)
def _zone(name: str) -> ZoneInfo:
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise Invalid(f"there is no time zone {name!r}: write it as in Europe/Rome", at="tz") from None
