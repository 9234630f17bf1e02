"""Batches of jobs as bytes, and back.

A batch is the body of one row of the journal: a list of records. A record holds jobs that differ in nothing but their
ids and payloads; a lone job is a record of one. What is kept is the job as it was checked, not the request that brought
it. Pure: knows neither files nor numbers that are given out later.
"""

from bisect import bisect_right
from collections.abc import Sequence
from datetime import datetime
from itertools import islice, pairwise
from operator import attrgetter
from typing import Any, NamedTuple

import msgspec
from msgspec import Raw, Struct

from windlass.engine.new_jobs import JobBatch, batch_of, drafts_in, payloads_of, split_batch
from windlass.model.fresh_ids import SIZE
from windlass.model.job import NOTHING, NewJob
from windlass.model.names import raw_id, text_id
from windlass.store import encoding
from windlass.store.data import Draft
from windlass.store.encoding import alike

MOST_IN_RECORD = 1000
"""Jobs of one record: to find one of them, all are read."""

LEAST_SHARED = 100
"""Fewer jobs than this are a record each, even if they are alike: a search looks at shared records one by one."""


class RecordBody(NamedTuple):
    """A record before it has its numbers."""

    tenant: str
    ids: bytes
    """The ids of its jobs, one after the other, ascending."""
    packed: bytes

    @property
    def job_count(self) -> int:
        return len(self.ids) // SIZE


class Entry(NamedTuple):
    """One accepted job and its number."""

    sequence: int
    accepted_at: int
    """Microseconds, by this host's clock."""
    draft: Draft | None
    """Null if this program cannot read it."""
    raw: bytes = b""
    """Its bytes, where it cannot be read."""


class Extent(Struct, frozen=True, gc=False):
    """Jobs with consecutive numbers that were accepted together. An object for each job is made on demand."""

    first: int
    last: int
    accepted_at: int
    jobs: Sequence[Draft] | JobBatch | None
    """Null if they cannot be read: then one entry stands for all of them."""
    raw: bytes = b""

    def entries(self, after: int, most: int) -> list[Entry]:
        """The jobs behind a sequence number, as many as are wanted."""
        if self.jobs is None:
            return [Entry(self.last, self.accepted_at, None, self.raw)]
        start = max(0, after + 1 - self.first)
        end = start + most
        some = drafts_in(self.jobs, start, end) if isinstance(self.jobs, JobBatch) else self.jobs[start:end]
        return [Entry(sequence, self.accepted_at, draft) for sequence, draft in enumerate(some, self.first + start)]


_LAST = attrgetter("last")


def extents_upto(extents: Sequence[Extent], sequence: int) -> int:
    """How many of several consecutive extents end at a sequence number or before it."""
    return bisect_right(extents, sequence, key=_LAST)


def entries_behind(extents: Sequence[Extent], after: int, most: int) -> list[Entry]:
    """The jobs of several consecutive extents behind a sequence number."""
    found: list[Entry] = []
    for extent in islice(extents, extents_upto(extents, after), None):
        found += extent.entries(after, most - len(found))
        if len(found) >= most:
            break
    return found


# Encoding


class _Extras(Struct, frozen=True, omit_defaults=True):
    """What few jobs have."""

    delay: float | None = None
    run_at: datetime | None = None
    files: dict[str, bytes] = {}
    then: bytes | None = None
    keep_is_default: bool = False


_NONE = _Extras()


class _Record(Struct, frozen=True, array_like=True, gc=False):
    tenant: str
    ids: bytes
    task: str
    queue: str
    priority: int
    terms: bytes
    payloads: Raw
    """A list in MessagePack."""
    extras: _Extras | None


_pack = msgspec.msgpack.Encoder().encode
_unpack_records = msgspec.msgpack.Decoder(list[_Record]).decode
_unpack_payloads = msgspec.msgpack.Decoder(list[bytes]).decode


def encode(jobs: Sequence[Draft] | JobBatch) -> list[RecordBody]:
    """Jobs as records, in their order."""
    if isinstance(jobs, JobBatch):
        return _shared(jobs)
    if len(jobs) < LEAST_SHARED:
        return [_lone(draft) for draft in jobs]
    found: list[RecordBody] = []
    for some in alike(jobs):
        found += _shared(batch_of(some)) if _can_share(some) else [_lone(draft) for draft in some]
    return found


def join(records: Sequence[RecordBody]) -> bytes:
    """Several records as the body of one batch."""
    return _pack([Raw(record.packed) for record in records])


def _can_share(drafts: Sequence[Draft]) -> bool:
    """Whether one record for all of them is worth it, and each can be found in it."""
    return len(drafts) >= LEAST_SHARED and all(one.id < other.id for one, other in pairwise(drafts))


def _shared(lines: JobBatch) -> list[RecordBody]:
    return [
        RecordBody(part.tenant, part.ids, _packed(part.tenant, part.ids, part.common, part.packed))
        for part in split_batch(lines, MOST_IN_RECORD)
    ]


def _lone(draft: Draft) -> RecordBody:
    id, payload = raw_id(draft.id), [bytes(draft.new.payload)]
    return RecordBody(draft.tenant, id, _packed(draft.tenant, id, draft.new, payload))


def _packed(tenant: str, ids: bytes, new: NewJob, payloads: Raw | list[bytes]) -> bytes:
    packed = encoding.pack_terms(new)
    return _pack((tenant, ids, new.task, new.queue, new.priority, packed, payloads, _extras(tenant, new)))


def _extras(tenant: str, new: NewJob) -> _Extras | None:
    if new.delay is None and new.run_at is None and new.then is None and not new.files and not new.keep_is_default:
        return None
    then = None if new.then is None else encoding.pack_then(tenant, new.then)
    return _Extras(new.delay, new.run_at, new.files, then, new.keep_is_default)


# Decoding


def decode(first: int, last: int, accepted_at: int, body: bytes) -> list[Extent]:
    """The records of a batch, each with its numbers. What this program cannot read is there as bytes."""
    if count_in(body) != last + 1 - first:
        return [Extent(first, last, accepted_at, None, body)]
    extents: list[Extent] = []
    for record in _unpack_records(body):
        end = first + len(record.ids) // SIZE - 1
        jobs = _jobs(record)
        extents.append(Extent(first, end, accepted_at, jobs, _pack(record) if jobs is None else b""))
        first = end + 1
    return extents


def ids_in(body: bytes) -> list[tuple[str, bytes]] | None:
    """The tenant and the ids of each record; null if this program cannot read the batch."""
    try:
        return [(record.tenant, record.ids) for record in _unpack_records(body)]
    except (msgspec.MsgspecError, ValueError):
        return None


def count_in(body: bytes) -> int | None:
    """How many jobs a batch holds; null if it is no batch."""
    found = ids_in(body)
    return None if found is None else sum(len(ids) for _, ids in found) // SIZE


def _jobs(record: _Record) -> Sequence[Draft] | JobBatch | None:
    try:
        if len(record.ids) == SIZE:
            (payload,) = _unpack_payloads(record.payloads)
            return (Draft(record.tenant, text_id(record.ids), _new(record, Raw(payload))),)
        lines = JobBatch(record.tenant, _new(record, NOTHING), record.ids, record.payloads)
        return lines if len(payloads_of(lines)) == len(lines) else None
    except (msgspec.MsgspecError, TypeError, ValueError):
        return None


def _new(record: _Record, payload: Raw) -> NewJob:
    asked: dict[str, Any] = dict(encoding.unpack_terms(record.terms))
    extras = record.extras or _NONE
    return NewJob(
        **asked,
        task=record.task,
        queue=record.queue,
        priority=record.priority,
        payload=payload,
        delay=extras.delay,
        run_at=extras.run_at,
        files=extras.files,
        keep_is_default=extras.keep_is_default,
        then=None if extras.then is None else encoding.unpack_then(extras.then)[1],
    )
