"""Journals as text that people and simple programs write: a record a line, or batches of lines under a header.

    id|jobtype|payload
    #:Batch date=2026-01-31T12:00:00Z,bytes=12,jobtype=thumb
    one payload
    another
    #:EndBatch

A line that begins with a space has been deleted. In a batch, empty lines and lines that begin with `#` are no payloads.
Pure: reads and writes lines, knows neither files nor queues.
"""

from collections.abc import Iterable, Iterator
from datetime import datetime
from itertools import groupby
from typing import NamedTuple

import msgspec

from windlass.model import wire
from windlass.model.errors import Invalid
from windlass.model.job import TEXT, NewJob
from windlass.model.names import is_name

BATCH, END = "#:Batch", "#:EndBatch"


class Line(NamedTuple):
    """A job of a text."""

    id: str
    """The id that it came with, if it had one."""
    jobtype: str
    payload: str


class Malformed(NamedTuple):
    """A line that says nothing."""

    number: int
    why: str


class _Batch(NamedTuple):
    jobtype: str
    """Empty = it does not say."""
    number: int


def read_text(text: str) -> Iterator[Line | Malformed]:
    """The jobs of a text in either form, also mixed; what cannot be read is told with the number of its line."""
    lines = text.split("\n")
    torn = lines.pop()  # whatever follows the last end of a line was never finished
    batch: _Batch | None = None
    for number, line in enumerate(lines, start=1):
        if line.startswith(BATCH):
            if batch is not None:
                yield Malformed(batch.number, "this batch has no end")
            batch = _begun(line, number)
            if not batch.jobtype:
                yield Malformed(number, "this batch does not say its jobtype: it is skipped")
        elif line.startswith(END):
            batch = None
        elif line and not line.startswith((" ", "#")) and (batch is None or batch.jobtype):
            yield _job(line, number, batch)
    if torn:
        yield Malformed(len(lines) + 1, "torn: it has no end")
    if batch is not None:
        yield Malformed(batch.number, "this batch has no end")


def _job(line: str, number: int, batch: _Batch | None) -> Line | Malformed:
    if not _is_utf8(line):
        return Malformed(number, "not a text in UTF-8")
    return _record(line, number) if batch is None else Line("", batch.jobtype, line)


def _is_utf8(line: str) -> bool:
    """Whether it was: what could not be read then is there as halves of characters."""
    return line.isascii() or not any("\ud800" <= one <= "\udfff" for one in line)


def _begun(line: str, number: int) -> _Batch:
    pairs = (part.partition("=") for part in line.removeprefix(BATCH).split(","))
    said = {name.strip(): value.strip() for name, _, value in pairs}
    jobtype = said.get("jobtype", "")
    return _Batch(jobtype if is_name(jobtype) else "", number)


def _record(line: str, number: int) -> Line | Malformed:
    parts = line.split("|", 2)  # what a payload holds is its own business
    if len(parts) != 3:  # noqa: PLR2004 - id, jobtype, payload
        return Malformed(number, "not of the form id|jobtype|payload")
    id, jobtype, payload = parts
    if not id or not is_name(jobtype):
        return Malformed(number, f"{jobtype[:60]!r} is not a jobtype" if id else "it has no id")
    return Line(id, jobtype, payload)


def write_records(jobs: Iterable[tuple[str, NewJob]]) -> Iterator[str]:
    """Jobs with their ids, a line each."""
    for id, new in jobs:
        yield f"{id}|{new.task}|{_one_line(new)}\n"


def write_batches(jobs: Iterable[tuple[datetime, NewJob]]) -> Iterator[str]:
    """Jobs in batches: neighbours of one task that were accepted at one time."""
    for (date, task), some in groupby(jobs, key=lambda pair: (pair[0], pair[1].task)):
        body = "".join(f"{_in_batch(_one_line(new))}\n" for _, new in some)
        yield f"{BATCH} date={date.isoformat()},bytes={len(body.encode())},jobtype={task}\n{body}{END}\n"


def _one_line(new: NewJob) -> str:
    """A payload as a line: text as it is, anything else (and a text of several lines) in JSON."""
    payload = bytes(new.payload)
    if new.content_type == TEXT:
        text = payload.decode(errors="replace")
        return text if "\n" not in text else msgspec.json.encode(text).decode()
    try:
        return msgspec.json.encode(wire.value(payload, new.content_type)).decode()
    except (Invalid, TypeError, ValueError):
        return payload.hex()


def _in_batch(line: str) -> str:
    """A payload that would not be taken for one is put in quotes."""
    return msgspec.json.encode(line).decode() if not line or line.startswith((" ", "#")) else line
