"""Estimates where workers serve several queues: their slots go to the dearest queue that has something for them."""

import random
import time

import pytest
from msgspec.structs import replace

from windlass.model.estimate import Why
from windlass.policy.estimate import forecast
from windlass.policy.snapshot import Bound, BusySlot, Key, LoadSnapshot, SlotPool, WaitingLane, queues_ahead


def keys(*arrivals: int, priority: int = 0) -> list[Key]:
    return [(priority, arrival, f"j{arrival}") for arrival in arrivals]


def lane(
    queue: str, *arrivals: int, seconds: float = 1.0, pools: tuple[int, ...] = (0,), **more: object
) -> WaitingLane:
    return replace(WaitingLane(keys(*arrivals), seconds, queue=queue, pools=pools), **more)


def seconds(snapshot: LoadSnapshot) -> dict[str, float | None]:
    return {id: found.seconds for id, found in forecast(snapshot).items()}


def test_a_worker_empties_its_preferred_queue_first_whatever_came_before() -> None:
    snapshot = LoadSnapshot(
        [SlotPool(1, ("mail", "bulk"))], [BusySlot(2.0)], [lane("bulk", 1, 2), lane("mail", 3, 4, seconds=5.0)]
    )
    assert seconds(snapshot) == {"j3": 2.0, "j4": 7.0, "j1": 12.0, "j2": 13.0}
    assert {id: one.position for id, one in forecast(snapshot).items()} == {"j1": 1, "j2": 2, "j3": 1, "j4": 2}
    assert {one.why for one in forecast(snapshot).values()} == {Why.SLOTS}


def test_a_queue_with_a_worker_of_its_own_does_not_wait_for_the_dearer_queue_of_another() -> None:
    pools = [SlotPool(1, ("mail", "bulk")), SlotPool(1, ("bulk",))]
    lanes = [lane("mail", 1, 2, 3, seconds=10.0), lane("bulk", 4, 5, pools=(0, 1), seconds=2.0)]
    assert seconds(LoadSnapshot(pools, (), lanes)) == {"j1": 0.0, "j2": 10.0, "j3": 20.0, "j4": 0.0, "j5": 2.0}


def test_workers_may_like_the_same_queues_in_different_orders() -> None:
    pools = [SlotPool(1, ("a", "b")), SlotPool(1, ("b", "a"))]
    lanes = [lane("a", 1, 2, 3, pools=(0, 1)), lane("b", 4, pools=(0, 1), seconds=9.0)]
    assert seconds(LoadSnapshot(pools, (), lanes)) == {"j1": 0.0, "j2": 1.0, "j3": 2.0, "j4": 0.0}


def test_a_slot_goes_to_whom_its_worker_knows_past_those_that_wait_for_another_worker() -> None:
    pools = [SlotPool(1), SlotPool(1)]
    lanes = [lane("", 1, 2, pools=(0,), seconds=4.0), lane("", 3, pools=(1,)), lane("", 4, pools=(0, 1))]
    found = forecast(LoadSnapshot(pools, [BusySlot(6.0, pool=0)], lanes))
    assert {id: one.seconds for id, one in found.items()} == {"j3": 0.0, "j4": 1.0, "j1": 6.0, "j2": 10.0}
    assert {one.why for one in found.values()} == {Why.SLOTS}


def test_a_limit_over_two_queues_lets_the_dearer_one_in_first() -> None:
    bounds = [Bound("both", places=1)]
    lanes = [lane("bulk", 1, bounds=(0,)), lane("mail", 2, bounds=(0,))]
    snapshot = LoadSnapshot([SlotPool(3, ("mail", "bulk"))], [BusySlot(5.0, (0,), None)], lanes, bounds)
    assert seconds(snapshot) == {"j2": 5.0, "j1": 6.0}
    assert {(one.why, one.name) for one in forecast(snapshot).values()} == {(Why.LIMIT, "both")}


@pytest.mark.parametrize(
    ("orders", "found"),
    [
        ([("a", "b")], "b a"),
        ([("b", "a")], "b"),
        ([("c", "b"), ("a", "c")], "b c a"),
        ([("a", "c"), ("x", "y")], "b"),
        ([("a", "b"), ("b", "c", "a")], "b a c"),
    ],
)
def test_ahead_of_a_queue_are_those_that_its_workers_like_better(orders: list[tuple[str, ...]], found: str) -> None:
    assert queues_ahead(orders, "b") == set(found.split())


def test_item_18_what_comes_in_a_queue_that_is_liked_less_never_raises_an_estimate() -> None:
    bounds = [Bound("rate", interval=60.0, opens=60.0)]
    before = LoadSnapshot([SlotPool(1, ("mail", "bulk"))], (), [lane("mail", 1, bounds=(0,))], bounds)
    after = replace(before, lanes=[*before.lanes, lane("bulk", 2, seconds=100.0)])
    assert forecast(after, only="j1") == forecast(before, only="j1")
    assert forecast(after)["j1"].seconds == 100.0, "which it would, if it slipped in"


def obvious(snapshot: LoadSnapshot) -> dict[str, float]:
    """The same, looking at every job whenever something ends."""
    ends = [(busy.remaining, busy.pool, busy.bounds) for busy in snapshot.running]
    waiting = sorted((key, lane) for lane in snapshot.lanes for key in lane.jobs)
    starts: dict[str, float] = {}
    now = 0.0

    def fits(pool: int, lane: WaitingLane) -> bool:
        held = [bounds for _, _, bounds in ends]
        room = all(sum(bound in one for one in held) < (snapshot.bounds[bound].places or 99) for bound in lane.bounds)
        return pool in lane.pools and room

    def first(pool: int, slots: int) -> tuple[Key, WaitingLane] | None:
        if sum(taken == pool for _, taken, _ in ends) >= slots:
            return None
        for queue in snapshot.pools[pool].queues:
            for key, lane in waiting:
                if lane.queue == queue and fits(pool, lane):
                    return key, lane
        return None

    while waiting:
        for place, pool in enumerate(snapshot.pools):
            while (found := first(place, pool.slots)) is not None:
                waiting.remove(found)
                starts[found[0][2]] = now
                ends.append((now + found[1].seconds, place, found[1].bounds))
        now = min(end for end, _, _ in ends)
        ends = [one for one in ends if one[0] > now]
    return starts


def crowd(chance: random.Random, *, bounded: bool) -> LoadSnapshot:
    names = ["a", "b", "c"]
    pools = [SlotPool(chance.randint(1, 3), chance.sample(names, chance.randint(1, 3))) for _ in range(3)]
    pools.append(SlotPool(1, names))
    bounds = [Bound("one", places=1), Bound("two", places=2)]
    lanes = []
    for place in range(8):
        queue = chance.choice(names)
        able = [number for number, pool in enumerate(pools) if queue in pool.queues]
        arrivals = sorted(chance.sample(range(100 * place, 100 * place + 100), chance.randint(0, 6)))
        taking = tuple(sorted({3, *chance.sample(able, chance.randint(1, len(able)))}))
        held = chance.choice(((), (), (0,), (1,))) if bounded else ()
        lanes.append(lane(queue, *arrivals, seconds=chance.uniform(0.1, 5), pools=taking, bounds=held))
    running = [BusySlot(chance.uniform(0.1, 5), pool=place) for place in range(4) if chance.random() < 0.5]
    return LoadSnapshot(pools, running, lanes, bounds)


@pytest.mark.parametrize("bounded", [False, True], ids=["slots", "limits"])
@pytest.mark.parametrize("seed", range(60))
def test_a_replay_starts_each_job_when_the_obvious_one_does(seed: int, bounded: bool) -> None:
    snapshot = crowd(random.Random(seed), bounded=bounded)
    assert seconds(snapshot) == pytest.approx(obvious(snapshot))


def test_a_hundred_thousand_jobs_in_several_queues_are_estimated_within_a_second_of_one_core() -> None:
    names = [f"q{number}" for number in range(5)]
    pools = [SlotPool(20, names[place:] + names[:place]) for place in range(5)]
    lanes = [
        lane(names[n % 5], *range(n, 100_000 + n, 50), seconds=0.1 * n + 0.1, pools=tuple(range(5))) for n in range(50)
    ]
    begun = time.process_time()
    found = forecast(LoadSnapshot(pools, (), lanes))
    assert time.process_time() - begun < 10.0, "measured alone it is under one; tests share the machine"
    assert len(found) == 100_000
