"""`windlass journal verify|dump|load|drain`: the jobs that a server has accepted, on its disk and as text."""

import os
import sys
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import App, Parameter
from msgspec import Raw, Struct

from windlass import config
from windlass.addresses import file_of, open_engine
from windlass.cli import DASH, console
from windlass.cli.target import HERE, OPTIONS, Target, open_queue
from windlass.engine.journal import text
from windlass.engine.journal.batch import Entry, decode
from windlass.engine.journal.file import JournalFinding, examine, file_in
from windlass.engine.journal.service import drain_folder
from windlass.model.errors import Invalid, Missing
from windlass.model.job import TEXT
from windlass.model.names import DEFAULT_QUEUE, EVERY_TENANT
from windlass.model.new_job import NewJob
from windlass.model.operations import MOST_AT_ONCE, EnqueueMany
from windlass.store.encoding import from_micros
from windlass.system import SystemClock

journal = App(name="journal", help="Look at the jobs that a server has accepted.", group_parameters=OPTIONS)

Folder = Annotated[
    Path | None, Parameter(name="FOLDER", help="The folder of the journals (`journal` in the server's own folder).")
]

BAD = 1


class Verified(Struct, frozen=True):
    """What `verify` found in one journal."""

    folder: str
    jobs: int
    batches: int
    first: int
    last: int
    findings: list[str]
    damaged: bool
    lost: int
    """Jobs, as far as they can be counted."""


@journal.command
def verify(folder: Folder = None, /, *, target: Target = HERE) -> int:
    """Look for damage; nothing is changed. Exits 1 if a journal is damaged or has lost jobs."""
    found = [_verified(one) for one in _folders(folder)]
    for one in found:
        if target.json:
            console.write_json(one)
            continue
        jobs = f"{console.plural(one.jobs, 'job')} ({one.first} to {one.last})" if one.jobs else "no jobs"
        console.write(f"{one.folder}: {jobs} in {console.plural(one.batches, 'batch', 'batches')}")
        for finding in one.findings:
            console.write(f"  {finding}")
    return BAD if any(one.damaged for one in found) else 0


def _verified(folder: Path) -> Verified:
    jobs = batches = first = last = lost = 0
    findings: list[str] = []
    damaged = False
    for found in examine(folder):
        if isinstance(found, JournalFinding):
            findings.append(f"{found.path.name}: {found}")
            lost += found.lost
            damaged = damaged or not found.aside
            continue
        jobs += found.last + 1 - found.first
        batches += 1
        first, last = first or found.first, found.last
    return Verified(str(folder), jobs, batches, first, last, findings, damaged, lost)


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
    target: Target = HERE,
) -> int:
    """Print the jobs of the journals as text, with --tenant those of one tenant.

    What is damaged or cannot be read is named on stderr; then it exits 1.
    """
    damage: list[str] = []
    only = None if target.tenant in {None, EVERY_TENANT, DASH} else target.settings().tenant
    for one in _folders(folder):
        drafts = ((entry, entry.draft) for entry in _entries(one, damage) if entry.draft is not None)
        known = (pair for pair in drafts if only is None or pair[1].tenant == only)
        if form == "records":
            lines = text.write_records((draft.tenant, draft.id, draft.new) for _, draft in known)
        elif form == "batches":
            lines = text.write_batches(
                (draft.tenant, from_micros(entry.accepted_at), draft.new) for entry, draft in known
            )
        else:
            lines = (_in_json(entry) for entry, _ in known)
        for line in lines:
            sys.stdout.write(line)
    return BAD if damage else 0


def _entries(folder: Path, damage: list[str]) -> Iterator[Entry]:
    """The jobs in a journal. What is missing is named, and added to the damage."""
    for found in examine(folder):
        if isinstance(found, JournalFinding):
            console.note(f"{folder}: {found.path.name}: {found}")
            damage += [] if found.aside else [found.what]
            continue
        for entry in decode(*found):
            if entry.draft is None:
                damage.append("unreadable")
                console.note(f"{folder}: job {entry.sequence} cannot be read by this program")
            yield entry


def _in_json(entry: Entry) -> str:
    draft = entry.draft
    assert draft is not None  # noqa: S101 - others are left out
    new, when = draft.new, from_micros(entry.accepted_at).isoformat()
    payload = text.one_line(new)
    return f"{console.to_json(Dumped(entry.sequence, when, draft.tenant, draft.id, new.task, new.queue, payload))}\n"


@journal.command
async def load(
    file: Annotated[str, Parameter(name="FILE", help="A text of records or batches; `-` = from stdin.")],
    /,
    *,
    queue: Annotated[
        str, Parameter(name=("--queue", "-q"), metavar="NAME", help="The queue of the jobs (`default`).")
    ] = DEFAULT_QUEUE,
    target: Target = HERE,
) -> int:
    """Queue the jobs of a text, each for the tenant that the text names, else for that of --tenant. A job that comes
    with an id stays one job, however often it is loaded.

    Lines that cannot be read are reported on stderr and skipped; then it exits 1.
    """
    found = list(text.read_text(_text_of(file)))
    lines = [line for line in found if isinstance(line, text.Line)]
    created = 0
    async with open_queue(target, create=True) as to:
        for tenant, some in groupby(lines, key=lambda line: line.tenant or to.tenant):
            news = [_new(line, queue) for line in some]
            for start in range(0, len(news), MOST_AT_ONCE):
                batch = EnqueueMany(tenant=tenant, jobs=news[start : start + MOST_AT_ONCE])
                created += (await to.service(batch)).created
    malformed = [line for line in found if isinstance(line, text.Malformed)]
    for line in malformed:
        console.note(f"{file}, line {line.number}: {line.why}")
    console.write(f"{console.plural(created, 'new job')} of {len(lines):,}")
    return BAD if malformed else 0


def _text_of(file: str) -> str:
    try:
        data = sys.stdin.buffer.read() if file == DASH else Path(file).read_bytes()
    except OSError as fault:
        raise Missing(f"{file} cannot be read: {fault.strerror}", at="FILE") from None
    return data.decode(errors="surrogateescape")  # a line that is not UTF-8 is reported, not repaired


def _new(line: text.Line, queue: str) -> NewJob:
    payload = Raw(line.payload.encode())
    return NewJob(task=line.jobtype, queue=queue, key=_key(line.id), payload=payload, content_type=TEXT)


def _key(id: str) -> str | None:
    return id[:512] or None


@journal.command
async def drain(folder: Folder = None, /, *, target: Target = HERE) -> None:
    """Drain journals that no server holds into the store, for example from the disk of a machine that is gone."""
    settings = target.settings()
    if file_of(settings.store) is not None:
        raise Invalid("a journal is drained into a Redis store: name it with --store", at="store")
    for one in _folders(folder):
        async with open_engine(settings.store) as engine:
            number = await drain_folder(engine, one, SystemClock())
        console.write(f"{one}: {console.plural(number, 'job')} drained")


def _folders(folder: Path | None) -> list[Path]:
    """The journals in a folder, or the folder itself if it is one."""
    place = folder or config.data_folder(os.environ) / "journal"
    if place.is_file():
        raise Invalid(f"{place} is a file: give the folder that it is in", at="FOLDER")
    inner = sorted(
        (one for one in place.glob("*") if one.is_dir() and one.name.isdigit()), key=lambda one: int(one.name)
    )
    if not inner and file_in(place) is None:
        raise Missing(f"there is no journal in {place}: name the folder `journal` in its server's --data", at="FOLDER")
    return inner or [place]
