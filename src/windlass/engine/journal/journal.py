"""A journal: accepts jobs, keeps them in order, finds them, and hands them out to be drained.

Requests that arrive while a commit is being synced share the next one. Everything that was accepted stays on disk until
it has been drained and some time has passed since, so a store that loses its newest jobs gets them again. All SQL runs
on one thread, so the event loop never waits for the disk. Knows nothing of stores.
"""

import asyncio
import hashlib
import logging
import os
from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from operator import attrgetter
from pathlib import Path
from typing import NamedTuple, TypeVar, TypeVarTuple

from msgspec import Struct

from windlass.engine.journal import file
from windlass.engine.journal.batch import (
    Entry,
    RecordBody,
    decode,
    encode,
    ids_in,
    join,
)
from windlass.engine.journal.file import JournalFile, JournalFinding, Row
from windlass.engine.new_jobs import JobBatch
from windlass.model.errors import JournalFull, WindlassError
from windlass.model.names import DEFAULT_TENANT, ID_SIZE, JobKey, raw_id
from windlass.model.ports import Clock, Randomness
from windlass.store.data import Draft
from windlass.store.encoding import to_micros

log = logging.getLogger("windlass.journal")

T = TypeVar("T")
Args = TypeVarTuple("Args")

MOST_IN_COMMIT = 2 << 20
"""Bytes of one commit, unless one request is larger. While it is synced, callers prepare the next."""

MOST_IN_ROW = 64 << 10
"""Bytes of one row, unless one record is larger."""

CHECK_DISK_EVERY = 0.5

TRY_WRITE_EVERY = 5.0
"""Seconds without a commit after which a journal is not known to be writable."""

QUIET = 1.0
"""Seconds without a refusal after which new jobs count as accepted again: on a full disk, small ones fit in between."""

NOT_KEPT = "nothing of it was kept"
MAY_BE_KEPT = "it may have been kept all the same: a job that is sent again with the same id or key stays one job"

KEPT_STEPS = 20
"""Into how many steps the time is divided for which drained jobs are kept."""


class JournalSettings(Struct, frozen=True, kw_only=True):
    """What an operator may choose for a journal."""

    keep: float = 600.0
    """Seconds that drained jobs are kept, for a store that loses its newest jobs."""
    most_full: float = 0.95
    """The part of its disk beyond which no new jobs are accepted."""


class WriteRequest(NamedTuple):
    """Jobs of one caller that wait to be written."""

    records: Sequence[RecordBody]
    size: int
    written: "asyncio.Future[int]"
    """The number of the last job, once all would outlast a power cut."""


class Journal:
    """One folder with a journal, opened by one process."""

    def __init__(self, folder: Path, clock: Clock, chance: Randomness, settings: JournalSettings) -> None:
        self.folder = folder
        self._clock = clock
        self._chance = chance
        self._settings = settings
        self._lock: int | None = None
        self._opened: JournalFile | None = None
        self._thread = ThreadPoolExecutor(1, "windlass-journal")
        self._requests: deque[WriteRequest] = deque()
        self._writing: asyncio.Task[None] | None = None
        self._numbering = asyncio.Lock()
        self._waiting = WaitingJobs()
        self._read_ahead: list[Entry] = []
        """What was last read from disk."""
        self._drained_at: deque[tuple[float, int]] = deque()
        """When jobs up to which number were drained."""
        self._deleted = 0
        self._checked_disk_at = -CHECK_DISK_EVERY
        self._disk_full = False
        self._wrote_at = -TRY_WRITE_EVERY
        self._fault: WindlassError | None = None
        """Why the last commit failed."""
        self._refused = 0
        """Requests that were refused since all were accepted."""
        self._refused_at = 0.0
        self.drained = 0
        """The store has all jobs up to this number."""
        self.last = 0
        """The number of the last job that was accepted."""
        self.accepted = asyncio.Event()
        """Set when jobs were accepted; the drain clears it."""
        self.findings: list[JournalFinding] = []
        """What was damaged when the journal was opened."""

    def open(self) -> bool:
        """Lock the folder and open its file; false if another process holds it. Waits for the disk."""
        self._lock = file.lock_folder(self.folder)
        if self._lock is None:
            return False
        try:
            self._open_file()
        except BaseException:
            self._unlock()
            raise
        return True

    def _open_file(self) -> None:
        self._opened = opened = JournalFile(self.folder, self._chance.token)
        self.findings = opened.findings
        for found in opened.findings:
            log.error("journal: %s: %s", found.path, found)
        self._deleted = self.drained = opened.deleted
        self.last, self._waiting = opened.last, self._indexed()

    def _indexed(self) -> "WaitingJobs":
        found = WaitingJobs()
        after = 0
        while rows := self._file.read(after):
            for row in rows:
                found.add(row.first, ids_in(row.body) or [])
            after = rows[-1].last
        return found

    async def close(self) -> None:
        if self._writing is not None:
            await self._writing
        if self._opened is not None:
            await self._run(self._opened.close)
            self._opened = None
        self._thread.shutdown()
        self._unlock()

    def _unlock(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    @property
    def _file(self) -> JournalFile:
        assert self._opened is not None, "the journal is not open"  # noqa: S101
        return self._opened

    @property
    def id(self) -> bytes:
        return self._file.id

    @property
    def unconfirmed(self) -> int:
        """The store may know other jobs under the numbers from here on: see `confirm`."""
        return self._file.unconfirmed

    @property
    def oldest(self) -> int:
        """The number of the oldest job that is still here, or of the next one."""
        return self._deleted + 1

    async def _run(self, call: Callable[[*Args], T], *args: *Args) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, call, *args)

    # Writing

    async def accept(self, jobs: Sequence[Draft] | JobBatch) -> int:
        """Keep jobs for good; the number of the last of them. Returns when they would outlast a power cut."""
        loop = asyncio.get_running_loop()
        records = encode(jobs)
        request = WriteRequest(records, sum(len(one.packed) for one in records), loop.create_future())
        self._requests.append(request)
        if self._writing is None:
            self._writing = loop.create_task(self._write_all())
        return await request.written

    async def confirm(self, newest: int) -> None:
        """The store has answered, and knows numbers up to `newest`. If the disk has lost the last of those, jobs that
        came since have their numbers: all that were accepted without the store get numbers behind them.
        """
        async with self._numbering:
            if await self._run(self._file.confirm, newest):
                self._waiting = await self._run(self._indexed)
                self.last, self._read_ahead = self._file.last, []

    async def _write_all(self) -> None:
        try:
            while group := self._group():
                async with self._numbering:
                    await self._write(group)
        finally:
            self._writing = None

    def _group(self) -> list[WriteRequest]:
        """The requests of the next commit. A caller that has given up meanwhile has not queued anything."""
        group: list[WriteRequest] = []
        size = 0
        while self._requests and (not group or size + self._requests[0].size <= MOST_IN_COMMIT):
            request = self._requests.popleft()
            if not request.written.done():
                group.append(request)
                size += request.size
        return group

    async def _write(self, group: Sequence[WriteRequest]) -> None:
        now = to_micros(self._clock.now())
        try:
            await self.check_room()
            await self._append(_rows(group, self.last + 1, now))
        except WindlassError as fault:
            self._refuse(group, fault)
            return
        for request in group:
            self._note(request)
        self.accepted.set()

    async def _append(self, rows: Sequence[Row]) -> None:
        """Write rows, or only see whether that works."""
        self._wrote_at = self._clock.monotonic()
        try:
            await self._append_with_room(rows)
        except WindlassError as fault:
            self._fault = fault
            raise
        self._fault = None
        if self._refused and self._clock.monotonic() - self._refused_at >= QUIET:
            log.warning("journal: new jobs are accepted again; %d requests were refused", self._refused)
            self._refused = 0

    async def _append_with_room(self, rows: Sequence[Row]) -> None:
        """Write rows; a second time if the disk was full and room could be made."""
        try:
            await self._run(self._file.append, rows)
        except JournalFull:
            if not await self._make_room(sum(len(row.body) for row in rows)):
                raise
            await self._run(self._file.append, rows)

    def _refuse(self, group: Sequence[WriteRequest], fault: WindlassError) -> None:
        if not self._refused:
            log.warning("journal: new jobs are refused: %s", fault)
        self._refused += len(group)
        self._refused_at = self._clock.monotonic()
        for request in group:
            if not request.written.done():
                kept = MAY_BE_KEPT if file.may_be_kept(fault) else NOT_KEPT
                request.written.set_exception(type(fault)(f"{fault}; {kept}"))

    async def check_writable(self) -> None:
        """Raise if new jobs would be refused. If none came for a while, or the last were refused, it tries to write."""
        await self.check_room()
        sure_for = CHECK_DISK_EVERY if self._fault else TRY_WRITE_EVERY
        if self._clock.monotonic() - self._wrote_at >= sure_for:
            await self._append(())
        if self._fault is not None:
            raise type(self._fault)(str(self._fault))

    def _note(self, request: WriteRequest) -> None:
        """A request is on disk: its jobs can be found."""
        self.last = self._waiting.add(self.last + 1, [(record.tenant, record.ids) for record in request.records])
        if not request.written.done():
            request.written.set_result(self.last)

    # Room

    async def check_room(self) -> None:
        """Raise if the disk is too full for new jobs even after everything drained was deleted."""
        now = self._clock.monotonic()
        if self._disk_full or now - self._checked_disk_at >= CHECK_DISK_EVERY:
            self._checked_disk_at = now
            self._disk_full = self._is_full() and not await self._make_room()
        if self._disk_full:
            raise JournalFull(
                f"the disk of the journal is more than {self._settings.most_full:.0%} full: make room in {self.folder}"
            )

    def _is_full(self) -> bool:
        return file.fullness(self.folder) >= self._settings.most_full

    async def _make_room(self, size: int = 0) -> bool:
        """Make room for so many bytes, if need be by deleting what was drained, the oldest first; whether it worked."""
        made = await self._run(self._file.make_room, self.drained, size, self._is_full)
        before, self._deleted = self._deleted, await self._run(lambda: self._file.deleted)
        if self._deleted > before:
            log.warning(
                "journal: the disk of %s is full; jobs drained less than %g s ago are deleted",
                self.folder,
                self._settings.keep,
            )
        return made

    # Reading

    async def find(self, key: JobKey) -> Entry | None:
        """A job that has not been drained."""
        sequence = self._waiting.find(raw_id(key.id), key.tenant)
        if sequence is None or sequence <= self.drained:
            return None
        row = await self._run(self._file.find, sequence)
        if row is None:
            return None
        return next(entry for entry in decode(*row) if entry.sequence >= sequence)

    async def count(self, after: int) -> int:
        """How many jobs there are behind a number."""
        return await self._run(self._file.count, after)

    async def read(self, after: int, most: int) -> list[Entry]:
        """The jobs behind a number, in order; at least one if there is any.

        Numbers at the end that were skipped or lost are one entry without a job.
        """
        if after >= (last := self.last):
            return []
        ahead = self._read_ahead
        if not (ahead and ahead[0].sequence <= after + 1 and after < ahead[-1].sequence):
            ahead = self._read_ahead = await self._run(self._read_file, after)
        # A job that is on disk, but that its caller does not know to be there yet, is left for the next time.
        start, end = (bisect_right(ahead, number, key=attrgetter("sequence")) for number in (after, last))
        return ahead[start : min(start + most, end)] or [Entry(last, 0, None)]

    def _read_file(self, after: int) -> list[Entry]:
        return [entry for row in self._file.read(after) for entry in decode(*row)]

    def reject(self, entry: Entry) -> None:
        """Put bytes aside that no job can be made of, where people find them."""
        path = file.reject(self.folder, entry.sequence, entry.raw)
        log.error("journal: record %d cannot be read by this program: it is in %s now", entry.sequence, path)

    # Deleting

    async def forget(self, upto: int) -> None:
        """The store has all jobs up to a number. After some time they are deleted."""
        self.drained = upto
        self._waiting.forget(upto)
        await self._delete_old()

    async def _delete_old(self) -> None:
        now, keep = self._clock.monotonic(), self._settings.keep
        if not self._drained_at or now - self._drained_at[-1][0] >= keep / KEPT_STEPS:
            self._drained_at.append((now, self.drained))
        upto = 0
        while self._drained_at and now - self._drained_at[0][0] >= keep:
            _, upto = self._drained_at.popleft()
        if upto > self._deleted:
            await self._delete(upto)

    async def _delete(self, upto: int) -> None:
        try:
            while await self._run(self._file.delete, upto):
                pass
            self._deleted = await self._run(lambda: self._file.deleted)
        except WindlassError as fault:
            log.warning("journal: drained jobs cannot be deleted in %s: %s", self.folder, fault)

    def rewind(self, to: int) -> int:
        """The store has lost the jobs behind a number; the number behind which it can get them again."""
        self.drained = max(to, self._deleted)
        self._drained_at.clear()
        return self.drained


def _rows(group: Sequence[WriteRequest], first: int, now: int) -> list[Row]:
    """The records of a group in as few rows as their sizes allow."""
    rows: list[Row] = []
    some: list[RecordBody] = []
    size = 0

    def end() -> None:
        nonlocal first, size
        last = first + sum(record.job_count for record in some) - 1
        rows.append(Row(first, last, now, join(some)))
        first, size = last + 1, 0
        some.clear()

    for request in group:
        for record in request.records:
            if some and size + len(record.packed) > MOST_IN_ROW:
                end()
            some.append(record)
            size += len(record.packed)
    end()
    return rows


# Which jobs wait

PAGE = 8192
"""Lone jobs of one page. Packing it takes a few milliseconds."""

PACKED = ID_SIZE + 8
"""Bytes of a job in a page: its `_name` and its number."""


class RecordRef(NamedTuple):
    """A record of several jobs in the journal: whose they are, which, and their numbers."""

    tenant: str
    ids: bytes
    first: int
    last: int


class WaitingJobs:
    """The numbers of the jobs that are only in the journal, by id, in little memory however long the store is away.

    The newest are in a dictionary; those that have waited longer are packed, 24 bytes for each. Records of several jobs
    stay as they are, since the ids in them are in order. What the store has taken is forgotten a page or a record at a
    time.
    """

    def __init__(self) -> None:
        self._new: dict[bytes, int] = {}
        self._last = 0
        self._pages: deque[tuple[bytes, int]] = deque()
        """Sorted entries, and the highest number among them."""
        self._shared: deque[RecordRef] = deque()

    def add(self, first: int, records: Iterable[tuple[str, bytes]]) -> int:
        """Jobs of tenants, by their ids, with the numbers from the first one on; the number of the last."""
        for tenant, ids in records:
            last = first + len(ids) // ID_SIZE - 1
            if last > first:
                self._shared.append(RecordRef(tenant, ids, first, last))
            else:
                self._new[_name(ids, tenant)] = self._last = last
            first = last + 1
        if len(self._new) >= PAGE:
            packed = b"".join(sorted(name + sequence.to_bytes(8) for name, sequence in self._new.items()))
            self._pages.append((packed, self._last))
            self._new = {}
        return first - 1

    def find(self, id: bytes, tenant: str) -> int | None:
        """The number of a job, the last one if it was accepted again after it had been drained."""
        name = _name(id, tenant)
        if found := self._new.get(name):
            return found
        for record in self._shared:
            if record.tenant == tenant and record.ids[:ID_SIZE] <= id <= record.ids[-ID_SIZE:]:
                place = _place(record.ids, ID_SIZE, id)
                if record.ids[place * ID_SIZE : (place + 1) * ID_SIZE] == id:
                    return record.first + place
        for packed, _ in reversed(self._pages):
            place = _place(packed, PACKED, name)
            entry = packed[place * PACKED : (place + 1) * PACKED]
            if entry[:ID_SIZE] == name:
                return int.from_bytes(entry[ID_SIZE:])
        return None

    def forget(self, upto: int) -> None:
        """The store has all jobs up to a number."""
        while self._pages and self._pages[0][1] <= upto:
            self._pages.popleft()
        while self._shared and self._shared[0].last <= upto:
            self._shared.popleft()
        if self._last <= upto:
            self._new = {}


def _name(id: bytes, tenant: str) -> bytes:
    """Sixteen bytes for a job: its id, mixed with its tenant so that no tenant can aim at another's job."""
    return id if tenant == DEFAULT_TENANT else hashlib.sha256(id + tenant.encode()).digest()[:ID_SIZE]


def _place(packed: bytes, size: int, name: bytes) -> int:
    """The place of the first entry, of so many bytes each, that is not below a name."""
    return bisect_left(range(len(packed) // size), name, key=lambda at: packed[at * size : at * size + ID_SIZE])
