"""How long a new job waits at most, by counts alone: beside a replay of all who are ahead."""

import pytest
from msgspec.structs import replace

from tests.policy.test_estimate import keys, random_snapshot
from windlass.model.estimate import Estimate, Why
from windlass.policy.estimate import forecast
from windlass.policy.snapshot import NEVER, Bound, BusySlot, FairTurns, LoadSnapshot, SlotPool, WaitingLane
from windlass.policy.upper_bound import upper_bound

LATE = (0, 10**9, "new")


def new_arrival(**more: object) -> WaitingLane:
    return WaitingLane(jobs=[LATE], seconds=0.0, **more)  # type: ignore[arg-type]


def crowd(number: int, seconds: float = 2.0, **more: object) -> WaitingLane:
    """So many jobs, of which only the first is known by name."""
    return WaitingLane(jobs=keys(1), seconds=seconds, rest=number - 1, **more)  # type: ignore[arg-type]


def replayed(snapshot: LoadSnapshot, late: WaitingLane) -> Estimate:
    return forecast(replace(snapshot, lanes=[*snapshot.lanes, late]), only="new")["new"]


def test_it_waits_for_the_work_of_all_who_are_ahead_divided_by_the_slots() -> None:
    snapshot = LoadSnapshot([SlotPool(4)], [BusySlot(3.0)] * 4, [crowd(10_000), crowd(5000, 4.0)])
    assert upper_bound(snapshot, new_arrival()) == Estimate(seconds=10_003.0, why=Why.SLOTS)


def test_where_slots_are_free_no_job_waits() -> None:
    assert upper_bound(LoadSnapshot([SlotPool(4)], [BusySlot(3.0)] * 3), new_arrival()).seconds == 0.0


def test_fewer_jobs_than_slots_keep_no_job_waiting_however_long_they_run() -> None:
    few = [WaitingLane(keys(1, 2), 100.0)]
    assert upper_bound(LoadSnapshot([SlotPool(4)], [BusySlot(50.0)], few), new_arrival()).seconds == 0.0
    assert upper_bound(LoadSnapshot([SlotPool(4)], [BusySlot(50.0)] * 2, few), new_arrival()).seconds == 50.0


def test_the_first_slot_that_comes_free_counts_and_not_their_mean() -> None:
    running = [BusySlot(remaining, (0,)) for remaining in (100.0, 7.0, 40.0)]
    snapshot = LoadSnapshot([SlotPool(3)], running, (), [Bound("three", places=3)])
    assert upper_bound(snapshot, new_arrival()) == Estimate(seconds=7.0, why=Why.SLOTS)
    wide = replace(snapshot, pools=[SlotPool(9)])
    assert upper_bound(wide, new_arrival(bounds=(0,))) == Estimate(seconds=7.0, why=Why.LIMIT, name="three")


def test_those_behind_a_full_limit_hold_up_only_who_is_bound_by_it() -> None:
    snapshot = LoadSnapshot([SlotPool(4)], (), [crowd(1_000_000, bounds=(0,)), crowd(600)], [Bound("smtp", places=1)])
    assert upper_bound(snapshot, new_arrival()).seconds == pytest.approx(600 * 2.0 / 3)
    bound = upper_bound(snapshot, new_arrival(bounds=(0,)))
    assert (bound.why, bound.name) == (Why.LIMIT, "smtp")
    assert bound.seconds == pytest.approx(2_000_000 + 300)


def test_a_limit_that_is_wider_than_the_slots_costs_nothing() -> None:
    snapshot = LoadSnapshot([SlotPool(4)], (), [crowd(1000, bounds=(0,))], [Bound("wide", places=4)])
    assert upper_bound(snapshot, new_arrival(bounds=(0,))) == Estimate(seconds=500.0, why=Why.SLOTS)


def test_a_rate_lets_one_in_after_the_other() -> None:
    bounds = [Bound("api", interval=0.6, burst=1, opens=0.5)]
    found = upper_bound(
        LoadSnapshot([SlotPool(50)], (), [crowd(1000, 0.1, bounds=(0,))], bounds), new_arrival(bounds=(0,))
    )
    assert (found.why, found.name) == (Why.LIMIT, "api")
    assert found.seconds == pytest.approx(600.5)


def test_those_of_a_lower_priority_and_of_queues_that_are_liked_less_are_not_ahead() -> None:
    late = WaitingLane(keys(1, priority=3), 2.0, rest=5000, queue="mail")
    bulk = crowd(7000, queue="bulk")
    snapshot = LoadSnapshot([SlotPool(1, ("mail", "bulk"))], (), [late, bulk, crowd(10, queue="mail")])
    assert upper_bound(snapshot, new_arrival(queue="mail")).seconds == 20.0
    assert upper_bound(snapshot, new_arrival(queue="bulk")).seconds == pytest.approx(2.0 * (5001 + 7000 + 10))


def test_a_task_that_takes_turns_waits_for_a_round_and_not_for_a_million() -> None:
    turns = {"": FairTurns(tenants={"two": 2.0})}
    snapshot = LoadSnapshot([SlotPool(1)], (), [crowd(1_000_000, tenant="big"), crowd(10, tenant="two")], turns=turns)
    assert upper_bound(snapshot, new_arrival(tenant="small")).seconds == pytest.approx(2.0 * (2 + 3))
    own = upper_bound(snapshot, new_arrival(tenant="two")).seconds
    assert own == pytest.approx(2.0 * (10 + 6.5))
    tasks = LoadSnapshot(
        [SlotPool(1)], (), [crowd(5000, task="long"), crowd(3, task="rare")], turns={"": FairTurns(tasks={})}
    )
    assert upper_bound(tasks, new_arrival(task="rare")).seconds == pytest.approx(2.0 * (3 + 5))


def test_what_cannot_start_says_why_and_delays_no_other_job() -> None:
    bounds = [Bound("closed", opens=NEVER), Bound("later", opens=9.0)]
    stuck = [crowd(9, lacks=Why.HANDLER), crowd(9, opens=NEVER), crowd(9, bounds=(0,))]
    snapshot = LoadSnapshot([SlotPool(1)], (), stuck, bounds)
    assert upper_bound(snapshot, new_arrival()).seconds == 0.0
    assert upper_bound(snapshot, new_arrival(lacks=Why.HANDLER)) == Estimate(why=Why.HANDLER)
    assert upper_bound(snapshot, new_arrival(opens=NEVER)) == Estimate(why=Why.PAUSE)
    assert upper_bound(snapshot, new_arrival(bounds=(0,))) == Estimate(why=Why.PAUSE, name="closed")
    assert upper_bound(snapshot, new_arrival(bounds=(1,))) == Estimate(seconds=9.0, why=Why.LIMIT, name="later")
    assert upper_bound(snapshot, new_arrival(opens=60.0)) == Estimate(seconds=60.0, why=Why.PAUSE)
    assert upper_bound(LoadSnapshot([SlotPool(0)]), new_arrival()) == Estimate(why=Why.WORKER)


@pytest.mark.parametrize("seed", range(200))
def test_a_replay_says_no_more(seed: int) -> None:
    """But for the one run by which the last job of a small queue may stick out."""
    snapshot = random_snapshot(seed)
    longest = max([lane.seconds for lane in snapshot.lanes if lane.jobs], default=0.0)
    for bounds in ((), (0,), (0, 1), (2,), (1, 2)):
        late = new_arrival(bounds=bounds)
        at_most, really = upper_bound(snapshot, late).seconds, replayed(snapshot, late).seconds
        assert at_most is not None
        assert really is not None
        assert really <= at_most + longest


@pytest.mark.parametrize("seed", range(20))
def test_of_a_deep_queue_it_is_nearly_what_a_replay_says(seed: int) -> None:
    few = random_snapshot(seed)
    own = [(lane, (lane.jobs, lane.seconds)) for lane in few.lanes if lane.jobs]
    lanes = [
        WaitingLane(keys(*range(place, 3000, len(own))), seconds, bounds=lane.bounds[:1])
        for place, (lane, (_, seconds)) in enumerate(own)
    ]
    snapshot = replace(few, lanes=lanes, bounds=[replace(bound, interval=0.0) for bound in few.bounds])
    for late in (new_arrival(), *(new_arrival(bounds=lane.bounds) for lane in lanes)):
        at_most, really = upper_bound(snapshot, late).seconds, replayed(snapshot, late).seconds
        assert at_most is not None
        assert really is not None
        assert really <= at_most + 5.0
        assert at_most <= 2 * really + 5.0, "a bound is of use only if it is not far from what comes"
