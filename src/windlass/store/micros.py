"""Times as stores keep them: whole microseconds since 1970, UTC."""

from datetime import UTC, datetime, timedelta
from functools import lru_cache

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

_MICROSECOND = timedelta(microseconds=1)


def to_micros(time: datetime) -> int:
    return (time - EPOCH) // _MICROSECOND


@lru_cache(maxsize=1024)  # jobs of one batch share their times
def from_micros(micros: int) -> datetime:
    return EPOCH + timedelta(microseconds=micros)


def span(seconds: float) -> int:
    """A duration in microseconds."""
    return round(seconds * 1_000_000)
