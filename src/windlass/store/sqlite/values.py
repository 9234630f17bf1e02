"""Values as the file keeps them: numbers for states, sixteen bytes for an id.

Pure, and the same for every table.
"""

from collections.abc import Iterable

from windlass.model.errors import Invalid
from windlass.model.job import FINISHED, State
from windlass.model.names import raw_id

STATES = tuple(State)
"""A state's number in the file is its place here: change this and `schema.sql` together."""

NUMBERS = {state: number for number, state in enumerate(STATES)}

BLOCKED = NUMBERS[State.BLOCKED]
SCHEDULED = NUMBERS[State.SCHEDULED]
QUEUED = NUMBERS[State.QUEUED]
RUNNING = NUMBERS[State.RUNNING]
SUCCEEDED = NUMBERS[State.SUCCEEDED]

ENDED = frozenset(NUMBERS[state] for state in FINISHED)


def key(id: str) -> bytes:
    """The bytes that an id is kept as."""
    return keys((id,))[0]


def keys(ids: Iterable[str]) -> list[bytes]:
    try:
        return [raw_id(id) for id in ids]
    except ValueError:
        raise Invalid("not a UUID", at="id") from None
