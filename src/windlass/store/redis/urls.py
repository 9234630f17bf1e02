"""Store URLs: where servers are, how to log in, whether sentinels or a cluster are behind them, which replicas count.

Reads text; opens nothing but the certificates that a URL names.
"""

import ssl
from typing import Any, NamedTuple
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

import hiredis

from windlass.model.duration import seconds
from windlass.model.errors import Invalid

Argument = bytes | str | int
"""A word of a command."""

CLUSTER = "redis+cluster"
SENTINEL = ("redis+sentinel", "rediss+sentinel")
SCHEMES = ("redis", "rediss", "unix", CLUSTER, *SENTINEL)

LOGIN_OPTIONS = ("db", "username", "password")
SENTINEL_OPTIONS = ("sentinel_password",)
REPLICA_OPTIONS = ("replicas", "replicated_within", "replicas_synced")
TLS_OPTIONS = ("ssl_ca_certs", "ssl_certfile", "ssl_keyfile")
"""The CA of the server (absent = the system trust store), our certificate and its key: as redis-py calls them."""

SENTINEL_PORT = 26379
MOST_REPLICAS = 100
LONGEST_REPLICATION = 60.0
ROLE = ("ROLE",)


class ServerAddress(NamedTuple):
    """Where a server is and how to log in."""

    host: str = "localhost"
    port: int = 6379
    path: str | None = None
    """A unix socket, instead of host and port."""
    db: int = 0
    username: str | None = None
    password: str | None = None
    tls: ssl.SSLContext | None = None
    master: bool = False
    """Whether the server must say of itself that it is a master."""

    def greetings(self) -> "list[tuple[Argument, ...]]":
        """The first commands on every connection."""
        commands: list[tuple[Argument, ...]] = []
        if self.password is not None:
            commands.append(("AUTH", self.username, self.password) if self.username else ("AUTH", self.password))
        if self.db:
            commands.append(("SELECT", self.db))
        if self.master:
            commands.append(ROLE)
        return commands


class Group(NamedTuple):
    """A master that sentinels watch, under a name."""

    name: str
    sentinels: tuple[ServerAddress, ...]


class Replicas(NamedTuple):
    """How many replicas must have a new job, and for how many seconds a caller waits for them.

    WAIT answers for what was written before it on the same connection, and holds up everything behind it there: so it
    has a connection of its own, together with the writes.
    """

    number: int
    within: float = 1.0
    synced: bool = False
    """Whether they must have it on disk."""

    def questions(self, key: str) -> tuple[tuple[Argument, ...], tuple[Argument, ...]]:
        """A small write on the partition that `key` names, and the command that waits.

        Without the write a job that was there already would count as replicated on a connection that wrote nothing.
        """
        bound = max(1, round(self.within * 1000))
        return ("SET", f"{key}:replica_probe", "1"), (
            ("WAITAOF", 0, self.number, bound) if self.synced else ("WAIT", self.number, bound)
        )

    def shortfall(self, reply: Any) -> str:
        """What is missing, by the answer to that command; empty = nothing."""
        if isinstance(reply, hiredis.ReplyError):
            return f"the store did not say whether its replicas have it: {reply}"
        found = reply[1] if self.synced else reply
        if found >= self.number:
            return ""
        have = "have it on disk" if self.synced else "have it"
        return f"{found} of {self.number} replicas said within {self.within:g} s that they {have}"


class RedisTarget(NamedTuple):
    """What a URL names."""

    address: ServerAddress
    """Of the only server, of a member of the cluster, or what is known of every master of the group."""
    cluster: bool = False
    group: Group | None = None
    replicas: Replicas | None = None
    """The replicas that must have a new job before it counts as accepted."""


def read_url(url: str) -> RedisTarget:
    """The target of a URL; raises `Invalid` with what is wrong and what to write."""
    scheme = url.partition("://")[0]
    if scheme not in SCHEMES or "://" not in url:
        raise Invalid(f"{scheme!r} is not {', '.join(SCHEMES[:-1])} or {SCHEMES[-1]}", at="store")
    try:
        parts = _split(url)
        options = _options(parts)
        tls = _tls(options) if scheme.startswith("rediss") else None
        replicas = _replicas(options)
        if scheme in SENTINEL:
            return _sentinels(parts, options, tls, replicas)
        return RedisTarget(_address(parts, options, tls), cluster=scheme == CLUSTER, replicas=replicas)
    except ValueError as fault:
        raise Invalid(f"not the address of a server: {fault}", at="store") from None


def checked_replicas(number: int, within: float, *, synced: bool) -> Replicas:
    if not 0 <= number <= MOST_REPLICAS:
        raise Invalid(f"{number} is no number of replicas: 0 to {MOST_REPLICAS}", at="replicas")
    if not 0 < within <= LONGEST_REPLICATION:
        raise Invalid(
            f"replicas are waited for up to {LONGEST_REPLICATION:g} s, not {within:g}", at="replicated_within"
        )
    return Replicas(number, within, synced)


def _split(url: str) -> SplitResult:
    """As `urlsplit`, which knows one host only and in some Pythons refuses several of which one is in brackets."""
    scheme, _, rest = url.partition("://")
    if scheme not in SENTINEL:
        return urlsplit(url)
    place, _, query = rest.partition("?")
    hosts, _, path = place.partition("/")
    return SplitResult(scheme, hosts, f"/{path}", query, "")


def _options(parts: SplitResult) -> dict[str, str]:
    """What stands behind the question mark; unknown names are refused, for a typo would go unnoticed."""
    known = [*REPLICA_OPTIONS]
    known += SENTINEL_OPTIONS if parts.scheme in SENTINEL else LOGIN_OPTIONS
    known += TLS_OPTIONS if parts.scheme.startswith("rediss") else ()
    options = dict(parse_qsl(parts.query, strict_parsing=bool(parts.query), keep_blank_values=True))
    if unknown := sorted(options.keys() - set(known)):
        raise ValueError(f"{', '.join(unknown)}: only {', '.join(known)} are known here")
    return options


def _address(parts: SplitResult, options: dict[str, str], tls: ssl.SSLContext | None) -> ServerAddress:
    username = unquote(parts.username or "") or options.get("username")
    password = unquote(parts.password or "") or options.get("password")
    if parts.scheme == "unix":
        path, db = unquote(parts.path), options.get("db", "")
        if not path:
            raise ValueError("name the socket: unix:///run/redis.sock")
        return ServerAddress(path=path, db=_db(db), username=username, password=password)
    host, port = unquote(parts.hostname or "") or ServerAddress().host, parts.port or ServerAddress().port
    db = options.get("db") or parts.path.strip("/")
    return ServerAddress(host, port, db=_db(db), username=username, password=password, tls=tls)


def _db(text: str) -> int:
    if text and not (text.isascii() and text.isdigit()):
        raise ValueError(f"{text!r} is no number of a database: write redis://HOST:PORT/0")
    return int(text or 0)


def _tls(options: dict[str, str]) -> ssl.SSLContext:
    files = {name: options[name] for name in TLS_OPTIONS if name in options}
    try:
        context = ssl.create_default_context(cafile=files.get("ssl_ca_certs"))
        if "ssl_certfile" in files:
            context.load_cert_chain(files["ssl_certfile"], files.get("ssl_keyfile"))
    except OSError as fault:
        raise ValueError(f"{', '.join(f'{name}={file}' for name, file in files.items())}: {fault}") from None
    return context


def _replicas(options: dict[str, str]) -> Replicas | None:
    if "replicas" not in options:
        return None
    try:
        number, within = int(options["replicas"]), seconds(options.get("replicated_within", "1"))
    except ValueError:
        raise Invalid(f"{options['replicas']!r} is no number of replicas", at="replicas") from None
    return checked_replicas(number, within, synced=options.get("replicas_synced", "no") in ("yes", "true", "1"))


def _sentinels(
    parts: SplitResult, options: dict[str, str], tls: ssl.SSLContext | None, replicas: Replicas | None
) -> RedisTarget:
    """`redis+sentinel://user:password@host:port,host:port/MASTER/DB?sentinel_password=…`."""
    login, _, hosts = parts.netloc.rpartition("@")
    username, _, password = login.partition(":")
    name, _, db = parts.path.removeprefix("/").partition("/")
    if not name:
        raise ValueError("name the master that the sentinels watch: redis+sentinel://host:26379,host:26379/MASTER")
    master = ServerAddress(
        db=_db(db), username=unquote(username) or None, password=unquote(password) or None, tls=tls, master=True
    )
    secret = options.get("sentinel_password")
    sentinels = tuple(_sentinel(host)._replace(password=secret, tls=tls) for host in hosts.split(","))
    return RedisTarget(master, group=Group(unquote(name), sentinels), replicas=replicas)


def _sentinel(host: str) -> ServerAddress:
    at = urlsplit(f"//{host}")
    if not at.hostname:
        raise ValueError(f"{host!r} names no sentinel")
    return ServerAddress(at.hostname, at.port or SENTINEL_PORT)
