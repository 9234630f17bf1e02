"""Times as stores keep them: whole microseconds since 1970, UTC; the same for every store."""

from datetime import UTC, datetime, timedelta
from functools import lru_cache

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

EARLIEST, LATEST = -62_135_596_800_000_000, 253_402_300_799_999_999
"""The first and the last microsecond that a datetime in UTC can name."""

_MICROSECOND = timedelta(microseconds=1)


def to_micros(time: datetime) -> int:
    """A time as it is kept. One that some zone can name but UTC cannot is moved to where it can be read again."""
    return min(max(EARLIEST, (time - EPOCH) // _MICROSECOND), LATEST)


@lru_cache(maxsize=1024)  # jobs of one batch share their times
def from_micros(micros: int) -> datetime:
    return EPOCH + timedelta(microseconds=micros)


@lru_cache(maxsize=1024)  # few lengths are used again and again
def span(seconds: float) -> int:
    """A duration in microseconds, rounded exactly as `timedelta` does."""
    return timedelta(seconds=seconds) // _MICROSECOND


def ended_at(started: datetime | None, finished: datetime | None) -> datetime | None:
    """When a job ended: never before it began, though the clock may have been set back meanwhile."""
    return max(started, finished) if started and finished else finished
