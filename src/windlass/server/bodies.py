"""Bodies to values and values to bodies, in either format.

A payload or result lies in the body as a value of the body's own format; it is cut out and put in as it is, and only
translated when it is asked for in another format than it was sent in.
"""

from functools import cache
from typing import Annotated, Any, get_args, get_origin

import msgspec
from msgspec import UNSET, Meta, Raw, UnsetType
from msgspec.structs import astuple, replace

from windlass.model import wire
from windlass.model.errors import Invalid
from windlass.model.job import JSON, MOST_THEN, MSGPACK, NOTHING, Job, NewJob
from windlass.model.operations import MOST_AT_ONCE, Claimed, Finished, Page, Result
from windlass.model.wire import Format
from windlass.server import translation
from windlass.server.translation import SPOKEN, is_text

NULL: dict[Format, Raw] = {"json": Raw(b"null"), "msgpack": Raw(b"\xc0")}


def decode(data: bytes, kind: Any, form: Format) -> Any:
    """A body as a value; what it carries for others is marked with the format it came in."""
    if form == "json" and not is_text(data):
        raise Invalid("this is not UTF-8", at="body")
    row = _row(kind)
    if row is None:
        return _marked(wire.decode(data, kind, form), form)
    return _marked([item for item in astuple(wire.decode(data, row, form)) if item is not UNSET], form)


@cache
def _row(kind: Any) -> Any:
    """An array with so many places that it is refused as soon as it is too long, not when all of it has been read.

    A bound on a list is looked at last: sixteen megabytes of small jobs would become a gigabyte first.
    """
    if get_origin(kind) is not Annotated or get_origin(get_args(kind)[0]) is not list:
        return None
    items, *about = get_args(kind)
    most = next((meta.max_length for meta in about if isinstance(meta, Meta) and meta.max_length), MOST_AT_ONCE + 1)
    if most > MOST_AT_ONCE:
        return None
    item = get_args(items)[0]
    places = [(f"at{place}", item | UnsetType, UNSET) for place in range(most)]
    return msgspec.defstruct("Row", places, array_like=True, forbid_unknown_fields=True)


def _marked(value: Any, form: Format) -> Any:
    match value:
        case NewJob():
            return marked_job(value, form)
        case [NewJob(), *_]:
            return [marked_job(new, form) for new in value]
        case [Finished(), *_]:
            return [_marked_report(report, form) for report in value]
        case _:
            return value


def marked_job(new: NewJob, form: Format, place: int = 0) -> NewJob:
    """A payload of another encoding comes as its bytes (or text), with the name of the encoding.

    So do those of the jobs that follow; one of these that brings no payload gets the result of the job before.
    """
    then = new.then
    if then is not None and place < MOST_THEN:  # a longer chain is refused later, by name
        then = marked_job(then, form, place + 1)
    absent = new.payload is NOTHING
    if new.content_type not in (MSGPACK, SPOKEN[form]):
        payload = NOTHING if absent and place else _unwrapped(new.payload, new.content_type, form, "payload")
        return replace(new, payload=payload, then=then)
    if form == "msgpack":
        return new if then is new.then else replace(new, then=then)
    return replace(new, content_type=JSON, payload=NULL[form] if absent and not place else new.payload, then=then)


def _marked_report(report: Finished, form: Format) -> Finished:
    jobs = [marked_job(new, form) for new in report.jobs]
    if not isinstance(report.result, Raw):
        return replace(report, jobs=jobs)
    if report.content_type in (MSGPACK, SPOKEN[form]):
        return replace(report, jobs=jobs, content_type=SPOKEN[form])
    return replace(report, jobs=jobs, result=_unwrapped(report.result, report.content_type, form, "result"))


def _unwrapped(raw: Raw, content_type: str, form: Format, at: str) -> Raw:
    data = _text_or_bytes(raw, form)
    if data is None:
        raise Invalid(f"the {at} must be the text or bytes of {content_type}", at=at)
    if content_type == JSON and not translation.is_whole(data, "json"):
        raise Invalid(f"the {at} is not JSON, as its content_type says", at=at)
    return Raw(data)


def _text_or_bytes(raw: Raw, form: Format) -> bytes | None:
    """What a text or bytes say; anything else is not looked into, however large."""
    try:
        return wire.decode(raw, str, form).encode()
    except Invalid:
        pass
    try:
        return wire.decode(raw, bytes) if form == "msgpack" else None
    except Invalid:
        return None


def encode(answer: Any, form: Format) -> bytes:
    """An answer in a format, with what it carries translated into that format."""
    return wire.encode(_told(answer, form), form)


def _told(answer: Any, form: Format) -> Any:
    match answer:
        case Job():
            return _told_job(answer, form)
        case Page():
            return replace(answer, jobs=[_told_job(job, form) for job in answer.jobs])
        case Result():
            return _told_result(answer, form)
        case Claimed():
            return _told_claim(answer, form)
        case [Claimed(), *_]:
            return [_told_claim(one, form) for one in answer]
        case _:
            return answer


def _told_job(job: Job, form: Format) -> Job:
    if not isinstance(job.payload, Raw):
        return job
    payload = translation.value(job.payload, job.content_type, form)
    return replace(job, payload=payload, content_type=SPOKEN[form])


def _told_result(answer: Result, form: Format) -> Result:
    if not isinstance(answer.result, Raw):
        return replace(answer, result=NULL[form], content_type="")
    result = translation.value(answer.result, answer.content_type, form)
    return replace(answer, result=result, content_type=SPOKEN[form])


def _told_claim(one: Claimed, form: Format) -> Claimed:
    payload = translation.value(one.payload, one.job.content_type, form)
    return replace(one, payload=payload, job=replace(one.job, content_type=SPOKEN[form]))
