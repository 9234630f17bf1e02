"""One statement for many rows.

Every step of a statement lets go of the interpreter's lock and must win it back, which costs up to its switch interval
(5 ms) when another thread is busy. So a batch goes in as few steps as possible: lists of keys are bound as one array,
and rows as `VALUES` of a few fixed lengths, so that the statements can stay prepared.
"""

from array import array
from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import chain

import apsw

Value = int | float | str | bytes | None
"""What a row can hold."""

Row = tuple[Value, ...]

ROWS = "{rows}"
"""Where a template wants its rows."""

SIZES = (256, 64, 16, 4, 1)
"""How many rows go at once: each length is a text of its own, and texts beyond 16 KiB are not kept prepared."""


def numbers(values: Sequence[int]) -> "apsw.CArrayBinding":
    """Bind integers, to be read with `carray(?)`. There must be at least one."""
    return apsw.carray(array("q", values))


def blobs(values: Sequence[bytes]) -> "apsw.CArrayBinding":
    """Bind byte strings, to be read with `carray(?)`. There must be at least one."""
    return apsw.carray(tuple(values))


def texts(values: Sequence[str]) -> "apsw.CArrayBinding":
    """Bind texts, to be read with `carray(?)`. There must be at least one."""
    return apsw.carray(tuple(values))


def run(sql: apsw.Connection, template: str, rows: Sequence[Row], shared: Row = ()) -> None:
    """Run a statement for all rows, in order. Each begins with what they share, which is bound only once."""
    for part in _parts(rows):
        text = _text(template, len(shared), len(part[0]), len(part))
        sql.execute(text, (*shared, *chain.from_iterable(part)))


def _parts(rows: Sequence[Row]) -> Iterator[Sequence[Row]]:
    start = 0
    for size in SIZES:
        while len(rows) - start >= size:
            yield rows[start : start + size]
            start += size


@lru_cache(maxsize=256)
def _text(template: str, shared: int, own: int, count: int) -> str:
    places = [f"?{place}" for place in range(1, shared + 1)] + ["?"] * own  # one without a number is the next
    row = f"({','.join(places)})"
    return template.replace(ROWS, ",".join([row] * count))
