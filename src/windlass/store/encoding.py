"""How every store encodes what it keeps: times, where a run took place, the terms of a job.

Times are whole microseconds since 1970, UTC. The terms of a job are bytes with only what differs from the defaults:
most jobs have none. Task, queue and priority are left out, because stores keep those where they can search them.
"""

from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from operator import attrgetter
from types import MappingProxyType
from typing import Any, NamedTuple

import msgspec
from msgspec import Raw
from msgspec.structs import replace

from windlass.model.handler import NO_HANDLER, HandlerRun
from windlass.model.job import MSGPACK
from windlass.model.names import JobKey
from windlass.model.new_job import NOTHING, NewJob, Terms
from windlass.model.output import OutputPolicy, RunUsage
from windlass.model.retry import RetryPolicy
from windlass.model.worker import Worker
from windlass.store.data import Draft

# Times

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

EARLIEST, LATEST = -62_135_596_800_000_000, 253_402_300_799_999_999
"""The first and the last microsecond that a datetime in UTC can name."""

_MICROSECOND = timedelta(microseconds=1)


def to_micros(time: datetime) -> int:
    """A time as it is kept. One that some zone can name but UTC cannot is moved to where it can be read again."""
    return min(max(EARLIEST, (time - EPOCH) // _MICROSECOND), LATEST)


@lru_cache(maxsize=1024)  # jobs of one batch share their times
def from_micros(micros: int) -> datetime:
    return EPOCH + timedelta(microseconds=micros)


@lru_cache(maxsize=1024)  # few lengths are used again and again
def span(seconds: float) -> int:
    """A duration in microseconds, rounded exactly as `timedelta` does."""
    return timedelta(seconds=seconds) // _MICROSECOND


def ended_at(started: datetime | None, finished: datetime | None) -> datetime | None:
    """When a job ended: never before it began, though the clock may have been set back meanwhile."""
    return max(started, finished) if started and finished else finished


# Where a run took place

PLACE_SEPARATOR = "\x1f"
USAGE_SEPARATOR = "\x1e"
"""Before what the run uses, where a store keeps that behind the place."""

_NO_SEPARATORS = str.maketrans(dict.fromkeys(PLACE_SEPARATOR + USAGE_SEPARATOR, " "))


def encode_node(worker: Worker) -> str:
    return worker.node.translate(_NO_SEPARATORS)


@lru_cache(maxsize=1024)
def encode_handler_run(ran: HandlerRun) -> str:
    """What stands behind the machine; empty = nothing is known."""
    if ran == NO_HANDLER:
        return ""
    return f"{PLACE_SEPARATOR}{ran.sandbox or ''}{PLACE_SEPARATOR}{ran.handler_version or ''}"


def encode_adopted(node: str, at: datetime) -> str:
    """The machine of a run that another worker took over. It is of an app: nothing is known of a handler."""
    return f"{node.translate(_NO_SEPARATORS)}{3 * PLACE_SEPARATOR}{to_micros(at)}"


def encode_usage(usage: RunUsage | None) -> str:
    if usage is None:
        return ""
    numbers = ("" if one is None else str(one) for one in (usage.memory, usage.cpu, usage.output))
    return USAGE_SEPARATOR + PLACE_SEPARATOR.join(numbers)


def split_usage(place: str) -> tuple[str, RunUsage | None]:
    """A place without what stands behind it, and what that says."""
    place, _, used = place.partition(USAGE_SEPARATOR)
    if not used:
        return place, None
    memory, cpu, output = used.split(PLACE_SEPARATOR)
    return place, RunUsage(memory=int(memory) if memory else None, cpu=float(cpu) if cpu else None, output=int(output))


class Place(NamedTuple):
    """Where a run took place, as far as that is known."""

    node: str | None
    ran: HandlerRun
    adopted_at: datetime | None


@lru_cache(maxsize=1024)
def decode_place(place: str) -> Place:
    node, sandbox, version, adopted, *_ = (*place.split(PLACE_SEPARATOR), "", "", "")
    ran = HandlerRun(sandbox or None, int(version) if version else None)
    return Place(node or None, ran, from_micros(int(adopted)) if adopted else None)


# Terms: the part of a job that only an edit changes

TERM_FIELDS = tuple(name for name in Terms.__struct_fields__ if name not in {"task", "queue", "priority"})

_values = attrgetter(*TERM_FIELDS)
_defaults = _values(Terms(task="x"))
_options_of = attrgetter(*(name for name in TERM_FIELDS if name != "content_type"))
_no_options = _options_of(Terms(task="x"))
_decoder = msgspec.msgpack.Decoder(dict[str, Any])


def pack_terms(new: NewJob) -> bytes:
    if _options_of(new) == _no_options:
        return _packed_alone(new.content_type)
    pairs = zip(TERM_FIELDS, _values(new), _defaults, strict=True)
    return msgspec.msgpack.encode({name: value for name, value, default in pairs if value != default})


@lru_cache(maxsize=64)
def _packed_alone(content_type: str) -> bytes:
    """The terms of jobs that ask for nothing and differ in their encoding, as most do."""
    return b"" if content_type == MSGPACK else msgspec.msgpack.encode({"content_type": content_type})


@lru_cache(maxsize=4096)
def unpack_terms(packed: bytes) -> Mapping[str, Any]:
    """The terms that differ from the defaults, as fields of a `Job`."""
    if not packed:
        return MappingProxyType({})
    found = _decoder.decode(packed)
    if "retry" in found:
        found["retry"] = msgspec.convert(found["retry"], type=RetryPolicy)
    if "output" in found:
        found["output"] = msgspec.convert(found["output"], type=OutputPolicy)
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


# Annotations

_annotations = msgspec.msgpack.Decoder(dict[str, str])


def pack_annotations(annotations: Mapping[str, str]) -> bytes:
    """Empty if there are none."""
    return msgspec.msgpack.encode(annotations) if annotations else b""


def unpack_annotations(packed: bytes | None) -> dict[str, str]:
    return _annotations.decode(packed) if packed else {}


# Jobs that differ only in id and payload


def alike(drafts: Sequence[Draft]) -> Iterator[Sequence[Draft]]:
    """All of them in their order, neighbours that are alike together."""
    if len(drafts) == 1:
        yield drafts
        return
    start, before = 0, None
    for place, draft in enumerate(drafts):
        shared = replace(draft, id="", new=replace(draft.new, id=None, payload=NOTHING))
        if shared != before:
            if before is not None:
                yield drafts[start:place]
            start, before = place, shared
    if before is not None:
        yield drafts[start:]


# Topics of wake-ups: new work (`work/QUEUE`), orders to a worker (`order/WORKER`), a grant to its parked claim
# (`grant/WORKER`), the end of a job, a completed parent.

PARENTS = "parents/completed"


def end_topic(key: JobKey) -> str:
    """What to listen to for the end of a job."""
    return f"end/{key.id}/{key.tenant}"
