"""A cluster of servers: finds the one that holds a slot, and follows when it has moved.

Every command of ours names one key, so one slot. A server that does not hold it says who does (MOVED) and has done
nothing; so sending the command on is safe. Nothing else is ever sent twice. While a slot is being moved its keys are on
two servers and no script can see them all: a partition on the move is unavailable until it has arrived (ASK is not
followed).

A server that does not answer is left alone: whoever wants something of it is refused at once, so that nobody who can do
without waits for it. A task of our own asks it, and the others who is in its place, until it answers.
"""

import asyncio
from binascii import crc_hqx
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Any, TypeVar

import hiredis

from windlass.model.errors import PartAway, Unavailable
from windlass.store import NotLetIn
from windlass.store.redis.address import Address, Argument
from windlass.store.redis.channel import Channel, Hear, Subscription

T = TypeVar("T")

SLOTS = 16384
MOST_REDIRECTIONS = 5

UNABLE = ("CLUSTERDOWN", "LOADING", "MASTERDOWN")
"""What a server says that is there and cannot work yet, or no more."""

TRY_EVERY = 0.2
"""Seconds between two looks at a server that does not answer."""


class Cluster:
    """Sends commands to the servers of a cluster."""

    def __init__(self, seed: Address, answer_within: float) -> None:
        self._seed = seed
        self._answer_within = answer_within
        self._channels: dict[Address, Channel] = {}
        self._homes: dict[int, Address] = {}
        self._away: dict[Address, tuple[Unavailable, asyncio.Task[None]]] = {}
        """Servers that do not answer, why, and who looks after them."""

    async def ask(self, key: str, *command: Argument) -> Any:
        """The reply to a command on a key."""
        return await self._at_home(key, lambda channel: channel.ask(*command))

    async def ask_surely(
        self, key: str, command: Sequence[Argument], then: Sequence[Sequence[Argument]]
    ) -> tuple[Any, Any]:
        """As `Channel.ask_surely`, of the server that holds a key."""
        return await self._at_home(key, lambda channel: channel.ask_surely(command, then))

    async def overhear(self, hear: Hear) -> Subscription:
        """As `Channel.overhear`, of any server: what is published on one is heard on all."""
        fault = Unavailable("no server of the cluster answers")
        for address in self._asked_in_turn():
            try:
                return await self._channel(address).overhear(hear)
            except Unavailable as unavailable:
                fault = unavailable
        raise fault

    def fault_at(self, key: str) -> Unavailable | None:
        """Why nothing can be asked about a key, where that is known without asking."""
        home = self._homes.get(slot_of(key))
        return None if home is None else self._fault_of(home)

    def _fault_of(self, address: Address) -> Unavailable | None:
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
            except NotLetIn:
                raise
            except Unavailable as fault:
                raise self._leave_alone(home, fault) from None
        raise Unavailable("the servers of the cluster keep sending each other")

    async def _find(self, slot: int) -> Address:
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

    def _asked_in_turn(self) -> list[Address]:
        """The servers we know, the first one we were told of last; not those that do not answer."""
        known = dict.fromkeys((*self._channels, self._seed))
        return [address for address in known if address not in self._away]

    # Servers that do not answer

    def _leave_alone(self, address: Address, fault: Unavailable) -> Unavailable:
        if address not in self._away:
            self._away[address] = fault, asyncio.create_task(self._look_after(address), name="windlass-cluster")
        return fault

    async def _look_after(self, address: Address) -> None:
        """Until it answers, or nothing of ours lies there any more."""
        while not await self._answers(address):
            await asyncio.sleep(TRY_EVERY)
            await self._look_who_holds_what()
            if address not in self._homes.values():
                break
        del self._away[address]

    async def _answers(self, address: Address) -> bool:
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

    def _named(self, name: str, asked: Address) -> Address:
        """A server as another one calls it; without a host, it is on the same one."""
        host, _, port = name.rpartition(":")
        return asked._replace(host=host or asked.host, port=int(port))

    def _channel(self, address: Address) -> Channel:
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


def _holder(ranges: Sequence[Any], slot: int, asked: Address) -> Address | None:
    """Who holds a slot, as one server says."""
    for low, high, (host, port, *_), *_ in ranges:
        if low <= slot <= high:
            return asked._replace(host=host.decode() if host else asked.host, port=port)
    return None


def slot_of(key: str) -> int:
    """The slot of a key: of what stands between its first braces, if anything does."""
    _, brace, rest = key.partition("{")
    tag, end, _ = rest.partition("}")
    return crc_hqx((tag if brace and end and tag else key).encode(), 0) % SLOTS
