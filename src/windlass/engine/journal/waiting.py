"""Which jobs are only in the journal: found by id, in little memory however long the store is away.

The newest are in a dictionary; what has waited longer is packed, 32 bytes a job. Whatever the store has taken is
forgotten a page at a time.
"""

from collections import deque
from typing import NamedTuple

from windlass.engine.journal.segments import Place

PAGE = 8192
"""Jobs of one page. Packing it takes a few milliseconds."""

ENTRY = 32


class _Page(NamedTuple):
    """Sixteen bytes of id, eight of sequence, eight of place, sorted by id."""

    packed: bytes
    last: int


class Waiting:
    """The jobs of one journal that wait for the store."""

    def __init__(self) -> None:
        self._new: dict[bytes, tuple[int, int]] = {}
        self._last = 0
        self._old: dict[bytes, tuple[int, int]] = {}
        """The page before the newest one: mostly it is forgotten before it would have to be packed."""
        self._old_last = 0
        self._pages: deque[_Page] = deque()

    def add(self, place: Place) -> None:
        self._new[place.id] = (place.sequence, place.at)
        self._last = place.sequence
        if len(self._new) >= PAGE:
            self._turn()

    def _turn(self) -> None:
        if self._old:
            self._pages.append(_Page(_packed(self._old), self._old_last))
        self._old, self._old_last = self._new, self._last
        self._new = {}

    def find(self, id: bytes) -> tuple[int, int] | None:
        """Its sequence and where it lies in its segment: of the first record with that id that is still waiting."""
        for page in self._pages:
            if found := _look(page.packed, id):
                return found
        return self._old.get(id) or self._new.get(id)

    def forget(self, upto: int) -> None:
        """The store has all up to there."""
        while self._pages and self._pages[0].last <= upto:
            self._pages.popleft()
        if self._old and self._old_last <= upto:
            self._old = {}
        if self._new and self._last <= upto:
            self._new = {}


def _packed(places: dict[bytes, tuple[int, int]]) -> bytes:
    entries = (id + sequence.to_bytes(8) + at.to_bytes(8) for id, (sequence, at) in places.items())
    return b"".join(sorted(entries))


def _look(packed: bytes, id: bytes) -> tuple[int, int] | None:
    low, high = 0, len(packed) // ENTRY
    while low < high:
        middle = (low + high) // 2
        if packed[middle * ENTRY : middle * ENTRY + 16] < id:
            low = middle + 1
        else:
            high = middle
    entry = packed[low * ENTRY : (low + 1) * ENTRY]
    if entry[:16] != id:
        return None
    return int.from_bytes(entry[16:24]), int.from_bytes(entry[24:])
