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
from windlass.store.redis.channel import Channel
from windlass.store.redis.cluster import Cluster
from windlass.store.redis.scripts import script
from windlass.store.redis.sentinels import Sentinels

log = logging.getLogger("windlass.store.redis")

OLDEST = (7, 0)
ANSWER_WITHIN = 5.0

NOT_LET_IN = ("NOAUTH", "WRONGPASS", "NOPERM")
"""Refusals of a server that would have to be asked by another name, or with a password."""


class Connection:
    """Calls scripts on one server or one cluster."""

    def __init__(self, url: str, *, blocking: bool = False, chance: Chance | None = None) -> None:
        target = read_address(url)
        sentinels = Sentinels(target.group, chance) if target.group else None
        kind = BlockingChannel if blocking else Channel
        self.channel: Channel | BlockingChannel = kind(target.address, ANSWER_WITHIN, sentinels)
        """To one server: all there is, the master, or the member of the cluster that we were told of."""
        self.cluster = Cluster(target.address, ANSWER_WITHIN) if target.cluster else None
        self.known = False
        """Whether the server has been found to be what it should be: until then nothing is asked of it."""

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
            log.warning("appendonly is off: jobs accepted since the last snapshot are lost when the server stops")

    async def close(self) -> None:
        await self.channel.close()
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
