"""Short ways to fill, read, break and copy a journal."""

import errno
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import apsw
import pytest
from msgspec import Raw

from tests.support.stores import SeededChance, VirtualClock
from windlass.engine.journal import Journal, JournalSettings
from windlass.engine.journal.batch import ids_in
from windlass.engine.journal.file import JournalFinding, Row, examine, file_in
from windlass.engine.new_jobs import JobBatch, make_batch
from windlass.model.names import ID_SIZE, fresh_id, ids_like, marked
from windlass.model.new_job import NewJob
from windlass.store.data import Draft

PAGE = 4096


def draft(number: int, *, queue: str = "default", tenant: str = "default", **terms: Any) -> Draft:
    chance = SeededChance(number)
    new = NewJob(task="work", queue=queue, payload=Raw(b"\xce" + number.to_bytes(4)), **terms)
    return Draft(tenant, fresh_id(chance.uuid7(), queue), new)


def lines(start: int, end: int, *, queue: str = "default", tenant: str = "default", **terms: Any) -> JobBatch:
    """Jobs with these numbers, as a text brings them."""
    payloads = [bytes(draft(number).new.payload) for number in range(start, end)]
    ids = ids_like(marked(SeededChance(start).uuid7(), queue), len(payloads))
    return make_batch(tenant, NewJob(task="work", queue=queue, **terms), ids, payloads)


def number_of(found: Draft | None) -> int:
    assert found is not None
    return int.from_bytes(bytes(found.new.payload)[1:])


def opened(folder: Path, *, clock: VirtualClock | None = None, seed: int = 7, **settings: Any) -> Journal:
    journal = Journal(folder, clock or VirtualClock(), SeededChance(seed), JournalSettings(**settings))
    assert journal.open(), "another process has it"
    return journal


async def filled(folder: Path, number: int, *, size: int = 0, **settings: Any) -> None:
    """Jobs of about so many bytes in a journal that is closed again, one commit each."""
    journal = opened(folder, **settings)
    for one in range(number):
        await journal.accept([draft(one, headers={"x": "y" * size} if size else {})])
    await journal.close()


async def contents(journal: Journal, after: int | None = None) -> list[int]:
    """The numbers of the jobs in a journal, in order."""
    found: list[int] = []
    at = journal.oldest - 1 if after is None else after
    while entries := await journal.read(at, 100):
        found += [number_of(entry.draft) for entry in entries if entry.draft is not None]
        at = entries[-1].sequence
    return found


async def kept_in(folder: Path, **settings: Any) -> list[int]:
    """The numbers of the jobs in a journal that no process has open."""
    journal = opened(folder, **settings)
    try:
        return await contents(journal)
    finally:
        await journal.close()


def journal_file(folder: Path) -> Path:
    found = file_in(folder)
    assert found is not None
    return found


def log_of(folder: Path) -> Path:
    """The write-ahead log beside the file."""
    return Path(f"{journal_file(folder)}-wal")


def copied(folder: Path, to: Path) -> Path:
    """The files of a journal as they are now, as a power cut at this moment would leave them."""
    to.mkdir()
    for path in folder.glob("journal-*"):
        if not path.name.endswith("-shm"):
            shutil.copyfile(path, to / path.name)
    return to


def moved_aside(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.damaged"))


def names_in(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def rows_in(folder: Path) -> list[Row]:
    return [found for found in examine(folder) if isinstance(found, Row)]


def findings_in(folder: Path) -> list[JournalFinding]:
    return [found for found in examine(folder) if isinstance(found, JournalFinding)]


def records_in(folder: Path) -> list[int]:
    """How many jobs each record has."""
    return [len(ids) // ID_SIZE for row in rows_in(folder) for _, ids in ids_in(row.body) or []]


def pages_of_batches(path: Path) -> list[int]:
    """The pages that hold batches and nothing else, by number."""
    sql = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY)
    found = sql.execute("SELECT pageno FROM dbstat WHERE name = 'batches' AND pagetype = 'leaf' ORDER BY pageno")
    pages = [int(page) for (page,) in found]
    sql.close()
    return pages


def overwrite(path: Path, page: int, data: bytes = b"\xa5" * PAGE) -> None:
    """Put something else into a page."""
    with path.open("r+b") as file:
        file.seek((page - 1) * PAGE)
        file.write(data)


@contextmanager
def failing(journal: Journal, times: int = 1, reason: int = errno.EIO) -> Iterator[None]:
    """Writes that the disk refuses for a while."""
    file, left = journal._file, times
    insert, begin_log_again = file._insert, file._begin_log_again

    def refuse() -> None:
        nonlocal left
        if left:
            left -= 1
            raise OSError(reason, "refused")

    def insert_or_fail(rows: Sequence[Row]) -> None:
        refuse()
        insert(rows)

    def begin_or_fail() -> None:
        if left:
            raise apsw.IOError("refused")
        begin_log_again()

    file._insert = insert_or_fail  # type: ignore[method-assign]
    file._begin_log_again = begin_or_fail  # type: ignore[method-assign]
    try:
        yield
    finally:
        file._insert, file._begin_log_again = insert, begin_log_again  # type: ignore[method-assign]


@contextmanager
def watched(journal: Journal, before: Callable[[Sequence[Row]], None]) -> Iterator[list[int]]:
    """See each commit before it is made; how many batches each had."""
    file, seen = journal._file, list[int]()
    insert = file._insert

    def noted(rows: Sequence[Row]) -> None:
        before(rows)
        insert(rows)
        seen.append(len(rows))

    file._insert = noted  # type: ignore[method-assign]
    try:
        yield seen
    finally:
        file._insert = insert  # type: ignore[method-assign]


@contextmanager
def disk_of(place: Path, megabytes: int) -> Iterator[Path]:
    """A disk of so many megabytes."""
    place.mkdir()
    if os.getuid() != 0:
        pytest.skip("needs root: only root may mount a small disk")
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={megabytes}m", "tmpfs", str(place)], check=True)
    try:
        yield place
    finally:
        subprocess.run(["umount", "--lazy", str(place)], check=True)


def fill_up(disk: Path) -> Path:
    """A file that takes all the room there is."""
    ballast = disk / "ballast"
    with ballast.open("wb", buffering=0) as file:
        for size in (1 << 16, 1 << 12):
            with suppress(OSError):  # no space left
                while True:
                    file.write(bytes(size))
    return ballast
