"""The line protocol between a worker and a function context (docs/functions-protocol.md), as functions.

Commands and answers; a payload as one line; output cut into the parts of its jobs, and the new jobs printed in it.
Pure. Nothing here trusts what it reads, and everything is bounded.
"""

import base64
import binascii
from collections.abc import Iterator

import msgspec
from msgspec import Struct

from windlass.model import wire
from windlass.model.errors import Invalid
from windlass.model.handler import Handler
from windlass.model.job import JSON, MSGPACK, TEXT, Reason
from windlass.model.names import is_name
from windlass.model.wire import MOST_PAYLOAD
from windlass.worker.functions import ERROR, FAILED, OK, RETRY, FunctionOutcome

BYTES = "application/octet-stream"

MOST_MESSAGE = 4000
MOST_TRACEBACK = 16_000

NO_MEMORY = frozenset({"MemoryError"})
"""Errors by which a language reports that it is out of memory."""


of_json = msgspec.json.Decoder().decode

CODES = {b"%d" % code: code for code in (*range(RETRY, OK + 100), *range(FAILED, ERROR + 100))}


class Garbage(Exception):
    """What a context wrote is no answer: it cannot be trusted any more."""


class _Error(Struct):
    """An error as a context reports it."""

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
    """The answer to the end of a batch: whether the context must not be used for another."""
    if line not in (b"end", b"end broken"):
        raise Garbage
    return line != b"end"


def outcome(id: str, line: bytes, number: int) -> FunctionOutcome:
    """The outcome in a context's answer on the job with this number; the line comes without its end."""
    try:
        verb, which, word, kind, data = line.split(b" ", 4)
        if verb != b"done" or which != b"%d" % number:
            raise Garbage
        code = CODES[word]
        if kind == b"error":
            return _failed(id, code, data)
        if not OK <= code < OK + 100:
            raise Garbage
        if kind == b"json":
            of_json(data)  # invalid JSON would break the answers that it is put into
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


NEWLINE = 10
"""As a number it is found much sooner than as bytes."""


def encode_payload(payload: bytes, content_type: str) -> tuple[bytes, bytes]:
    """A kind (`json`, `text`, `text64`, `base64`) and the line's text; `Invalid` if it is not of its content type."""
    if content_type == MSGPACK:
        value = wire.decode(payload, object)
        if isinstance(value, bytes):
            return b"base64", base64.b64encode(value)
        try:
            return b"json", msgspec.json.encode(value)
        except wire.UNENCODABLE as fault:
            raise Invalid(f"its payload has no form in JSON: {fault}") from None
    if content_type == JSON or content_type.partition(";")[0].strip() == JSON:
        return b"json", payload if NEWLINE not in payload else _on_one_line(payload)
    return _text_payload(payload)


def _on_one_line(payload: bytes) -> bytes:
    try:
        return msgspec.json.format(payload, indent=-1)
    except wire.UNENCODABLE as fault:
        raise Invalid(f"its payload is no JSON: {fault}") from None


def _text_payload(payload: bytes) -> tuple[bytes, bytes]:
    try:
        payload.decode()
    except UnicodeDecodeError:
        return b"base64", base64.b64encode(payload)
    return (b"text64", base64.b64encode(payload)) if NEWLINE in payload else (b"text", payload)


def raw_payload(payload: bytes, content_type: str) -> bytes:
    """A payload as bytes, for receivers that take any: MessagePack becomes JSON."""
    kind, data = encode_payload(payload, content_type)
    return base64.b64decode(data) if kind in (b"base64", b"text64") else data


STARTS = (b"J: ", b"#J: ")

MOST_JOBS = 100
"""New jobs that one job may ask for."""
MOST_LINE = MOST_PAYLOAD + 1024
"""Bytes of one such line, with the name of its task."""

TOO_MANY = f"asked for more than {MOST_JOBS} new jobs"
TOO_LARGE = f"a new job that it printed has a payload of more than {MOST_PAYLOAD} bytes"


class OutputSplitter:
    """Cuts a stream at its marks, also where a mark comes in two pieces."""

    def __init__(self, mark: bytes) -> None:
        self._mark = mark
        self._rest = b""
        self.marks = 0
        """How many have come."""

    def feed(self, data: bytes) -> Iterator[tuple[int, bytes]]:
        """Pieces, each with the number of marks before it."""
        data = self._rest + data
        bare = data.count(self._mark)
        if bare * len(self._mark) == len(data):  # as of most jobs
            self._rest = b""
            self.marks += bare
            return
        *whole, rest = data.split(self._mark)
        for piece in whole:
            yield self.marks, piece
            self.marks += 1
        keep = self._beginning(rest)
        self._rest = rest[len(rest) - keep :]
        if len(rest) > keep:
            yield self.marks, rest[: len(rest) - keep]

    def skip_to(self, marks: int) -> None:
        """Some of its marks have not come: the code has closed or redirected the stream."""
        self.marks = max(self.marks, marks)

    def _beginning(self, data: bytes) -> int:
        """How many bytes at its end may begin a mark."""
        at = data.rfind(self._mark[:1], max(0, len(data) - len(self._mark) + 1))
        return len(data) - at if at >= 0 and self._mark.startswith(data[at:]) else 0


class PrintedJobs:
    """What one job has printed, and the new jobs among its lines."""

    def __init__(self) -> None:
        self.bytes = 0
        """How many there are, on both outputs."""
        self.found: list[tuple[str, str]] = []
        self.excess = ""
        """How it exceeded what it may ask for."""
        self._held = bytearray()
        self._within = False
        """Whether the beginning of the current line has been passed through."""

    def feed(self, data: bytes) -> bytes:
        """The output that is not a new job, as far as is known."""
        self._held += data
        passed = bytearray()
        while (cut := self._held.find(b"\n")) >= 0:
            line = bytes(self._held[: cut + 1])
            del self._held[: cut + 1]
            passed += line if self._within or not self._is_job(line) else b""
            self._within = False
        if self._held and (self._within or not _may_become_job(self._held)):
            passed += self._held
            self._held.clear()
            self._within = True
        if len(self._held) > MOST_LINE:
            self.excess = TOO_LARGE
            self._held.clear()
        return bytes(passed)

    def finish(self) -> bytes:
        """The job has ended: so has its last line."""
        line = bytes(self._held)
        self._held.clear()
        return b"" if not line or self._is_job(line) else line

    def _is_job(self, line: bytes) -> bool:
        start = next((start for start in STARTS if line.startswith(start)), None)
        if start is None:
            return False
        task, bar, payload = line[len(start) :].rstrip(b"\r\n").decode(errors="replace").partition("|")
        if not bar or not is_name(task):
            return False
        if len(self.found) >= MOST_JOBS:
            self.excess = TOO_MANY
        elif len(payload.encode()) > MOST_PAYLOAD:
            self.excess = TOO_LARGE
        else:
            self.found.append((task, payload))
        return True


def _may_become_job(line: bytearray) -> bool:
    return any(line.startswith(start) or start.startswith(line) for start in STARTS)
