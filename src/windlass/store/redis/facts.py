"""What a server says of itself: its version and how it keeps what it holds."""

from windlass.model.errors import WindlassError
from windlass.store.facts import Facts
from windlass.store.redis.connection import own_errors
from windlass.store.redis.store import RedisStore

SETTINGS = ("appendonly", "appendfsync")
COVERAGE = "cluster-require-full-coverage"

LEAST_MEMBERS = 3
"""Members with slots: of two, the one that is left has no majority, and refuses everything."""


async def facts(store: RedisStore) -> Facts:
    channel = store.partitions.connection.channel
    with own_errors():
        about: bytes = await channel.ask("INFO", "server")
    said = dict(line.split(":", 1) for line in about.decode().splitlines() if ":" in line)
    kind = "Valkey" if "valkey_version" in said else "Redis"
    if store.partitions.connection.cluster is not None:
        kind += " Cluster"
    settings = await _settings(store)
    return Facts(
        kind=kind,
        version=said.get("valkey_version", said["redis_version"]),
        durability=", ".join(f"{name} {settings[name]}" for name in SETTINGS if name in settings) or "not told",
        risk=_risk(settings),
        halts=await _halts(store, settings),
        now=(await store.read([])).now,
    )


async def _settings(store: RedisStore) -> dict[str, str]:
    """What the server may be asked; nothing, where it does not tell."""
    try:
        with own_errors():
            found = await store.partitions.connection.channel.ask("CONFIG", "GET", *SETTINGS, COVERAGE)
    except WindlassError:
        return {}
    return {found[at].decode(): found[at + 1].decode() for at in range(0, len(found), 2)}


async def _halts(store: RedisStore, settings: dict[str, str]) -> str:
    """Why a cluster would stop as a whole when a member is away."""
    if store.partitions.connection.cluster is None:
        return ""
    if settings.get(COVERAGE) == "yes":
        return f"when one member is away all of them refuse everything: set {COVERAGE} to no"
    with own_errors():
        ranges = await store.partitions.connection.channel.ask("CLUSTER", "SLOTS")
    members = len({(master[0], master[1]) for _, _, master, *_ in ranges})
    if 1 < members < LEAST_MEMBERS:
        return f"of {members} members, one alone has no majority and refuses everything: have {LEAST_MEMBERS} or more"
    return ""


def _risk(settings: dict[str, str]) -> str:
    if not settings:
        return "the server does not tell its settings: make sure that appendonly is yes"
    if settings["appendonly"] != "yes":
        return "jobs accepted since the last snapshot are lost when the server stops: set appendonly to yes"
    if settings["appendfsync"] != "always":
        return "jobs of the last second or so are lost when the machine stops: set appendfsync to always"
    return ""
