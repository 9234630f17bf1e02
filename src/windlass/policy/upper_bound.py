"""An upper bound of a new job's wait, from the number of jobs ahead: nothing is replayed, however deep a queue is.

Until it starts, a new job waits because all slots of its workers are taken, or because a bound of its own is full. For
the first, the jobs ahead have a known amount of work, and jobs behind a bound take a bounded number of slots at a time;
for the second, only jobs within the bound count. The sum is the longest wait if runs last as long as expected: a replay
gives the same or less, and later jobs do not change it.
"""

import math
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import NamedTuple

from msgspec.structs import replace

from windlass.model.estimate import Estimate, Why
from windlass.policy.snapshot import NEVER, FairTurns, LoadSnapshot, WaitingLane, what_holds

UNBOUNDED = (NEVER, -1)
"""The width of a lane without bounds."""


class LaneAhead(NamedTuple):
    """The jobs of a lane that start before a new job."""

    lane: WaitingLane
    number: float
    shared: float
    """The share of them that needs the same slots as the new job."""

    @property
    def work(self) -> float:
        """Slot seconds that they need."""
        return self.number * self.lane.seconds * self.shared

    @property
    def most(self) -> float:
        """How many of them can run at a time, if nothing else bounds them."""
        return math.ceil(self.number)


def upper_bound(snapshot: LoadSnapshot, new_job: WaitingLane) -> Estimate:
    """The longest wait of the one job of a lane, if it arrived now."""
    if (stuck := what_holds(snapshot, new_job)) is not None:
        return stuck
    loads = _ahead(snapshot, new_job)
    found = _in_all(snapshot, new_job, loads)
    at_once = _until_a_slot(snapshot, new_job, loads)
    if at_once >= (found.seconds or 0.0):
        found = Estimate(seconds=at_once, why=Why.SLOTS)
    if found.seconds == NEVER:
        return replace(found, seconds=None)
    return Estimate(seconds=new_job.opens, why=new_job.why) if new_job.opens > (found.seconds or 0.0) else found


def _in_all(snapshot: LoadSnapshot, new_job: WaitingLane, loads: Sequence[LaneAhead]) -> Estimate:
    """The wait for slots plus the wait for own bounds. Each job ahead counts where it is worst."""
    slots = _slots(snapshot, new_job.pools)
    inside: dict[int, list[LaneAhead]] = {place: [] for place in new_job.bounds}
    others: list[LaneAhead] = []
    for load in loads:
        shared = [each for each in load.lane.bounds if each in inside]
        width, place = min((_width(snapshot, each, load.lane) for each in shared), default=UNBOUNDED)
        (inside[place] if width < slots else others).append(load)
    waits = {place: _until_room(snapshot, place, some) for place, some in inside.items()}
    longest = max(waits, key=lambda place: waits[place], default=None)
    if longest is None:
        return Estimate()
    bound = snapshot.bounds[longest]
    seconds = _until_a_slot(snapshot, new_job, others) + sum(waits.values())
    return Estimate(seconds=seconds, why=bound.why, name=bound.name or None)


def _ahead(snapshot: LoadSnapshot, new_job: WaitingLane) -> list[LaneAhead]:
    """The jobs that start before a new job."""
    found = []
    for lane in snapshot.lanes:
        common = [pool for pool in lane.pools if pool in new_job.pools]
        count = _before(snapshot, lane, new_job, common) if common and what_holds(snapshot, lane) is None else 0
        if count:
            found.append(LaneAhead(lane, count, _slots(snapshot, common) / _slots(snapshot, lane.pools)))
    turns = snapshot.turns.get(new_job.queue, FairTurns())
    if turns.tasks is not None:
        found = _by_turns(found, new_job, turns.tasks, _task)
    if turns.tenants is not None:
        found = _by_turns(found, new_job, turns.tenants, _tenant)
    return found


def _slots(snapshot: LoadSnapshot, pools: Sequence[int]) -> int:
    return sum(snapshot.pools[pool].slots for pool in pools)


def _before(snapshot: LoadSnapshot, lane: WaitingLane, new_job: WaitingLane, common: Sequence[int]) -> int:
    """How many jobs of a lane start before a new job, without turns."""
    if lane.queue != new_job.queue:
        orders = [list(snapshot.pools[pool].queues) for pool in common]
        preferred = any(order.index(lane.queue) < order.index(new_job.queue) for order in orders)
        return len(lane.jobs) + lane.rest if preferred else 0
    listed = bisect_right(lane.jobs, new_job.jobs[0])
    return listed if listed < len(lane.jobs) else listed + lane.rest


def _tenant(lane: WaitingLane) -> tuple[Hashable, str]:
    return "", lane.tenant


def _task(lane: WaitingLane) -> tuple[Hashable, str]:
    return lane.tenant, lane.task


def _by_turns(
    loads: Sequence[LaneAhead],
    new_job: WaitingLane,
    weights: Mapping[str, float],
    member: Callable[[WaitingLane], tuple[Hashable, str]],
) -> list[LaneAhead]:
    """The same if members take turns: of each other member only the jobs whose turn comes before the new job's."""
    round_, own = member(new_job)
    counts: Counter[str] = Counter()
    for load in loads:
        if load.lane.queue == new_job.queue and member(load.lane)[0] == round_:
            counts[member(load.lane)[1]] += int(load.number)
    turns = (counts[own] + 1) / weights.get(own, 1.0)
    parts = {
        name: min(1.0, (turns * weights.get(name, 1.0) + 1) / count) for name, count in counts.items() if name != own
    }

    def part(lane: WaitingLane) -> float:
        here, name = member(lane)
        return parts.get(name, 1.0) if lane.queue == new_job.queue and here == round_ else 1.0

    return [load._replace(number=load.number * part(load.lane)) for load in loads]


def _until_a_slot(snapshot: LoadSnapshot, new_job: WaitingLane, loads: Sequence[LaneAhead]) -> float:
    """For how long these may keep all slots of the new job's workers busy."""
    slots = _slots(snapshot, new_job.pools)
    streams = [(busy.remaining, 1.0) for busy in snapshot.running if busy.pool in new_job.pools]
    narrow: dict[int, list[LaneAhead]] = defaultdict(list)
    for load in loads:
        width, place = min((_width(snapshot, each, load.lane) for each in load.lane.bounds), default=UNBOUNDED)
        if width < slots:
            narrow[place].append(load)
        else:
            streams.append((load.work, load.most))
    for place, some in narrow.items():
        if any(load.lane.seconds == NEVER for load in some):
            streams.append((NEVER, _fits(snapshot, place, some)))
            continue
        work, most = sum(load.work for load in some), sum(load.most for load in some)
        at_first = sum(min(load.work, _at_first(snapshot, place, load.lane)) for load in some)
        width = max(_width(snapshot, place, load.lane)[0] for load in some)
        streams += [(at_first, most), (work - at_first, min(width, most))]
    return _filled(streams, slots)


def _fits(snapshot: LoadSnapshot, place: int, some: Sequence[LaneAhead]) -> float:
    """How many slots jobs of unknown length behind one bound may take for good."""
    places = snapshot.bounds[place].places
    return min(sum(load.most for load in some), NEVER if places is None else places)


def _at_first(snapshot: LoadSnapshot, place: int, lane: WaitingLane) -> float:
    """The work that a rate allows to start at once."""
    bound = snapshot.bounds[place]
    return lane.seconds * bound.burst if bound.interval else 0.0


def _width(snapshot: LoadSnapshot, place: int, lane: WaitingLane) -> tuple[float, int]:
    """How many slots a bound allows the jobs of a lane at a time, in the long run."""
    bound = snapshot.bounds[place]
    rate = lane.seconds / bound.interval if bound.interval else NEVER
    return min(rate, NEVER if bound.places is None else bound.places), place


def _filled(streams: Sequence[tuple[float, float]], places: float) -> float:
    """For how long streams of work can fill all places; each has an amount, and fills so many places at a time.

    While they bring more than the places take, the surplus is kept, and fills places later. What never ends keeps its
    places.
    """
    places -= min(places, sum(width for work, width in streams if work == NEVER))
    if places <= 0:
        return NEVER
    streams = [(work, width) for work, width in streams if work < NEVER]
    now = surplus = 0.0
    growth = sum(width for _, width in streams) - places
    for work, width in sorted((one for one in streams if one[1]), key=lambda one: one[0] / one[1]):
        until = work / width
        if growth < 0 and surplus + growth * (until - now) <= 0:
            break
        surplus, now = surplus + growth * (until - now), until
        growth -= width
    return now + surplus / -growth if growth < 0 else now


def _until_room(snapshot: LoadSnapshot, place: int, inside: Sequence[LaneAhead]) -> float:
    """For how long the jobs within a bound may fill it."""
    bound = snapshot.bounds[place]
    seconds = bound.opens
    if bound.interval:
        saved = 0 if bound.opens else bound.burst - 1
        seconds += max(0.0, sum(load.number for load in inside) - saved) * bound.interval
    if bound.places is not None:
        running = [(busy.remaining, 1.0) for busy in snapshot.running if place in busy.bounds]
        waiting = [(load.number * load.lane.seconds, load.most) for load in inside]
        seconds += _filled([*running, *waiting], max(1, bound.places))
    return seconds
