"""Ids of new jobs by the thousand: what `names` does for one, without a step of Python for each.

Ids that are made together differ only in their counter, which is in a UUID of version 7
where RFC 9562 has `rand_a`, behind its time. So they ascend, and one can be looked up among them. Pure.
"""

from collections.abc import Iterable, Iterator

from windlass.model.names import text_id

SIZE = 16
"""Bytes of an id."""

_PAIR = 2
_PAIRED = 40
"""Characters of an id whose bytes are written in pairs, with one between a pair and the next."""
_SURPLUS = (4, 29, 34)
"""Where that is one more than the text of an id has."""

_A_MILLISECOND = 4096
"""Ids that one millisecond has counts for; further ones take their time from the next."""

_COUNTS = [(0x7000 + count).to_bytes(2) for count in range(_A_MILLISECOND)]
_COUNT_TEXTS = [count.hex() for count in _COUNTS]


def ids_like(uuid7: bytes, number: int) -> bytes:
    """So many ids, one after the other, of which only a fresh UUID was given."""
    tail = uuid7[8:]
    return b"".join(head + (tail + head).join(_COUNTS[:some]) + tail for head, some in _heads(uuid7, number))


def texts_like(uuid7: bytes, number: int) -> list[str]:
    """The same ids as texts."""
    texts: list[str] = []
    for head, some in _heads(uuid7, number):
        before, after = text_id(head + uuid7[6:])[:14], text_id(uuid7)[18:]
        texts += f"{before}{f'{after} {before}'.join(_COUNT_TEXTS[:some])}{after}".split()
    return texts


def _heads(uuid7: bytes, number: int) -> Iterator[tuple[bytes, int]]:
    """The time that each millisecond's ids begin with, and how many these are."""
    milliseconds = int.from_bytes(uuid7[:6])
    for later, start in enumerate(range(0, number, _A_MILLISECOND)):
        yield (milliseconds + later).to_bytes(6), min(_A_MILLISECOND, number - start)


def text_ids(raw: bytes) -> list[str]:
    """Concatenated raw ids, as texts."""
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
