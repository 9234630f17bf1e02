"""How long jobs will wait: the claim's policy, replayed over a snapshot until everything has started.

Running jobs end when they are expected to, and the queues follow in order, held by the same bounds as real claims:
slots, limits, tiers, pauses, turns. With tiers every job is taken to run as long as its tier allows, and a flexible one
as long as the shortest does: then the estimate is an upper bound.

A wait depends on what is ahead. Where a place comes free with a slot (tiers, limits of which one lies within the other)
those behind cannot delay anybody. A rate, or limits that overlap, let them slip in between; `only` leaves out all that
is behind one job, so that what comes later never raises its estimate.
"""

from bisect import bisect_right
from collections import defaultdict

from msgspec.structs import replace

from windlass.model.estimate import Estimate, Why
from windlass.policy.replay import Replay
from windlass.policy.snapshot import NEVER, Key, Lane, Snapshot, ahead


def forecast(snapshot: Snapshot, only: str | None = None) -> dict[str, Estimate]:
    """When the waiting jobs will start, by their ids; `only` = this one alone, whatever is behind it."""
    if only is not None:
        snapshot = _ahead_of(snapshot, only)
    ranks = _ranks(snapshot)
    replay = Replay(snapshot, ranks)
    replay.run(only)
    if only is not None:
        return {id: found for id, found in {**_stuck(snapshot, replay, ranks), **replay.starts}.items() if id == only}
    return replay.starts | _stuck(snapshot, replay, ranks)


def _ranks(snapshot: Snapshot) -> dict[str, int]:
    """The places of jobs in their queues; under turns they are known when the jobs start."""
    queues: dict[str, list[Key]] = defaultdict(list)
    for lane in snapshot.lanes:
        if lane.queue not in snapshot.turns:
            queues[lane.queue] += lane.jobs
    return {key[2]: rank for keys in queues.values() for rank, key in enumerate(sorted(keys), start=1)}


def _ahead_of(snapshot: Snapshot, id: str) -> Snapshot:
    """Without what is behind a job: later ones of its queue, and queues that none of its workers likes better."""
    place = next(((key, lane.queue) for lane in snapshot.lanes for key in lane.jobs if key[2] == id), None)
    if place is None:
        return replace(snapshot, lanes=())
    last, own = place
    known = ahead([pool.queues for pool in snapshot.pools], own)

    def cut(lane: Lane) -> Lane:
        if lane.queue != own or own in snapshot.turns:  # whose turn it is does not go by arrival
            return lane
        return replace(lane, jobs=lane.jobs[: bisect_right(lane.jobs, last)])

    return replace(snapshot, lanes=[cut(lane) for lane in snapshot.lanes if lane.queue in known])


def _stuck(snapshot: Snapshot, replay: Replay, ranks: dict[str, int]) -> dict[str, Estimate]:
    """The jobs that nothing in sight will start."""
    if replay.complete():
        return {}
    return {
        key[2]: Estimate(position=ranks.get(key[2]), why=why, name=name)
        for lane in snapshot.lanes
        for why, name in (_lacking(snapshot, lane),)
        for key in lane.jobs
        if key[2] not in replay.starts
    }


def _lacking(snapshot: Snapshot, lane: Lane) -> tuple[Why, str | None]:
    if lane.lacks is not None or not any(snapshot.pools[pool].slots for pool in lane.pools):
        return lane.lacks or Why.WORKER, None
    if lane.opens == NEVER:
        return lane.why, None
    shut = next((snapshot.bounds[each] for each in lane.bounds if snapshot.bounds[each].opens == NEVER), None)
    return (Why.PAUSE, shut.name) if shut is not None else (Why.SLOTS, None)
