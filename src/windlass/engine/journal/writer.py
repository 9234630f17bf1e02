"""Writes records, many at a time: whoever comes while a group is being synced is in the next one.

Nobody hears that a job was accepted before the group it was written with has been synced. If that fails, nothing from
that segment is acknowledged any more and it is never synced again (the system may have dropped what it could not
write, and would say that all is well): everybody in the group is refused, and the next group goes to a new segment.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from windlass.engine.journal.files import NO_ROOM, File, Files, not_written
from windlass.engine.journal.format import HEADER_SIZE, ID_SIZE, Header, pack_batch, pack_header, pack_record
from windlass.engine.journal.segments import Place, Segment, segment_name
from windlass.engine.lines import Lines
from windlass.model.errors import Unavailable, WindlassError
from windlass.store import Draft

log = logging.getLogger("windlass.journal")

MOST_AT_ONCE = 2 << 20
"""Bytes of one group, but for a larger one that came alone. While it is written, those of the last one come again."""


class Blank(NamedTuple):
    """A record without its number."""

    ids: bytes
    tenant: bytes
    body: bytes
    is_batch: bool


class Parcel(NamedTuple):
    """Records of one request: they get their numbers when they are written."""

    accepted: int
    jobs: Sequence[Draft] | Lines
    blanks: Sequence[Blank]
    size: int


class Written(NamedTuple):
    """Where the records of one request are, now that they will stay."""

    segment: Segment
    places: list[Place]


class Writer:
    """The one writer of a journal."""

    def __init__(self, files: Files, folder: Path, header: Callable[[int], Header], *, segment_bytes: int) -> None:
        self._files = files
        self._folder = folder
        self._header = header
        self._segment_bytes = segment_bytes
        self._number = 0
        self._used = 0
        self._segment: Segment | None = None
        self._file: File | None = None
        self._waiting: deque[tuple[Parcel, asyncio.Future[Written]]] = deque()
        self._task: asyncio.Task[None] | None = None
        self._thread = ThreadPoolExecutor(1, "windlass-journal")
        self.next = 1
        """The sequence of the next record."""
        self.may_write: Callable[[], None] = lambda: None
        """Raises if there is no room for more."""
        self.make_room: Callable[[], bool] = lambda: False
        """Deletes what can be spared; whether there was any. Nothing is being written meanwhile."""
        self.is_old: Callable[[Segment], bool] = lambda _: False
        """Whether a segment has been written for so long that the next should be begun."""
        self.on_written: Callable[[Written, Parcel], None] = lambda _, __: None

    def begin(self, after: int, number: int) -> None:
        """Where to go on: behind a sequence and the number of a segment."""
        self.next, self._number = after + 1, number + 1

    def skip(self, sequence: int) -> None:
        """Numbers up to there are used already, elsewhere: the next record is in a new segment, behind them."""
        self._used = sequence
        if self._task is None:
            self._skip_used()

    def _skip_used(self) -> None:
        if self.next <= self._used:
            self.next = self._used + 1
            self._let_go()

    def begin_anew(self) -> Segment | None:
        """An empty segment in the place of the newest; null if something is being written just now."""
        return self._open_segment() if self._task is None or asyncio.current_task() is self._task else None

    @property
    def segment(self) -> Segment | None:
        """The segment that is being written, as far as it is synced."""
        return self._segment

    def write(self, parcel: Parcel) -> "asyncio.Future[Written]":
        loop = asyncio.get_running_loop()
        written: asyncio.Future[Written] = loop.create_future()
        self._waiting.append((parcel, written))
        if self._task is None:
            self._task = loop.create_task(self._write_all())
        return written

    async def close(self) -> None:
        if self._task is not None:
            await self._task
        self._let_go()
        self._thread.shutdown()

    async def _write_all(self) -> None:
        try:
            while group := self._group():
                self._skip_used()
                await self._write_group(group)
        finally:
            self._task = None
            self._skip_used()

    def _group(self) -> list[tuple[Parcel, "asyncio.Future[Written]"]]:
        """The next to be written together. Whoever has given up meanwhile has not queued anything."""
        group: list[tuple[Parcel, asyncio.Future[Written]]] = []
        size = 0
        while self._waiting and (not group or size + self._waiting[0][0].size <= MOST_AT_ONCE):
            parcel, written = self._waiting.popleft()
            if not written.done():
                group.append((parcel, written))
                size += parcel.size
        return group

    async def _write_group(self, group: list[tuple[Parcel, "asyncio.Future[Written]"]]) -> None:
        try:
            self.may_write()
            segment, parts, places = await self._written([parcel for parcel, _ in group])
        except (WindlassError, OSError) as fault:
            self._refuse(group, fault)
            return
        size = segment.size + sum(map(len, parts))
        self._segment = segment = segment._replace(last=places[-1][-1].sequence, size=size)
        self.next = segment.last + 1
        for (parcel, future), own in zip(group, places, strict=True):
            kept = Written(segment, own)
            self.on_written(kept, parcel)
            if not future.done():
                future.set_result(kept)

    async def _written(self, parcels: Sequence[Parcel]) -> tuple[Segment, list[bytes], list[list[Place]]]:
        """Where they were put; tried a second time where room could be made."""
        try:
            return await self._try_to_write(parcels)
        except OSError as fault:
            if fault.errno not in NO_ROOM or not self.make_room():
                raise
        return await self._try_to_write(parcels)

    async def _try_to_write(self, parcels: Sequence[Parcel]) -> tuple[Segment, list[bytes], list[list[Place]]]:
        loop = asyncio.get_running_loop()
        segment = self._segment
        if segment is None or segment.size >= self._segment_bytes or self.is_old(segment):
            segment = await loop.run_in_executor(self._thread, self._open_segment)
        parts, places = self._packed(segment, parcels)
        await loop.run_in_executor(self._thread, self._put, segment, parts)
        return segment, parts, places

    def _refuse(self, group: list[tuple[Parcel, "asyncio.Future[Written]"]], fault: Exception) -> None:
        told = not_written(fault) if isinstance(fault, OSError) else fault
        log.warning("%d requests were refused: %s", len(group), told)
        for _, written in group:
            if not written.done():
                written.set_exception(type(told)(str(told)))

    def _packed(self, segment: Segment, parcels: Sequence[Parcel]) -> tuple[list[bytes], list[list[Place]]]:
        header, sequence, at = segment.header, self.next, segment.size
        parts: list[bytes] = []
        places: list[list[Place]] = []
        for parcel in parcels:
            own: list[Place] = []
            for blank in parcel.blanks:
                record, ids = _record(header, sequence, parcel.accepted, blank), blank.ids
                sequence += len(ids) // ID_SIZE
                own.append(Place(ids, sequence - 1, at, blank.tenant.decode()))
                parts += record
                at += sum(map(len, record))
            places.append(own)
        return parts, places

    # In the thread

    def _open_segment(self) -> Segment:
        """A new segment, in the place of the one there was."""
        self._let_go()
        header = self._header(self.next)
        path = self._folder / segment_name(header.first, self._number)
        self._number += 1
        file = self._files.create(path)
        try:
            file.write(pack_header(header))
            file.sync()
            self._files.sync_folder(self._folder)
        except OSError:
            file.close()
            with suppress(OSError):
                self._files.remove(path)
            raise
        self._file = file
        self._segment = Segment(path, header, header.first - 1, HEADER_SIZE)
        return self._segment

    def _put(self, segment: Segment, parts: Sequence[bytes]) -> None:
        assert self._file is not None  # noqa: S101 - it goes with the segment
        try:
            self._file.write(*parts)
        except OSError:
            self._take_back(segment)
            raise
        try:
            self._file.sync()
        except OSError as fault:
            self._take_back(segment)
            self._let_go()
            raise Unavailable(f"the journal could not be synced ({fault.strerror}): send it again") from fault

    def _take_back(self, segment: Segment) -> None:
        """Drop what was written of a group that failed. If not even that can be done, the segment is done with."""
        assert self._file is not None  # noqa: S101
        try:
            self._file.cut(segment.size)
        except OSError:
            self._let_go()

    def _let_go(self) -> None:
        file, self._file, self._segment = self._file, None, None
        if file is not None:
            with suppress(OSError):
                file.close()


def _record(header: Header, sequence: int, accepted: int, blank: Blank) -> tuple[bytes, ...]:
    """The parts of a record, now that its number is known."""
    ids, tenant, body, is_batch = blank
    if is_batch:
        return pack_batch(header, sequence, accepted, ids, tenant, body)
    return (pack_record(header, sequence, accepted, ids, tenant, body),)
