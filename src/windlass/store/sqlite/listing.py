"""Listing and counting jobs: tenant by tenant, queue by queue, in order of arrival or the other way round.

A listing goes by lines in the order of their names, and within a line by arrival. Each state's jobs are in that order
in one index; the wanted states are merged. So a job that changes its state meanwhile keeps its place.
"""

import re
from typing import NamedTuple

from windlass.model.errors import Invalid
from windlass.model.names import EVERY_TENANT
from windlass.store import Scope, Slice, Tally
from windlass.store.sqlite import records
from windlass.store.sqlite.transaction import Transaction
from windlass.store.sqlite.values import NUMBERS, STATES

MOST_LINES = 100
"""Lines looked at in one call, most of them perhaps without a wanted job."""

BEYOND = "~"
"""Comes after every tenant's name."""

LAST = 10**18 - 1
"""Comes after every job."""

_CURSOR = re.compile(r"([\w.-]{1,128})/([\w.-]{1,128})/([0-9]{1,18})", re.ASCII)

_LINES = f"""
    SELECT id, tenant, queue FROM line WHERE (tenant, queue) >= (?1, ?2) AND tenant <= ?3
    ORDER BY tenant, queue LIMIT {MOST_LINES}
"""
_LINES_OF_QUEUE = f"""
    SELECT id, tenant, queue FROM line WHERE tenant BETWEEN ?1 AND ?3 AND queue = ?2
    ORDER BY tenant LIMIT {MOST_LINES}
"""
_SEQS = "SELECT seq FROM job WHERE line = ? AND state = ? AND seq > ? ORDER BY seq LIMIT ?"
_SEQS_BACKWARDS = "SELECT seq FROM job WHERE line = ? AND state = ? AND seq < ? ORDER BY seq DESC LIMIT ?"

_SUMS = f"SELECT tenant, queue, task, {', '.join(f'sum({state})' for state in STATES)} FROM lane"
_COUNTS = f"{_SUMS} GROUP BY tenant, queue, task"
_COUNTS_OF_TENANT = f"{_SUMS} WHERE tenant = ? GROUP BY tenant, queue, task"


class Cursor(NamedTuple):
    """The last place that a listing has shown."""

    tenant: str = ""
    queue: str = ""
    seq: int = 0

    @classmethod
    def parse(cls, text: str | None) -> "Cursor":
        if text is None:
            return cls()
        parts = _CURSOR.fullmatch(text)
        if parts is None:
            raise Invalid("not the `next` of an earlier page", at="after")
        return cls(parts[1], parts[2], int(parts[3]))

    def __str__(self) -> str:
        return f"{self.tenant}/{self.queue}/{self.seq}"


def page(tx: Transaction, scope: Scope, after: Cursor, limit: int) -> Slice:
    """At most `limit` records, from at most `MOST_LINES` lines, beyond a place."""
    lines = _lines(tx, scope, after)
    seqs: list[int] = []
    place: Cursor | None = None
    first, last = (LAST, 0) if scope.newest_first else (0, LAST)
    for line, tenant, queue in lines:
        start = after.seq if (tenant, queue) == (after.tenant, after.queue) else first
        seqs += _merged(tx, line, scope, start, limit - len(seqs))
        if len(seqs) >= limit:
            place = Cursor(tenant, queue, seqs[-1])
            break
    else:
        if len(lines) == MOST_LINES:
            place = Cursor(lines[-1][1], lines[-1][2], last)
    return Slice(records=records.by_seq(tx, seqs), next=None if place is None else str(place))


def _lines(tx: Transaction, scope: Scope, after: Cursor) -> list[tuple[int, str, str]]:
    lowest, highest = ("", BEYOND) if scope.tenant == EVERY_TENANT else (scope.tenant, scope.tenant)
    start = max(lowest, after.tenant)
    if scope.queue is not None:
        return tx.rows(_LINES_OF_QUEUE, start, scope.queue, highest)
    return tx.rows(_LINES, start, after.queue if start == after.tenant else "", highest)


def _merged(tx: Transaction, line: int, scope: Scope, after: int, limit: int) -> list[int]:
    """The next jobs of a line that are in one of the wanted states."""
    found: list[int] = []
    for state in scope.states:
        found += tx.column(_SEQS_BACKWARDS if scope.newest_first else _SEQS, line, NUMBERS[state], after, limit)
    return sorted(found, reverse=scope.newest_first)[:limit]


def tally(tx: Transaction, tenant: str) -> list[Tally]:
    lanes = tx.rows(_COUNTS) if tenant == EVERY_TENANT else tx.rows(_COUNTS_OF_TENANT, tenant)
    counts = [
        Tally(tenant=owner, queue=queue, task=task, state=state, count=count)
        for owner, queue, task, *numbers in lanes
        for state, count in zip(STATES, numbers, strict=True)
        if count
    ]
    return sorted(counts, key=lambda entry: (entry.tenant, entry.queue, entry.task, entry.state))
