"""Calls of the function library: on one server or a cluster, on the partition where the jobs of a queue are.

A queue is in one partition, named by the last byte of its jobs' ids. All keys of a partition carry its number as their
hash tag. With one partition (the default on a single server) every step is one round trip.

The library is the sources in `lua/`, concatenated in one order: what is read there is what runs. It and its functions
carry a version in their names, a hash of the text, so that two versions of Windlass on one server do not disturb each
other. A server that does not have it gets it when it says so.
"""

import asyncio
import hashlib
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache
from importlib.resources import files
from typing import Any, NamedTuple, TypeVar

import hiredis

from windlass.model.errors import Invalid, Unavailable
from windlass.model.names import part_of, queue_mark
from windlass.model.ports import Clock, Randomness
from windlass.store.encoding import to_micros
from windlass.store.redis.cluster import Cluster
from windlass.store.redis.connection import (
    BlockingChannel,
    Channel,
    Hear,
    LibraryMissing,
    Subscription,
    own_errors,
)
from windlass.store.redis.sentinels import Sentinels
from windlass.store.redis.urls import Argument, Replicas, read_url

log = logging.getLogger("windlass.store.redis")

T = TypeVar("T")

OLDEST = (7, 0)
ANSWER_WITHIN = 5.0

MOST_IN_A_CALL = 1000
"""Items that one call takes: longer calls would make others wait."""

SOURCES = ("keys", "flow", "jobs", "add", "claim", "runs", "read", "upkeep", "rules", "records")
"""The sources of the library in their order: each sees what those before it define."""

VERSION_SIZE = 12
LIBRARY_EXISTS = "ERR Library"
"""The error of a server that another client has just given the library: `ERR Library 'windlass_…' already exists`."""


class Library(NamedTuple):
    """What a server gets by FUNCTION LOAD, and how its functions are called."""

    version: str
    text: str

    def function(self, name: str) -> str:
        return f"windlass_{self.version}_{name}"


@cache
def library() -> Library:
    folder = files(__package__) / "lua"
    source = "\n".join((folder / f"{name}.lua").read_text() for name in SOURCES)
    version = hashlib.sha1(source.encode(), usedforsecurity=False).hexdigest()[:VERSION_SIZE]
    return Library(version, f"#!lua name=windlass_{version}\nlocal VERSION = '{version}'\n{source}")


class Connection:
    """Calls functions on one server or one cluster."""

    def __init__(
        self, url: str, *, blocking: bool = False, chance: Randomness | None = None, replicas: Replicas | None = None
    ) -> None:
        target = read_url(url)

        def channel(within: float) -> Channel | BlockingChannel:
            sentinels = Sentinels(target.group, chance) if target.group else None
            return (BlockingChannel if blocking else Channel)(target.address, within, sentinels)

        self.channel = channel(ANSWER_WITHIN)
        """To one server: the only one, the master, or the member of the cluster that the URL names."""
        self.cluster = Cluster(target.address, ANSWER_WITHIN) if target.cluster else None
        chosen = target.replicas if replicas is None else replicas
        self.replicas = chosen if chosen is not None and chosen.number else None
        self._replicated: Channel | BlockingChannel | Cluster | None = None
        """For what waits for replicas."""
        if self.replicas is not None:
            within = ANSWER_WITHIN + 2 * self.replicas.within
            self._replicated = Cluster(target.address, within) if target.cluster else channel(within)
        self.known = False
        """Whether the server was checked: until then nothing is asked of it."""

    async def subscribe(self, hear: Hear) -> Subscription:
        """A connection of its own, on which the server, or any member of the cluster, sends messages unasked."""
        if self.cluster is not None:
            return await self.cluster.subscribe(hear)
        if isinstance(self.channel, BlockingChannel):
            raise Unavailable("a blocking store cannot listen")
        return await self.channel.subscribe(hear)

    def fault_at(self, key: str) -> Unavailable | None:
        """Why nothing can be asked about a key, where that is known without asking."""
        return None if self.cluster is None else self.cluster.fault_at(key)

    async def ask(self, key: str, *command: Argument) -> Any:
        """Send a command that names this key; in a cluster, to the member that holds it."""
        self._check_known()
        return await self._ask(key, *command)

    def _check_known(self) -> None:
        if not self.known:
            raise Unavailable("the store has not answered yet")

    async def _ask(self, key: str, *command: Argument) -> Any:
        with own_errors():
            if self.cluster is not None:
                return await self.cluster.ask(key, *command)
            return await self.channel.ask(*command)

    async def call(self, name: str, key: str, now: int, arguments: Sequence[Argument] = ()) -> Any:
        """Call a function of the library on the partition that `key` names."""
        function = library().function(name)
        try:
            return await self.ask(key, "FCALL", function, 1, key, now, *arguments)
        except LibraryMissing:
            await self._load_library(key)
            return await self.ask(key, "FCALL", function, 1, key, now, *arguments)

    async def call_replicated(self, name: str, key: str, now: int, arguments: Sequence[Argument]) -> tuple[Any, str]:
        """The same, and what is missing until enough replicas have what it wrote; empty = nothing."""
        replicas = self.replicas
        assert replicas is not None  # noqa: S101 - only called where replicas were chosen
        self._check_known()
        command, then = ("FCALL", library().function(name), 1, key, now, *arguments), replicas.questions(key)
        try:
            reply, said = await self._ask_replicated(key, command, then)
        except LibraryMissing:
            await self._load_library(key)
            reply, said = await self._ask_replicated(key, command, then)
        return reply, replicas.shortfall(said)

    async def _ask_replicated(
        self, key: str, command: Sequence[Argument], then: Sequence[Sequence[Argument]]
    ) -> tuple[Any, Any]:
        with own_errors():
            if isinstance(self._replicated, Cluster):
                return await self._replicated.ask_replicated(key, command, then)
            assert self._replicated is not None  # noqa: S101 - it goes with the replicas
            return await self._replicated.ask_replicated(command, then)

    async def _load_library(self, key: str) -> None:
        """Load it into the server that holds `key`: at first use, after FUNCTION FLUSH or a restart without data."""
        try:
            await self.ask(key, "FUNCTION", "LOAD", library().text)
        except Unavailable as fault:
            if LIBRARY_EXISTS not in str(fault):  # another client was first
                raise

    async def set_once(self, key: str, value: str) -> str:
        """Set a key unless it is set; what it holds now."""
        await self._ask(key, "SET", key, value, "NX")
        found: bytes = await self._ask(key, "GET", key)
        return found.decode()

    async def check(self) -> None:
        """Refuse a server that is too old or that evicts jobs when memory runs short."""
        with own_errors():
            about: bytes = await self.channel.ask("INFO", "server")
        facts = dict(line.split(":", 1) for line in about.decode().splitlines() if ":" in line)
        version = facts["redis_version"]
        if tuple(int(part) for part in version.split(".")[:2]) < OLDEST:
            raise Invalid(f"Redis {version} is too old: 7.0 or newer is needed", at="store")
        try:
            found = await self.channel.ask("CONFIG", "GET", "maxmemory-policy", "appendonly")
        except hiredis.ReplyError:
            log.warning("store: the server does not show its settings: make sure that maxmemory-policy is noeviction")
            return
        settings = {found[at].decode(): found[at + 1].decode() for at in range(0, len(found), 2)}
        if (policy := settings.get("maxmemory-policy", "noeviction")) != "noeviction":
            raise Invalid(
                f"maxmemory-policy is {policy}: the server would throw jobs away; set it to noeviction", at="store"
            )
        if settings.get("appendonly") == "no":
            log.warning(
                "APPENDONLY IS OFF at this server: jobs accepted since its last snapshot are LOST when it stops. "
                "Set `appendonly yes` in its configuration, or now: redis-cli CONFIG SET appendonly yes"
            )
        if self.replicas is not None and self.replicas.synced:
            await self._check_syncs(version)

    async def _check_syncs(self, version: str) -> None:
        with own_errors():
            (known,) = await self.channel.ask("COMMAND", "INFO", "WAITAOF")
        if known is None:
            raise Invalid(f"Redis {version} cannot tell what its replicas have on disk: 7.2 is needed", at="store")

    async def close(self) -> None:
        await self.channel.close()
        if self._replicated is not None:
            await self._replicated.close()
        if self.cluster is not None:
            await self.cluster.close()


class Partitions:
    """Calls functions on the partitions of one store."""

    def __init__(self, connection: Connection, prefix: str, number: int, clock: Clock | None) -> None:
        self.connection = connection
        self.number = number
        self._prefix = prefix
        self._clock = clock

    def key(self, partition: int) -> str:
        """What every key of a partition begins with."""
        return f"{self._prefix}{{{partition}}}"

    @property
    def timed_by_server(self) -> bool:
        """Whether time is the server's own, as it is but in tests and simulations."""
        return self._clock is None

    def of_queue(self, queue: str) -> int:
        return queue_mark(queue) % self.number

    def of_id(self, id: str) -> int:
        return part_of(id, self.number)

    async def call(self, name: str, partition: int, arguments: Iterable[Argument] = ()) -> Any:
        """A function of the library on one partition."""
        listed = arguments if isinstance(arguments, list) else list(arguments)
        return await self.connection.call(name, self.key(partition), self._now(), listed)

    async def call_alone(self, name: str, partition: int, arguments: list[Argument]) -> tuple[Any, str]:
        """The same, in the form of `call_replicated`."""
        return await self.call(name, partition, arguments), ""

    async def call_replicated(self, name: str, partition: int, arguments: list[Argument]) -> tuple[Any, str]:
        """The same, and what is missing until enough replicas have what it wrote, if they were chosen."""
        if self.connection.replicas is None:
            return await self.call_alone(name, partition, arguments)
        return await self.connection.call_replicated(name, self.key(partition), self._now(), arguments)

    def _now(self) -> int:
        return to_micros(self._clock.now()) if self._clock else 0

    def fault(self, partition: int) -> Unavailable | None:
        """Why a partition cannot be asked, where that is known without asking."""
        return self.connection.fault_at(self.key(partition))

    def refuse_away(self, partitions: Iterable[int]) -> None:
        """Raises if one of these is known not to answer."""
        for partition in partitions:
            if (fault := self.fault(partition)) is not None:
                raise fault

    async def each(self, name: str, arguments: Sequence[Argument] = ()) -> list[Any]:
        """A function on every partition."""
        if self.number == 1:
            return [await self.call(name, 0, arguments)]
        return await asyncio.gather(*(self.call(name, partition, arguments) for partition in range(self.number)))

    async def each_there(self, name: str, arguments: Sequence[Argument] = ()) -> dict[int, Any]:
        """The same on those that are not known to be away; raises if all of them are."""
        if self.number == 1:
            return {0: await self.call(name, 0, arguments)}  # also where there is no loop
        there = self.there(range(self.number))
        replies = await asyncio.gather(*(self.call(name, partition, arguments) for partition in there))
        return dict(zip(there, replies, strict=True))

    def there(self, partitions: Iterable[int]) -> list[int]:
        """Those that are not known to be away; raises if all of them are."""
        faults = {partition: self.fault(partition) for partition in partitions}
        found = [partition for partition, fault in faults.items() if fault is None]
        if not found:
            self.refuse_away(faults)
        return found

    async def up_to(self, name: str, limit: int) -> list[Any]:
        """A duty over one partition after another that is there, until so much is done; what they answer."""
        done: list[Any] = []
        for partition in self.there(range(self.number)):
            if len(done) < limit:
                done += await self.call(name, partition, [limit - len(done)])
        return done

    async def spread(
        self,
        name: str,
        items: Sequence[T],
        partition: Callable[[T], int],
        arguments: Callable[[Sequence[T]], Iterable[Argument]],
        width: int = 1,
    ) -> list[Any]:
        """A function over items, each on its partition; `width` answers per item, in their order.

        Nothing is done if one of those partitions is known to be away: the caller can repeat each item by itself.
        """
        if width == 1 and self.number == 1 and 0 < len(items) <= MOST_IN_A_CALL:
            only: list[Any] = await self.call(name, 0, arguments(items))
            return only
        answers: list[Any] = [None] * len(items)
        parts = list(self.parts(items, partition))
        self.refuse_away(number for number, _ in parts)
        for number, some in parts:
            reply = await self.call(name, number, arguments([items[place] for place in some]))
            for order, place in enumerate(some):
                answers[place] = reply[order] if width == 1 else reply[order * width : (order + 1) * width]
        return answers

    def parts(self, items: Sequence[T], partition: Callable[[T], int]) -> Iterator[tuple[int, Sequence[int]]]:
        """What goes into one call each: a partition, and the places of its items."""
        for number, places in self._groups(items, partition).items():
            for start in range(0, len(places), MOST_IN_A_CALL):
                yield number, places[start : start + MOST_IN_A_CALL]

    def _groups(self, items: Sequence[T], partition: Callable[[T], int]) -> dict[int, Sequence[int]]:
        """The places of the items of each partition."""
        if self.number == 1:
            return {0: range(len(items))} if items else {}
        groups: dict[int, list[int]] = {}
        for place, item in enumerate(items):
            groups.setdefault(partition(item), []).append(place)
        return dict(groups)


Run = tuple[int, list[str]]
"""A partition, and queues of it."""


class SkippedQueues:
    """The queues that claims skip because their partition is away: logged once when it begins, and when it ends."""

    def __init__(self, partitions: Partitions) -> None:
        self._partitions = partitions
        self._queues: set[str] = set()

    def there(self, runs: list[Run]) -> list[Run]:
        """Those whose partition is not known to be away; raises if all of them are."""
        if self._partitions.number == 1:
            return runs
        there = set(self._partitions.there(partition for partition, _ in runs))
        found = [run for run in runs if run[0] in there]
        if len(found) < len(runs):
            for partition, queues in runs:
                if (fault := self._partitions.fault(partition)) is not None:
                    self._skip(queues, fault)
        if self._queues:
            self._take_up(queue for _, queues in found for queue in queues)
        return found

    def _skip(self, queues: Iterable[str], fault: Unavailable) -> None:
        new = [queue for queue in queues if queue not in self._queues]
        if new:
            self._queues.update(new)
            log.warning("store: nothing is claimed from %s, but from the other queues: %s", ", ".join(new), fault)

    def _take_up(self, queues: Iterable[str]) -> None:
        back = [queue for queue in queues if queue in self._queues]
        if back:
            self._queues.difference_update(back)
            log.info("store: %s can be claimed from again", ", ".join(back))
