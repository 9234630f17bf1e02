"""New jobs as bodies of records, and back.

What is kept is what the store will be told: the job as it was checked, not the request that brought it.
"""

from datetime import datetime
from typing import Any

import msgspec
from msgspec import Raw, Struct

from windlass.engine.lines import Lines, payloads_of
from windlass.model.fresh_ids import SIZE
from windlass.model.job import NOTHING, NewJob
from windlass.model.names import text_id
from windlass.store import Draft, terms


class _Extras(Struct, frozen=True, omit_defaults=True):
    """What few jobs bring along."""

    delay: float | None = None
    run_at: datetime | None = None
    files: dict[str, bytes] = {}
    then: bytes | None = None


_NONE = _Extras()

_pack = msgspec.msgpack.Encoder().encode
_body = msgspec.msgpack.Decoder(tuple[str, str, int, bytes, bytes, _Extras | None])
_body_of_lines = msgspec.msgpack.Decoder(tuple[str, str, int, bytes, Raw, _Extras | None])


def pack(draft: Draft) -> bytes:
    new = draft.new
    return _pack((new.task, new.queue, new.priority, terms.pack(new), bytes(new.payload), _extras(draft.tenant, new)))


def pack_lines(lines: Lines) -> bytes:
    """All of them but their ids."""
    new = lines.common
    return _pack((new.task, new.queue, new.priority, terms.pack(new), lines.packed, _extras(lines.tenant, new)))


def _extras(tenant: str, new: NewJob) -> _Extras | None:
    if new.delay is None and new.run_at is None and new.then is None and not new.files:
        return None
    then = None if new.then is None else terms.pack_then(tenant, new.then)
    return _Extras(new.delay, new.run_at, new.files, then)


def unpack(id: bytes, tenant: str, body: bytes) -> Draft | None:
    """The job that a body says; null if this program cannot read it."""
    try:
        task, queue, priority, packed, payload, extras = _body.decode(body)
        new = _new(task, queue, priority, packed, Raw(payload), extras)
    except (msgspec.MsgspecError, TypeError, ValueError):
        return None
    return Draft(tenant, text_id(id), new)


def unpack_lines(ids: bytes, tenant: str, body: bytes) -> Lines | None:
    """The jobs that the body of a batch says; null if this program cannot read it."""
    try:
        task, queue, priority, packed, payloads, extras = _body_of_lines.decode(body)
        found = Lines(tenant, _new(task, queue, priority, packed, NOTHING, extras), ids, payloads)
        return found if len(payloads_of(found)) * SIZE == len(ids) else None
    except (msgspec.MsgspecError, TypeError, ValueError):
        return None


def _new(  # noqa: PLR0917 - in the order they lie
    task: str, queue: str, priority: int, packed: bytes, payload: Raw, extras: _Extras | None
) -> NewJob:
    asked: dict[str, Any] = dict(terms.unpack(packed))
    brought = extras or _NONE
    return NewJob(
        **asked,
        task=task,
        queue=queue,
        priority=priority,
        payload=payload,
        delay=brought.delay,
        run_at=brought.run_at,
        files=brought.files,
        then=None if brought.then is None else terms.unpack_then(brought.then)[1],
    )
