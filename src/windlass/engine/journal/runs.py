"""What was accepted, as it is handed out: jobs one by one, made of what was accepted together.

A run is made for each request when it is written, and for each record when that is read again; its jobs are made when
somebody asks for them.
"""

from bisect import bisect_right
from collections.abc import Sequence
from itertools import islice
from operator import attrgetter
from typing import NamedTuple

from msgspec import Struct

from windlass.engine.journal import bodies
from windlass.engine.journal.format import BATCH, FIRST, LOST, Record, first_of, ids_of
from windlass.engine.lines import Lines, drafts_in
from windlass.store import Draft

_LAST = attrgetter("last")


class Entry(NamedTuple):
    """One accepted job, in its place."""

    sequence: int
    accepted: int
    """Microseconds, by this host's clock."""
    draft: Draft | None
    """Null if this program cannot read it, or if it was damaged (and reported then)."""
    raw: bytes = b""
    """Its bytes, where it cannot be read."""


class Run(Struct, frozen=True, gc=False):
    """Jobs that follow each other and were accepted at one time."""

    first: int
    last: int
    accepted: int
    jobs: Sequence[Draft] | Lines | None
    """Null if they cannot be read, or were damaged: then one entry stands for all of them."""
    raw: bytes = b""

    def entries(self, after: int, most: int) -> list[Entry]:
        """Those behind a sequence, as many as are wanted."""
        if self.jobs is None:
            return [Entry(self.last, self.accepted, None, self.raw)]
        start = max(0, after + 1 - self.first)
        end = start + most
        some = drafts_in(self.jobs, start, end) if isinstance(self.jobs, Lines) else self.jobs[start:end]
        return [Entry(sequence, self.accepted, draft) for sequence, draft in enumerate(some, self.first + start)]


def run_of(data: bytes, record: Record) -> Run:
    """What a record says."""
    first, body = first_of(data, record), data[record.body : record.end]
    jobs: Sequence[Draft] | Lines | None
    if record.flags & LOST:
        return Run(first, record.sequence, record.accepted, None)
    if record.flags & BATCH:
        ids = ids_of(data, record)
        jobs = bodies.unpack_lines(ids, record.tenant, body[FIRST.size + len(ids) :])
    else:
        draft = bodies.unpack(record.id, record.tenant, body)
        jobs = None if draft is None else (draft,)
    return Run(first, record.sequence, record.accepted, jobs, body if jobs is None else b"")


def runs_upto(runs: Sequence[Run], sequence: int) -> int:
    """How many of several runs that follow each other end there or before."""
    return bisect_right(runs, sequence, key=_LAST)


def entries_behind(runs: Sequence[Run], after: int, most: int) -> list[Entry]:
    """The jobs behind a sequence, of several runs that follow each other."""
    found: list[Entry] = []
    for run in islice(runs, runs_upto(runs, after), None):
        found += run.entries(after, most - len(found))
        if len(found) >= most:
            break
    return found
