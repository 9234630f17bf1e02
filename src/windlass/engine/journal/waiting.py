"""Which jobs are only in the journal: found by id, in little memory however long the store is away.

The newest are in a dictionary; what has waited longer is packed, 32 bytes a job: so a job is known there by sixteen
bytes that stand for its id and tenant, and an id of one tenant never hides another's. Batches stay as they are: the ids
in them are in order. Whatever the store has taken is forgotten a page or a batch at a time.
"""

import hashlib
from collections import deque
from typing import NamedTuple

from windlass.engine.journal.format import ID_SIZE
from windlass.engine.journal.segments import Place
from windlass.model.names import DEFAULT_TENANT

PAGE = 8192
"""Jobs of one page. Packing it takes a few milliseconds."""

ENTRY = 32


class _Page(NamedTuple):
    """Sixteen bytes of `_name`, eight of sequence, eight of place, sorted."""

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
        self._batches: deque[Place] = deque()

    def add(self, place: Place) -> None:
        if len(place.ids) > ID_SIZE:
            self._batches.append(place)
            return
        self._new[_name(place.ids, place.tenant)] = (place.sequence, place.at)
        self._last = place.sequence
        if len(self._new) >= PAGE:
            self._turn()

    def _turn(self) -> None:
        if self._old:
            self._pages.append(_Page(_packed(self._old), self._old_last))
        self._old, self._old_last = self._new, self._last
        self._new = {}

    def find(self, id: bytes, tenant: str) -> tuple[int, int] | None:
        """Its sequence and where it lies in its segment: of the first record of that job that is still waiting."""
        name = _name(id, tenant)
        for page in self._pages:
            if found := _look(page.packed, name):
                return found
        return self._old.get(name) or self._new.get(name) or self._find_in_batches(id, tenant)

    def _find_in_batches(self, id: bytes, tenant: str) -> tuple[int, int] | None:
        for place in self._batches:
            if place.tenant == tenant and place.ids[:ID_SIZE] <= id <= place.ids[-ID_SIZE:]:
                number = _first_from(place.ids, ID_SIZE, id)
                if place.ids[number * ID_SIZE : (number + 1) * ID_SIZE] == id:
                    return place.first + number, place.at
        return None

    def forget(self, upto: int) -> None:
        """The store has all up to there."""
        while self._pages and self._pages[0].last <= upto:
            self._pages.popleft()
        while self._batches and self._batches[0].sequence <= upto:
            self._batches.popleft()
        if self._old and self._old_last <= upto:
            self._old = {}
        if self._new and self._last <= upto:
            self._new = {}


def _name(id: bytes, tenant: str) -> bytes:
    """Sixteen bytes for a job: its id, mixed with its tenant in a way that nobody can aim at another's job."""
    return id if tenant == DEFAULT_TENANT else hashlib.sha256(id + tenant.encode()).digest()[:ID_SIZE]


def _packed(places: dict[bytes, tuple[int, int]]) -> bytes:
    entries = (id + sequence.to_bytes(8) + at.to_bytes(8) for id, (sequence, at) in places.items())
    return b"".join(sorted(entries))


def _look(packed: bytes, id: bytes) -> tuple[int, int] | None:
    number = _first_from(packed, ENTRY, id)
    entry = packed[number * ENTRY : (number + 1) * ENTRY]
    if entry[:ID_SIZE] != id:
        return None
    return int.from_bytes(entry[16:24]), int.from_bytes(entry[24:])


def _first_from(packed: bytes, size: int, id: bytes) -> int:
    """The number of the first entry, of so many bytes each, that is not below an id."""
    low, high = 0, len(packed) // size
    while low < high:
        middle = (low + high) // 2
        if packed[middle * size : middle * size + ID_SIZE] < id:
            low = middle + 1
        else:
            high = middle
    return low
