"""How long a newcomer waits at most, by counts alone: beside a replay of all who are ahead."""

import pytest
from msgspec.structs import replace

from tests.test_policy_estimate import keys, random_snapshot
from windlass.model.estimate import Estimate, Why
from windlass.policy.estimate import forecast
from windlass.policy.outlook import outlook
from windlass.policy.snapshot import NEVER, Bound, Busy, Lane, Pool, Snapshot, Turns

LATE = (0, 10**9, "new")


def newcomer(**more: object) -> Lane:
    return Lane(jobs=[LATE], seconds=0.0, **more)  # type: ignore[arg-type]


def crowd(number: int, seconds: float = 2.0, **more: object) -> Lane:
    """So many jobs, of which only the first is known by name."""
    return Lane(jobs=keys(1), seconds=seconds, rest=number - 1, **more)  # type: ignore[arg-type]


def replayed(snapshot: Snapshot, late: Lane) -> Estimate:
    return forecast(replace(snapshot, lanes=[*snapshot.lanes, late]), only="new")["new"]


def test_it_waits_for_the_work_of_all_who_are_ahead_divided_by_the_slots() -> None:
    snapshot = Snapshot([Pool(4)], [Busy(3.0)] * 4, [crowd(10_000), crowd(5000, 4.0)])
    assert outlook(snapshot, newcomer()) == Estimate(seconds=10_003.0, why=Why.SLOTS)


def test_where_slots_are_free_nobody_waits() -> None:
    assert outlook(Snapshot([Pool(4)], [Busy(3.0)] * 3), newcomer()).seconds == 0.0


def test_those_behind_a_full_limit_hold_up_only_who_is_bound_by_it() -> None:
    snapshot = Snapshot([Pool(4)], (), [crowd(1_000_000, bounds=(0,)), crowd(600)], [Bound("smtp", places=1)])
    assert outlook(snapshot, newcomer()).seconds == pytest.approx(600 * 2.0 / 3)
    bound = outlook(snapshot, newcomer(bounds=(0,)))
    assert (bound.why, bound.name) == (Why.LIMIT, "smtp")
    assert bound.seconds == pytest.approx(2_000_000 + 300)


def test_a_limit_that_is_wider_than_the_slots_costs_nothing() -> None:
    snapshot = Snapshot([Pool(4)], (), [crowd(1000, bounds=(0,))], [Bound("wide", places=4)])
    assert outlook(snapshot, newcomer(bounds=(0,))) == Estimate(seconds=500.0, why=Why.SLOTS)


def test_a_rate_lets_one_in_after_the_other() -> None:
    bounds = [Bound("api", interval=0.6, burst=1, opens=0.5)]
    found = outlook(Snapshot([Pool(50)], (), [crowd(1000, 0.1, bounds=(0,))], bounds), newcomer(bounds=(0,)))
    assert (found.why, found.name) == (Why.LIMIT, "api")
    assert found.seconds == pytest.approx(600.5)


def test_those_of_a_lower_priority_and_of_queues_that_are_liked_less_are_not_ahead() -> None:
    late = Lane(keys(1, priority=3), 2.0, rest=5000, queue="mail")
    bulk = crowd(7000, queue="bulk")
    snapshot = Snapshot([Pool(1, ("mail", "bulk"))], (), [late, bulk, crowd(10, queue="mail")])
    assert outlook(snapshot, newcomer(queue="mail")).seconds == 20.0
    assert outlook(snapshot, newcomer(queue="bulk")).seconds == pytest.approx(2.0 * (5001 + 7000 + 10))


def test_whoever_takes_turns_waits_for_a_round_and_not_for_a_million() -> None:
    turns = {"": Turns(tenants={"two": 2.0})}
    snapshot = Snapshot([Pool(1)], (), [crowd(1_000_000, tenant="big"), crowd(10, tenant="two")], turns=turns)
    assert outlook(snapshot, newcomer(tenant="small")).seconds == pytest.approx(2.0 * (2 + 3))
    own = outlook(snapshot, newcomer(tenant="two")).seconds
    assert own == pytest.approx(2.0 * (10 + 6.5))
    tasks = Snapshot([Pool(1)], (), [crowd(5000, task="long"), crowd(3, task="rare")], turns={"": Turns(tasks={})})
    assert outlook(tasks, newcomer(task="rare")).seconds == pytest.approx(2.0 * (3 + 5))


def test_what_cannot_start_says_why_and_is_in_nobodys_way() -> None:
    bounds = [Bound("closed", opens=NEVER), Bound("later", opens=9.0)]
    stuck = [crowd(9, lacks=Why.HANDLER), crowd(9, opens=NEVER), crowd(9, bounds=(0,))]
    snapshot = Snapshot([Pool(1)], (), stuck, bounds)
    assert outlook(snapshot, newcomer()).seconds == 0.0
    assert outlook(snapshot, newcomer(lacks=Why.HANDLER)) == Estimate(why=Why.HANDLER)
    assert outlook(snapshot, newcomer(opens=NEVER)) == Estimate(why=Why.PAUSE)
    assert outlook(snapshot, newcomer(bounds=(0,))) == Estimate(why=Why.PAUSE, name="closed")
    assert outlook(snapshot, newcomer(bounds=(1,))) == Estimate(seconds=9.0, why=Why.LIMIT, name="later")
    assert outlook(snapshot, newcomer(opens=60.0)) == Estimate(seconds=60.0, why=Why.PAUSE)
    assert outlook(Snapshot([Pool(0)]), newcomer()) == Estimate(why=Why.WORKER)


@pytest.mark.parametrize("seed", range(200))
def test_a_replay_says_no_more(seed: int) -> None:
    """But for the one run by which the last job of a small queue may stick out."""
    snapshot = random_snapshot(seed)
    longest = max([lane.seconds for lane in snapshot.lanes if lane.jobs], default=0.0)
    for bounds in ((), (0,), (0, 1), (2,), (1, 2)):
        late = newcomer(bounds=bounds)
        at_most, really = outlook(snapshot, late).seconds, replayed(snapshot, late).seconds
        assert at_most is not None
        assert really is not None
        assert really <= at_most + longest


@pytest.mark.parametrize("seed", range(20))
def test_of_a_deep_queue_it_is_nearly_what_a_replay_says(seed: int) -> None:
    few = random_snapshot(seed)
    own = [(lane, (lane.jobs, lane.seconds)) for lane in few.lanes if lane.jobs]
    lanes = [
        Lane(keys(*range(place, 3000, len(own))), seconds, bounds=lane.bounds[:1])
        for place, (lane, (_, seconds)) in enumerate(own)
    ]
    snapshot = replace(few, lanes=lanes, bounds=[replace(bound, interval=0.0) for bound in few.bounds])
    for late in (newcomer(), *(newcomer(bounds=lane.bounds) for lane in lanes)):
        at_most, really = outlook(snapshot, late).seconds, replayed(snapshot, late).seconds
        assert at_most is not None
        assert really is not None
        assert really <= at_most + 5.0
        assert at_most <= 2 * really + 5.0, "a bound is of use only if it is not far from what comes"
