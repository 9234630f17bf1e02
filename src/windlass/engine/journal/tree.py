"""A table of SQLite, read without the pages that lead to its rows.

A table is a tree of pages: only the leaves have rows, the others say which leaf has which. If one of those is damaged,
SQLite finds nothing below it. But the pointer map, which a file with `auto_vacuum` has, names the page above each page.
So the leaves of a table can be found, and put below new pages. The format is at
https://www.sqlite.org/fileformat2.html#b_tree_pages. Pure: knows no files and no SQL.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from windlass.engine.journal.wal import MORE, PAGE, TABLE_LEAF

TABLE_INTERIOR = 0x05

LEAF_HEADER, INTERIOR_HEADER = 8, 12
POINTER = 2
"""Bytes that say where in its page an entry is."""

MAPPED = PAGE // 5
"""Pages that one page of the pointer map describes."""
MAP_ROOT, MAP_BELOW = 1, 5
"""In the pointer map: the root of a table, and a page below another one. Free pages are neither."""
DEEPEST = 20

CHILDREN = 250
"""Pages below one new page: more might not fit."""

ROLLBACK_FORMAT = b"\x01\x01"
FORMAT_AT = slice(18, 20)
SIZE_VALID_FOR = slice(92, 96)
"""In the first page: the change that wrote the size of the file into it."""


class Relinked(NamedTuple):
    """A file in which new pages lead to the leaves of a table."""

    image: bytes
    lacks_leaves: bool
    """Whether leaves cannot be read: which rows they had is not known."""


class _Node(NamedTuple):
    page: int
    highest: int
    """The highest row number in it or below it."""


def relinked(image: bytes, root: int) -> Relinked | None:
    """The file with new pages above the leaves of a table; null if those that it has are sound, or it has none."""
    pages = [image[at : at + PAGE] for at in range(0, len(image), PAGE)]
    below = dict(_pages_below(pages, root))
    above: dict[int, set[int]] = {}
    for number, parent in below.items():
        above.setdefault(parent, set()).add(number)
    if all(below_it <= _children(pages[number - 1]) for number, below_it in above.items()):
        return None
    leaves = [number for number in below if number not in above]
    nodes = sorted(
        (_Node(number, rows[-1]) for number in leaves if (rows := _row_numbers(pages[number - 1]))),
        key=lambda node: node.highest,
    )
    if not nodes:
        return None
    lacks_leaves = len(nodes) < len(leaves)
    while len(nodes) > 1:
        groups = [nodes[start : start + CHILDREN] for start in range(0, len(nodes), CHILDREN)]
        nodes = []
        for group in groups:
            if len(group) == 1:  # SQLite refuses a page that leads to a single one
                nodes += group
                continue
            pages.append(_interior(group))
            nodes.append(_Node(len(pages), group[-1].highest))
    pages[root - 1] = pages[nodes[0].page - 1]
    pages[0] = for_reading(pages[0])
    return Relinked(b"".join(pages), lacks_leaves)


def for_reading(first: bytes) -> bytes:
    """The first page of a file that is read from memory: without a log, and of whatever size it is."""
    page = bytearray(first)
    page[FORMAT_AT] = ROLLBACK_FORMAT
    page[SIZE_VALID_FOR] = b"\xff" * 4  # no change has this number
    return bytes(page)


def _pages_below(pages: Sequence[bytes], root: int) -> Iterator[tuple[int, int]]:
    """Each page of a table but its root, and the page above it."""
    above: dict[int, int] = {}
    for number in range(3, len(pages) + 1):
        kind, parent = _mapped(pages, number)
        if kind == MAP_BELOW and 0 < parent <= len(pages):
            above[number] = parent
    for number, parent in above.items():
        top = parent
        for _ in range(DEEPEST):
            top = above.get(top, top)
        if top == root and _mapped(pages, root)[0] == MAP_ROOT:
            yield number, parent


def _mapped(pages: Sequence[bytes], number: int) -> tuple[int, int]:
    """What the pointer map says of a page: its kind and the page above it."""
    map_page = (number - 2) // (MAPPED + 1) * (MAPPED + 1) + 2
    if number == map_page:
        return 0, 0
    at = 5 * (number - map_page - 1)
    entry = pages[map_page - 1][at : at + 5]
    return (entry[0], int.from_bytes(entry[1:])) if entry else (0, 0)


def _children(page: bytes) -> set[int]:
    """The pages that a page leads to; empty if it leads to none, or is damaged."""
    end = INTERIOR_HEADER + POINTER * int.from_bytes(page[3:5])
    if page[0] != TABLE_INTERIOR or end > len(page):
        return set()
    places = (int.from_bytes(page[at : at + POINTER]) for at in range(INTERIOR_HEADER, end, POINTER))
    return {int.from_bytes(page[at : at + 4]) for at in [8, *places]}


def _row_numbers(page: bytes) -> list[int]:
    """The row numbers of a leaf; empty if it is none, or damaged."""
    count = int.from_bytes(page[3:5])
    if page[0] != TABLE_LEAF or LEAF_HEADER + POINTER * count > len(page):
        return []
    found = [0]
    for place in range(LEAF_HEADER, LEAF_HEADER + POINTER * count, POINTER):
        _size, at = _varint(page, int.from_bytes(page[place : place + POINTER]))
        number, _ = _varint(page, at)
        if number <= found[-1]:
            return []
        found.append(number)
    return found[1:]


def _varint(page: bytes, at: int) -> tuple[int, int]:
    """A number and what is behind it; numbers of more than eight bytes are none that we write."""
    value = 0
    for place in range(at, min(at + 8, len(page))):
        value = value << 7 | page[place] & (MORE - 1)
        if page[place] < MORE:
            return value, place + 1
    return 0, len(page)


def _interior(children: Sequence[_Node]) -> bytes:
    """A page that leads to others."""
    *cells, last = children
    page, end = bytearray(PAGE), PAGE
    for place, cell in enumerate(cells):
        entry = cell.page.to_bytes(4) + _as_varint(cell.highest)
        end -= len(entry)
        page[end : end + len(entry)] = entry
        at = INTERIOR_HEADER + POINTER * place
        page[at : at + POINTER] = end.to_bytes(2)
    page[0] = TABLE_INTERIOR
    page[3:7] = len(cells).to_bytes(2) + end.to_bytes(2)
    page[8:INTERIOR_HEADER] = last.page.to_bytes(4)
    return bytes(page)


def _as_varint(value: int) -> bytes:
    found = [value & (MORE - 1)]
    while value := value >> 7:
        found.append(value & (MORE - 1) | MORE)
    return bytes(reversed(found))
