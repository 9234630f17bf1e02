"""A payload or result of one encoding, as it lies in a body of another.

JSON has no bytes, times, extensions, NaN, nor keys that are no text; MessagePack has no integer beyond 64 bits. What
one format lacks is told as near to it as the other can, and nothing here ever fails: one odd value must not keep a
worker from the jobs beside it.

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

from base64 import b64encode
from typing import Any

import msgspec
from msgspec import Raw
from msgspec.msgpack import Ext

from windlass.model import wire
from windlass.model.errors import Invalid
from windlass.model.job import JSON, MSGPACK
from windlass.model.wire import UNSPEAKABLE, Format

SPOKEN: dict[Format, str] = {"json": JSON, "msgpack": MSGPACK}


def value(raw: Raw, content_type: str, form: Format) -> Raw:
    """An encoded value as a body of this format has it."""
    if content_type == SPOKEN[form] and is_whole(raw, form):
        return raw
    if content_type not in (JSON, MSGPACK):
        return _told(_as_text(bytes(raw)), form)
    try:
        return _told(wire.value(raw, content_type), form)
    except Invalid:
        return _told(_as_text(bytes(raw)) if content_type == JSON else bytes(raw), form)


def is_whole(raw: bytes | Raw, form: Format) -> bool:
    """Whether this is one value of the format, so that it can be put into a body; told without decoding it."""
    try:
        (msgspec.json if form == "json" else msgspec.msgpack).decode(raw, type=Raw)
        return form == "msgpack" or is_text(bytes(raw))
    except (msgspec.MsgspecError, RecursionError):
        return False


def is_text(data: bytes) -> bool:
    """Whether this is UTF-8, which a decoder that skips a value does not look at."""
    return _as_text(data) is not data


def _as_text(data: bytes) -> str | bytes:
    try:
        return data.decode()
    except UnicodeDecodeError:
        return data


def _told(found: Any, form: Format) -> Raw:
    try:
        return Raw(_encode(found, form))
    except UNSPEAKABLE:
        pass
    try:
        return Raw(_encode(_plain_keys(found) if form == "json" else _short_numbers(found), form))
    except UNSPEAKABLE:
        return Raw(wire.encode(repr(found)[:1000], form))


def _encode(found: Any, form: Format) -> bytes:
    return msgspec.json.encode(found, enc_hook=_extension) if form == "json" else wire.encode(found, form)


def _extension(found: Any) -> Any:
    if isinstance(found, Ext):
        return {"ext": found.code, "data": b64encode(bytes(found.data)).decode()}
    raise TypeError(f"{type(found).__name__} has no form in JSON")


def _plain_keys(found: Any) -> Any:
    match found:
        case dict():
            return {_key(key): _plain_keys(inner) for key, inner in found.items()}
        case list() | tuple():
            return [_plain_keys(inner) for inner in found]
        case _:
            return found


def _key(key: Any) -> str:
    if isinstance(key, str):
        return key
    text = bytes(_told(key, "json")).decode()
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
