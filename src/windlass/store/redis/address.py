"""What an address says: where servers are, how to be let in, and whether sentinels know which of them counts.

Reads text; opens nothing.
"""

import ssl
from typing import Any, NamedTuple
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit, urlunsplit

from redis.asyncio.connection import parse_url

from windlass.model.errors import Invalid
from windlass.store.redis.replicas import OPTIONS, Replicas, read_replicas

Argument = bytes | str | int

CLUSTER = "redis+cluster"
SENTINEL = ("redis+sentinel", "rediss+sentinel")
SCHEMES = ("redis", "rediss", "unix", CLUSTER, *SENTINEL)

TLS_OPTIONS = ("ssl_ca_certs", "ssl_certfile", "ssl_keyfile")
"""As redis-py calls them: who vouches for the server (absent = whom the system trusts), and who we are."""

SENTINEL_PORT = 26379
ROLE = ("ROLE",)


class Address(NamedTuple):
    """Where a server is and how to be let in."""

    host: str = "localhost"
    port: int = 6379
    path: str | None = None
    """A unix socket, instead of host and port."""
    db: int = 0
    username: str | None = None
    password: str | None = None
    tls: ssl.SSLContext | None = None
    master: bool = False
    """Whether it must say of itself that it is one."""

    def greetings(self) -> "list[tuple[Argument, ...]]":
        """What is said first on every connection."""
        said: list[tuple[Argument, ...]] = []
        if self.password is not None:
            said.append(("AUTH", self.username, self.password) if self.username else ("AUTH", self.password))
        if self.db:
            said.append(("SELECT", self.db))
        if self.master:
            said.append(ROLE)
        return said


class Group(NamedTuple):
    """A master that sentinels watch, under a name."""

    name: str
    sentinels: tuple[Address, ...]


class Target(NamedTuple):
    """What is to be connected to."""

    address: Address
    """Of the only server, of a member of the cluster, or what is known of every master of the group."""
    cluster: bool = False
    group: Group | None = None
    replicas: Replicas | None = None
    """Who else must have a new job before it counts as accepted."""


def read_address(url: str) -> Target:
    parts = _parts(url)
    if parts.scheme not in SCHEMES:
        raise Invalid(f"{parts.scheme!r} is not {', '.join(SCHEMES[:-1])} or {SCHEMES[-1]}", at="store")
    try:
        tls = _tls(parts) if parts.scheme.startswith("rediss") else None
        if parts.scheme in SENTINEL:
            return _watched(parts, tls)
        cluster = parts.scheme == CLUSTER
        found: dict[str, Any] = dict(parse_url(urlunsplit(parts._replace(scheme="redis")) if cluster else url))
    except ValueError as fault:
        raise Invalid(f"not the address of a server: {fault}", at="store") from None
    known = {name: found[name] for name in ("host", "port", "path", "db", "username", "password") if name in found}
    return Target(Address(tls=tls, **known), cluster=cluster, replicas=read_replicas(found))


def _tls(parts: SplitResult) -> ssl.SSLContext:
    options = {name: value for name, value in parse_qsl(parts.query) if name.startswith("ssl_")}
    if unknown := options.keys() - set(TLS_OPTIONS):
        raise ValueError(f"{min(unknown)}: only {', '.join(TLS_OPTIONS)} are known here")
    try:
        context = ssl.create_default_context(cafile=options.get("ssl_ca_certs"))
        if "ssl_certfile" in options:
            context.load_cert_chain(options["ssl_certfile"], options.get("ssl_keyfile"))
    except OSError as fault:
        raise ValueError(f"{', '.join(f'{name}={file}' for name, file in options.items())}: {fault}") from None
    return context


def _parts(url: str) -> SplitResult:
    """As `urlsplit`, which knows of one host only and in some Pythons refuses several of which one is in brackets."""
    scheme, _, rest = url.partition("://")
    if scheme not in SENTINEL:
        return urlsplit(url)
    place, _, query = rest.partition("?")
    hosts, _, path = place.partition("/")
    return SplitResult(scheme, hosts, f"/{path}", query, "")


def _watched(parts: SplitResult, tls: ssl.SSLContext | None) -> Target:
    """`redis+sentinel://user:password@host:port,host:port/MASTER/DB?sentinel_password=…`."""
    login, _, hosts = parts.netloc.rpartition("@")
    username, _, password = login.partition(":")
    name, _, db = parts.path.removeprefix("/").partition("/")
    if not name:
        raise ValueError("name the master that the sentinels watch: redis+sentinel://host:26379,host:26379/MASTER")
    said = parse_qsl(parts.query, strict_parsing=bool(parts.query))
    options = {name: value for name, value in said if tls is None or name not in TLS_OPTIONS}
    secret, replicas = options.pop("sentinel_password", None), read_replicas(options)
    if unknown := [name for name in options if name not in OPTIONS]:
        raise ValueError(f"{', '.join(unknown)}: only sentinel_password and {', '.join(OPTIONS)} are known here")
    master = Address(
        db=int(db or 0),
        username=unquote(username) or None,
        password=unquote(password) or None,
        tls=tls,
        master=True,
    )
    sentinels = tuple(_sentinel(host)._replace(password=secret, tls=tls) for host in hosts.split(","))
    return Target(master, group=Group(unquote(name), sentinels), replicas=replicas)


def _sentinel(host: str) -> Address:
    at = urlsplit(f"//{host}")
    if not at.hostname:
        raise ValueError(f"{host!r} names no sentinel")
    return Address(at.hostname, at.port or SENTINEL_PORT)
