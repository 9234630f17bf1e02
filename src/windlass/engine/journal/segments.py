"""The segments of a journal on disk: what they are called, what they hold, and how a folder of them is made sound.

A torn tail is cut off and noted. Damage with acknowledged records behind it is reported with its sequence numbers: the
file is put aside as it is, and everything whole in it is written anew, with a record in the place of what is lost.
"""

import logging
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from windlass.engine.journal.files import Files
from windlass.engine.journal.format import (
    HEADER_SIZE,
    ID_SIZE,
    Gap,
    Header,
    Record,
    Tail,
    examine,
    ids_of,
    mended_header,
    pack_header,
    pack_lost,
    pack_record,
    read_header,
)

log = logging.getLogger("windlass.journal")

MENDED = "one bit of its header is damaged; its records are read all the same"

SUFFIX, DAMAGED, SALVAGE = ".journal", ".damaged", ".salvage"


class Segment(NamedTuple):
    """A sound segment."""

    path: Path
    header: Header
    last: int
    """The sequence of its last record; one below its first if it has none."""
    size: int
    """Bytes of it that count."""


class Finding(NamedTuple):
    """Something that is not as it was written."""

    path: Path
    what: str
    first: int = 0
    last: int = -1
    """The sequences that are lost by it, if any."""
    open_ended: bool = False
    """Whether all behind `first` is lost, and nobody can say how much that is."""

    @property
    def lost(self) -> int:
        return max(0, self.last - self.first + 1)


class Place(NamedTuple):
    """Where a record lies in its segment."""

    ids: bytes
    """Of its jobs, one after the other; ascending if there are several."""
    sequence: int
    """Of the last of them."""
    at: int
    tenant: str
    """Whose they are."""

    @property
    def first(self) -> int:
        return self.sequence + 1 - len(self.ids) // ID_SIZE


def segment_name(first: int, number: int) -> str:
    """Sorts by first sequence; of equal ones (the earlier could not be synced, so holds nothing) the later is last."""
    return f"{first:016x}-{number:06x}{SUFFIX}"


def first_in_name(path: Path) -> int:
    return int(path.name[:16], 16)


def number_in_name(path: Path) -> int:
    return int(path.name[17:23], 16)


def listed(files: Files, folder: Path) -> list[Path]:
    return [folder / name for name in files.names(folder) if name.endswith(SUFFIX)]


def walk(files: Files, folder: Path) -> Iterator[tuple[Record, bytes] | Finding]:
    """Every whole record of a folder with the bytes it lies in, and what is not sound, in order; nothing is changed."""
    for path, upto in _bounds(listed(files, folder)):
        data = files.read(path)
        header = read_header(data)
        if header is None and (header := mended_header(data)) is not None:
            yield Finding(path, MENDED)
        if header is None:
            yield _headless(path, data, upto)
            continue
        for found in examine(data, header, upto):
            yield (found, data) if isinstance(found, Record) else _finding(path, found)


class Recovered(NamedTuple):
    """A folder that is sound now."""

    segments: list[Segment]
    places: list[list[Place]]
    """Where the records of each of them lie."""
    findings: list[Finding]
    """What had to be repaired."""


def recover(files: Files, folder: Path, salt: Callable[[], int]) -> Recovered:
    """Make a folder sound."""
    _finish_salvage(files, folder)
    sound = Recovered([], [], [])
    paths = listed(files, folder)
    starts = [files.read(path, 0, HEADER_SIZE) for path in paths]
    headers = [read_header(start) or mended_header(start) for start in starts]
    journal = next((header.journal for header in headers if header is not None), None)
    for path, upto in _bounds(paths):
        data = files.read(path)
        header = read_header(data)
        mended = header is None and (header := mended_header(data)) is not None
        if mended:
            sound.findings.append(Finding(path, MENDED))
        if header is None:
            sound.findings.append(_headless(path, data, upto))
            if upto is None or journal is None:
                _put_away(files, path, data)
                continue
            header = Header(salt(), journal, first_in_name(path))
            data = _salvaged(b"", header, header, upto)
            _replace(files, path, data)
        places, faults = _places(data, header, upto)
        sound.findings.extend(_finding(path, fault) for fault in faults)
        if mended or any(isinstance(fault, Gap) for fault in faults):
            fresh = Header(salt(), header.journal, header.first)
            data, header = _salvaged(data, header, fresh, upto), fresh
            _replace(files, path, data)
            places, _ = _places(data, header, upto)
        elif faults:
            data = data[: faults[-1].start]
            _cut(files, path, len(data))
        last = places[-1].sequence if places else header.first - 1
        sound.segments.append(Segment(path, header, last, len(data)))
        sound.places.append(places)
    return sound


def _places(data: bytes, header: Header, upto: int | None) -> tuple[list[Place], list[Gap | Tail]]:
    places: list[Place] = []
    faults: list[Gap | Tail] = []
    at = HEADER_SIZE
    for found in examine(data, header, upto):
        if isinstance(found, Record):
            places.append(Place(ids_of(data, found), found.sequence, at, found.tenant))
            at = found.end
        else:
            faults.append(found)
            at = found.end
    return places, faults


def _bounds(paths: Sequence[Path]) -> Iterator[tuple[Path, int | None]]:
    """Each segment with the last sequence that was acknowledged from it; null for the newest, where nobody can say."""
    for place, path in enumerate(paths, start=1):
        yield path, first_in_name(paths[place]) - 1 if place < len(paths) else None


def _finding(path: Path, found: Gap | Tail) -> Finding:
    if isinstance(found, Tail):
        return Finding(path, f"torn: {found.end - found.start} bytes at its end, never acknowledged")
    return Finding(path, f"damaged at byte {found.start}", found.first, found.last)


def _headless(path: Path, data: bytes, upto: int | None) -> Finding:
    if upto is None and len(data) <= HEADER_SIZE:
        return Finding(path, "torn: it was never begun")
    first = first_in_name(path)
    if upto is None:
        return Finding(path, f"its header is damaged; nothing from sequence {first} on can be read", open_ended=True)
    return Finding(path, "its header is damaged", first, upto)


def put_aside(files: Files, folder: Path) -> Iterator[Finding]:
    """What could not be read at all when the journal was opened."""
    for name in files.names(folder):
        start = files.read(folder / name, 0, HEADER_SIZE) if name.endswith(DAMAGED) else b""
        if start and read_header(start) is None and mended_header(start) is None:
            what = f"was put aside; nothing in it, from sequence {first_in_name(Path(name))} on, can be read"
            yield Finding(folder / name, what, open_ended=True)


def _put_away(files: Files, path: Path, data: bytes) -> None:
    """A file that was never begun is dropped; any other that cannot be read is kept for people to look at."""
    if len(data) <= HEADER_SIZE:
        files.remove(path)
    else:
        files.rename(path, path.with_name(path.name + DAMAGED))
    files.sync_folder(path.parent)


def _cut(files: Files, path: Path, size: int) -> None:
    file = files.open(path)
    try:
        file.cut(size)
        file.sync()
    finally:
        file.close()


def _salvaged(data: bytes, header: Header, fresh: Header, upto: int | None) -> bytes:
    """Everything whole in a damaged segment as a new one."""
    parts = [pack_header(fresh)]
    for found in examine(data, header, upto):
        if isinstance(found, Record):
            body, tenant = data[found.body : found.end], found.tenant.encode()
            parts.append(pack_record(fresh, found.sequence, found.accepted, found.id, tenant, body, found.flags))
        elif isinstance(found, Gap) and found.last >= found.first:
            parts.append(pack_lost(fresh, found.first, found.last))
    return b"".join(parts)


def _replace(files: Files, path: Path, data: bytes) -> None:
    """Put a damaged file aside, and something else in its place."""
    aside = path.with_name(path.name + SALVAGE)
    file = files.create(aside)
    try:
        file.write(data)
        file.sync()
    finally:
        file.close()
    files.rename(path, path.with_name(path.name + DAMAGED))
    files.rename(aside, path)
    files.sync_folder(path.parent)


def _finish_salvage(files: Files, folder: Path) -> None:
    """A crash between the two renamings leaves what was salvaged under its first name."""
    names = files.names(folder)
    for name in names:
        if not name.endswith(SALVAGE):
            continue
        path = folder / name.removesuffix(SALVAGE)
        if path.name in names:
            files.remove(folder / name)
        else:
            files.rename(folder / name, path)
        files.sync_folder(folder)
