"""Bodies: between bytes in MessagePack, JSON or NDJSON and the values of operations.

A payload or result is part of the body, in the body's own format. It is cut out and put in undecoded, and translated
only when it is read in another format than it was sent in.

JSON has no bytes, times, extensions, NaN, nor keys that are not text; MessagePack has no integer beyond 64 bits. The
translation picks the nearest value and never fails: one odd value must not keep a worker from the jobs beside it.

| MessagePack          | JSON                                   |
|----------------------|----------------------------------------|
| bin                  | text, base64                           |
| timestamp            | text, RFC 3339                         |
| ext                  | `{"ext": CODE, "data": base64}`        |
| NaN, ±infinity       | null                                   |
| a key that is no str | its text: `1`, `true`, `null`, `[1,2]` |
| what cannot be read  | text: base64 of the bytes              |
| a larger float       | an integer beyond 64 bits              |
| str: the JSON itself | a number that no float can hold        |
"""

import asyncio
from base64 import b64encode
from functools import cache
from typing import Annotated, Any, TypeVar, get_args, get_origin

import msgspec
from msgspec import UNSET, Meta, Raw, UnsetType
from msgspec.msgpack import Ext
from msgspec.structs import astuple, replace

from windlass.model import wire
from windlass.model.admission import MOST_THEN, ValidatedJobs, check_all
from windlass.model.errors import Invalid, TooLarge
from windlass.model.job import JSON, MSGPACK, Job
from windlass.model.new_job import NOTHING, NewJob
from windlass.model.operations import MOST_AT_ONCE, Claimed, Edit, FinishByHand, Finished, Page, Result
from windlass.model.schedule import NewSchedule, Schedule
from windlass.model.wire import UNENCODABLE, Format
from windlass.model.worker import NewWorker
from windlass.server.formats import TYPES
from windlass.server.requests import RequestLimits

S = TypeVar("S", Finished, FinishByHand, Edit)
J = TypeVar("J", Job, NewJob)

NULL: dict[Format, Raw] = {"json": Raw(b"null"), "msgpack": Raw(b"\xc0")}

YIELD_AFTER = 500
"""NDJSON lines after which other requests get a turn."""

Line = tuple[int, bytes]
"""The number and text of a line that is not empty. A bare tuple, for there are thousands."""

_line = msgspec.json.Decoder(NewJob)


# Reading


def decode(data: bytes, kind: Any, form: Format) -> Any:
    """A body as a value; payloads and results in it are labelled with the body's format."""
    if form == "json" and not _is_utf8(data):
        raise Invalid("the body is not UTF-8", at="body")
    row = _row(kind)
    if row is None:
        return _labelled(wire.decode(data, kind, form), form)
    return _labelled([item for item in astuple(wire.decode(data, row, form)) if item is not UNSET], form)


@cache
def _row(kind: Any) -> Any:
    """A bounded list as a struct with that many optional fields, so that a longer array is refused while it is read.

    msgspec checks the length of a list last: sixteen megabytes of small jobs would become a gigabyte first.
    """
    if get_origin(kind) is not Annotated or get_origin(get_args(kind)[0]) is not list:
        return None
    items, *about = get_args(kind)
    most = next((meta.max_length for meta in about if isinstance(meta, Meta) and meta.max_length), MOST_AT_ONCE + 1)
    if most > MOST_AT_ONCE:
        return None
    item = get_args(items)[0]
    fields = [(f"at{index}", item | UnsetType, UNSET) for index in range(most)]
    return msgspec.defstruct("Row", fields, array_like=True, forbid_unknown_fields=True)


def _labelled(value: Any, form: Format) -> Any:
    match value:
        case NewJob():
            return _labelled_job(value, form)
        case [NewJob(), *_]:
            return [_labelled_job(new, form) for new in value]
        case [Finished(), *_]:
            return [_labelled_report(report, form) for report in value]
        case NewSchedule():
            return replace(value, job=_labelled_job(value.job, form))
        case NewWorker(schedules=dict(schedules)):
            return replace(value, schedules={name: _labelled(one, form) for name, one in schedules.items()})
        case _:
            return value


def with_content_type(operation: S, form: Format, field: str) -> S:
    """An operation with the content type of this field, which comes as its bytes or text if it is of another format."""
    value = getattr(operation, field)
    if not isinstance(value, Raw):
        return operation
    if operation.content_type in (MSGPACK, TYPES[form]):
        return replace(operation, content_type=TYPES[form])
    return replace(operation, **{field: _unwrapped(value, operation.content_type, form, field)})


def _labelled_job(new: NewJob, form: Format, depth: int = 0) -> NewJob:
    """The job with the content type of its payload.

    A payload of another content type comes as its bytes or text. The same holds for the jobs in `then`; one of those
    without a payload gets the result of the job before it.
    """
    then = new.then
    if then is not None and depth < MOST_THEN:  # a longer chain is refused later, by name
        then = _labelled_job(then, form, depth + 1)
    absent = new.payload is NOTHING
    if new.content_type not in (MSGPACK, TYPES[form]):
        payload = NOTHING if absent and depth else _unwrapped(new.payload, new.content_type, form, "payload")
        return replace(new, payload=payload, then=then)
    if form == "msgpack":
        return new if then is new.then else replace(new, then=then)
    return replace(new, content_type=JSON, payload=NULL[form] if absent and not depth else new.payload, then=then)


def _labelled_report(report: Finished, form: Format) -> Finished:
    return replace(with_content_type(report, form, "result"), jobs=[_labelled_job(new, form) for new in report.jobs])


def _unwrapped(raw: Raw, content_type: str, form: Format, at: str) -> Raw:
    data = _text_or_bytes(raw, form)
    if data is None:
        raise Invalid(f"a {at} of type {content_type} must be sent as text or bytes", at=at)
    if content_type == JSON and not _is_one_value(data, "json"):
        raise Invalid(f"the {at} is not JSON, though its content_type says so", at=at)
    return Raw(data)


def _text_or_bytes(raw: Raw, form: Format) -> bytes | None:
    """The bytes of a text or byte string; null = another type, which is not decoded however large it is."""
    try:
        return wire.decode(raw, str, form).encode()
    except Invalid:
        pass
    try:
        return wire.decode(raw, bytes) if form == "msgpack" else None
    except Invalid:
        return None


async def decode_lines(data: bytes, limits: RequestLimits) -> tuple[ValidatedJobs, list[int]]:
    """The jobs of an NDJSON body, and the numbers of their lines; an error names its line."""
    if data.count(b"\n") > limits.most_lines:
        raise TooLarge(f"the body has more than {limits.most_lines} lines: split it", at="body")
    _check_utf8(data)
    lines = [line for line in enumerate(data.split(b"\n"), start=1) if line[1].strip()]
    found = ValidatedJobs(limits.most_payload)
    for start in range(0, len(lines), YIELD_AFTER):
        found += _jobs(lines[start : start + YIELD_AFTER], limits)
        await asyncio.sleep(0)
    return found, [number for number, _ in lines]


def _check_utf8(data: bytes) -> None:
    """The decoder does not check values that it skips, and payloads are skipped."""
    try:
        data.decode()
    except UnicodeDecodeError as fault:
        number = 1 + data.count(b"\n", 0, fault.start)
        raise Invalid("the line is not UTF-8", at=f"line {number}") from None


def _jobs(lines: list[Line], limits: RequestLimits) -> ValidatedJobs:
    news = [_job(number, text) for number, text in lines]
    return check_all(news, limits.most_payload, lambda index: f"line {lines[index][0]}")


def _job(number: int, text: bytes) -> NewJob:
    try:
        return _labelled_job(_line.decode(text), "json")
    except wire.FAULTS as fault:
        raise type(fault)(fault.detail, at=f"line {number}.{fault.at}".strip(".")) from None
    except (msgspec.MsgspecError, RecursionError) as fault:
        raise wire.invalid(fault, at=f"line {number}", kind=NewJob) from None


# Writing


def encode(answer: Any, form: Format) -> bytes:
    """An answer in a format, with its payloads and results translated into that format."""
    return wire.encode(_translated(answer, form), form)


def _translated(answer: Any, form: Format) -> Any:
    match answer:
        case Job():
            return _translated_job(answer, form)
        case Page():
            return replace(answer, jobs=[_translated_job(job, form) for job in answer.jobs])
        case Result():
            return _translated_result(answer, form)
        case Claimed():
            return _translated_claim(answer, form)
        case [Claimed(), *_]:
            return [_translated_claim(one, form) for one in answer]
        case Schedule():
            return replace(answer, job=_translated_job(answer.job, form))
        case [Schedule(), *_]:
            return [replace(one, job=_translated_job(one.job, form)) for one in answer]
        case _:
            return answer


def _translated_job(job: J, form: Format) -> J:
    if not isinstance(job.payload, Raw):
        return job
    payload = translate(job.payload, job.content_type, form)
    return replace(job, payload=payload, content_type=TYPES[form])


def _translated_result(answer: Result, form: Format) -> Result:
    if not isinstance(answer.result, Raw):
        return replace(answer, result=NULL[form], content_type="")
    result = translate(answer.result, answer.content_type, form)
    return replace(answer, result=result, content_type=TYPES[form])


def _translated_claim(one: Claimed, form: Format) -> Claimed:
    payload = translate(one.payload, one.job.content_type, form)
    return replace(one, payload=payload, job=replace(one.job, content_type=TYPES[form]))


# Between the formats


def translate(raw: Raw, content_type: str, form: Format) -> Raw:
    """An encoded value, in the format of the body that it goes into."""
    if content_type == TYPES[form] and _is_one_value(raw, form):
        return raw
    if content_type not in (JSON, MSGPACK):
        return _nearest(_text_if_utf8(bytes(raw)), form)
    try:
        return _nearest(wire.value(raw, content_type), form)
    except Invalid:
        return _nearest(_text_if_utf8(bytes(raw)) if content_type == JSON else bytes(raw), form)


def _is_one_value(raw: bytes | Raw, form: Format) -> bool:
    """Whether this is exactly one value of the format, so that it fits into a body. Checked without decoding it."""
    try:
        (msgspec.json if form == "json" else msgspec.msgpack).decode(raw, type=Raw)
        return form == "msgpack" or _is_utf8(bytes(raw))
    except (msgspec.MsgspecError, RecursionError):
        return False


def _is_utf8(data: bytes) -> bool:
    return _text_if_utf8(data) is not data


def _text_if_utf8(data: bytes) -> str | bytes:
    try:
        return data.decode()
    except UnicodeDecodeError:
        return data


def _nearest(found: Any, form: Format) -> Raw:
    try:
        return Raw(_encode(found, form))
    except UNENCODABLE:
        pass
    try:
        return Raw(_encode(_text_keys(found) if form == "json" else _short_numbers(found), form))
    except UNENCODABLE:
        return Raw(wire.encode(repr(found)[:1000], form))


def _encode(found: Any, form: Format) -> bytes:
    return msgspec.json.encode(found, enc_hook=_extension) if form == "json" else wire.encode(found, form)


def _extension(found: Any) -> Any:
    if isinstance(found, Ext):
        return {"ext": found.code, "data": b64encode(bytes(found.data)).decode()}
    raise TypeError(f"{type(found).__name__} has no form in JSON")


def _text_keys(found: Any) -> Any:
    match found:
        case dict():
            return {_key(key): _text_keys(inner) for key, inner in found.items()}
        case list() | tuple():
            return [_text_keys(inner) for inner in found]
        case _:
            return found


def _key(key: Any) -> str:
    if isinstance(key, str):
        return key
    text = bytes(_nearest(key, "json")).decode()
    return text.strip('"') if isinstance(key, bytes) else text


def _short_numbers(found: Any) -> Any:
    match found:
        case dict():
            return {key: _short_numbers(inner) for key, inner in found.items()}
        case list():
            return [_short_numbers(inner) for inner in found]
        case int() if not -(2**63) <= found < 2**64:
            return float(found)
        case _:
            return found
