"""`windlass journal verify|dump|load|drain`: what a server has accepted, on its disk and as text."""

import os
import sys
from collections.abc import Iterator
from itertools import chain, groupby
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import App, Parameter
from msgspec import Raw, Struct

from windlass.addresses import file_of, open_engine
from windlass.cli import DASH, saying
from windlass.cli.place import HERE, OPTIONS, Place, opened
from windlass.engine.journal import text
from windlass.engine.journal.files import Disk
from windlass.engine.journal.format import LOST, first_of
from windlass.engine.journal.opening import drain_folder
from windlass.engine.journal.runs import Entry, run_of
from windlass.engine.journal.segments import Finding, listed, put_aside, walk
from windlass.local import data_folder
from windlass.model.errors import Invalid, Missing
from windlass.model.job import TEXT, NewJob
from windlass.model.names import DEFAULT_QUEUE, EVERY_TENANT
from windlass.model.operations import MOST_AT_ONCE, EnqueueMany
from windlass.store.micros import from_micros
from windlass.system import SystemClock

journal = App(name="journal", help="Look at what a server has accepted.", group_parameters=OPTIONS)

Folder = Annotated[
    Path | None, Parameter(name="FOLDER", help="The folder of the journals (`journal` in the server's own folder).")
]

BAD = 1


class Verified(Struct, frozen=True):
    """What is known of one journal."""

    folder: str
    segments: int
    records: int
    first: int
    last: int
    findings: list[str]
    lost: int
    """As far as they can be counted."""
    loses: bool
    """Whether any are lost, now or before."""


@journal.command
def verify(folder: Folder = None, /, *, place: Place = HERE) -> int:
    """Look for damage; nothing is changed. Exits 1 if acknowledged jobs are lost."""
    found = [_verified(one) for one in _folders(folder)]
    if place.json:
        for one in found:
            saying.write_json(one)
        return BAD if any(one.loses for one in found) else 0
    for one in found:
        records = f"{saying.plural(one.records, 'record')} ({one.first} to {one.last})" if one.records else "no records"
        saying.write(f"{one.folder}: {records} in {saying.plural(one.segments, 'segment')}")
        for finding in one.findings:
            saying.write(f"  {finding}")
    return BAD if any(one.loses for one in found) else 0


def _verified(folder: Path) -> Verified:
    disk, spans, findings, lost, loses = Disk(), list[tuple[int, int]](), list[str](), 0, False
    for found in chain(walk(disk, folder), put_aside(disk, folder)):
        if isinstance(found, Finding):
            gone = f": jobs {found.first} to {found.last} are lost" if found.lost else ""
            findings.append(f"{found.path.name}: {found.what}{gone}")
            lost += found.lost
            loses = loses or found.open_ended or found.lost > 0
        elif found[0].flags & LOST:
            findings.append(f"records up to {found[0].sequence} were damaged before, and are lost")
            loses = True
        else:
            record, data = found
            spans.append((first_of(data, record), record.sequence))
    first, last = (spans[0][0], spans[-1][1]) if spans else (0, 0)
    return Verified(str(folder), len(listed(disk, folder)), len(spans), first, last, findings, lost, loses)


class Dumped(Struct, frozen=True):
    """One accepted job."""

    sequence: int
    accepted_at: str
    tenant: str
    id: str
    task: str
    queue: str
    payload: str


@journal.command
def dump(
    folder: Folder = None,
    /,
    *,
    form: Annotated[
        Literal["json", "records", "batches"],
        Parameter(metavar="FORM", help="json (all there is), records (id|task|payload), or batches under a header."),
    ] = "json",
    place: Place = HERE,
) -> None:
    """Print the jobs of the journals as text, with --tenant those of one; damage is reported on stderr."""
    only = None if place.tenant in {None, EVERY_TENANT, DASH} else place.settle().tenant
    for one in _folders(folder):
        drafts = ((entry, entry.draft) for entry in _entries(one) if entry.draft is not None)
        known = (pair for pair in drafts if only is None or pair[1].tenant == only)
        if form == "records":
            lines = text.write_records((draft.tenant, draft.id, draft.new) for _, draft in known)
        elif form == "batches":
            lines = text.write_batches((draft.tenant, from_micros(entry.accepted), draft.new) for entry, draft in known)
        else:
            lines = (_in_json(entry) for entry, _ in known)
        for line in lines:
            sys.stdout.write(line)


def _entries(folder: Path) -> Iterator[Entry]:
    for found in walk(Disk(), folder):
        if isinstance(found, Finding):
            saying.remark(f"{found.path}: {found.what}")
            continue
        record, data = found
        run = run_of(data, record)
        yield from run.entries(0, run.last)


def _in_json(entry: Entry) -> str:
    draft = entry.draft
    assert draft is not None  # noqa: S101 - others are left out
    new, when = draft.new, from_micros(entry.accepted).isoformat()
    payload = text.one_line(new)
    return f"{saying.in_json(Dumped(entry.sequence, when, draft.tenant, draft.id, new.task, new.queue, payload))}\n"


@journal.command
async def load(
    file: Annotated[str, Parameter(name="FILE", help="A text of records or batches; `-` = from stdin.")],
    /,
    *,
    queue: Annotated[
        str, Parameter(name=("--queue", "-q"), metavar="NAME", help="The line that the jobs wait in (`default`).")
    ] = DEFAULT_QUEUE,
    place: Place = HERE,
) -> int:
    """Queue the jobs of a text, each in the tenant that the text names, else in that of --tenant. One that comes with
    an id is one job, however often it is loaded.

    Lines that cannot be read are told on stderr and skipped; then it exits 1.
    """
    found = list(text.read_text(_text_of(file)))
    lines = [line for line in found if isinstance(line, text.Line)]
    created = 0
    async with opened(place, create=True) as to:
        for tenant, some in groupby(lines, key=lambda line: line.tenant or to.tenant):
            news = [_new(line, queue) for line in some]
            for start in range(0, len(news), MOST_AT_ONCE):
                batch = EnqueueMany(tenant=tenant, jobs=news[start : start + MOST_AT_ONCE])
                created += (await to.service(batch)).created
    malformed = [line for line in found if isinstance(line, text.Malformed)]
    for line in malformed:
        saying.remark(f"{file}, line {line.number}: {line.why}")
    saying.write(f"{saying.plural(created, 'new job')} of {len(lines):,}")
    return BAD if malformed else 0


def _text_of(file: str) -> str:
    try:
        data = sys.stdin.buffer.read() if file == DASH else Path(file).read_bytes()
    except OSError as fault:
        raise Missing(f"{file} cannot be read: {fault.strerror}", at="FILE") from None
    return data.decode(errors="surrogateescape")  # a line that is no text is told, not mended


def _new(line: text.Line, queue: str) -> NewJob:
    payload = Raw(line.payload.encode())
    return NewJob(task=line.jobtype, queue=queue, key=_key(line.id), payload=payload, content_type=TEXT)


def _key(id: str) -> str | None:
    return id[:512] or None


@journal.command
async def drain(folder: Folder = None, /, *, place: Place = HERE) -> None:
    """Carry what is in journals that no server holds into the store: of a machine that is gone, from its disk."""
    settings = place.settle()
    if file_of(settings.store) is not None:
        raise Invalid("a journal is drained into a Redis store", at="store")
    for one in _folders(folder):
        async with open_engine(settings.store) as engine:
            number = await drain_folder(engine, one, SystemClock())
        saying.write(f"{one}: {saying.plural(number, 'job')} drained")


def _folders(folder: Path | None) -> list[Path]:
    """The journals in a folder, or the folder itself if it is one."""
    place = folder or data_folder(dict(os.environ)) / "journal"
    if place.is_file():
        raise Invalid(f"{place} is a file: give the folder that it is in", at="FOLDER")
    if not place.is_dir():
        raise Missing(f"there is no folder {place}", at="FOLDER")
    inner = sorted(
        (one for one in place.iterdir() if one.is_dir() and one.name.isdigit()), key=lambda one: int(one.name)
    )
    if not inner and not listed(Disk(), place):
        raise Missing(f"there is no journal in {place}", at="FOLDER")
    return inner or [place]
