"""What `add_one` is told of a new job, spelled out but for the job's id and payload.

Jobs of one kind differ in nothing else, so all the rest is spelled once. Knows how a command looks on the wire.
"""

from msgspec import Raw
from msgspec.structs import replace

from windlass.model.names import ID_SIZE
from windlass.store import Draft
from windlass.store.redis import layout
from windlass.store.redis.address import Argument
from windlass.store.redis.scripts import script

MOST_LENGTHS = 1000
"""Of which it is remembered how they are told: to spell a number takes longer than all the rest."""


class Stencil:
    """A command with two blanks."""

    def __init__(self, key: str, example: Draft) -> None:
        blank = replace(example, new=replace(example.new, payload=Raw()))
        *common, told, body = layout.add_arguments([blank])
        meta, self._body = _bytes(told)[ID_SIZE:], _bytes(body)
        words: list[Argument] = ["EVALSHA", script("add_one").sha, 1, key, 0, *common]
        front = b"".join(b"$%d\r\n%b\r\n" % (len(word), word) for word in map(_bytes, words))
        self._before_id = b"*%d\r\n%b$%d\r\n" % (len(words) + 2, front, ID_SIZE + len(meta))
        self._after_id = meta + b"\r\n"

    def filled(self, id: bytes, payload: bytes) -> bytes:
        body = self._body
        length = len(body) + len(payload)
        told = _lengths.get(length) or _told(length)
        return b"".join((self._before_id, id, self._after_id, told, body, payload, b"\r\n"))


_lengths: dict[int, bytes] = {}


def _told(length: int) -> bytes:
    if len(_lengths) >= MOST_LENGTHS:
        _lengths.clear()
    told = _lengths[length] = b"$%d\r\n" % length
    return told


def _bytes(word: Argument) -> bytes:
    return word if isinstance(word, bytes) else str(word).encode()
