"""The cycle of tiers: golden traces G1–G6, the checklist's items, and agreement with a slow reference."""

import random
from collections import Counter

import pytest
from msgspec.structs import replace

from tests.support.reference_tiers import (
    FAST,
    MEDIUM,
    SLOW,
    MovingLine,
    every_outcome,
    explicit,
    flexible,
    outcome,
    random_line,
    three,
    yielding,
)
from tests.support.stores import SeededChance
from windlass.model.queue import Tier
from windlass.policy.tiers import (
    Decisions,
    TierClass,
    TieredQueue,
    TieredRun,
    TieredWait,
    TierLevel,
    admit,
    caps,
    cycle,
)


def decide(line: TieredQueue, seed: int = 0) -> Decisions:
    return cycle(line, SeededChance(seed).fraction)


def test_item_2_on_an_idle_line_a_flexible_job_may_run_at_the_longest_tier() -> None:
    moving = MovingLine(three(slow=1, medium=2), 3)
    life = moving.arrive("a", None, needs=29)
    moving.advance_to(100)
    assert (life.level, life.ended, life.stopped) == (SLOW, 29, False)


def test_item_3_g1_three_flexible_jobs_on_an_idle_line_start_at_slow_medium_and_fast() -> None:
    found = decide(TieredQueue(three(slow=1, medium=2), 3, (), [TieredWait("a"), TieredWait("b"), TieredWait("c")]))
    assert (found.starts, found.shrinks, found.halts) == ({"a": SLOW, "b": MEDIUM, "c": FAST}, {}, [])


def test_item_4_g2_an_explicit_slow_job_shrinks_the_flexible_ones_to_fast_and_starts_when_one_ends() -> None:
    running = [flexible("a", SLOW), flexible("b", MEDIUM), flexible("c", FAST)]
    line = TieredQueue(three(slow=1, medium=2), 3, running, [TieredWait("d", SLOW)])
    found = decide(line)
    assert (found.starts, found.shrinks, found.halts) == ({}, {"a": FAST, "b": FAST}, [])
    assert (found.short_of_slots, found.passed_by) == (True, None)
    for ended in range(3):
        rest = [flexible(id, FAST) for place, id in enumerate("abc") if place != ended]
        assert decide(replace(line, running=rest)).starts == {"d": SLOW}


def test_item_5_g3_three_yielding_jobs_in_a_row_are_denied_and_shrink_the_flexible_one_step_by_step() -> None:
    line = TieredQueue(three(slow=1, medium=2), 3, [flexible("a", SLOW), explicit("b", FAST), explicit("c", FAST)])
    for before, shrinks in ((SLOW, {"a": MEDIUM}), (MEDIUM, {"a": FAST}), (FAST, {})):
        found = admit(replace(line, running=[flexible("a", before), *line.running[1:]]), SeededChance().fraction)
        assert (found.admitted, found.shrinks) == (False, shrinks)


def test_item_6_g4_a_yielding_job_is_halted_for_one_that_starts_in_the_same_cycle() -> None:
    running = [yielding("a"), explicit("b", FAST), explicit("c", FAST)]
    found = decide(TieredQueue(three(slow=1, medium=2), 3, running, [TieredWait("d", FAST)]))
    assert (found.halts, found.starts, found.shrinks) == (["a"], {"d": FAST}, {})


def test_item_7_g5_a_flexible_job_makes_room_for_a_medium_one_that_starts_at_once() -> None:
    found = decide(TieredQueue(three(slow=1, medium=1), 2, [flexible("a", SLOW)], [TieredWait("b", MEDIUM)]))
    assert (found.shrinks, found.starts) == ({"a": FAST}, {"b": MEDIUM})


def test_item_8_g6_a_fast_job_overtakes_a_slow_one_for_which_there_is_no_room() -> None:
    running = [explicit("a", SLOW), explicit("b", MEDIUM)]
    found = decide(TieredQueue(three(slow=1, medium=2), 3, running, [TieredWait("c", SLOW), TieredWait("d", FAST)]))
    assert (found.starts, found.passed_by, found.shrinks) == ({"d": FAST}, SLOW, {})


@pytest.mark.parametrize(("elapsed", "ends"), [(20.0, 20.0), (1.0, 3.0)])
def test_item_9_a_shrunk_job_stops_at_once_if_its_time_is_used_up_and_else_runs_to_its_new_end(
    elapsed: float, ends: float
) -> None:
    moving = MovingLine(three(slow=1, medium=1), 1)
    life = moving.arrive("a", None, needs=100)
    moving.advance_to(elapsed)
    moving.arrive("b", FAST, needs=1)
    moving.advance_to(50)
    assert (life.ended, life.stopped, moving.lives["b"].started) == (ends, True, ends)


def busy_line(seed: int, slots: int = 4) -> MovingLine:
    """A line after some minutes of random load, with yielding jobs in between."""
    chance = random.Random(seed)
    sizes = sorted((chance.randint(1, slots) for _ in range(3)), reverse=True)
    levels = [TierLevel(f"l{place}", 3.0 * 3**place, cap) for place, cap in enumerate(sizes)]
    moving = MovingLine(levels, slots, seed)
    for number in range(150):
        moving.advance_to(moving.now + chance.expovariate(0.4))
        if chance.random() < 0.15:
            moving.knock(f"y{number}", chance.uniform(0, 60))
        else:
            moving.arrive(f"j{number}", chance.choice((None, 0, 1, 2)), chance.uniform(0, 40))
        moving.decide()
        _check_caps(moving)
    moving.advance_to(moving.now + 10_000)
    return moving


def _check_caps(moving: MovingLine) -> None:
    assert len(moving.running) <= moving.slots
    for place, level in enumerate(moving.levels[1:], start=1):
        there = [one for one in moving.running if one.kind is not TierClass.YIELDING and one.level >= place]
        assert len(there) <= level.cap, f"more jobs at {level.name} than its cap"


@pytest.mark.parametrize("seed", range(10))
def test_items_10_to_13_under_random_load(seed: int) -> None:
    moving = busy_line(seed)
    assert not moving.queue
    for life in moving.lives.values():
        assert life.started is not None
        assert life.ended is not None
        lasted = life.ended - life.started
        if life.kind is not TierClass.YIELDING and life.stopped:
            assert lasted >= moving.levels[0].seconds - 1e-9, "item 10: stopped before the shortest tier's time"
        if life.kind is TierClass.EXPLICIT:
            assert life.level == life.wanted, "item 13: an explicit job was moved to another tier"
    for wanted in (None, 0, 1, 2):
        came = [life.came for life in moving.order if life.kind is not TierClass.YIELDING and life.wanted == wanted]
        assert came == sorted(came), "item 12: one overtook another of its own class"


def test_item_14_every_flexible_job_may_be_the_one_that_is_shrunk() -> None:
    running = [*(flexible(f"f{place}", SLOW) for place in range(4)), explicit("e", SLOW)]
    line = TieredQueue(three(slow=5, medium=6), 8, running, [TieredWait("w", SLOW)])
    hit = Counter(id for seed in range(400) for id in decide(line, seed).shrinks)
    assert set(hit) == {"f0", "f1", "f2", "f3"}
    assert min(hit.values()) > 60


def test_item_14_every_flexible_job_may_be_the_one_that_pays_for_a_denied_one() -> None:
    line = TieredQueue(
        three(slow=3, medium=4), 4, [*(flexible(f"f{place}", SLOW) for place in range(3)), flexible("m", MEDIUM)]
    )
    hit = Counter(id for seed in range(300) for id in admit(line, SeededChance(seed).fraction).shrinks)
    assert set(hit) == {"f0", "f1", "f2"}
    assert min(hit.values()) > 60


def test_item_14_every_yielding_job_may_be_the_one_that_is_halted() -> None:
    line = TieredQueue(three(slow=1, medium=2), 4, [yielding(f"y{place}") for place in range(4)], [TieredWait("w")])
    hit = Counter(id for seed in range(400) for id in decide(line, seed).halts)
    assert set(hit) == {"y0", "y1", "y2", "y3"}
    assert min(hit.values()) > 60


def test_a_yielding_job_is_admitted_where_a_slot_is_free_that_no_job_waits_for() -> None:
    line = TieredQueue(three(slow=1, medium=1), 2, [explicit("a", SLOW)], [TieredWait("b", SLOW)])
    assert admit(line, SeededChance().fraction).admitted
    assert not admit(replace(line, waiting=[TieredWait("b", FAST)]), SeededChance().fraction).admitted


def test_a_job_with_an_order_to_stop_is_not_counted_and_no_other_is_halted_for_the_same_need() -> None:
    running = [yielding("a"), TieredRun("b", TierClass.YIELDING, 0, stopping=True)]
    found = decide(TieredQueue(three(slow=1, medium=1), 2, running, [TieredWait("c", FAST)]))
    assert (found.halts, found.starts) == ([], {"c": FAST})


def test_one_yielding_job_is_halted_for_each_that_waits() -> None:
    found = decide(
        TieredQueue(three(slow=1, medium=1), 3, [yielding(id) for id in "abc"], [TieredWait("d"), TieredWait("e")])
    )
    assert (len(found.halts), list(found.starts)) == (2, ["d", "e"])


def test_among_five_tiers_a_victim_falls_below_the_shortest_that_is_full() -> None:
    levels = [TierLevel(f"l{place}", 3.0**place, cap) for place, cap in enumerate((9, 4, 3, 2, 1))]
    running = [flexible("a", 4), explicit("b", 3), explicit("c", 1)]
    assert decide(TieredQueue(levels, 9, running, [TieredWait("w", 4)])).shrinks == {"a": 2}
    crowded = [*running, explicit("d", 2)]
    assert decide(TieredQueue(levels, 9, crowded, [TieredWait("w", 4)])).shrinks == {"a": 0}


@pytest.mark.parametrize("seed", range(300))
def test_the_cycle_does_what_the_reference_might_do(seed: int) -> None:
    chance = random.Random(seed)
    line = random_line(chance)
    possible = every_outcome(line)
    for try_ in range(5):
        assert outcome(decide(line, seed * 10 + try_)) in possible


def test_whatever_the_reference_might_do_the_cycle_does_some_time() -> None:
    running = [flexible(id, SLOW) for id in "abcd"]
    line = TieredQueue(three(slow=4, medium=6), 6, running, [TieredWait("w", SLOW), TieredWait("v", SLOW)])
    possible = every_outcome(line)
    assert len(possible) == 6
    assert {outcome(decide(line, seed)) for seed in range(200)} == possible


def test_caps_are_shares_of_the_slots_rounded_down_but_never_nothing_and_never_growing() -> None:
    tiers = [Tier(name="a", seconds=1), Tier(name="b", seconds=2, cap="50%"), Tier(name="c", seconds=3, cap="10%")]
    assert caps(tiers, 10) == [10, 5, 1]
    assert caps(tiers, 3) == [3, 1, 1]
    assert caps(tiers, 0) == [1, 1, 1]
    mixed = [Tier(name="a", seconds=1), Tier(name="b", seconds=2, cap="50%"), Tier(name="c", seconds=3, cap=4)]
    assert caps(mixed, 4) == [4, 2, 2]
    assert caps(mixed, 100) == [100, 50, 4]
