"""How long a newcomer waits at most, by how many are ahead alone: nothing is replayed, however deep a queue is.

Until it starts, a newcomer waits because all slots of its workers are taken, or because a bound of its own is full. For
the first, those ahead have only so much work, and whoever is behind a bound takes only so many slots at a time; for the
second, only those within the bound count. Together that is as long as it can take if runs last as long as is thought: a
replay says the same or less, and what comes later has no part in it.
"""

from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import NamedTuple

from windlass.model.estimate import Estimate, Why
from windlass.policy.snapshot import NEVER, Lane, Snapshot, Turns

WIDE = (NEVER, -1)
"""What bounds a lane that nothing bounds."""


class Load(NamedTuple):
    """What those of a lane have to do who go before a newcomer."""

    lane: Lane
    number: float
    shared: float
    """The part of it that needs slots which the newcomer wants too."""

    @property
    def work(self) -> float:
        """Seconds of those slots."""
        return self.number * self.lane.seconds * self.shared


def outlook(snapshot: Snapshot, newcomer: Lane) -> Estimate:
    """At most how long the one job of a lane waits that came now."""
    slots = sum(snapshot.pools[pool].slots for pool in newcomer.pools)
    if newcomer.lacks is not None or not slots:
        return Estimate(why=newcomer.lacks or Why.WORKER)
    if newcomer.opens == NEVER:
        return Estimate(why=newcomer.why)
    shut = next((bound for place in newcomer.bounds if (bound := snapshot.bounds[place]).opens == NEVER), None)
    if shut is not None:
        return Estimate(why=Why.PAUSE, name=shut.name)
    loads = _ahead(snapshot, newcomer)
    told = _in_all(snapshot, newcomer, loads, slots)
    at_once = _until_a_slot(snapshot, newcomer, loads)
    if at_once >= (told.seconds or 0.0):
        told = Estimate(seconds=at_once, why=Why.SLOTS)
    return Estimate(seconds=newcomer.opens, why=newcomer.why) if newcomer.opens > (told.seconds or 0.0) else told


def _in_all(snapshot: Snapshot, newcomer: Lane, loads: Sequence[Load], slots: int) -> Estimate:
    """How long slots and own bounds hold a newcomer up one after the other; each job ahead counts where it is worst."""
    inside: dict[int, list[Load]] = {place: [] for place in newcomer.bounds}
    others: list[Load] = []
    for load in loads:
        shared = [each for each in load.lane.bounds if each in inside]
        width, place = min((_width(snapshot, each, load.lane) for each in shared), default=WIDE)
        (inside[place] if width < slots else others).append(load)
    waits = {place: _until_room(snapshot, place, some) for place, some in inside.items()}
    longest = max(waits, key=lambda place: waits[place], default=None)
    if longest is None:
        return Estimate()
    bound = snapshot.bounds[longest]
    seconds = _until_a_slot(snapshot, newcomer, others) + sum(waits.values())
    return Estimate(seconds=seconds, why=bound.why, name=bound.name or None)


def _ahead(snapshot: Snapshot, newcomer: Lane) -> list[Load]:
    """Those who go before a newcomer."""
    found = []
    for lane in snapshot.lanes:
        common = [pool for pool in lane.pools if pool in newcomer.pools]
        count = _before(snapshot, lane, newcomer, common) if common and not _is_stuck(snapshot, lane) else 0
        if count:
            both, own = (sum(snapshot.pools[pool].slots for pool in some) for some in (common, lane.pools))
            found.append(Load(lane, count, both / own if own else 0.0))
    turns = snapshot.turns.get(newcomer.queue, Turns())
    if turns.tasks is not None:
        found = _by_turns(found, newcomer, turns.tasks, _task)
    if turns.tenants is not None:
        found = _by_turns(found, newcomer, turns.tenants, _tenant)
    return found


def _is_stuck(snapshot: Snapshot, lane: Lane) -> bool:
    """Whether nothing in sight will start its jobs."""
    shut = any(snapshot.bounds[place].opens == NEVER for place in lane.bounds)
    return shut or lane.lacks is not None or lane.opens == NEVER


def _before(snapshot: Snapshot, lane: Lane, newcomer: Lane, common: Sequence[int]) -> int:
    """How many of a lane go before a newcomer, if nobody takes turns."""
    if lane.queue != newcomer.queue:
        orders = [list(snapshot.pools[pool].queues) for pool in common]
        dearer = any(order.index(lane.queue) < order.index(newcomer.queue) for order in orders)
        return len(lane.jobs) + lane.rest if dearer else 0
    listed = bisect_right(lane.jobs, newcomer.jobs[0])
    return listed if listed < len(lane.jobs) else listed + lane.rest


def _tenant(lane: Lane) -> tuple[Hashable, str]:
    return "", lane.tenant


def _task(lane: Lane) -> tuple[Hashable, str]:
    return lane.tenant, lane.task


def _by_turns(
    loads: Sequence[Load], newcomer: Lane, weights: Mapping[str, float], member: Callable[[Lane], tuple[Hashable, str]]
) -> list[Load]:
    """The same where members take turns: of each other one no more than have their turn before the newcomer has his."""
    round_, own = member(newcomer)
    counts: Counter[str] = Counter()
    for load in loads:
        if load.lane.queue == newcomer.queue and member(load.lane)[0] == round_:
            counts[member(load.lane)[1]] += int(load.number)
    turns = (counts[own] + 1) / weights.get(own, 1.0)
    parts = {
        name: min(1.0, (turns * weights.get(name, 1.0) + 1) / count) for name, count in counts.items() if name != own
    }

    def part(lane: Lane) -> float:
        here, name = member(lane)
        return parts.get(name, 1.0) if lane.queue == newcomer.queue and here == round_ else 1.0

    return [load._replace(number=load.number * part(load.lane)) for load in loads]


def _until_a_slot(snapshot: Snapshot, newcomer: Lane, loads: Sequence[Load]) -> float:
    """For how long these may keep all slots of a newcomer's workers busy."""
    slots = sum(snapshot.pools[pool].slots for pool in newcomer.pools)
    running = [busy.remaining for busy in snapshot.running if busy.pool in newcomer.pools]
    if not loads and len(running) < slots:
        return 0.0
    free = sum(running)
    behind: dict[int, float] = defaultdict(float)
    widths: dict[int, float] = defaultdict(float)
    for load in loads:
        width, place = min((_width(snapshot, each, load.lane) for each in load.lane.bounds), default=WIDE)
        at_first = load.work if width >= slots else min(load.work, _at_first(snapshot, place, load.lane))
        free += at_first
        if load.work > at_first:
            behind[place] += load.work - at_first
            widths[place] = max(widths[place], width)
    return _filled(free, [(behind[place], widths[place]) for place in behind], slots)


def _at_first(snapshot: Snapshot, place: int, lane: Lane) -> float:
    """The work that a rate lets start at once."""
    bound = snapshot.bounds[place]
    return lane.seconds * bound.burst if bound.interval else 0.0


def _width(snapshot: Snapshot, place: int, lane: Lane) -> tuple[float, int]:
    """How many slots a bound lets the jobs of a lane have at a time, in the long run."""
    bound = snapshot.bounds[place]
    rate = lane.seconds / bound.interval if bound.interval else NEVER
    return min(rate, NEVER if bound.places is None else bound.places), place


def _filled(free: float, behind: Sequence[tuple[float, float]], slots: int) -> float:
    """For how long all slots can be busy with so much work, and with work of which only so much can be done at once."""
    now, left = 0.0, free
    slope = sum(width for _, width in behind) - slots
    for work, width in sorted(behind, key=lambda one: one[0] / one[1]):
        until = work / width
        if slope < 0 and left + slope * (until - now) <= 0:
            break
        left, now = left + slope * (until - now), until
        slope -= width
    return now + left / -slope if slope < 0 else now


def _until_room(snapshot: Snapshot, place: int, inside: Sequence[Load]) -> float:
    """For how long those within a bound may fill it."""
    bound = snapshot.bounds[place]
    seconds = bound.opens
    if bound.interval:
        saved = 0 if bound.opens else bound.burst - 1
        seconds += max(0.0, sum(load.number for load in inside) - saved) * bound.interval
    if bound.places is not None:
        running = [busy.remaining for busy in snapshot.running if place in busy.bounds]
        if inside or len(running) >= bound.places:
            work = sum(load.number * load.lane.seconds for load in inside)
            seconds += (sum(running) + work) / max(1, bound.places)
    return seconds
