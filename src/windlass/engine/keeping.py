"""Changes to one record on the shelf: made to what is there, so that of two who change it at once neither undoes the
other. Knows bytes; what a record means is for those who change it.
"""

from collections.abc import Callable
from typing import NamedTuple

from windlass.engine.desk import Desk
from windlass.model.errors import Conflict

MOST_TRIES = 100
"""Each that fails is somebody else's change of the same record."""

Change = Callable[[bytes | None], bytes | None]
"""A record as it is to be, from what it is; null = none. May be asked more than once."""


class Changed(NamedTuple):
    """A record before and after a change."""

    before: bytes | None
    after: bytes | None


async def change(desk: Desk, kind: str, name: str, make: Change) -> Changed:
    for _ in range(MOST_TRIES):
        before = (await desk.shelf.shelved(kind)).get(name)
        after = make(before)
        if after == before or await desk.shelf.swap(kind, name, before, after):
            return Changed(before, after)
    raise Conflict("others change the same settings at the same time: try again")
