"""A journal: accepts jobs, keeps them in order, finds them, and hands them out to be drained.

Knows nothing of stores. Everything that is accepted stays on disk until it has been drained and some time has passed
since: a store that loses its newest jobs can be given them again.
"""

import asyncio
import logging
from bisect import bisect_right
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path

from msgspec import Struct

from windlass.engine.journal import bodies
from windlass.engine.journal.files import NO_ROOM, Files
from windlass.engine.journal.format import HEADER_SIZE, Header, read_record, size_at
from windlass.engine.journal.runs import Entry, Run, entries_behind, run_of, runs_upto
from windlass.engine.journal.segments import Finding, Segment, number_in_name, recover
from windlass.engine.journal.waiting import Waiting
from windlass.engine.journal.writer import Blank, Parcel, Writer, Written
from windlass.engine.lines import Lines, lines_in, parts_of
from windlass.model.errors import JournalFull
from windlass.model.names import JobKey, raw_id
from windlass.model.ports import Chance, Clock
from windlass.store import Draft
from windlass.store.alike import alike
from windlass.store.micros import to_micros

log = logging.getLogger("windlass.journal")

MOST_IN_MEMORY = 20_000
"""Jobs that are kept in memory too, for the drainer; if more wait, they are read from disk."""

MOST_DRAFTS_IN_MEMORY = 4000
"""The same of jobs that are objects: everybody waits while these are looked through for garbage, or let go."""

MOST_BYTES_IN_MEMORY = 32 << 20

MOST_IN_BATCH = 1000
"""Jobs of one record: to find one of them all are read."""

LEAST_IN_BATCH = 100
"""The fewest for which jobs that are alike share one: batches that wait are looked through in turn to find a job."""

READ_AT_ONCE = 64 << 10
"""Bytes of a segment that are read at a time, but for a larger record: what is made of them takes the time of those who
enqueue, and is looked through for garbage with everything else."""

LOOK_AT_DISK_EVERY = 0.5

REJECTED = "rejected"
"""The file with what no store will take: the sequence and the body, in hex digits, a line each."""


class JournalSettings(Struct, frozen=True, kw_only=True):
    """What an operator may choose for a journal."""

    keep: float = 600.0
    """Seconds that what was drained is kept, for a store that loses its newest jobs."""
    segment_bytes: int = 64 << 20
    """Size at which the next segment is begun."""
    most_full: float = 0.95
    """The part of its disk beyond which nothing more is accepted."""


class Journal:
    """One folder of segments, opened by one writer."""

    def __init__(self, folder: Path, files: Files, clock: Clock, chance: Chance, settings: JournalSettings) -> None:
        self.folder = folder
        self._files = files
        self._clock = clock
        self._chance = chance
        self._settings = settings
        self._lock: int | None = None
        self._segments: list[Segment] = []
        self._waiting = Waiting()
        self._recent: list[Run] = []
        self._recent_bytes = self._recent_drafts = 0
        self._drained_at: dict[Path, float] = {}
        self._begun_at: dict[Path, float] = {}
        self._stock: list[Run] = []
        """What was last read from disk."""
        self._reading: tuple[int, int] | None = None
        """The sequence that it ends with, and where the record behind that begins."""
        self._looked_at_disk = -LOOK_AT_DISK_EVERY
        self._disk_full = False
        self.id = b""
        self.drained = 0
        self.on_accepted: Callable[[], None] = lambda: None
        self.findings: list[Finding] = []
        """What had to be repaired when it was opened."""
        self._writer = Writer(files, folder, self._header, segment_bytes=settings.segment_bytes)
        self._writer.may_write = self.check_room
        self._writer.make_room = self._make_room
        self._writer.on_written = self._on_written
        self._writer.is_old = self._is_old

    def open(self) -> bool:
        """Take the folder and make it sound; whether nobody else has it."""
        self._files.folder(self.folder)
        self._lock = self._files.lock(self.folder / "lock")
        if self._lock is None:
            return False
        sound = recover(self._files, self.folder, self._salt)
        self.findings = sound.findings
        for finding in sound.findings:
            lost = f"; {finding.lost} jobs are lost: {finding.first} to {finding.last}" if finding.lost else ""
            log.log(logging.ERROR if lost else logging.WARNING, "%s: %s%s", finding.path, finding.what, lost)
        self._segments = sound.segments
        for places in sound.places:
            for place in places:
                self._waiting.add(place)
        self.id = sound.segments[-1].header.journal if sound.segments else self._chance.token()
        last = sound.segments[-1].last if sound.segments else 0
        self.drained = sound.segments[0].header.first - 1 if sound.segments else 0
        self._writer.begin(last, max((number_in_name(one.path) for one in sound.segments), default=0))
        return True

    async def close(self) -> None:
        await self._writer.close()
        if self._lock is not None:
            self._files.unlock(self._lock)
            self._lock = None

    @property
    def last(self) -> int:
        """The sequence of the last job that was accepted."""
        return self._writer.next - 1

    @property
    def oldest(self) -> int:
        """The sequence of the oldest job that is still here, or will be the next."""
        return self._segments[0].header.first if self._segments else self._writer.next

    async def accept(self, jobs: Sequence[Draft] | Lines) -> int:
        """Keep jobs for good; the sequence of the last of them. Returns when they would outlast a power cut."""
        blanks = _batches(jobs) if isinstance(jobs, Lines) else _records(jobs)
        size = sum(len(blank.body) for blank in blanks)
        parcel = Parcel(to_micros(self._clock.now()), jobs, blanks, size)
        return (await self._writer.write(parcel)).places[-1].sequence

    def find(self, key: JobKey) -> Entry | None:
        """A job that has not been drained."""
        found = self._waiting.find(raw_id(key.id), key.tenant)
        if found is None or found[0] <= self.drained:
            return None
        sequence, at = found
        segment = self._segment_of(sequence)
        data = self._read_some(segment, at)
        record = read_record(data, segment.header, 0)
        return None if record is None else run_of(data, record).entries(sequence - 1, 1)[0]

    async def read(self, after: int, most: int) -> list[Entry]:
        """The jobs behind a sequence, in order; as far as there are any, at least one."""
        if after >= self.last:
            return []
        if self._recent and self._recent[0].first <= after + 1:
            self._stock = []
            return entries_behind(self._recent, after, most)
        if not (self._stock and self._stock[0].first <= after + 1 and after < self._stock[-1].last):
            self._stock = await asyncio.to_thread(self._read_disk, after)
        return entries_behind(self._stock, after, most)

    def forget(self, upto: int) -> None:
        """The store has all jobs up to there. After some time their segments are deleted."""
        self.drained = upto
        self._waiting.forget(upto)
        if self._recent:
            known = runs_upto(self._recent, upto)
            self._recent_drafts -= sum(map(_drafts_in_memory, self._recent[:known]))
            del self._recent[:known]
        if not self._recent:
            self._recent_bytes = self._recent_drafts = 0
        self._delete_old()

    def rewind(self, to: int) -> int:
        """The store has lost what came behind a sequence; the one behind which it can be given again."""
        self.drained = max(to, self.oldest - 1)
        self._drained_at = {}
        return self.drained

    def reject(self, entry: Entry) -> None:
        """Put aside what no store will take, where people find it."""
        path = self.folder / REJECTED
        known = REJECTED in self._files.names(self.folder)
        file = self._files.open(path) if known else self._files.create(path)
        try:
            file.write(b"%d %b\n" % (entry.sequence, entry.raw.hex().encode()))
            file.sync()
        finally:
            file.close()
        log.error("record %d cannot be read by this program: it was put aside in %s", entry.sequence, path)

    def skip(self, sequence: int) -> None:
        """The store knows more than is here: those numbers are used."""
        self._writer.skip(sequence)

    # Writing

    def _header(self, first: int) -> Header:
        return Header(self._salt(), self.id, first)

    def _salt(self) -> int:
        return int.from_bytes(self._chance.token()[:4])

    def _is_old(self, segment: Segment) -> bool:
        """What a segment holds is deleted together: so none is written for longer than anything is kept."""
        now = self._clock.monotonic()
        return now - self._begun_at.get(segment.path, now) >= self._settings.keep

    def check_room(self) -> None:
        """Raise if nothing more is accepted because the disk is too full, though all that was drained is gone."""
        now = self._clock.monotonic()
        if self._disk_full or now - self._looked_at_disk >= LOOK_AT_DISK_EVERY:
            self._disk_full = self._is_full() and not (self._make_room() and not self._is_full())
            self._looked_at_disk = now
        if self._disk_full:
            raise JournalFull(
                f"the disk of the journal is more than {self._settings.most_full:.0%} full: make room in {self.folder}"
            )

    def _is_full(self) -> bool:
        return self._files.fullness(self.folder) >= self._settings.most_full

    def _make_room(self) -> bool:
        """Delete what was drained, the oldest first, until the disk is no longer full; whether anything was."""
        some = False
        for segment in [one for one in self._segments if one.last <= self.drained and one.size > HEADER_SIZE]:
            self._delete([segment])
            some = some or segment not in self._segments
            if not self._is_full():
                break
        if not some:
            return False
        log.warning(
            "%s: its disk is full; what was drained less than %g s ago is deleted", self.folder, self._settings.keep
        )
        return True

    def _on_written(self, written: Written, parcel: Parcel) -> None:
        if self._segments and self._segments[-1].path is written.segment.path:
            self._segments[-1] = written.segment
        else:
            self._segments.append(written.segment)
            self._begun_at[written.segment.path] = self._clock.monotonic()
        self._drained_at.pop(written.segment.path, None)
        for place in written.places:
            self._waiting.add(place)
        first, last = written.places[0].first, written.places[-1].sequence
        run = Run(first, last, parcel.accepted, parcel.jobs)
        self._recent.append(run)
        self._recent_bytes += parcel.size
        self._recent_drafts += _drafts_in_memory(run)
        if self._remembers_too_much():
            self._recent, self._recent_bytes, self._recent_drafts = [], 0, 0  # they are on disk
        self.on_accepted()

    def _remembers_too_much(self) -> bool:
        return (
            self._recent_drafts > MOST_DRAFTS_IN_MEMORY
            or self._recent[-1].last - self._recent[0].first >= MOST_IN_MEMORY
            or self._recent_bytes > MOST_BYTES_IN_MEMORY
        )

    # Reading

    def _segment_of(self, sequence: int) -> Segment:
        return self._segments[bisect_right(self._segments, sequence, key=lambda one: one.header.first) - 1]

    def _read_disk(self, after: int) -> list[Run]:
        """What lies behind a sequence, as much as is read at a time."""
        segments = [one for one in self._segments if one.last > after]
        if not segments:
            return []
        segment = segments[0]
        at = HEADER_SIZE
        if self._reading is not None and self._reading[0] == after and after >= segment.header.first:
            at = self._reading[1]
        found: list[Run] = []
        while not found and at < segment.size:
            data = self._read_some(segment, at)
            start = 0
            while (record := read_record(data, segment.header, start)) is not None:
                if record.sequence > after:
                    found.append(run_of(data, record))
                start = record.end
            if not start:
                raise OSError(f"{segment.path} has changed under us at byte {at}")
            at += start
        if found:
            self._reading = found[-1].last, at
        return found

    def _read_some(self, segment: Segment, at: int) -> bytes:
        """What lies there, with at least one whole record."""
        rest = segment.size - at
        data = self._files.read(segment.path, at, min(READ_AT_ONCE, rest))
        size = size_at(data, 0)
        return data if size <= len(data) else self._files.read(segment.path, at, min(size, rest))

    # Deleting

    def _delete_old(self) -> None:
        now = self._clock.monotonic()
        drained = [one for one in self._segments if one.last <= self.drained]
        for segment in drained:
            self._drained_at.setdefault(segment.path, now)
        self._delete([one for one in drained if now - self._drained_at[one.path] >= self._settings.keep])

    def _delete(self, old: Sequence[Segment]) -> None:
        """Delete segments that were drained; in the place of the newest an empty one says where to go on."""
        try:
            if old and old[-1] is self._segments[-1] and old[-1].last >= old[-1].header.first:
                self._begin_anew(old[-1])
            for segment in [one for one in old if one in self._segments]:
                if segment is self._segments[-1]:
                    return  # it tells where to go on
                self._files.remove(segment.path)
                self._files.sync_folder(self.folder)
                self._segments.remove(segment)
                self._drained_at.pop(segment.path, None)
                self._begun_at.pop(segment.path, None)
        except OSError as fault:
            log.warning("%s: what was drained cannot be deleted: %s", self.folder, fault)

    def _begin_anew(self, newest: Segment) -> None:
        """All of it was drained: only where to go on is kept."""
        try:
            fresh = self._writer.begin_anew()
        except OSError as fault:
            if fault.errno not in NO_ROOM:
                raise
            self._files.remove(newest.path)  # not even room for an empty one: then it goes first
            self._segments.remove(newest)
            fresh = self._writer.begin_anew()
        if fresh is not None:
            self._segments.append(fresh)
            self._begun_at[fresh.path] = self._clock.monotonic()


def _drafts_in_memory(run: Run) -> int:
    """As many objects as it has jobs; those of lines are made when they are asked for."""
    return 1 if run.jobs is None or isinstance(run.jobs, Lines) else len(run.jobs)


def _records(drafts: Sequence[Draft]) -> list[Blank]:
    if len(drafts) < LEAST_IN_BATCH:
        return _singles(drafts)
    found: list[Blank] = []
    for some in alike(drafts):
        found += _batches(lines_in(some)) if _is_batch(some) else _singles(some)
    return found


def _is_batch(drafts: Sequence[Draft]) -> bool:
    """Whether a record for all of them is worth it, and they can be found in it."""
    return len(drafts) >= LEAST_IN_BATCH and all(one.id < other.id for one, other in pairwise(drafts))


def _singles(drafts: Sequence[Draft]) -> list[Blank]:
    return [Blank(raw_id(draft.id), draft.tenant.encode(), bodies.pack(draft), is_batch=False) for draft in drafts]


def _batches(lines: Lines) -> list[Blank]:
    tenant = lines.tenant.encode()
    return [Blank(part.ids, tenant, bodies.pack_lines(part), is_batch=True) for part in parts_of(lines, MOST_IN_BATCH)]
