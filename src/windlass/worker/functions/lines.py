"""The line protocol between a worker and a context: docs/functions-protocol.md, as functions.

Pure. Whatever a context says is checked here before anybody believes it.
"""

import base64
import binascii

import msgspec
from msgspec import Struct

from windlass.model.handler import Handler
from windlass.model.job import JSON, TEXT, Reason
from windlass.worker.functions.terms import ERROR, FAILED, OK, RETRY, FunctionOutcome

BYTES = "application/octet-stream"

MOST_MESSAGE = 4000
MOST_TRACEBACK = 16_000

NO_MEMORY = frozenset({"MemoryError"})
"""Errors by which a language says that it got no more memory."""


CODES = {b"%d" % code: code for code in (*range(RETRY, OK + 100), *range(FAILED, ERROR + 100))}


class Garbage(Exception):
    """What a context said is no answer: it is not to be believed any more."""


class Done(Struct, frozen=True, gc=False):
    """A job has ended."""

    code: int
    kind: bytes
    data: bytes


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


def done(line: bytes, number: int) -> Done:
    """What a context wrote, without the end of the line: the answer of this job, or nothing that is believed."""
    try:
        verb, told, code, kind, data = line.split(b" ", 4)
        if verb != b"done" or told != b"%d" % number:
            raise Garbage
        return Done(CODES[code], kind, data)
    except (ValueError, KeyError):
        raise Garbage from None


def is_broken(line: bytes) -> bool:
    """The answer to the end of a batch: whether the context is to be used for no other."""
    if line not in (b"end", b"end broken"):
        raise Garbage
    return line != b"end"


def outcome(id: str, said: Done, jobs: tuple[tuple[str, str], ...]) -> FunctionOutcome:
    """What a context says of a job, as far as it makes sense."""
    try:
        if said.kind == b"error":
            return _failed(id, said)
        if not OK <= said.code < OK + 100:
            raise Garbage
        if said.kind == b"json":
            msgspec.json.decode(said.data)  # what is no JSON would break the answers that it is put into
            return FunctionOutcome(id=id, code=said.code, result=said.data, content_type=JSON, jobs=jobs)
        result, content_type = _decoded(said.kind, said.data)
    except (ValueError, binascii.Error, RecursionError, msgspec.MsgspecError) as fault:
        raise Garbage from fault
    return FunctionOutcome(id=id, code=said.code, result=result, content_type=content_type, jobs=jobs)


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


def _failed(id: str, said: Done) -> FunctionOutcome:
    error = msgspec.json.decode(said.data, type=_Error)
    reason = Reason.MEMORY if error.type in NO_MEMORY else None
    known = error.after is not None and 0 <= error.after < 10 * 365 * 86400
    return FunctionOutcome(
        id=id,
        code=ERROR if OK <= said.code < OK + 100 else said.code,
        type=error.type[:200],
        message=error.message[:MOST_MESSAGE],
        traceback=error.traceback[-MOST_TRACEBACK:],
        reason=reason,
        delay=error.after if known else None,
    )
