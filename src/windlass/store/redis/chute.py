"""The short way of lone jobs into Redis: one command, of which only the id and the payload are filled in.

Knows one answer, that of a script which has kept the job or had it; with any other, the job goes the usual way.
"""

from windlass.store import Draft
from windlass.store.redis.blocking import BlockingChannel
from windlass.store.redis.partitions import BEYOND, Partitions
from windlass.store.redis.stencil import Stencil


class RedisChute:
    """For jobs that are like an example."""

    def __init__(self, channel: BlockingChannel, partitions: Partitions, example: Draft) -> None:
        self._channel = channel
        self._partitions = partitions
        self._stencil = Stencil(partitions.key(partitions.of_queue(example.new.queue)), example)
        self.shut = False

    def __call__(self, id: bytes, payload: bytes) -> bool | None:
        reply = self._channel.ask_at_once(self._stencil.filled(id, payload))
        if type(reply) is list:
            return bool(reply[0])
        if reply is not None:
            self.shut = True
        if reply == BEYOND:
            self._partitions.note_bounded("add_one")
        return None
