"""A disk that tests can watch, break and unplug, and short ways to fill and read a journal."""

import errno
import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from msgspec import Raw

from tests.worlds import SeededChance, VirtualClock
from windlass.engine.journal import File, Journal, JournalSettings
from windlass.engine.journal.segments import listed, walk
from windlass.engine.lines import Lines, lines_with
from windlass.model.fresh_ids import ids_like
from windlass.model.job import NewJob
from windlass.model.names import fresh_id, marked
from windlass.store import Draft

FOLDER = Path("/journal")


class PaperFile:
    """A file of a `PaperDisk`."""

    def __init__(self, disk: "PaperDisk", path: Path) -> None:
        self._disk = disk
        self._path = path

    def write(self, *parts: bytes) -> None:
        self._disk.note("write", self._path)
        data = b"".join(parts)
        room = self._disk.room - sum(map(len, self._disk.written.values()))
        self._disk.written[self._path] += data[: max(0, room)]
        if room < len(data):
            raise OSError(errno.ENOSPC, "No space left on device")

    def sync(self) -> None:
        self._disk.note("sync", self._path)
        self._disk.synced[self._path] = bytes(self._disk.written[self._path])

    def cut(self, size: int) -> None:
        self._disk.note("cut", self._path)
        del self._disk.written[self._path][size:]

    def close(self) -> None:
        self._disk.note("close", self._path)


class PaperDisk:
    """Remembers what is done to it; forgets what was not synced when the power is cut."""

    def __init__(self) -> None:
        self.written: dict[Path, bytearray] = {}
        self.synced: dict[Path, bytes] = {}
        self.lasting: dict[Path, Path] = {}
        """Names that outlast a power cut, and the file each stood for when its folder was synced."""
        self.calls: list[tuple[str, str]] = []
        self.faults: dict[str, int] = {}
        """Calls of a kind that fail, and how often."""
        self.room = 1 << 30
        self.used = 0.0
        self.locked: set[Path] = set()
        self.before: Callable[[str], None] = lambda _: None

    def note(self, what: str, path: Path) -> None:
        self.before(what)
        self.calls.append((what, path.name))
        if self.faults.get(what, 0):
            self.faults[what] -= 1
            raise OSError(errno.EIO, "Input/output error")

    def folder(self, path: Path) -> None:
        pass

    def names(self, folder: Path) -> list[str]:
        return sorted(path.name for path in self.written if path.parent == folder)

    def create(self, path: Path) -> File:
        self.note("create", path)
        assert path not in self.written
        self.written[path] = bytearray()
        return PaperFile(self, path)

    def open(self, path: Path) -> File:
        return PaperFile(self, path)

    def read(self, path: Path, at: int = 0, size: int = -1) -> bytes:
        data = bytes(self.written[path])
        return data[at:] if size < 0 else data[at : at + size]

    def rename(self, old: Path, new: Path) -> None:
        self.note("rename", old)
        self.written[new] = self.written.pop(old)
        self.synced[new] = self.synced.pop(old, b"")

    def remove(self, path: Path) -> None:
        self.note("remove", path)
        del self.written[path]

    def sync_folder(self, folder: Path) -> None:
        self.note("sync folder", folder)
        self.lasting = {path: path for path in self.written}

    def fullness(self, folder: Path) -> float:
        return self.used

    def lock(self, path: Path) -> int | None:
        if path in self.locked:
            return None
        self.locked.add(path)
        return 1

    def unlock(self, lock: int) -> None:
        self.locked.clear()

    def unplugged(self, chance: random.Random) -> "PaperDisk":
        """The disk after a power cut: of what was not synced, any beginning may be there."""
        after = PaperDisk()
        for path in self.lasting:
            if path not in self.written:
                continue
            sure, written = self.synced.get(path, b""), bytes(self.written[path])
            kept = written[: chance.randint(len(sure), len(written))] if written.startswith(sure) else sure
            after.written[path] = bytearray(kept)
            after.synced[path] = kept
            after.lasting[path] = path
        return after


def draft(number: int, *, queue: str = "default", tenant: str = "default", **terms: Any) -> Draft:
    chance = SeededChance(number)
    new = NewJob(task="work", queue=queue, payload=Raw(b"\xce" + number.to_bytes(4)), **terms)
    return Draft(tenant, fresh_id(chance.uuid7(), queue), new)


def number_of(found: Draft | None) -> int:
    assert found is not None
    return int.from_bytes(bytes(found.new.payload)[1:])


def opened(
    files: Any, folder: Path = FOLDER, *, clock: VirtualClock | None = None, seed: int = 7, **settings: Any
) -> Journal:
    journal = Journal(
        folder,
        files,
        clock or VirtualClock(),
        SeededChance(seed),
        JournalSettings(**settings),
    )
    assert journal.open(), "somebody else has it"
    return journal


async def filled(files: Any, number: int, folder: Path = FOLDER, *, start: int = 0, **settings: Any) -> None:
    """Jobs in a journal that is closed again, one write each."""
    journal = opened(files, folder, **settings)
    for one in range(start, start + number):
        await journal.accept([draft(one)])
    await journal.close()


async def contents(journal: Journal, after: int | None = None) -> list[int]:
    """The numbers of the jobs in a journal, in order."""
    found: list[int] = []
    at = journal.oldest - 1 if after is None else after
    while entries := await journal.read(at, 100):
        found += [number_of(entry.draft) for entry in entries if entry.draft is not None]
        at = entries[-1].sequence
    return found


def only(files: Any, folder: Path = FOLDER) -> Path:
    (path,) = listed(files, folder)
    return path


def whole(files: Any, folder: Path = FOLDER) -> Sequence[object]:
    return list(walk(files, folder))


@contextmanager
def failing(disk: PaperDisk, what: str, times: int = 1) -> Iterator[None]:
    disk.faults[what] = times
    yield
    disk.faults.pop(what, None)


def lines(start: int, end: int, *, queue: str = "default", tenant: str = "default", **terms: Any) -> Lines:
    """Jobs with these numbers, as a text brings them."""
    payloads = [bytes(draft(number).new.payload) for number in range(start, end)]
    ids = ids_like(marked(SeededChance(start).uuid7(), queue), len(payloads))
    return lines_with(tenant, NewJob(task="work", queue=queue, **terms), ids, payloads)
