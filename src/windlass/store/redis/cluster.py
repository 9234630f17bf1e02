"""A cluster of servers: finds the one that holds a slot, and follows when it has moved.

Every command of ours names one key, so one slot. A server that does not hold it says who does (MOVED) and has done
nothing; so sending the command on is safe. Nothing else is ever sent twice. While a slot is being moved its keys are on
two servers and no script can see them all: a partition on the move is unavailable until it has arrived (ASK is not
followed).
"""

from binascii import crc_hqx
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar

import hiredis

from windlass.model.errors import Unavailable
from windlass.store.redis.address import Address, Argument
from windlass.store.redis.channel import Channel

T = TypeVar("T")

SLOTS = 16384
MOST_REDIRECTIONS = 5


class Cluster:
    """Sends commands to the servers of a cluster."""

    def __init__(self, seed: Address, answer_within: float) -> None:
        self._seed = seed
        self._answer_within = answer_within
        self._channels: dict[Address, Channel] = {}
        self._homes: dict[int, Address] = {}

    async def ask(self, key: str, *command: Argument) -> Any:
        """The reply to a command on a key."""
        return await self._at_home(key, lambda channel: channel.ask(*command))

    async def ask_surely(
        self, key: str, command: Sequence[Argument], then: Sequence[Sequence[Argument]]
    ) -> tuple[Any, Any]:
        """As `Channel.ask_surely`, of the server that holds a key."""
        return await self._at_home(key, lambda channel: channel.ask_surely(command, then))

    async def _at_home(self, key: str, ask: Callable[[Channel], Awaitable[T]]) -> T:
        slot = slot_of(key)
        home = self._homes.get(slot) or await self._find(slot)
        for _ in range(MOST_REDIRECTIONS):
            try:
                return await ask(self._channel(home))
            except hiredis.ReplyError as fault:
                kind, _, rest = str(fault).partition(" ")
                if kind == "ASK":
                    raise Unavailable(f"slot {slot} is being moved to another server of the cluster") from None
                if kind != "MOVED":
                    raise
                home = self._homes[slot] = self._named(rest.partition(" ")[2], home)
            except Unavailable:
                self._homes.pop(slot, None)  # it may have been replaced: whoever comes next looks anew
                raise
        raise Unavailable("the servers of the cluster keep sending each other")

    async def _find(self, slot: int) -> Address:
        """Ask the servers we know, the first one we were told of last."""
        fault = Unavailable("no server of the cluster answers")
        for address in (*self._channels, self._seed):
            try:
                ranges = await self._channel(address).ask("CLUSTER", "SLOTS")
            except Unavailable as unavailable:
                fault = unavailable
                continue
            for low, high, (host, port, *_), *_ in ranges:
                if low <= slot <= high:
                    home = address._replace(host=host.decode() if host else address.host, port=port)
                    self._homes[slot] = home
                    return home
            fault = Unavailable(f"no server of the cluster holds slot {slot}")
        raise fault

    def _named(self, name: str, asked: Address) -> Address:
        """A server as another one calls it; without a host, it is on the same one."""
        host, _, port = name.rpartition(":")
        return asked._replace(host=host or asked.host, port=int(port))

    def _channel(self, address: Address) -> Channel:
        if address not in self._channels:
            self._channels[address] = Channel(address, self._answer_within)
        return self._channels[address]

    async def close(self) -> None:
        for channel in self._channels.values():
            await channel.close()


def slot_of(key: str) -> int:
    """The slot of a key: of what stands between its first braces, if anything does."""
    _, brace, rest = key.partition("{")
    tag, end, _ = rest.partition("}")
    return crc_hqx((tag if brace and end and tag else key).encode(), 0) % SLOTS
