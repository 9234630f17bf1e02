"""The connection to a server or cluster: opening, checking, calling scripts, and errors as our own.

Commands go over lean channels of our own; the driver reads addresses and keeps subscriptions. Its retries are off: a
command that was sent again after it had run would run twice.
"""

import logging
import ssl
from collections.abc import Sequence
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import hiredis
import redis.asyncio as driver
from redis import exceptions as faults
from redis.asyncio.connection import parse_url
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from windlass.model.errors import Full, Invalid, Unavailable, WindlassError
from windlass.store.redis.channel import Address, Argument, Channel
from windlass.store.redis.cluster import Cluster
from windlass.store.redis.scripts import script

log = logging.getLogger("windlass.store.redis")

OLDEST = (7, 0)
ANSWER_WITHIN = 5.0
CLUSTER = "redis+cluster"


class Connection:
    """Calls scripts on one server or one cluster."""

    def __init__(self, url: str) -> None:
        scheme = urlsplit(url).scheme
        if scheme not in ("redis", "rediss", "unix", CLUSTER):
            raise Invalid(f"{scheme!r} is not redis, rediss, unix or {CLUSTER}", at="store")
        self.cluster = scheme == CLUSTER
        plain = urlunsplit(urlsplit(url)._replace(scheme="redis")) if self.cluster else url
        options: dict[str, Any] = {
            "socket_timeout": ANSWER_WITHIN,
            "socket_connect_timeout": ANSWER_WITHIN,
            "retry": Retry(NoBackoff(), 0),
            "protocol": 2,
        }
        self.node = driver.Redis.from_url(plain, **options)
        """One server through the driver, for subscriptions: all there is, or any member of the cluster."""
        address = _address(url, plain)
        self._cluster = Cluster(address, ANSWER_WITHIN) if self.cluster else None
        self._channel = Channel(address, ANSWER_WITHIN)

    async def ask(self, key: str, *command: Argument) -> Any:
        """Send a command that names this key; in a cluster, to the member that holds it."""
        with own_errors():
            if self._cluster is not None:
                return await self._cluster.ask(key, *command)
            return await self._channel.ask(*command)

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
        await self.ask(key, "SET", key, value, "NX")
        found: bytes = await self.ask(key, "GET", key)
        return found.decode()

    async def check(self) -> None:
        """Refuse a server that is too old or that throws jobs away when memory runs short."""
        with own_errors():
            server = await self.node.info("server")
            version = str(server["redis_version"])
            if tuple(int(part) for part in version.split(".")[:2]) < OLDEST:
                raise Invalid(f"Redis {version} is too old: 7.0 or newer is needed", at="store")
            try:
                settings = await self.node.config_get("maxmemory-policy", "appendonly")
            except faults.ResponseError:
                log.warning("the server does not tell its settings: make sure that maxmemory-policy is noeviction")
                return
        policy = settings.get("maxmemory-policy", "noeviction")
        if policy != "noeviction":
            raise Invalid(
                f"maxmemory-policy is {policy}: the server would throw jobs away; set it to noeviction", at="store"
            )
        if settings.get("appendonly") == "no":
            log.warning("appendonly is off: jobs accepted since the last snapshot are lost when the server stops")

    async def close(self) -> None:
        await self._channel.close()
        await self.node.aclose()
        if self._cluster is not None:
            await self._cluster.close()


def _address(url: str, plain: str) -> Address:
    try:
        parts: dict[str, Any] = dict(parse_url(plain))
    except ValueError as fault:
        raise Invalid(f"not the address of a server: {fault}", at="store") from None
    tls = ssl.create_default_context() if urlsplit(url).scheme == "rediss" else None
    known = {name: parts[name] for name in ("host", "port", "path", "db", "username", "password") if name in parts}
    return Address(tls=tls, **known)


class ScriptUnknown(Unavailable):
    """The server has forgotten a script."""


class own_errors:  # noqa: N801 - reads as a statement
    """Turns the driver's exceptions into ours: nothing of the driver leaves this room."""

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, fault: BaseException | None, trace: object) -> None:
        match fault:
            case None | WindlassError():
                return
            case hiredis.ReplyError() | faults.ResponseError():
                raise _refusal(str(fault)) from fault
            case faults.RedisError() | OSError():
                raise Unavailable(f"the store does not answer: {fault}") from fault


def _refusal(text: str) -> WindlassError:
    if text.startswith(("NOSCRIPT", "No matching script")):
        return ScriptUnknown(text)
    if text.startswith(("OOM", "command not allowed when used memory")):
        return Full("the server is out of memory: raise maxmemory or delete finished jobs")
    return Unavailable(f"the store refused: {text}")
