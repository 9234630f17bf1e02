"""Ids of new jobs by the thousand: what `names` does for one, without a step of Python for each.

Pure: time and randomness are given. Ids of one call ascend, so that one can be looked up among them.
"""

from collections.abc import Iterable

from windlass.model.names import queue_mark

SIZE = 16
"""Bytes of an id."""

NOISE = 8
"""Random bytes that go into an id."""

_PAIR = 2
_PAIRED = 40
"""Characters of an id whose bytes are written in pairs, with one between a pair and the next."""
_SURPLUS = (4, 29, 34)
"""Where that is one more than the text of an id has."""

_A_MILLISECOND = 4096
"""Ids that one millisecond has numbers for; further ones take their time from the next."""

_HIGH = bytes(0x70 | number >> 8 for number in range(_A_MILLISECOND))
_LOW = bytes(number & 0xFF for number in range(_A_MILLISECOND))
_VARIANT = bytes(byte & 0x3F | 0x80 for byte in range(256))


def uuid7s(milliseconds: int, noise: bytes) -> bytes:
    """UUIDs of version 7 from a time and eight random bytes for each: their number is where RFC 9562 has `rand_a`."""
    step = _A_MILLISECOND * NOISE
    starts = range(0, len(noise), step)
    return b"".join(_within(milliseconds + n, noise[start : start + step]) for n, start in enumerate(starts))


def _within(milliseconds: int, noise: bytes) -> bytes:
    number = len(noise) // NOISE
    made = bytearray(milliseconds.to_bytes(6) + bytes(SIZE - 6)) * number
    memoryview(made).cast("Q")[1::2] = memoryview(noise).cast("Q")
    made[6::SIZE], made[7::SIZE] = _HIGH[:number], _LOW[:number]
    made[8::SIZE] = made[8::SIZE].translate(_VARIANT)
    return bytes(made)


def marked(uuids: bytes, queue: str) -> bytes:
    """Ids for new jobs of this queue, from fresh UUIDs."""
    made = bytearray(uuids)
    made[SIZE - 1 :: SIZE] = bytes((queue_mark(queue),)) * (len(uuids) // SIZE)
    return bytes(made)


def text_ids(raw: bytes) -> list[str]:
    """The ids that lie here one after the other, as texts."""
    if not raw:
        return []
    text, number = bytearray(raw.hex("-", _PAIR) + "\n", "ascii"), len(raw) // SIZE
    text[_PAIRED - 1 :: _PAIRED] = b"\n" * number
    for place in _SURPLUS:
        text[place::_PAIRED] = b" " * number
    return text.translate(None, b" ").decode().split()


def raw_ids(texts: Iterable[str]) -> bytes:
    """The same ids as bytes, one after the other."""
    return bytes.fromhex("".join(texts).replace("-", ""))
