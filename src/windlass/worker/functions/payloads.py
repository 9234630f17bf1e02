"""A job's payload as one line: JSON, text, or base64 where neither will do.

Knows encodings. Contexts know no MessagePack: such a payload becomes JSON on the way.
"""

import base64

import msgspec

from windlass.model import wire
from windlass.model.errors import Invalid
from windlass.model.job import JSON, MSGPACK

NEWLINE = 10
"""As a number it is found much sooner than as bytes."""


def written(payload: bytes, content_type: str) -> tuple[bytes, bytes]:
    """A kind (`json`, `text`, `text64`, `base64`) and what stands on the line; `Invalid` if it is not what it says."""
    if content_type == MSGPACK:
        value = wire.decode(payload, object)
        if isinstance(value, bytes):
            return b"base64", base64.b64encode(value)
        try:
            return b"json", msgspec.json.encode(value)
        except wire.UNSPEAKABLE as fault:
            raise Invalid(f"its payload has no form in JSON: {fault}") from None
    if content_type == JSON or content_type.partition(";")[0].strip() == JSON:
        return b"json", payload if NEWLINE not in payload else _on_one_line(payload)
    return _text(payload)


def _on_one_line(payload: bytes) -> bytes:
    try:
        return msgspec.json.format(payload, indent=-1)
    except wire.UNSPEAKABLE as fault:
        raise Invalid(f"its payload is no JSON: {fault}") from None


def _text(payload: bytes) -> tuple[bytes, bytes]:
    try:
        payload.decode()
    except UnicodeDecodeError:
        return b"base64", base64.b64encode(payload)
    return (b"text64", base64.b64encode(payload)) if NEWLINE in payload else (b"text", payload)


def raw(payload: bytes, content_type: str) -> bytes:
    """A payload as bytes of the same kind, for those who take any: MessagePack becomes JSON."""
    kind, data = written(payload, content_type)
    return base64.b64decode(data) if kind in (b"base64", b"text64") else data
