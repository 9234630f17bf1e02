"""Values as the file keeps them: numbers for states, microseconds for times, sixteen bytes for an id.

Pure, and the same for every table.
"""

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta

from windlass.model.errors import Invalid
from windlass.model.job import FINISHED, State
from windlass.model.names import raw_id

STATES = tuple(State)
"""A state's number in the file is its place here: change this and `schema.sql` together."""

NUMBERS = {state: number for number, state in enumerate(STATES)}

SCHEDULED = NUMBERS[State.SCHEDULED]
QUEUED = NUMBERS[State.QUEUED]
RUNNING = NUMBERS[State.RUNNING]
SUCCEEDED = NUMBERS[State.SUCCEEDED]

ENDED = frozenset(NUMBERS[state] for state in FINISHED)

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

EARLIEST, LATEST = -62_135_596_800_000_000, 253_402_300_799_999_999
"""The first and the last microsecond that a datetime in UTC can name."""


def micros(moment: datetime) -> int:
    """A time as it is kept. One that some zone can name but UTC cannot is moved to where it can be read again."""
    return min(max(EARLIEST, _count(moment - EPOCH)), LATEST)


def span(seconds: float) -> int:
    """A duration in microseconds, rounded exactly as `timedelta` does."""
    return _count(timedelta(seconds=seconds))


def moment(microseconds: int) -> datetime:
    return EPOCH + timedelta(microseconds=microseconds)


def maybe_moment(microseconds: int | None) -> datetime | None:
    return None if microseconds is None else EPOCH + timedelta(microseconds=microseconds)


def key(id: str) -> bytes:
    """The bytes that an id is kept as."""
    return keys((id,))[0]


def keys(ids: Iterable[str]) -> list[bytes]:
    try:
        return [raw_id(id) for id in ids]
    except ValueError:
        raise Invalid("not a UUID", at="id") from None


def _count(duration: timedelta) -> int:
    return (duration.days * 86_400 + duration.seconds) * 1_000_000 + duration.microseconds
