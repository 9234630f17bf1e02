"""The connection to a server or cluster: opening, checking, calling scripts, and errors as our own."""

import logging
from collections.abc import Sequence
from typing import Any

import hiredis

from windlass.model.errors import Full, Invalid, Unavailable
from windlass.model.ports import Chance
from windlass.store import NotLetIn
from windlass.store.flow import StaleRules
from windlass.store.redis.address import Argument, read_address
from windlass.store.redis.blocking import BlockingChannel
from windlass.store.redis.channel import Channel, Hear, Subscription
from windlass.store.redis.cluster import Cluster
from windlass.store.redis.replicas import Replicas
from windlass.store.redis.scripts import script
from windlass.store.redis.sentinels import Sentinels

log = logging.getLogger("windlass.store.redis")

OLDEST = (7, 0)
ANSWER_WITHIN = 5.0

NOT_LET_IN = ("NOAUTH", "WRONGPASS", "NOPERM")
"""Refusals of a server that would have to be asked by another name, or with a password."""


class Connection:
    """Calls scripts on one server or one cluster."""

    def __init__(
        self, url: str, *, blocking: bool = False, chance: Chance | None = None, replicas: Replicas | None = None
    ) -> None:
        target = read_address(url)

        def channel(within: float) -> Channel | BlockingChannel:
            sentinels = Sentinels(target.group, chance) if target.group else None
            return (BlockingChannel if blocking else Channel)(target.address, within, sentinels)

        self.channel = channel(ANSWER_WITHIN)
        """To one server: all there is, the master, or the member of the cluster that we were told of."""
        self.cluster = Cluster(target.address, ANSWER_WITHIN) if target.cluster else None
        chosen = target.replicas if replicas is None else replicas
        self.replicas = chosen if chosen is not None and chosen.number else None
        self._sure: Channel | BlockingChannel | Cluster | None = None
        if self.replicas is not None:
            patience = ANSWER_WITHIN + 2 * self.replicas.within
            self._sure = Cluster(target.address, patience) if target.cluster else channel(patience)
        self.known = False
        """Whether the server has been found to be what it should be: until then nothing is asked of it."""

    async def overhear(self, hear: Hear) -> Subscription:
        """A connection of its own, on which the server, or any member of the cluster, speaks unasked."""
        if self.cluster is not None:
            return await self.cluster.overhear(hear)
        if isinstance(self.channel, BlockingChannel):
            raise Unavailable("a blocking store cannot listen")
        return await self.channel.overhear(hear)

    def fault_at(self, key: str) -> Unavailable | None:
        """Why nothing can be asked about a key, where that is known without asking."""
        return None if self.cluster is None else self.cluster.fault_at(key)

    async def ask(self, key: str, *command: Argument) -> Any:
        """Send a command that names this key; in a cluster, to the member that holds it."""
        if not self.known:
            raise Unavailable("the store has not answered yet")
        return await self._ask(key, *command)

    async def _ask(self, key: str, *command: Argument) -> Any:
        with own_errors():
            if self.cluster is not None:
                return await self.cluster.ask(key, *command)
            return await self.channel.ask(*command)

    async def call(self, name: str, key: str, now: int, arguments: Sequence[Argument] = ()) -> Any:
        """Run a script on the partition that `key` names."""
        code = script(name)
        try:
            return await self.ask(key, "EVALSHA", code.sha, 1, key, now, *arguments)
        except ScriptUnknown:
            # A server forgets scripts when it restarts or fails over; sending the source makes it remember.
            return await self.ask(key, "EVAL", code.source, 1, key, now, *arguments)

    async def call_surely(self, name: str, key: str, now: int, arguments: Sequence[Argument]) -> tuple[Any, str]:
        """The same, and what is missing until enough replicas have what it wrote; empty = nothing."""
        replicas = self.replicas
        assert replicas is not None  # noqa: S101 - nobody asks for what was not chosen
        if not self.known:
            raise Unavailable("the store has not answered yet")
        code, then = script(name), replicas.questions(key)
        with own_errors():
            try:
                reply, told = await self._ask_surely(key, ("EVALSHA", code.sha, 1, key, now, *arguments), then)
            except hiredis.ReplyError as fault:
                if not str(fault).startswith("NOSCRIPT"):
                    raise
                reply, told = await self._ask_surely(key, ("EVAL", code.source, 1, key, now, *arguments), then)
        return reply, replicas.shortfall(told)

    async def _ask_surely(
        self, key: str, command: Sequence[Argument], then: Sequence[Sequence[Argument]]
    ) -> tuple[Any, Any]:
        if isinstance(self._sure, Cluster):
            return await self._sure.ask_surely(key, command, then)
        assert self._sure is not None  # noqa: S101 - it goes with the replicas
        return await self._sure.ask_surely(command, then)

    async def keep(self, key: str, value: str) -> str:
        """Set a key for good; what it holds now, whoever set it first."""
        await self._ask(key, "SET", key, value, "NX")
        found: bytes = await self._ask(key, "GET", key)
        return found.decode()

    async def check(self) -> None:
        """Refuse a server that is too old or that throws jobs away when memory runs short."""
        with own_errors():
            about: bytes = await self.channel.ask("INFO", "server")
        facts = dict(line.split(":", 1) for line in about.decode().splitlines() if ":" in line)
        version = facts["redis_version"]
        if tuple(int(part) for part in version.split(".")[:2]) < OLDEST:
            raise Invalid(f"Redis {version} is too old: 7.0 or newer is needed", at="store")
        try:
            found = await self.channel.ask("CONFIG", "GET", "maxmemory-policy", "appendonly")
        except hiredis.ReplyError:
            log.warning("the server does not tell its settings: make sure that maxmemory-policy is noeviction")
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
        if self._sure is not None:
            await self._sure.close()
        if self.cluster is not None:
            await self.cluster.close()


class ScriptUnknown(Unavailable):
    """The server has forgotten a script."""


class own_errors:  # noqa: N801 - reads as a statement
    """Turns what a server refuses into our own errors: nothing of the driver leaves this room."""

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, fault: BaseException | None, trace: object) -> None:
        if isinstance(fault, hiredis.ReplyError):
            raise _refusal(str(fault)) from fault
        if isinstance(fault, OSError):
            raise Unavailable(f"the store does not answer: {fault}") from fault


def _refusal(text: str) -> Exception:
    if text.startswith("NOSCRIPT"):
        return ScriptUnknown(text)
    if text.startswith("STALERULES"):
        return StaleRules()
    if text.startswith(NOT_LET_IN):
        return NotLetIn(f"the store does not let us in: {text}")
    if text.startswith("OOM"):
        return Full("the server is out of memory: raise maxmemory or delete finished jobs")
    return Unavailable(f"the store refused: {text}")
