"""Structs to bytes and back: MessagePack and JSON.

Knows the two formats and how a decoder's complaint becomes our own error. In JSON, times are RFC 3339 and a payload is
the JSON value itself; in MessagePack, times are timestamps and a payload is the MessagePack value itself.
"""

import re
from collections.abc import Iterator, Mapping
from enum import Enum
from functools import lru_cache
from operator import attrgetter
from types import UnionType
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin

import msgspec
from msgspec import Raw, Struct

from windlass.model.errors import Invalid, TooLarge
from windlass.model.job import JSON, MSGPACK, TEXT
from windlass.model.names import MEDIA_PATTERN, NAME_PATTERN, WEIGHTED_PATTERN, is_name
from windlass.model.new_job import HIGHEST, LOWEST, NOTHING, NewJob

T = TypeVar("T")
S = TypeVar("S", bound=Struct)

Format = Literal["json", "msgpack"]

MOST_PAYLOAD = 1 << 20
"""Bytes of one payload, unless configured otherwise."""

MOST_RESULT = 16 << 20
"""The same of one result."""

_COMPLAINT = re.compile(r"(?P<detail>.*?)(?: - at (?:`key` in )?`\$(?P<at>[^`]*)`)?\Z", re.DOTALL)

UNENCODABLE = (TypeError, ValueError, OverflowError, RecursionError, msgspec.MsgspecError)
"""What an encoder says of a value that no format has."""

FAULTS = (Invalid, TooLarge)
"""What is wrong with what was sent."""

_UNKNOWN = re.compile(r"unknown field `([^`]*)`")
_MISSING = re.compile(r"missing required field `([^`]*)`")
_TRUNCATED = "Input data was truncated"

_NO_CHOICE = re.compile(r"Invalid enum value (.*)\Z", re.DOTALL)

_pack = msgspec.msgpack.Encoder()
_jsonify = msgspec.json.Encoder()


def encodable(text: str) -> str:
    """The same text; half characters, which no format has, are spelled out."""
    return text.encode(errors="backslashreplace").decode()


def encode(value: object, form: Format = "msgpack") -> bytes:
    return _pack.encode(value) if form == "msgpack" else _jsonify.encode(value)


def decode(data: bytes | Raw, kind: type[T], form: Format = "msgpack") -> T:
    """Read a value of this kind, or say which field is at fault."""
    try:
        if form == "msgpack":
            return msgspec.msgpack.decode(data, type=kind)
        return msgspec.json.decode(data, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as fault:
        raise invalid(fault, kind=kind) from None


def value(data: bytes | Raw, content_type: str) -> Any:
    """What an encoded payload or result says; only for those who must look inside."""
    if content_type == MSGPACK:
        return decode(data, object)
    if content_type == JSON:
        return decode(data, object, "json")
    return bytes(data)


def checked(struct: S) -> S:
    """A struct made in Python, put through the same checks as one that was sent.

    Declared types and bounds are only enforced where bytes are decoded; so this encodes and decodes. It is quicker than
    checking each field by hand, and cannot drift from what the wire refuses. Not for structs that carry a `Raw`.
    """
    try:
        packed = _pack.encode(struct)
    except UNENCODABLE as fault:
        raise Invalid(f"cannot be sent: {fault}", at=_unencodable_field(struct)) from None
    return decode(packed, type(struct))


def _unencodable_field(struct: Struct) -> str:
    """The first field that no format can carry."""
    for name in struct.__struct_fields__:
        try:
            _pack.encode(getattr(struct, name))
        except UNENCODABLE:
            return name
    return ""


def checked_job(new: NewJob) -> NewJob:
    """The same for a job, whose payload is not looked at: it may be in any encoding. Nor is the job that follows it."""
    if _is_plain(new):
        return new
    bare = checked(msgspec.structs.replace(new, payload=NOTHING, then=None))
    return msgspec.structs.replace(bare, payload=new.payload, then=new.then)


_PLAIN = {"task", "queue", "priority", "payload", "id", "content_type"}

_options_of = attrgetter(*(name for name in NewJob.__struct_fields__ if name not in _PLAIN))
_no_options = _options_of(NewJob(task="x"))


def _is_plain(new: NewJob) -> bool:
    """Whether a job asks for nothing but a task, a queue and a priority, as most do: there is little to check then."""
    return (
        _options_of(new) == _no_options
        and new.content_type in (MSGPACK, JSON, TEXT)
        and (new.id is None or type(new.id) is str)
        and type(new.priority) is int
        and LOWEST <= new.priority <= HIGHEST
        and _is_known_name(new.task)
        and _is_known_name(new.queue)
    )


@lru_cache(maxsize=4096)
def _is_known_name(name: str) -> bool:
    return type(name) is str and is_name(name)


def check_size(payload: bytes | Raw, most: int, *, at: str = "payload") -> None:
    size = len(memoryview(payload))
    if size > most:
        raise TooLarge(f"{size} bytes, at most {most} are allowed: store large data elsewhere and send its name", at=at)


def invalid(fault: Exception, *, at: str = "", kind: Any = None) -> Invalid:
    """A decoder's complaint as our own error, with the field it names, and with what is allowed there."""
    parts = _COMPLAINT.match(str(fault))
    detail, found = (parts["detail"], (parts["at"] or "").lstrip(".")) if parts else (str(fault), "")
    if unknown := _UNKNOWN.search(detail):
        detail, found = "there is no such field", f"{found}.{unknown[1]}"
    elif missing := _MISSING.search(detail):
        detail, found = "this field is required", f"{found}.{missing[1]}"
    elif (word := _NO_CHOICE.match(detail)) and (allowed := choices(kind, found)):
        detail = f"{word[1]} is none of: {', '.join(allowed)}"
    elif detail == _TRUNCATED:
        detail = "it is empty, or ends too soon"
    elif repr(MEDIA_PATTERN) in detail:
        detail = "not a content type: printable ASCII, as in application/json"
    elif repr(NAME_PATTERN) in detail:
        detail = "not a name: letters, digits, '_', '.' and '-', 1 to 128 of them, a letter or digit first"
    elif repr(WEIGHTED_PATTERN) in detail:
        detail = "not a name, nor one with a number of turns from 1 to 16: mail, mail=3"
    return Invalid(detail, at=f"{at}.{found.strip('.')}".strip("."))


# The allowed values of a field that is one of a few words: for the error that names them

_STEP = re.compile(r"\.?(?P<field>[^.\[\]]+)|\[(?P<item>[^\]]*)\]")


def choices(kind: Any, path: str) -> list[str]:
    """The words that are allowed at a place (`jobs[0].then.keep_result`) in values of this kind; empty = any may be.

    A kind is a type, or a map of names to types.
    """
    found = [kind]
    for step in _STEP.finditer(path):
        found = [inner for outer in found for inner in _inside(outer, step["field"])]
    return list(dict.fromkeys(str(word) for last in found for word in _words(last)))


def _plain(kind: Any) -> Iterator[Any]:
    """A type without what is said about it, or each of those that it may be."""
    origin = get_origin(kind)
    if origin is Annotated:
        yield from _plain(get_args(kind)[0])
    elif origin in (Union, UnionType):
        for one in get_args(kind):
            yield from _plain(one)
    else:
        yield kind


def _inside(kind: Any, field: str | None) -> Iterator[Any]:
    for outer in _plain(kind):
        if isinstance(outer, type) and issubclass(outer, Struct):
            # A struct that is written as an array is named by its places.
            yield from (one.type for one in msgspec.structs.fields(outer) if field in (None, one.encode_name))
        elif field is None:
            yield from get_args(outer)  # of items, or of keys and values
        elif isinstance(outer, Mapping):
            yield outer.get(field)


def _words(kind: Any) -> Iterator[Any]:
    for one in _plain(kind):
        if get_origin(one) is Literal:
            yield from get_args(one)
        elif isinstance(one, type) and issubclass(one, Enum):
            yield from (member.value for member in one)
