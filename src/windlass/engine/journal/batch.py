"""Batches of jobs as bytes, and back.

A batch is the body of one row of the journal: a list of records. A record holds jobs that differ in nothing but their
ids and payloads; a lone job is a record of one. What is kept is the job as it was checked, not the request that brought
it. Pure: knows neither files nor numbers that are given out later.
"""

from collections.abc import Sequence
from datetime import datetime
from itertools import pairwise
from typing import Any, NamedTuple

import msgspec
from msgspec import Raw, Struct

from windlass.engine.new_jobs import JobBatch, batch_of, drafts_in, split_batch
from windlass.model.names import ID_SIZE, raw_id, text_id
from windlass.model.new_job import NOTHING, NewJob
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
        return len(self.ids) // ID_SIZE


class Entry(NamedTuple):
    """One accepted job and its number."""

    sequence: int
    accepted_at: int
    """Microseconds, by this host's clock."""
    draft: Draft | None
    """Null if this program cannot read it: then one entry, the last, stands for its whole record or batch."""
    raw: bytes = b""
    """The bytes of what cannot be read."""


# Encoding


class _Extras(Struct, frozen=True, omit_defaults=True):
    """What few jobs have."""

    delay: float | None = None
    run_at: datetime | None = None
    files: dict[str, bytes] = {}
    then: bytes | None = None


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
    if new.delay is None and new.run_at is None and new.then is None and not new.files:
        return None
    then = None if new.then is None else encoding.pack_then(tenant, new.then)
    return _Extras(new.delay, new.run_at, new.files, then)


# Decoding


def decode(first: int, last: int, accepted_at: int, body: bytes) -> list[Entry]:
    """The jobs of a batch, each with its number. What this program cannot read is there as bytes."""
    found = ids_in(body)
    if found is None or sum(len(ids) for _, ids in found) // ID_SIZE != last + 1 - first:
        return [Entry(last, accepted_at, None, body)]
    entries: list[Entry] = []
    for record in _unpack_records(body):
        end = first + len(record.ids) // ID_SIZE
        drafts = _drafts(record)
        if drafts is None:
            entries.append(Entry(end - 1, accepted_at, None, _pack(record)))
        else:
            entries += [Entry(sequence, accepted_at, draft) for sequence, draft in enumerate(drafts, first)]
        first = end
    return entries


def ids_in(body: bytes) -> list[tuple[str, bytes]] | None:
    """The tenant and the ids of each record; null if this program cannot read the batch."""
    try:
        return [(record.tenant, record.ids) for record in _unpack_records(body)]
    except (msgspec.MsgspecError, ValueError):
        return None


def _drafts(record: _Record) -> list[Draft] | None:
    try:
        if len(record.ids) == ID_SIZE:
            (payload,) = _unpack_payloads(record.payloads)
            return [Draft(record.tenant, text_id(record.ids), _new(record, Raw(payload)))]
        return drafts_in(JobBatch(record.tenant, _new(record, NOTHING), record.ids, record.payloads))
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
        then=None if extras.then is None else encoding.unpack_then(extras.then)[1],
    )
