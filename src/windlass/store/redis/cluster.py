"""A cluster of servers: finds the one that holds a slot, and follows when it has moved.

Every command of ours names one key, so one slot. A server that does not hold it names the one that does (MOVED) and has
done nothing; so sending the command on is safe. Nothing else is ever sent twice. While a slot is being moved its keys
are on two servers and no call can see them all: a partition on the move is unavailable until it has arrived (ASK is
not followed).

A server that does not answer is left alone: calls to it are refused at once, so that no caller waits that can do
without. A task asks it, and asks the others which server is in its place, until it answers.
"""

import asyncio
from binascii import crc_hqx
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Any, TypeVar

import hiredis

from windlass.model.errors import PartAway, Unavailable
from windlass.store.data import AccessRefused
from windlass.store.redis.connection import Channel, Hear, Subscription
from windlass.store.redis.urls import Argument, ServerAddress

T = TypeVar("T")

SLOTS = 16384
MOST_REDIRECTIONS = 5

UNABLE = ("CLUSTERDOWN", "LOADING", "MASTERDOWN")
"""Errors of a server that is there and cannot work yet, or no more."""

TRY_EVERY = 0.2
"""Seconds between two looks at a server that does not answer."""


class Cluster:
    """Sends commands to the servers of a cluster."""

    def __init__(self, seed: ServerAddress, answer_within: float) -> None:
        self._seed = seed
        self._answer_within = answer_within
        self._channels: dict[ServerAddress, Channel] = {}
        self._homes: dict[int, ServerAddress] = {}
        self._away: dict[ServerAddress, tuple[Unavailable, asyncio.Task[None]]] = {}
        """Servers that do not answer, why, and the task that asks them."""

    async def ask(self, key: str, *command: Argument) -> Any:
        """The reply to a command on a key."""
        return await self._at_home(key, lambda channel: channel.ask(*command))

    async def ask_replicated(
        self, key: str, command: Sequence[Argument], then: Sequence[Sequence[Argument]]
    ) -> tuple[Any, Any]:
        """As `Channel.ask_replicated`, of the server that holds a key."""
        return await self._at_home(key, lambda channel: channel.ask_replicated(command, then))

    async def subscribe(self, hear: Hear) -> Subscription:
        """As `Channel.subscribe`, of any server: what is published on one is heard on all."""
        fault = Unavailable("no server of the cluster answers")
        for address in self._asked_in_turn():
            try:
                return await self._channel(address).subscribe(hear)
            except Unavailable as unavailable:
                fault = unavailable
        raise fault

    def fault_at(self, key: str) -> Unavailable | None:
        """Why nothing can be asked about a key, where that is known without asking."""
        home = self._homes.get(slot_of(key))
        return None if home is None else self._fault_of(home)

    def _fault_of(self, address: ServerAddress) -> Unavailable | None:
        if address not in self._away:
            return None
        kind = Unavailable if self._away.keys() >= set(self._homes.values()) else PartAway
        return kind(f"{address.host}:{address.port}: {self._away[address][0]}")

    async def _at_home(self, key: str, ask: Callable[[Channel], Awaitable[T]]) -> T:
        slot = slot_of(key)
        home = self._homes.get(slot) or await self._find(slot)
        for _ in range(MOST_REDIRECTIONS):
            if (known := self._fault_of(home)) is not None:
                raise known
            try:
                return await ask(self._channel(home))
            except hiredis.ReplyError as fault:
                kind, _, rest = str(fault).partition(" ")
                if kind == "ASK":
                    raise Unavailable(f"slot {slot} is being moved to another server of the cluster") from None
                if kind in UNABLE:
                    raise self._leave_alone(home, Unavailable(f"it says {fault}")) from None
                if kind != "MOVED":
                    raise
                home = self._homes[slot] = self._named(rest.partition(" ")[2], home)
            except AccessRefused:
                raise
            except Unavailable as fault:
                raise self._leave_alone(home, fault) from None
        raise Unavailable("the servers of the cluster keep sending each other")

    async def _find(self, slot: int) -> ServerAddress:
        fault = Unavailable("no server of the cluster answers")
        for address in self._asked_in_turn():
            try:
                ranges = await self._channel(address).ask("CLUSTER", "SLOTS")
            except Unavailable as unavailable:
                fault = unavailable
                continue
            if (home := _holder(ranges, slot, address)) is not None:
                self._homes[slot] = home
                return home
            fault = Unavailable(f"no server of the cluster holds slot {slot}")
        raise fault

    def _asked_in_turn(self) -> list[ServerAddress]:
        """The servers we know, the one of the URL last; not those that do not answer."""
        known = dict.fromkeys((*self._channels, self._seed))
        return [address for address in known if address not in self._away]

    # Servers that do not answer

    def _leave_alone(self, address: ServerAddress, fault: Unavailable) -> Unavailable:
        if address not in self._away:
            self._away[address] = fault, asyncio.create_task(self._look_after(address), name="windlass-cluster")
        return fault

    async def _look_after(self, address: ServerAddress) -> None:
        """Until it answers, or holds none of our slots any more."""
        while not await self._answers(address):
            await asyncio.sleep(TRY_EVERY)
            await self._look_who_holds_what()
            if address not in self._homes.values():
                break
        del self._away[address]

    async def _answers(self, address: ServerAddress) -> bool:
        with suppress(Unavailable, hiredis.ReplyError):
            about: bytes = await self._channel(address).ask("CLUSTER", "INFO")
            return b"cluster_state:ok" in about
        return False

    async def _look_who_holds_what(self) -> None:
        for address in self._asked_in_turn():
            with suppress(Unavailable, hiredis.ReplyError):
                ranges = await self._channel(address).ask("CLUSTER", "SLOTS")
                for slot, home in self._homes.items():
                    self._homes[slot] = _holder(ranges, slot, address) or home
                return

    def _named(self, name: str, asked: ServerAddress) -> ServerAddress:
        """A server as another one calls it; without a host, it is on the same one."""
        host, _, port = name.rpartition(":")
        return asked._replace(host=host or asked.host, port=int(port))

    def _channel(self, address: ServerAddress) -> Channel:
        if address not in self._channels:
            self._channels[address] = Channel(address, self._answer_within)
        return self._channels[address]

    async def close(self) -> None:
        looking = [task for _, task in self._away.values()]
        for task in looking:
            task.cancel()
        await asyncio.gather(*looking, return_exceptions=True)
        for channel in self._channels.values():
            await channel.close()


def _holder(ranges: Sequence[Any], slot: int, asked: ServerAddress) -> ServerAddress | None:
    """The server that holds a slot, as one server says."""
    for low, high, (host, port, *_), *_ in ranges:
        if low <= slot <= high:
            return asked._replace(host=host.decode() if host else asked.host, port=port)
    return None


def slot_of(key: str) -> int:
    """The slot of a key: of what stands between its first braces, if anything does."""
    _, brace, rest = key.partition("{")
    tag, end, _ = rest.partition("}")
    return crc_hqx((tag if brace and end and tag else key).encode(), 0) % SLOTS
