"""Segments and records as bytes, and back. Pure: what is whole is told, what is not is told too; nothing is repaired.

A segment is a header and records, one after the other. The checksum of each record begins with its segment's salt, so
that old bytes in a reused block of a disk are never taken for records. All numbers are big endian:

    header   'WLJ', version (1 byte), salt (4), journal (8), first sequence (8), CRC-32 of all that (4)
    record   size of the record (4), CRC-32 of the rest (4), journal (8), sequence (8), flags (1), accepted at,
             microseconds (8), job id (16), size of the tenant's name (1), tenant, body

A batch is one record for several jobs, whole or not there: its sequence is that of the last of them, its id is zeros,
and its body is the sequence of the first (8), their ids (16 each, ascending), and the rest.
"""

import struct
from collections.abc import Iterator
from contextlib import suppress
from typing import NamedTuple
from zlib import crc32

from windlass.model.errors import Invalid

MAGIC = b"WLJ"
VERSION = 2
"""1 had no batches."""

HEADER = struct.Struct(">3sBI8sQ")
SUM = struct.Struct(">I")
HEADER_SIZE = HEADER.size + SUM.size

BEFORE = struct.Struct(">II")
REST = struct.Struct(">8sQBQ16sB")
SMALLEST = BEFORE.size + REST.size

LOST = 1
"""Flag of a record that stands for records that were damaged: up to its own sequence, from the one that is its body."""

BATCH = 2
"""Flag of a record of several jobs."""

FIRST = struct.Struct(">Q")
ID_SIZE = 16


class Header(NamedTuple):
    """What a segment says of itself."""

    salt: int
    journal: bytes
    first: int
    """The sequence of its first record."""


class Record(NamedTuple):
    """A whole record, and where it lies."""

    sequence: int
    flags: int
    accepted: int
    """When it was accepted by this host's clock, in microseconds."""
    id: bytes
    tenant: str
    body: int
    """Where its body begins."""
    end: int


class Gap(NamedTuple):
    """Bytes that are no records, and the sequences that are missing there."""

    start: int
    end: int
    first: int
    last: int
    """Below `first` if nothing is missing."""


class Tail(NamedTuple):
    """Bytes at the end that are no whole record, with nothing behind them."""

    start: int
    end: int


def pack_header(header: Header) -> bytes:
    packed = HEADER.pack(MAGIC, VERSION, header.salt, header.journal, header.first)
    return packed + SUM.pack(crc32(packed))


def read_header(data: bytes) -> Header | None:
    """The header of a segment; null if it is damaged. A format newer than ours is refused."""
    if len(data) < HEADER_SIZE:
        return None
    magic, version, salt, journal, first = HEADER.unpack_from(data)
    if magic != MAGIC or SUM.unpack_from(data, HEADER.size)[0] != crc32(data[: HEADER.size]):
        return None
    if version > VERSION:
        raise Invalid(f"this journal has format {version}, this program reads up to {VERSION}: use a newer one")
    return Header(salt, journal, first)


def mended_header(data: bytes) -> Header | None:
    """The header of a segment in which one bit is not as it was written; null = it is not that."""
    damaged = int.from_bytes(data[:HEADER_SIZE])
    for bit in range(8 * HEADER_SIZE):
        with suppress(Invalid):
            header = read_header((damaged ^ 1 << bit).to_bytes(HEADER_SIZE))
            if header is not None:
                return header
    return None


def pack_record(  # noqa: PLR0917 - the parts of a record, in the order they lie
    header: Header, sequence: int, accepted: int, id: bytes, tenant: bytes, body: bytes, flags: int = 0
) -> bytes:
    start = REST.pack(header.journal, sequence, flags, accepted, id, len(tenant)) + tenant
    return b"".join(_sealed(header, start, body))


def pack_batch(  # noqa: PLR0917 - the parts of a record, in the order they lie
    header: Header, first: int, accepted: int, ids: bytes, tenant: bytes, rest: bytes
) -> tuple[bytes, ...]:
    """The parts of a record, which are large: putting them together is left to whoever writes them."""
    last = first + len(ids) // ID_SIZE - 1
    start = REST.pack(header.journal, last, BATCH, accepted, bytes(ID_SIZE), len(tenant)) + tenant
    return _sealed(header, start + FIRST.pack(first), ids, rest)


def pack_lost(header: Header, first: int, last: int) -> bytes:
    """A record in the place of damaged ones."""
    return pack_record(header, last, 0, bytes(16), b"", FIRST.pack(first), LOST)


def _sealed(header: Header, *parts: bytes) -> tuple[bytes, ...]:
    """All parts of a record: what says its size and its checksum, and these."""
    size = BEFORE.size + sum(map(len, parts))
    checksum = header.salt ^ size
    for part in parts:
        checksum = crc32(part, checksum)
    return BEFORE.pack(size, checksum), *parts


def read_record(data: bytes, header: Header, at: int) -> Record | None:
    """The record that begins there; null if there is none that is whole and of this segment."""
    if at + SMALLEST > len(data):
        return None
    size, checksum = BEFORE.unpack_from(data, at)
    end = at + size
    if size < SMALLEST or end > len(data):
        return None
    start = at + BEFORE.size
    if crc32(memoryview(data)[start:end], header.salt ^ size) != checksum:
        return None
    journal, sequence, flags, accepted, id, named = REST.unpack_from(data, start)
    body = start + REST.size + named
    if journal != header.journal or body > end:
        return None
    try:
        tenant = data[body - named : body].decode()
    except UnicodeDecodeError:
        return None
    return Record(sequence, flags, accepted, id, tenant, body, end)


def size_at(data: bytes, at: int) -> int:
    """Bytes of the record that begins there, as far as it says."""
    if at + BEFORE.size > len(data):
        return 0
    size, _ = BEFORE.unpack_from(data, at)
    return int(size)


def examine(data: bytes, header: Header, upto: int | None) -> Iterator[Record | Gap | Tail]:
    """Everything in a segment, in order, from its first byte to its last.

    `upto` is the last sequence that was acknowledged from it, if a later segment tells: what is missing up to there is
    a gap, and what lies beyond was never acknowledged. Without it nobody knows; a broken end is then a torn tail.
    """
    at, expected = HEADER_SIZE, header.first
    while at < len(data) and (upto is None or expected <= upto):
        record = read_record(data, header, at)
        if record is not None and first_of(data, record) == expected:
            yield record
            at, expected = record.end, record.sequence + 1
            continue
        start = next_record(data, header, at, expected)
        if start is None:
            break
        found = read_record(data, header, start)
        assert found is not None  # noqa: S101 - it was found there
        yield Gap(at, start, expected, first_of(data, found) - 1)
        at, expected = start, first_of(data, found)
    if upto is not None and expected <= upto:
        yield Gap(at, len(data), expected, upto)
    elif at < len(data):
        yield Tail(at, len(data))


def first_of(data: bytes, record: Record) -> int:
    """The first sequence that a record stands for."""
    if not record.flags & (LOST | BATCH) or record.end - record.body < FIRST.size:
        return record.sequence
    (first,) = FIRST.unpack_from(data, record.body)
    return int(first)


def ids_of(data: bytes, record: Record) -> bytes:
    """The ids of the jobs in a record, one after the other."""
    if not record.flags & BATCH:
        return record.id
    start = record.body + FIRST.size
    return data[start : min(record.end, start + ID_SIZE * (record.sequence + 1 - first_of(data, record)))]


def next_record(data: bytes, header: Header, at: int, least: int) -> int | None:
    """Where the next whole record with at least this sequence begins."""
    found = data.find(header.journal, at + BEFORE.size)
    while found >= 0:
        record = read_record(data, header, found - BEFORE.size)
        if record is not None and first_of(data, record) >= least:
            return found - BEFORE.size
        found = data.find(header.journal, found + 1)
    return None
