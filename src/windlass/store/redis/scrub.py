"""The scrubber: reads a whole Redis store and says what does not add up. For tests and `doctor`; not for large stores.

It derives every index from the jobs alone and compares; so it knows the keyspace by heart, like `lua/keys.lua`.
"""

import asyncio
from collections import Counter
from itertools import pairwise
from typing import Any, NamedTuple

from windlass.model.job import FINISHED, MOST_CHUNKS, MOST_INPUT, MOST_MESSAGES, MOST_OUTPUT, State
from windlass.model.lifecycle import ORDERS
from windlass.model.names import raw_key, text_id
from windlass.store import terms
from windlass.store.micros import span
from windlass.store.redis import layout, scrub_flow
from windlass.store.redis.address import Argument
from windlass.store.redis.store import RedisStore

STALE, RESULT, ERRORS, PROGRESS, FOLLOWED, EXTRAS = 1, 2, 4, 8, 64, 128
CHUNK = 64
BELONGINGS = (b"r", b"h", b"e", b"o", b"i", b"f", b"a")
"""Keys of one job's own, beside its record."""
_EXTRAS = (b"f", b"o", b"i")
RUNNING = layout.STATE_NUMBERS[State.RUNNING]

DERIVED = (
    *scrub_flow.DERIVED, b":log:", b":counts:", b":held", b":lines", b":tenants", b":chunks:", b":blocked:"
)  # fmt: skip
"""Keys that can be derived from the jobs; the time indexes are compared job by job."""

SEQUELS = (b"c", b"t", b"k")
"""Keys of a followed job, which may outlive it while it is ripe."""

Found = dict[bytes, Any]


async def scrub(store: RedisStore) -> list[str]:
    """What is wrong; nothing when the store is sound."""
    partitions = range(store.partitions.number)
    found = await asyncio.gather(*(_scrub(store, store.partitions.key(number)) for number in partitions))
    return [finding for findings in found for finding in findings]


async def _scrub(store: RedisStore, key: str) -> list[str]:
    found, prefix = await _read(store, key), key.encode()
    jobs = _jobs(found, prefix)
    running = {job.id: job.route for job in jobs if job.state is State.RUNNING}
    queued = [scrub_flow.Queued(job.id, job.route, job.priority, job.seq) for job in jobs if job.state is State.QUEUED]
    expected = _derive(jobs, prefix) | scrub_flow.derive(found, prefix, queued, running)
    findings = [
        f"{name!r}: is {found.get(name)!r}, should be {expected.get(name)!r}"
        for name in sorted(expected.keys() | found.keys())
        if name[len(prefix) :].startswith(DERIVED) and expected.get(name) != found.get(name)
    ]
    return findings + _check_jobs(found, prefix) + scrub_flow.check(found, prefix, running)


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


class Held(NamedTuple):
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
    route: str
    worker: str
    token: bytes
    finished: int
    has_owner_clock: bool | None
    """Whether it should; null = it may, for it was told to stop."""
    updated: int


def _held(id: bytes, value: bytes, live: bytes | None) -> Held:
    head = layout.HEAD.unpack_from(value)
    _, state_number, _, flags, _, _, _, updated, due, run_size, terms_size, priority, seq, pos, _, _ = head
    zero = value.index(0, layout.HEAD.size)
    packed, asked = value[layout.HEAD.size : zero], terms.unpack(value[zero + 1 : zero + 1 + terms_size])
    tenant, queue, task, _ = layout.parts(packed)
    state, token, worker, finished, reason = layout.STATES[state_number], b"", "", 0, 0
    if run_size:
        finished = layout.ENDED.unpack_from(value, len(value) - run_size)[2]
    if live is not None and state is State.QUEUED:
        token, _, _, _, reason, flags, *_ = layout.LIVE.unpack_from(live)
        state, finished = State.RUNNING, 0
        worker = live[layout.LIVE.size :].split(b"\0")[1].decode()
    route = packed.decode()
    owned: bool | None = "unattended" in asked and state not in FINISHED
    if owned and layout.REASONS[reason] in ORDERS:
        owned = None
    names, run = (tenant, queue, task, route), (worker, token, finished)
    return Held(id, state, flags, priority, seq, pos, due, *names, *run, owned, updated)


def _jobs(found: Found, prefix: bytes) -> list[Held]:
    start = prefix + b"j"
    runs = found.get(prefix + b":runs", {})
    jobs = {key[len(start) :]: value for key, value in found.items() if key.startswith(start)}
    return [_held(id, value, runs.get(id)) for id, value in jobs.items()]


def _derive(jobs: list[Held], prefix: bytes) -> Found:
    """The indexes as they should be, but for what claims read."""
    derived: dict[bytes, dict[bytes, Any]] = {}
    tenants: set[bytes] = set()

    def put(key: str, member: bytes, value: object) -> None:
        derived.setdefault(prefix + b":" + key.encode(), {})[member] = value

    counts: Counter[tuple[str, str]] = Counter()
    held: Counter[str] = Counter()
    for job in jobs:
        id, pos, number = job.id, job.pos, layout.STATE_NUMBERS[job.state]
        line = f"{job.tenant},{job.queue}"
        tenants.add(job.tenant.encode())
        put("lines", line.encode(), 0.0)
        put(f"chunks:{line}", str(pos // CHUNK).encode(), float(pos // CHUNK))
        put(f"log:{line}:{max(number, RUNNING)}:{pos // CHUNK}", bytes((pos % CHUNK,)), id)
        counts[job.tenant, f"{job.queue},{job.task},{number}"] += 1
        match job.state:
            case State.RUNNING:
                held[job.worker] += 1
            case State.BLOCKED:
                put(f"blocked:{line}", id, float(pos))
    for (tenant, field), number in counts.items():
        put(f"counts:{tenant}", field.encode(), str(number).encode())
    for worker, number in held.items():
        put("held", worker.encode(), str(number).encode())
    return {**derived, **({prefix + b":tenants": tenants} if tenants else {})}


def _check_jobs(found: Found, prefix: bytes) -> list[str]:
    """Each job is in exactly the time index of its state, and has the keys its flags speak of."""
    findings = []
    jobs = {job.id: job for job in _jobs(found, prefix)}
    names = ("due", "stale", "unattended", "leases", "gone", "progress", "runs")
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
                id in indexes["unattended"],
                id in indexes["unattended"] if job.has_owner_clock is None else job.has_owner_clock,
            ),
            "a finish time": (bool(job.finished), finished),
            "a time to be dropped": (id in indexes["gone"] and not finished, False),
            "the time of its result, if that is there": _result_time(found, prefix, job),
            "progress": (id in indexes["progress"], bool(job.flags & PROGRESS)),
            "a result": (prefix + b"r" + id in found, bool(job.flags & RESULT)),
            "a time of its result's own": (prefix + b"h" + id in found, job.flags & layout.TIMED == layout.TIMED),
            "errors": (prefix + b"e" + id in found, bool(job.flags & ERRORS)),
            "something that it waits for": (bool(found.get(prefix + b"a" + id)), job.state is State.BLOCKED),
            "files, output or input": (any(prefix + kind + id in found for kind in _EXTRAS), bool(job.flags & EXTRAS)),
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
    return findings + _check_sequels(found, prefix, {id for id, job in jobs.items() if job.flags & FOLLOWED})


def _result_time(found: Found, prefix: bytes, job: Held) -> tuple[float | None, float | None]:
    """When a job's result goes, where that has a time of its own; and when it should."""
    if not job.flags & RESULT or job.flags & layout.TIMED != layout.TIMED:
        return None, None
    _, seconds = layout.HOLD.unpack(found[prefix + b"h" + job.id])
    return found.get(prefix + b":gone", {}).get(job.id), float(job.updated + span(seconds))


def _check_sequels(found: Found, prefix: bytes, followed: set[bytes]) -> list[str]:
    """What waits for a job or follows it belongs to a followed or ripe one; a result kept for that, to a ripe one."""
    ripe = {raw_key(text_id(member), member[16:].decode()) for member in found.get(prefix + b":ripe", {})}
    findings = []
    for kind in SEQUELS:
        start = prefix + kind
        owners = ripe if kind == b"k" else ripe | followed
        findings += [
            f"{key!r} belongs to no job that is followed or ripe"
            for key in found
            if key.startswith(start) and key[len(start) :] not in owners
        ]
    return findings


def _is_sound(output: list[bytes]) -> bool:
    heads = [layout.CHUNK.unpack_from(piece) for piece in output]
    size = sum(map(len, output)) - len(output) * layout.CHUNK.size
    numbers = [n for n, *_ in heads]
    whole = all(after == before + 1 for before, after in pairwise(numbers))
    return whole and len(output) <= MOST_CHUNKS and size <= MOST_OUTPUT


def _is_in_order(box: list[bytes]) -> bool:
    heads = [layout.MESSAGE.unpack_from(message) for message in box]
    sizes = [len(message) - layout.MESSAGE.size for message in box]
    whole = all(
        n == before + 1 and finish == start + size
        for ((before, start), (n, finish)), size in zip(pairwise(heads), sizes[1:], strict=True)
    )
    return whole and not any(sizes[:1]) and len(box) - 1 <= MOST_MESSAGES and sum(sizes) <= MOST_INPUT
