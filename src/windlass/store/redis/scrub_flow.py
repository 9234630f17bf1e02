"""The part of the scrubber that knows flow control: heads and what is parked, places, levels and turns.

It takes as given only what no job can tell (what is parked behind which obstacle, at which tier a job runs) and derives
the rest. Knows the keyspace of `lua/flow.lua` by heart.
"""

import struct
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

DERIVED = (
    b":ready:", b":heads:", b":tops", b":groups", b":parked:", b":passed", b":obstacles", b":places:", b":keys:",
    b":levels:",
)  # fmt: skip

Found = dict[bytes, Any]
Rank = tuple[int, int]


class Queued(NamedTuple):
    """A queued job, as far as claims depend on it."""

    id: bytes
    route: str
    priority: int
    seq: int


class Flow(NamedTuple):
    """What is taken as given."""

    parks: Mapping[str, str]
    assigned: Mapping[bytes, str]
    tiers: Mapping[str, str]


def derive(found: Found, prefix: bytes, queued: Iterable[Queued], running: Mapping[bytes, str]) -> Found:
    """The keys of flow control as they should be; `running` = the routes of running jobs."""
    flow = _given(found, prefix)
    derived: dict[str, Any] = {}
    for key, member, value in (*_heads(queued, flow), *_places(running, flow), *_passed(flow)):
        derived.setdefault(key, {})[member] = value
    sets = {key: set(members) if _is_set(key) else members for key, members in derived.items()}
    return {prefix + b":" + key.encode(): members for key, members in sets.items()}


def check(found: Found, prefix: bytes, running: Iterable[bytes]) -> list[str]:
    """What is parked behind nothing, and who takes turns that does not."""
    flow = _given(found, prefix)
    tops = found.get(prefix + b":tops", {})
    findings = [f"{name} is parked but has no queued job" for name in flow.parks if name.encode() not in tops]
    looked_at = {*found.get(prefix + b":wakes", {}), *found.get(prefix + b":ajar", ())}
    obstacles = {name.encode() for name in flow.parks.values()}
    findings += [f"{name!r} is to be looked at, but holds nothing up" for name in looked_at - obstacles]
    findings += [
        f"{name!r} holds something up, has room, and is not looked at"
        for name in obstacles - looked_at
        if not _is_full(found, prefix, name)
    ]
    findings += [f"{id.hex()} has a tier but does not run" for id in flow.assigned.keys() - set(running)]
    return findings + list(_check_turns(found, prefix))


def lane_of(route: str) -> str:
    return route.partition(";")[0]


def _given(found: Found, prefix: bytes) -> Flow:
    def texts(key: bytes) -> dict[bytes, str]:
        return {name: value.decode() for name, value in found.get(prefix + key, {}).items()}

    def named(key: bytes) -> dict[str, str]:
        return {name.decode(): value for name, value in texts(key).items()}

    return Flow(named(b":parks"), texts(b":assigned"), named(b":tiers"))


def _is_set(key: str) -> bool:
    return key == "obstacles" or key.startswith(("places:", "keys:"))


def _heads(queued: Iterable[Queued], flow: Flow) -> Iterator[tuple[str, bytes, object]]:
    """Each job in its lane or group; the first of each, and of each line, in the heads or where it is parked."""
    routes: dict[str, Rank] = {}
    for job in queued:
        yield f"ready:{job.route}", struct.pack(">Q", job.seq) + job.id, float(job.priority)
        _better(routes, job.route, (job.priority, job.seq))
    lanes: dict[str, Rank] = {}
    lines: dict[str, Rank] = {}
    for route, rank in routes.items():
        if ";" in route:
            yield "groups", route.encode(), 0.0
            yield from _seat(route, lane_of(route), rank, flow)
        if route not in flow.parks or ";" not in route:
            _better(lanes, lane_of(route), rank)
    for lane, rank in lanes.items():
        line = lane.rpartition(",")[0]
        yield from _seat(lane, line, rank, flow)
        if lane not in flow.parks:
            _better(lines, line, rank)
    for line, rank in lines.items():
        yield from _seat(line, line.partition(",")[2], rank, flow)


def _better(ranks: dict[str, Rank], name: str, rank: Rank) -> None:
    ranks[name] = min(ranks.get(name, rank), rank)


def _seat(name: str, above: str, rank: Rank, flow: Flow) -> Iterator[tuple[str, bytes, object]]:
    priority, seq = rank
    member = struct.pack(">Q", seq) + name.encode()
    obstacle = flow.parks.get(name)
    yield f"parked:{obstacle}" if obstacle else f"heads:{above}", member, float(priority)
    yield "tops", name.encode(), f"{priority} ".encode() + member
    if obstacle:
        yield "obstacles", obstacle.encode(), True
        if "=" in obstacle and obstacle[0] != "!" and "^" not in obstacle:
            yield f"keys:{obstacle.partition('=')[0]}", obstacle.encode(), True


def _passed(flow: Flow) -> Iterator[tuple[str, bytes, object]]:
    """How many names are parked in each line and queue."""
    lines = [name.split(",")[:2] for name in flow.parks]
    levels = Counter(level for tenant, queue in lines for level in (queue, f"{tenant},{queue}"))
    for level, count in levels.items():
        yield "passed", level.encode(), str(count).encode()


def _places(running: Mapping[bytes, str], flow: Flow) -> Iterator[tuple[str, bytes, object]]:
    """The buckets and the levels of running jobs."""
    for id, route in running.items():
        for bucket in route.partition(";")[2].split("|")[1:]:
            yield f"places:{bucket}", id, True
            if "=" in bucket:
                yield f"keys:{bucket.partition('=')[0]}", bucket.encode(), True
        if id in flow.assigned:
            line = lane_of(route).rpartition(",")[0]
            names = flow.tiers.get(line, "").split()[::3]
            name = flow.assigned[id].partition(" ")[2]
            yield f"levels:{line}", id, float(names.index(name) + 1 if name in names else 0)


def _is_full(found: Found, prefix: bytes, obstacle: bytes) -> bool:
    """Whether all places behind an obstacle are taken."""
    line, hat, name = obstacle.partition(b"^")
    if hat:
        tiers = found.get(prefix + b":tiers", {}).get(line, b"").split()
        number = tiers[::3].index(name) if name in tiers[::3] else None
        levels = found.get(prefix + b":levels:" + line, {})
        return number is not None and sum(level > number for level in levels.values()) >= int(tiers[3 * number + 2])
    allowance = found.get(prefix + b":allowances", {}).get(obstacle.partition(b"=")[0], b"-")
    places = allowance.split()[0]
    return places != b"-" and len(found.get(prefix + b":places:" + obstacle, ())) >= int(places)


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
