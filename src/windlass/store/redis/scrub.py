"""For `doctor` and tests: what a server says of itself, and a scrubber that reads a whole store and checks it.

The scrubber derives every index from the jobs alone and compares, so it knows the keyspace like `lua/keys.lua` and
`lua/flow.lua`. Of flow control it takes as given what no job can tell: what is blocked by what, at which tier a job
runs. Not for large stores.
"""

import asyncio
import struct
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from itertools import pairwise
from typing import Any, NamedTuple

from windlass.model.errors import WindlassError
from windlass.model.job import FINISHED, State
from windlass.model.lifecycle import STOP_ORDERS
from windlass.model.names import raw_key, text_id
from windlass.model.output import MOST_INPUT, MOST_KEPT, MOST_MESSAGES, MOST_OUTPUT
from windlass.store import encoding
from windlass.store.encoding import from_micros, span
from windlass.store.optional import StoreInfo
from windlass.store.redis import layout
from windlass.store.redis.connection import own_errors
from windlass.store.redis.store import RedisStore
from windlass.store.redis.urls import Argument

# What a server says of itself

SETTINGS = ("appendonly", "appendfsync")
COVERAGE = "cluster-require-full-coverage"

LEAST_MEMBERS = 3
"""Members with slots: of two, the one that is left has no majority, and refuses everything."""


async def facts(store: RedisStore) -> StoreInfo:
    channel = store.partitions.connection.channel
    with own_errors():
        about: bytes = await channel.ask("INFO", "server")
    said = dict(line.split(":", 1) for line in about.decode().splitlines() if ":" in line)
    kind = "Valkey" if "valkey_version" in said else "Redis"
    if store.partitions.connection.cluster is not None:
        kind += " Cluster"
    settings = await _settings(store)
    now = (await store.jobs.read([])).now
    with own_errors():
        seconds, micros = await channel.ask("TIME")
    return StoreInfo(
        kind=kind,
        version=said.get("valkey_version", said["redis_version"]),
        durability=", ".join(f"{name} {settings[name]}" for name in SETTINGS if name in settings) or "unknown",
        risk=_risk(settings),
        halts=await _halts(store, settings),
        now=now,
        host_now=from_micros(int(seconds) * 1_000_000 + int(micros)),
    )


async def _settings(store: RedisStore) -> dict[str, str]:
    """The settings that the server shows; none, where it shows none."""
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
        return "the server does not show its settings: make sure that appendonly is yes"
    if settings["appendonly"] != "yes":
        return "jobs accepted since the last snapshot are lost when the server stops: set appendonly to yes"
    if settings["appendfsync"] != "always":
        return "jobs of the last second or so are lost when the machine stops: set appendfsync to always"
    return ""


# The scrubber

FLOW_DERIVED = (
    b":ready:", b":heads:", b":tops", b":limited_lanes", b":blocked_by:", b":blocked_counts", b":blockers", b":places:",
    b":keys:", b":levels:",
)  # fmt: skip

STALE, RESULT, ERRORS, PROGRESS, FOLLOWED, EXTRAS = 1, 2, 4, 8, 64, 128
CHUNK = 64
BELONGINGS = (b"r", b"h", b"e", b"o", b"i", b"f", b"g", b"d", b"n", b"a")
"""Keys of one job's own, beside its record."""
_EXTRAS = (b"f", b"g", b"d", b"o", b"i", b"n")
RUNNING = layout.STATE_NUMBERS[State.RUNNING]

DERIVED = (
    *FLOW_DERIVED, b":log:", b":counts:", b":held", b":tenant_queues", b":tenants", b":chunks:", b":blocked:"
)  # fmt: skip
"""Keys that can be derived from the jobs; the time indexes are compared job by job."""

DEPENDENTS = (b"c", b"t", b"k")
"""Keys of a followed job, which may outlive it while it is completed."""

Found = dict[bytes, Any]


async def scrub(store: RedisStore) -> list[str]:
    """What is wrong; nothing when the store is sound."""
    partitions = range(store.partitions.number)
    found = await asyncio.gather(*(_scrub(store, store.partitions.key(number)) for number in partitions))
    return [finding for findings in found for finding in findings]


async def _scrub(store: RedisStore, key: str) -> list[str]:
    found, prefix = await _read(store, key), key.encode()
    jobs = _jobs(found, prefix)
    running = {job.id: job.lane for job in jobs if job.state is State.RUNNING}
    queued = [Queued(job.id, job.lane, job.priority, job.seq) for job in jobs if job.state is State.QUEUED]
    expected = _derive(jobs, prefix) | _derive_flow(found, prefix, queued, running)
    findings = [
        f"{name!r}: is {found.get(name)!r}, should be {expected.get(name)!r}"
        for name in sorted(expected.keys() | found.keys())
        if name[len(prefix) :].startswith(DERIVED) and expected.get(name) != found.get(name)
    ]
    return findings + _check_jobs(found, prefix) + _check_flow(found, prefix, running)


async def _read(store: RedisStore, prefix: str) -> Found:
    """Every key of a partition with what it holds."""

    async def ask(*command: Argument) -> Any:
        return await store.partitions.connection.ask(prefix, *command)

    async def look(key: bytes, kind: bytes) -> Any:
        match kind:
            case b"string":
                return await ask("GET", key)
            case b"hash":
                return _pairs(await ask("HGETALL", key))
            case b"zset":
                scores = _pairs(await ask("ZRANGE", key, 0, -1, "WITHSCORES"))
                return {member: float(score) for member, score in scores.items()}
            case b"set":
                return set(await ask("SMEMBERS", key))
            case _:
                return await ask("LRANGE", key, 0, -1)

    found: Found = {}
    cursor: Any = "0"
    while True:
        cursor, keys = await ask("SCAN", cursor, "MATCH", f"{prefix}*", "COUNT", 1000)
        kinds = await asyncio.gather(*(ask("TYPE", key) for key in keys))
        values = await asyncio.gather(*(look(key, kind) for key, kind in zip(keys, kinds, strict=True)))
        found.update(zip(keys, values, strict=True))
        if cursor == b"0":
            return found


def _pairs(reply: list[bytes]) -> dict[bytes, bytes]:
    return dict(zip(reply[::2], reply[1::2], strict=True))


class StoredJob(NamedTuple):
    """A job as the server holds it, as far as the indexes depend on it."""

    id: bytes
    state: State
    flags: int
    priority: int
    seq: int
    pos: int
    due: int
    tenant: str
    queue: str
    task: str
    lane: str
    worker: str
    token: bytes
    finished: int
    has_owner_clock: bool | None
    """Whether it should; null = it may, for it was asked to stop."""
    updated: int


def _held(id: bytes, value: bytes, live: bytes | None) -> StoredJob:
    head = layout.HEAD.unpack_from(value)
    _, state_number, _, flags, _, _, _, updated, due, run_size, terms_size, priority, seq, pos, _, _ = head
    zero = value.index(0, layout.HEAD.size)
    packed, asked = value[layout.HEAD.size : zero], encoding.unpack_terms(value[zero + 1 : zero + 1 + terms_size])
    tenant, queue, task, _ = layout.parts(packed)
    state, token, worker, finished, reason = layout.STATES[state_number], b"", "", 0, 0
    if run_size:
        finished = layout.ENDED.unpack_from(value, len(value) - run_size)[2]
    if live is not None and state is State.QUEUED:
        token, _, _, _, reason, flags, *_ = layout.LIVE.unpack_from(live)
        state, finished = State.RUNNING, 0
        worker = live[layout.LIVE.size :].split(b"\0")[1].decode()
    lane = packed.decode()
    owned: bool | None = "owner_timeout" in asked and state not in FINISHED
    if owned and layout.REASONS[reason] in STOP_ORDERS:
        owned = None
    names, run = (tenant, queue, task, lane), (worker, token, finished)
    return StoredJob(id, state, flags, priority, seq, pos, due, *names, *run, owned, updated)


def _jobs(found: Found, prefix: bytes) -> list[StoredJob]:
    start = prefix + b"j"
    runs = found.get(prefix + b":runs", {})
    jobs = {key[len(start) :]: value for key, value in found.items() if key.startswith(start)}
    return [_held(id, value, runs.get(id)) for id, value in jobs.items()]


def _derive(jobs: list[StoredJob], prefix: bytes) -> Found:
    """The indexes as they should be, but for what claims read."""
    derived: dict[bytes, dict[bytes, Any]] = {}
    tenants: set[bytes] = set()

    def put(key: str, member: bytes, value: object) -> None:
        derived.setdefault(prefix + b":" + key.encode(), {})[member] = value

    counts: Counter[tuple[str, str]] = Counter()
    held: Counter[str] = Counter()
    for job in jobs:
        id, pos, number = job.id, job.pos, layout.STATE_NUMBERS[job.state]
        tenant_queue = f"{job.tenant},{job.queue}"
        tenants.add(job.tenant.encode())
        put("tenant_queues", tenant_queue.encode(), 0.0)
        put(f"chunks:{tenant_queue}", str(pos // CHUNK).encode(), float(pos // CHUNK))
        put(f"log:{tenant_queue}:{max(number, RUNNING)}:{pos // CHUNK}", bytes((pos % CHUNK,)), id)
        counts[job.tenant, f"{job.queue},{job.task},{number}"] += 1
        match job.state:
            case State.RUNNING:
                held[job.worker] += 1
            case State.BLOCKED:
                put(f"blocked:{tenant_queue}", id, float(pos))
    for (tenant, field), number in counts.items():
        put(f"counts:{tenant}", field.encode(), str(number).encode())
    for worker, number in held.items():
        put("held", worker.encode(), str(number).encode())
    return {**derived, **({prefix + b":tenants": tenants} if tenants else {})}


def _check_jobs(found: Found, prefix: bytes) -> list[str]:
    """Each job is in exactly the time index of its state, and has the keys its flags speak of."""
    findings = []
    jobs = {job.id: job for job in _jobs(found, prefix)}
    names = ("due", "stale", "owner_timeouts", "leases", "gone", "progress", "runs")
    indexes: dict[str, dict[bytes, Any]] = {name: found.get(prefix + f":{name}".encode(), {}) for name in names}
    owned = set()
    for id, job in jobs.items():
        running, finished = job.state is State.RUNNING, job.state in FINISHED
        checks = {
            "a lease": (id in indexes["leases"], running),
            "a run": (id in indexes["runs"], running),
            "a token": (bool(job.token.strip(b"\0")), running),
            "a due time": (indexes["due"].get(id), float(job.due) if job.state is State.SCHEDULED else None),
            "a wait clock": (id in indexes["stale"], bool(job.flags & STALE)),
            "an owner clock": (
                id in indexes["owner_timeouts"],
                id in indexes["owner_timeouts"] if job.has_owner_clock is None else job.has_owner_clock,
            ),
            "a finish time": (bool(job.finished), finished),
            "a time to be dropped": (id in indexes["gone"] and not finished, False),
            "the time of its result, if that is there": _result_time(found, prefix, job),
            "progress": (id in indexes["progress"], bool(job.flags & PROGRESS)),
            "a result": (prefix + b"r" + id in found, bool(job.flags & RESULT)),
            "a time of its result's own": (prefix + b"h" + id in found, job.flags & layout.TIMED == layout.TIMED),
            "errors": (prefix + b"e" + id in found, bool(job.flags & ERRORS)),
            "something that it waits for": (bool(found.get(prefix + b"a" + id)), job.state is State.BLOCKED),
            "files, output, input or edits without their flag": (
                any(prefix + kind + id in found for kind in _EXTRAS) and not job.flags & EXTRAS,
                False,
            ),
            "input, if it has ended": (prefix + b"i" + id in found and finished, False),
            "input without a gap, and no more than may wait": (_is_in_order(found.get(prefix + b"i" + id, [])), True),
            "output without a gap, and no more than is kept": (_is_sound(found.get(prefix + b"o" + id, [])), True),
        }
        if raw_key(text_id(id), job.tenant) != id:
            findings.append(f"job {text_id(id)} of {job.tenant} has the key {id!r}")
        for what, (has, should) in checks.items():
            if has != should:
                findings.append(f"job {text_id(id)} ({job.state}): {what}: {has!r}, should be {should!r}")
        owned |= {prefix + kind + id for kind in BELONGINGS}
    for name, index in indexes.items():
        findings += [f"{name} names {id.hex()}, which is no job" for id in index if id not in jobs]
    for key in found:
        if key.startswith(tuple(prefix + kind for kind in BELONGINGS)) and key not in owned:
            findings.append(f"{key!r} belongs to no job")
    followed = {id for id, job in jobs.items() if job.flags & FOLLOWED}
    return findings + _check_unique(found, prefix, jobs) + _check_dependents(found, prefix, followed)


def _check_unique(found: Found, prefix: bytes, jobs: Mapping[bytes, StoredJob]) -> list[str]:
    """Each identity names a job, which names that identity and is of the kind that says so."""
    last, identities = found.get(prefix + b":unique", {}), found.get(prefix + b":identities", {})
    findings = []
    if last != {identity: id for id, identity in identities.items()}:
        findings.append(f"unique names {last!r}, identities name {identities!r}")
    for id in identities:
        if id not in jobs:
            findings.append(f"identities names {id.hex()}, which is no job")
        elif found[prefix + b"j" + id][0] != layout.UNIQUE_KIND:
            findings.append(f"job {text_id(id)} has an identity, and its record does not say so")
    return findings


def _result_time(found: Found, prefix: bytes, job: StoredJob) -> tuple[float | None, float | None]:
    """When a job's result goes, where that has a time of its own; and when it should."""
    if not job.flags & RESULT or job.flags & layout.TIMED != layout.TIMED:
        return None, None
    _, seconds = layout.HOLD.unpack(found[prefix + b"h" + job.id])
    return found.get(prefix + b":gone", {}).get(job.id), float(job.updated + span(seconds))


def _check_dependents(found: Found, prefix: bytes, followed: set[bytes]) -> list[str]:
    """Dependents belong to a followed or completed job; a result kept for them, to a completed one."""
    completed = {raw_key(text_id(member), member[16:].decode()) for member in found.get(prefix + b":completed", {})}
    findings = []
    for kind in DEPENDENTS:
        start = prefix + kind
        owners = completed if kind == b"k" else completed | followed
        findings += [
            f"{key!r} belongs to no job that is followed or completed"
            for key in found
            if key.startswith(start) and key[len(start) :] not in owners
        ]
    return findings


def _is_sound(output: list[bytes]) -> bool:
    heads = [layout.CHUNK.unpack_from(piece) for piece in output]
    size = sum(map(len, output)) - len(output) * layout.CHUNK.size
    numbers = [n for n, *_ in heads]
    whole = all(after == before + 1 for before, after in pairwise(numbers))
    return whole and len(output) <= MOST_KEPT and size <= MOST_OUTPUT


def _is_in_order(box: list[bytes]) -> bool:
    heads = [layout.MESSAGE.unpack_from(message) for message in box]
    sizes = [len(message) - layout.MESSAGE.size for message in box]
    whole = all(
        n == before + 1 and finish == start + size
        for ((before, start), (n, finish)), size in zip(pairwise(heads), sizes[1:], strict=True)
    )
    return whole and not any(sizes[:1]) and len(box) - 1 <= MOST_MESSAGES and sum(sizes) <= MOST_INPUT


# Flow control

Rank = tuple[int, int]


class Queued(NamedTuple):
    """A queued job, as far as claims depend on it."""

    id: bytes
    lane: str
    priority: int
    seq: int


class StoredFlow(NamedTuple):
    """What is taken as given."""

    blocker_of: Mapping[str, str]
    assigned: Mapping[bytes, str]
    tiers: Mapping[str, str]


def _derive_flow(found: Found, prefix: bytes, queued: Iterable[Queued], running: Mapping[bytes, str]) -> Found:
    """The keys of flow control as they should be; `running` = the lanes of running jobs."""
    flow = _given(found, prefix)
    derived: dict[str, Any] = {}
    for key, member, value in (*_heads(queued, flow), *_places(running, flow), *_blocked_counts(flow)):
        derived.setdefault(key, {})[member] = value
    sets = {key: set(members) if _is_set(key) else members for key, members in derived.items()}
    return {prefix + b":" + key.encode(): members for key, members in sets.items()}


def _check_flow(found: Found, prefix: bytes, running: Iterable[bytes]) -> list[str]:
    """Names that are blocked by nothing, and members that take turns where there are none."""
    flow = _given(found, prefix)
    tops = found.get(prefix + b":tops", {})
    findings = [f"{name} is blocked but has no queued job" for name in flow.blocker_of if name.encode() not in tops]
    looked_at = {*found.get(prefix + b":wakes", {}), *found.get(prefix + b":dirty", ())}
    blockers = {name.encode() for name in flow.blocker_of.values()}
    findings += [f"{name!r} is to be looked at, but blocks nothing" for name in looked_at - blockers]
    findings += [
        f"{name!r} blocks something, has room, and is not looked at"
        for name in blockers - looked_at
        if not _is_full(found, prefix, name)
    ]
    findings += [f"{id.hex()} has a tier but does not run" for id in flow.assigned.keys() - set(running)]
    return findings + list(_check_turns(found, prefix))


def plain_lane(lane: str) -> str:
    return lane.partition(";")[0]


def _given(found: Found, prefix: bytes) -> StoredFlow:
    def texts(key: bytes) -> dict[bytes, str]:
        return {name: value.decode() for name, value in found.get(prefix + key, {}).items()}

    def named(key: bytes) -> dict[str, str]:
        return {name.decode(): value for name, value in texts(key).items()}

    return StoredFlow(named(b":blocker_of"), texts(b":assigned"), named(b":tiers"))


def _is_set(key: str) -> bool:
    return key == "blockers" or key.startswith(("places:", "keys:"))


def _heads(queued: Iterable[Queued], flow: StoredFlow) -> Iterator[tuple[str, bytes, object]]:
    """Each job in its lane; the first of each, and of each plain lane and tenant queue, in the heads or blocked."""
    lanes: dict[str, Rank] = {}
    for job in queued:
        yield f"ready:{job.lane}", struct.pack(">Q", job.seq) + job.id, float(job.priority)
        _better(lanes, job.lane, (job.priority, job.seq))
    plains: dict[str, Rank] = {}
    tenant_queues: dict[str, Rank] = {}
    for lane, rank in lanes.items():
        if ";" in lane:
            yield "limited_lanes", lane.encode(), 0.0
            yield from _seat(lane, plain_lane(lane), rank, flow)
        if lane not in flow.blocker_of or ";" not in lane:
            _better(plains, plain_lane(lane), rank)
    for plain, rank in plains.items():
        tenant_queue = plain.rpartition(",")[0]
        yield from _seat(plain, tenant_queue, rank, flow)
        if plain not in flow.blocker_of:
            _better(tenant_queues, tenant_queue, rank)
    for tenant_queue, rank in tenant_queues.items():
        yield from _seat(tenant_queue, tenant_queue.partition(",")[2], rank, flow)


def _better(ranks: dict[str, Rank], name: str, rank: Rank) -> None:
    ranks[name] = min(ranks.get(name, rank), rank)


def _seat(name: str, above: str, rank: Rank, flow: StoredFlow) -> Iterator[tuple[str, bytes, object]]:
    priority, seq = rank
    member = struct.pack(">Q", seq) + name.encode()
    blocker = flow.blocker_of.get(name)
    yield f"blocked_by:{blocker}" if blocker else f"heads:{above}", member, float(priority)
    yield "tops", name.encode(), f"{priority} ".encode() + member
    if blocker:
        yield "blockers", blocker.encode(), True
        if "=" in blocker and blocker[0] != "!" and "^" not in blocker:
            yield f"keys:{blocker.partition('=')[0]}", blocker.encode(), True


def _blocked_counts(flow: StoredFlow) -> Iterator[tuple[str, bytes, object]]:
    """How many names are blocked in each tenant queue and queue."""
    names = [name.split(",")[:2] for name in flow.blocker_of]
    levels = Counter(level for tenant, queue in names for level in (queue, f"{tenant},{queue}"))
    for level, count in levels.items():
        yield "blocked_counts", level.encode(), str(count).encode()


def _places(running: Mapping[bytes, str], flow: StoredFlow) -> Iterator[tuple[str, bytes, object]]:
    """The buckets and the levels of running jobs."""
    for id, lane in running.items():
        for bucket in lane.partition(";")[2].split("|")[1:]:
            yield f"places:{bucket}", id, True
            if "=" in bucket:
                yield f"keys:{bucket.partition('=')[0]}", bucket.encode(), True
        if id in flow.assigned:
            tenant_queue = plain_lane(lane).rpartition(",")[0]
            names = flow.tiers.get(tenant_queue, "").split()[::3]
            name = flow.assigned[id].partition(" ")[2]
            yield f"levels:{tenant_queue}", id, float(names.index(name) + 1 if name in names else 0)


def _is_full(found: Found, prefix: bytes, blocker: bytes) -> bool:
    """Whether a blocker has no room."""
    tenant_queue, hat, name = blocker.partition(b"^")
    if hat:
        tiers = found.get(prefix + b":tiers", {}).get(tenant_queue, b"").split()
        number = tiers[::3].index(name) if name in tiers[::3] else None
        levels = found.get(prefix + b":levels:" + tenant_queue, {})
        return number is not None and sum(level > number for level in levels.values()) >= int(tiers[3 * number + 2])
    limit_rule = found.get(prefix + b":limit_rules", {}).get(blocker.partition(b"=")[0], b"-")
    places = limit_rule.split()[0]
    return places != b"-" and len(found.get(prefix + b":places:" + blocker, ())) >= int(places)


def _check_turns(found: Found, prefix: bytes) -> Iterator[str]:
    """Where members take turns, those with a tag are those in the heads."""
    fair = found.get(prefix + b":fair", {})
    tags = prefix + b":tags:"
    heads = prefix + b":heads:"
    levels = {key[len(tags) :] for key in found if key.startswith(tags)}
    levels |= {key[len(heads) :] for key in found if key.startswith(heads)}
    for level in levels:
        _, comma, queue = level.partition(b",")
        takes_turns = level in fair or (comma and b"*," + queue in fair)
        expected = set(found.get(heads + level, {})) if takes_turns else set()
        if set(found.get(tags + level, {})) != expected:
            yield f"the tags of {level!r} are not those of its heads"
