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

from windlass.model.job import NewJob, Terms
from windlass.model.retry import Retry

FIELDS = tuple(name for name in Terms.__struct_fields__ if name not in {"task", "queue", "priority"})

_values = attrgetter(*FIELDS)
_defaults = _values(Terms(task="x"))
_decoder = msgspec.msgpack.Decoder(dict[str, Any])


def pack(new: NewJob) -> bytes:
    values = _values(new)
    if values == _defaults:
        return b""
    pairs = zip(FIELDS, values, _defaults, strict=True)
    return msgspec.msgpack.encode({name: value for name, value, default in pairs if value != default})


@lru_cache(maxsize=4096)
def unpack(packed: bytes) -> Mapping[str, Any]:
    """The terms that differ from the defaults, as fields of a `Job`."""
    if not packed:
        return MappingProxyType({})
    found = _decoder.decode(packed)
    if "retry" in found:
        found["retry"] = msgspec.convert(found["retry"], type=Retry)
    return MappingProxyType(found)
