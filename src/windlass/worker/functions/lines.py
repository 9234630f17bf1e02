"""The line protocol between a worker and a context: docs/functions-protocol.md, as functions.

Pure. Whatever a context says is checked here before anybody believes it.
"""

import base64
import binascii
from typing import NamedTuple

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


class Garbage(Exception):
    """What a context said is no answer: it is not to be believed any more."""


class Done(NamedTuple):
    """A job has ended."""

    number: int
    code: int
    kind: bytes
    data: bytes


class Ended(NamedTuple):
    """A batch has ended; a broken context is to be used for no other."""

    broken: bool


class _Said(Struct):
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


def read(line: bytes) -> Done | Ended:
    """One line that a context wrote, without its end."""
    words = line.split(b" ", 4)
    if len(words) != 5:  # noqa: PLR2004 - done, number, code, kind, data
        if line in (b"end", b"end broken"):
            return Ended(line != b"end")
        raise Garbage
    verb, number, said, kind, data = words
    if verb != b"done" or not number.isdigit() or not said.isdigit():
        raise Garbage
    code = int(said[:9])
    if not RETRY <= code < OK + 100 and not FAILED <= code < ERROR + 100:
        raise Garbage
    return Done(int(number[:18]), code, kind, data)


def outcome(id: str, done: Done, jobs: tuple[tuple[str, str], ...]) -> FunctionOutcome:
    """What a context says of a job, as far as it makes sense."""
    try:
        if done.kind == b"error":
            return _failed(id, done)
        if not OK <= done.code < OK + 100:
            raise Garbage
        result, content_type = _result(done)
    except (ValueError, binascii.Error, RecursionError, msgspec.MsgspecError) as fault:
        raise Garbage from fault
    return FunctionOutcome(id=id, code=done.code, result=result, content_type=content_type, jobs=jobs)


def _result(done: Done) -> tuple[bytes, str]:
    match done.kind:
        case b"json":
            msgspec.json.decode(done.data)  # what is no JSON would break the answers that it is put into
            return done.data, JSON
        case b"text64":
            return _text(base64.b64decode(done.data, validate=True))
        case b"base64":
            return base64.b64decode(done.data, validate=True), BYTES
    raise Garbage


def _text(data: bytes) -> tuple[bytes, str]:
    try:
        data.decode()
    except UnicodeDecodeError:
        return data, BYTES
    return data, TEXT


def _failed(id: str, done: Done) -> FunctionOutcome:
    said = msgspec.json.decode(done.data, type=_Said)
    reason = Reason.MEMORY if said.type in NO_MEMORY else None
    known = said.after is not None and 0 <= said.after < 10 * 365 * 86400
    return FunctionOutcome(
        id=id,
        code=ERROR if OK <= done.code < OK + 100 else done.code,
        type=said.type[:200],
        message=said.message[:MOST_MESSAGE],
        traceback=said.traceback[-MOST_TRACEBACK:],
        reason=reason,
        delay=said.after if known else None,
    )
