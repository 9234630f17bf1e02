"""The line protocol between a worker and a context: docs/functions-protocol.md, as functions.

Pure. Whatever a context says is checked here before anybody believes it.
"""

import base64
import binascii

import msgspec
from msgspec import Struct

from windlass.model.handler import Handler
from windlass.model.job import TEXT, Reason
from windlass.worker.functions.terms import ERROR, FAILED, OK, RETRY, FunctionOutcome

BYTES = "application/octet-stream"

MOST_MESSAGE = 4000
MOST_TRACEBACK = 16_000

NO_MEMORY = frozenset({"MemoryError"})
"""Errors by which a language says that it got no more memory."""


of_json = msgspec.json.Decoder().decode

CODES = {b"%d" % code: code for code in (*range(RETRY, OK + 100), *range(FAILED, ERROR + 100))}


class Garbage(Exception):
    """What a context said is no answer: it is not to be believed any more."""


class _Error(Struct):
    """An error as a context tells it."""

    type: str = ""
    message: str = ""
    traceback: str = ""
    after: float | None = None


def load(number: int, handler: Handler, mark: str) -> bytes:
    source = {
        "task": handler.task,
        "mark": mark,
        "before": handler.before,
        "body": handler.body,
        "beforeEach": handler.before_each,
        "afterEach": handler.after_each,
    }
    return b"load %d %b\n" % (number, msgspec.json.encode(source))


def batch(number: int) -> bytes:
    return b"batch %d\n" % number


def job(number: int, kind: bytes, data: bytes) -> bytes:
    return b"job %d %b %b\n" % (number, kind, data)


END = b"end\n"


def mark(nonce: str) -> bytes:
    """What a context prints on both its outputs when a job or a batch has ended."""
    return b"\x1e" + nonce.encode() + b"\n"


def is_broken(line: bytes) -> bool:
    """The answer to the end of a batch: whether the context is to be used for no other."""
    if line not in (b"end", b"end broken"):
        raise Garbage
    return line != b"end"


def outcome(id: str, line: bytes, number: int) -> FunctionOutcome:
    """What a context says of the job with this number, without the end of the line, as far as it makes sense."""
    try:
        verb, told, word, kind, data = line.split(b" ", 4)
        if verb != b"done" or told != b"%d" % number:
            raise Garbage
        code = CODES[word]
        if kind == b"error":
            return _failed(id, code, data)
        if not OK <= code < OK + 100:
            raise Garbage
        if kind == b"json":
            of_json(data)  # what is none would break the answers that it is put into
            return FunctionOutcome(id=id, code=code, result=data)
        result, content_type = _decoded(kind, data)
    except (ValueError, KeyError, binascii.Error, RecursionError, msgspec.MsgspecError) as fault:
        raise Garbage from fault
    return FunctionOutcome(id=id, code=code, result=result, content_type=content_type)


def _decoded(kind: bytes, data: bytes) -> tuple[bytes, str]:
    if kind not in (b"text64", b"base64"):
        raise Garbage
    result = base64.b64decode(data, validate=True)
    return _text(result) if kind == b"text64" else (result, BYTES)


def _text(data: bytes) -> tuple[bytes, str]:
    try:
        data.decode()
    except UnicodeDecodeError:
        return data, BYTES
    return data, TEXT


def _failed(id: str, code: int, data: bytes) -> FunctionOutcome:
    error = msgspec.json.decode(data, type=_Error)
    reason = Reason.MEMORY if error.type in NO_MEMORY else None
    known = error.after is not None and 0 <= error.after < 10 * 365 * 86400
    return FunctionOutcome(
        id=id,
        code=ERROR if OK <= code < OK + 100 else code,
        type=error.type[:200],
        message=error.message[:MOST_MESSAGE],
        traceback=error.traceback[-MOST_TRACEBACK:],
        reason=reason,
        delay=error.after if known else None,
    )
