"""Payloads and results: between text that people type and read, and the bytes in the queue."""

import sys
from typing import Any

import msgspec
from msgspec import Raw
from msgspec.msgpack import Ext

from windlass.cli import DASH
from windlass.model import wire
from windlass.model.errors import Invalid

BYTES = "bytes are shown in base64"
"""The note beside a value with bytes."""


def payload(given: str | None) -> Raw:
    """A payload as it was typed: JSON if it parses, else text; from stdin also bytes."""
    value: Any = _stdin() if given == DASH else given
    if isinstance(value, str):
        value = read(value)
    try:
        return Raw(wire.encode(value))
    except wire.UNENCODABLE as fault:
        raise Invalid(f"this value cannot be encoded: {fault}", at="payload") from None


def read(text: str) -> Any:
    """JSON if it parses, else the text itself."""
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return text


def _stdin() -> str | bytes:
    data = sys.stdin.buffer.read()
    try:
        return data.decode().removesuffix("\n")  # the one that a shell adds
    except UnicodeDecodeError:
        return data


def readable(data: bytes | Raw, content_type: str) -> Any:
    """A payload or result as JSON can show it. Bytes are left for the encoder, which writes base64."""
    try:
        value = wire.value(data, content_type)
    except Invalid:
        return bytes(data)
    if isinstance(value, bytes) and content_type.startswith("text/"):
        return value.decode(errors="replace")
    return _with_text_keys(value)


def _with_text_keys(value: Any) -> Any:
    match value:
        case dict():
            return {key if isinstance(key, str) else str(key): _with_text_keys(item) for key, item in value.items()}
        case list() | tuple():
            return [_with_text_keys(item) for item in value]
        case Ext():
            return {"extension": value.code, "data": bytes(value.data)}
        case _:
            return value


def has_bytes(value: Any) -> bool:
    if isinstance(value, dict):
        return any(map(has_bytes, value.values()))
    return isinstance(value, bytes) or (isinstance(value, list) and any(map(has_bytes, value)))


def pretty(value: Any) -> str:
    """Indented JSON."""
    return msgspec.json.format(msgspec.json.encode(value), indent=2).decode()
