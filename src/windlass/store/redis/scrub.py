"""The scrubber: reads a whole Redis store and says what does not add up. For tests and `doctor`; not for large stores.

It derives every index from the jobs alone and compares; so it knows the keyspace by heart, like `lua/keys.lua`.
"""

import struct
from collections import Counter
from typing import Any

from windlass.model.job import FINISHED, State
from windlass.model.names import text_id
from windlass.store import Record
from windlass.store.redis import layout
from windlass.store.redis.store import RedisStore

STALE, RESULT, ERRORS, PROGRESS = 1, 2, 4, 8
CHUNK = 64
RUNNING = layout.STATE_NUMBERS[State.RUNNING]

DERIVED = (b":ready:", b":log:", b":heads:", b":tops", b":counts:", b":held", b":lines", b":tenants", b":chunks:")
"""Keys that can be derived from the jobs; the time indexes are compared job by job."""

Found = dict[bytes, Any]


async def scrub(store: RedisStore) -> list[str]:
    """What is wrong; nothing when the store is sound."""
    findings: list[str] = []
    for partition in range(store.partitions.number):
        prefix = store.partitions.key(partition).encode()
        found = await _read(store, prefix)
        expected = _derive(found, prefix)
        findings += [
            f"{key!r}: is {found.get(key)!r}, should be {expected.get(key)!r}"
            for key in sorted(expected.keys() | found.keys())
            if key[len(prefix) :].startswith(DERIVED) and expected.get(key) != found.get(key)
        ]
        findings += _check_jobs(found, prefix)
    return findings


async def _read(store: RedisStore, prefix: bytes) -> Found:
    """Every key of a partition with what it holds."""
    node = store.partitions.connection.node
    found: Found = {}
    async for key in node.scan_iter(match=prefix.replace(b"[", rb"\[") + b"*", count=1000):
        match await node.type(key):
            case b"string":
                found[key] = await node.get(key)
            case b"hash":
                found[key] = await node.hgetall(key)
            case b"zset":
                pairs: Any = await node.zrange(key, 0, -1, withscores=True)
                found[key] = {member: float(score) for member, score in pairs}
            case b"set":
                found[key] = await node.smembers(key)
            case b"list":
                found[key] = await node.lrange(key, 0, -1)
    return found


def _jobs(found: Found, prefix: bytes) -> list[tuple[bytes, bytes]]:
    start = prefix + b"j"
    return [(key[len(start) :], value) for key, value in found.items() if key.startswith(start)]


def _record(id: bytes, value: bytes) -> Record:
    return layout.record(id + bytes(4) + value, [], None, whole=True)


def _derive(found: Found, prefix: bytes) -> Found:
    """The indexes as they should be."""
    derived: dict[bytes, dict[bytes, Any]] = {}
    tenants: set[bytes] = set()

    def put(key: str, member: bytes, value: object) -> None:
        derived.setdefault(prefix + b":" + key.encode(), {})[member] = value

    counts: Counter[tuple[str, str]] = Counter()
    held: Counter[str] = Counter()
    firsts: dict[str, tuple[int, int]] = {}
    for id, value in _jobs(found, prefix):
        job = _record(id, value).job
        head = layout.HEAD.unpack_from(value)
        number, seq, pos = head[1], head[8], head[9]
        line, lane = f"{job.tenant},{job.queue}", f"{job.tenant},{job.queue},{job.task}"
        tenants.add(job.tenant.encode())
        put("lines", line.encode(), 0.0)
        put(f"chunks:{line}", str(pos // CHUNK).encode(), float(pos // CHUNK))
        put(f"log:{line}:{max(number, RUNNING)}:{pos // CHUNK}", bytes((pos % CHUNK,)), id)
        counts[job.tenant, f"{job.queue},{job.task},{number}"] += 1
        if job.state is State.RUNNING:
            held[job.worker or ""] += 1
        if job.state is State.QUEUED:
            put(f"ready:{lane}", struct.pack(">Q", seq) + id, float(job.priority))
            for name in (lane, line):
                firsts[name] = min(firsts.get(name, (job.priority, seq)), (job.priority, seq))
    for name, (priority, seq) in firsts.items():
        tenant, _, rest = name.partition(",")
        queue, is_lane, _ = rest.partition(",")
        above = f"{tenant},{queue}" if is_lane else queue
        member = struct.pack(">Q", seq) + name.encode()
        put(f"heads:{above}", member, float(priority))
        put("tops", name.encode(), f"{priority} ".encode() + member)
    for (tenant, field), number in counts.items():
        put(f"counts:{tenant}", field.encode(), str(number).encode())
    for worker, number in held.items():
        put("held", worker.encode(), str(number).encode())
    answer: Found = dict(derived)
    if tenants:
        answer[prefix + b":tenants"] = tenants
    return answer


def _check_jobs(found: Found, prefix: bytes) -> list[str]:
    """Each job is in exactly the time index of its state, and has the keys its flags speak of."""
    findings = []
    jobs = dict(_jobs(found, prefix))
    due, stale, leases, gone, progress = (
        found.get(prefix + name, {}) for name in (b":due", b":stale", b":leases", b":gone", b":progress")
    )
    owned = set()
    for id, value in jobs.items():
        record = _record(id, value)
        job, flags, due_time = record.job, layout.HEAD.unpack_from(value)[3], layout.HEAD.unpack_from(value)[12]
        checks = {
            "a lease": ((id in leases), job.state is State.RUNNING),
            "a token": (bool(record.token and record.token.strip(b"\0")), job.state is State.RUNNING),
            "a due time": (due.get(id), float(due_time) if job.state is State.SCHEDULED else None),
            "a wait clock": (id in stale, bool(flags & STALE)),
            "a finish time": (job.finished_at is not None, job.state in FINISHED),
            "progress": (id in progress, bool(flags & PROGRESS)),
            "a result": (prefix + b"r" + id in found, bool(flags & RESULT)),
            "errors": (prefix + b"e" + id in found, bool(flags & ERRORS)),
        }
        for what, (has, should) in checks.items():
            if has != should:
                findings.append(f"job {text_id(id)} ({job.state}): {what}: {has!r}, should be {should!r}")
        if id in gone and job.state not in FINISHED:
            findings.append(f"job {text_id(id)} ({job.state}) is about to be dropped")
        owned |= {prefix + b"r" + id, prefix + b"e" + id}
    for name, index in (("due", due), ("stale", stale), ("leases", leases), ("gone", gone), ("progress", progress)):
        findings += [f"{name} names {id.hex()}, which is no job" for id in index if id not in jobs]
    for key in found:
        if key.startswith((prefix + b"r", prefix + b"e")) and key not in owned:
            findings.append(f"{key!r} belongs to no job")
    return findings
