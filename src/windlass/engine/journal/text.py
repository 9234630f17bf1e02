"""Jobs as text that people and simple programs write: a job on each line, or batches of lines under a header.

    #:Tenant shop
    id|jobtype|payload
    #:Batch date=2026-01-31T12:00:00Z,bytes=12,jobtype=thumb,tenant=shop
    one payload
    another
    #:EndBatch

A line belongs to the tenant that was named last, a batch to the tenant that it names; a text need not name any. A line
that begins with a space was deleted. In a batch, empty lines and lines that begin with `#` are not payloads. Pure:
reads and writes lines, knows neither files nor queues.
"""

from collections.abc import Iterable, Iterator
from datetime import datetime
from itertools import groupby
from operator import itemgetter
from typing import NamedTuple

import msgspec

from windlass.model import wire
from windlass.model.errors import Invalid
from windlass.model.job import TEXT
from windlass.model.names import is_name
from windlass.model.new_job import NewJob

BATCH, END, TENANT = "#:Batch", "#:EndBatch", "#:Tenant"


class Line(NamedTuple):
    """A job of a text."""

    id: str
    """The id that it came with, if it had one."""
    jobtype: str
    payload: str
    tenant: str = ""
    """Empty = the text names none."""


class Malformed(NamedTuple):
    """A line that cannot be read."""

    number: int
    why: str


class _Batch(NamedTuple):
    jobtype: str
    """Empty = it names none."""
    tenant: str
    number: int


def read_text(text: str) -> Iterator[Line | Malformed]:  # noqa: C901 - a branch for each kind of line
    """The jobs of a text in either form, also mixed, and the lines that cannot be read."""
    lines = text.split("\n")
    torn = lines.pop()  # what follows the last newline was never finished
    batch: _Batch | None = None
    tenant: str | None = ""
    for number, line in enumerate(lines, start=1):
        if line.startswith(BATCH):
            if batch is not None:
                yield Malformed(batch.number, "this batch has no end")
            batch = _begun(line, number)
            if not batch.jobtype:
                yield Malformed(number, "this batch does not say its jobtype: it is skipped")
        elif line.startswith(END):
            batch = None
        elif batch is None and line.startswith(TENANT):
            tenant = _tenant(line)
            if tenant is None:
                yield Malformed(number, "this is not a tenant: the records that follow are skipped")
        elif _is_job(line) and (tenant is not None if batch is None else batch.jobtype):
            yield _job(line, number, batch, tenant or "")
    if torn:
        yield Malformed(len(lines) + 1, "torn: it has no end")
    if batch is not None:
        yield Malformed(batch.number, "this batch has no end")


def _tenant(line: str) -> str | None:
    named = line.removeprefix(TENANT).strip()
    return named if is_name(named) else None


def _is_job(line: str) -> bool:
    return bool(line) and not line.startswith((" ", "#"))


def _job(line: str, number: int, batch: _Batch | None, tenant: str) -> Line | Malformed:
    if not _is_utf8(line):
        return Malformed(number, "not a text in UTF-8")
    return _record(line, number, tenant) if batch is None else Line("", batch.jobtype, line, batch.tenant)


def _is_utf8(line: str) -> bool:
    """Whether it was: bytes that are not UTF-8 are there as lone surrogates."""
    return line.isascii() or not any("\ud800" <= one <= "\udfff" for one in line)


def _begun(line: str, number: int) -> _Batch:
    pairs = (part.partition("=") for part in line.removeprefix(BATCH).split(","))
    said = {name.strip(): value.strip() for name, _, value in pairs}
    jobtype = said.get("jobtype", "")
    tenant = said.get("tenant", "")
    sound = is_name(jobtype) and (not tenant or is_name(tenant))
    return _Batch(jobtype if sound else "", tenant, number)


def _record(line: str, number: int, tenant: str) -> Line | Malformed:
    parts = line.split("|", 2)  # a payload may hold the separator
    if len(parts) != 3:  # noqa: PLR2004 - id, jobtype, payload
        return Malformed(number, "not of the form id|jobtype|payload")
    id, jobtype, payload = parts
    if not id or not is_name(jobtype):
        return Malformed(number, f"{jobtype[:60]!r} is not a jobtype" if id else "it has no id")
    return Line(id, jobtype, payload, tenant)


def write_records(jobs: Iterable[tuple[str, str, NewJob]]) -> Iterator[str]:
    """Jobs with their tenants and ids, a line each; the tenant in a line before the first of them."""
    for tenant, some in groupby(jobs, key=itemgetter(0)):
        yield f"{TENANT} {tenant}\n"
        for _, id, new in some:
            yield f"{id}|{new.task}|{one_line(new)}\n"


def write_batches(jobs: Iterable[tuple[str, datetime, NewJob]]) -> Iterator[str]:
    """Jobs in batches: neighbours of one tenant and task that were accepted at one time."""
    for (tenant, date, task), some in groupby(jobs, key=lambda one: (one[0], one[1], one[2].task)):
        body = "".join(f"{_in_batch(one_line(new))}\n" for _, _, new in some)
        about = f"date={date.isoformat()},bytes={len(body.encode())},jobtype={task},tenant={tenant}"
        yield f"{BATCH} {about}\n{body}{END}\n"


def one_line(new: NewJob) -> str:
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
    """A payload that would not be read as one is put in quotes."""
    return msgspec.json.encode(line).decode() if not line or line.startswith((" ", "#")) else line
