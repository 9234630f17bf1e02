"""SQLite's write-ahead log, read without SQLite: whether all that was committed is still in it.

The log is a list of frames, each with a page and a checksum over all before it. SQLite ends it at the first frame whose
checksum does not match, and says nothing: after a power cut the last commit is like that, and was not acknowledged. But
a frame is only written when all commits before it have been synced, and the index beside the log counts what was
committed. So damage before that is seen. The format is at https://www.sqlite.org/fileformat2.html#walformat and
https://www.sqlite.org/walformat.html. Pure: knows no files and no SQL.
"""

import sys
from collections.abc import Sequence
from itertools import takewhile
from struct import iter_unpack, unpack
from typing import NamedTuple

HEADER, FRAME_HEADER, PAGE = 32, 24, 4096
FRAME = FRAME_HEADER + PAGE
BIG_ENDIAN, LITTLE_ENDIAN = 0x377F0683, 0x377F0682
INDEX_HEADER = 48
"""Bytes of the header of the index, which is there twice."""
TABLE_LEAF = 0x0D
MORE = 0x80
"""The bit of a byte that says that the number goes on."""
WORD = 0xFFFFFFFF


class LogDamage(NamedTuple):
    """Commits of a log that SQLite does not find."""

    committed: int
    """How many frames were committed."""
    readable: int
    """How many of them SQLite finds."""
    newest: int
    """The highest row number in those that it does not find; 0 = there is none."""
    end_unknown: bool
    """Whether there may have been higher ones, because the last commit itself is damaged."""


class _Frame(NamedTuple):
    is_whole: bool
    """Whether it is as it was written behind the frame before it, and not left by the log that was here before."""
    is_commit: bool
    """Whether it ends a commit of this log."""
    page: bytes


def damage_in(log: bytes, index: bytes, *, in_use: bool) -> LogDamage | None:
    """What damage has cut off from a log; null = nothing. In use = a process writes it, and is perhaps in a commit."""
    if len(log) < HEADER + FRAME:
        return None
    head_is_whole, frames = _read(log)
    counted = _counted(index, log)
    if in_use:
        frames = frames[:counted]
    synced = max(counted, _synced(frames))
    damaged = [number for number in range(synced) if number >= len(frames) or not frames[number].is_whole]
    if not synced or (head_is_whole and not damaged):
        return None
    committed = _with_whole_commits_behind(frames, synced)
    first = damaged[0] if head_is_whole else 0
    newest = max((_highest_row(frame.page) for frame in frames[first:committed] if frame.is_whole), default=0)
    last_commit = _end_of_commits(frames[: committed - 1])
    return LogDamage(committed, _end_of_commits(frames[:first]), newest, max(damaged, default=-1) >= last_commit)


def salts(index: bytes) -> bytes:
    """What differs each time a log is begun again, from its index."""
    return index[32:40]


def _read(log: bytes) -> tuple[bool, list[_Frame]]:
    """Whether its header is as it was written, and its frames."""
    magic = int.from_bytes(log[:4])
    order = {BIG_ENDIAN: ">", LITTLE_ENDIAN: "<"}.get(magic, "<" if sys.byteorder == "little" else ">")
    seed = unpack(">II", log[24:32])
    head_is_whole = seed == _checksum(log[:24], (0, 0), order)
    current = log[16:24] if head_is_whole else log[HEADER + 8 : HEADER + 16]
    frames: list[_Frame] = []
    for start in range(HEADER, len(log) - FRAME + 1, FRAME):
        header, page = log[start : start + FRAME_HEADER], log[start + FRAME_HEADER : start + FRAME]
        is_current, written = header[8:16] == current, unpack(">II", header[16:24])
        is_whole = is_current and written == _checksum(page, _checksum(header[:8], seed, order), order)
        frames.append(_Frame(is_whole, is_current and header[4:8] != bytes(4), page))
        seed = written
    return head_is_whole, frames


def _checksum(data: bytes, seed: tuple[int, int], order: str) -> tuple[int, int]:
    one, two = seed
    for x, y in iter_unpack(f"{order}II", data):
        one = (one + x + two) & WORD
        two = (two + y + one) & WORD
    return one, two


def _counted(index: bytes, log: bytes) -> int:
    """How many frames the index of a log counts as committed; 0 = it is not the index of this log."""
    head, again = index[:INDEX_HEADER], index[INDEX_HEADER : 2 * INDEX_HEADER]
    is_of_log = len(again) == INDEX_HEADER and head == again and salts(index) in (log[16:24], log[40:48])
    return int.from_bytes(head[16:20], sys.byteorder) if is_of_log else 0


def _synced(frames: Sequence[_Frame]) -> int:
    """How many frames were synced for certain: those up to a commit behind which there are others."""
    last = max((number for number, frame in enumerate(frames) if frame.is_whole), default=0)
    return _end_of_commits(frames[:last])


def _end_of_commits(frames: Sequence[_Frame]) -> int:
    """The number of frames up to the last commit."""
    return max((number for number, frame in enumerate(frames, 1) if frame.is_commit), default=0)


def _with_whole_commits_behind(frames: Sequence[_Frame], synced: int) -> int:
    """The number of frames up to the last commit that is whole and joins what was synced."""
    behind = takewhile(lambda frame: frame.is_whole, frames[synced:])
    return synced + _end_of_commits(list(behind))


def _highest_row(page: bytes) -> int:
    """The number of the last row on a page of a table; 0 = it is no such page."""
    cells = int.from_bytes(page[3:5])
    if page[0] != TABLE_LEAF or not cells:
        return 0
    place = int.from_bytes(page[6 + 2 * cells : 8 + 2 * cells])
    _, place = _varint(page, place)  # the size of the row
    return _varint(page, place)[0]


def _varint(page: bytes, place: int) -> tuple[int, int]:
    """A number of up to 9 bytes, and the place behind it."""
    number = 0
    for byte in page[place : place + 8]:
        number, place = number << 7 | byte & ~MORE, place + 1
        if not byte & MORE:
            return number, place
    return number << 8 | page[place], place + 1
