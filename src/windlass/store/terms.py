"""The part of a job that never changes, as bytes, the same for every store.

Only what differs from the defaults is kept: the terms of most jobs are no bytes at all. Task, queue and
priority are left out because stores keep those where they can search them.
"""

from collections.abc import Mapping
from functools import lru_cache
from operator import attrgetter
from types import MappingProxyType
from typing import Any

import msgspec
from msgspec import Raw
from msgspec.structs import replace

from windlass.model.job import MSGPACK, NOTHING, NewJob, Terms
from windlass.model.retry import Retry

FIELDS = tuple(name for name in Terms.__struct_fields__ if name not in {"task", "queue", "priority"})

_values = attrgetter(*FIELDS)
_defaults = _values(Terms(task="x"))
_wishes = attrgetter(*(name for name in FIELDS if name != "content_type"))
_no_wishes = _wishes(Terms(task="x"))
_decoder = msgspec.msgpack.Decoder(dict[str, Any])


def pack(new: NewJob) -> bytes:
    if _wishes(new) == _no_wishes:
        return _packed_alone(new.content_type)
    pairs = zip(FIELDS, _values(new), _defaults, strict=True)
    return msgspec.msgpack.encode({name: value for name, value, default in pairs if value != default})


@lru_cache(maxsize=64)
def _packed_alone(content_type: str) -> bytes:
    """The terms of jobs that ask for nothing and differ in their encoding, as most do."""
    return b"" if content_type == MSGPACK else msgspec.msgpack.encode({"content_type": content_type})


@lru_cache(maxsize=4096)
def unpack(packed: bytes) -> Mapping[str, Any]:
    """The terms that differ from the defaults, as fields of a `Job`."""
    if not packed:
        return MappingProxyType({})
    found = _decoder.decode(packed)
    if "retry" in found:
        found["retry"] = msgspec.convert(found["retry"], type=Retry)
    return MappingProxyType(found)


def held_for(keep_result: str, keep_result_for: float | None, keep_success: float | None) -> float | None:
    """Seconds after which a result goes before its record does; null = it goes with it, or was never kept."""
    if keep_result_for is None or keep_result == "none":
        return None
    return keep_result_for if keep_success is None or keep_result_for < keep_success else None


class _Following(msgspec.Struct, frozen=True, array_like=True):
    """A job that is to follow another one. Payloads are apart: they may be in any encoding."""

    tenant: str
    chain: list[tuple[NewJob, bytes | None]]
    """It, the one that follows it, and so on, each with its payload if it names one."""


_following = msgspec.msgpack.Decoder(_Following)


def pack_then(tenant: str, then: NewJob) -> bytes:
    chain: list[tuple[NewJob, bytes | None]] = []
    rest: NewJob | None = then
    while rest is not None:
        payload = None if rest.payload is NOTHING else bytes(rest.payload)
        chain.append((replace(rest, payload=NOTHING, then=None), payload))
        rest = rest.then
    return msgspec.msgpack.encode(_Following(tenant, chain))


def unpack_then(packed: bytes) -> tuple[str, NewJob]:
    """Whose it is, and what is to follow."""
    found = _following.decode(packed)
    then: NewJob | None = None
    for new, payload in reversed(found.chain):
        then = replace(new, then=then, payload=NOTHING if payload is None else Raw(payload))
    if then is None:
        raise ValueError("nothing follows")
    return found.tenant, then
