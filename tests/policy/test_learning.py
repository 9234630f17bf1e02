"""Learned run times: means and quantiles, how the old fades, what merging and keeping leave of them."""

import random
import statistics

import pytest

from windlass.policy.run_times import HALF, RunTimes, learn, mean, merge, pack, quantile, remaining, unpack


def test_nothing_is_known_at_first() -> None:
    nothing = RunTimes()
    assert (mean(nothing), quantile(nothing, 0.5), remaining(nothing, 1.0)) == (None, None, None)


@pytest.mark.parametrize("typical", [0.002, 1.0, 4000.0])
def test_quantiles_are_right_within_a_tenth_however_long_runs_are(typical: float) -> None:
    chance = random.Random(1)
    runs = [typical * chance.lognormvariate(0, 0.8) for _ in range(2000)]
    times = learn(RunTimes(), runs)
    newest = runs[-int(2 * HALF) :]
    assert quantile(times, 0.5) == pytest.approx(statistics.median(newest), rel=0.2)
    assert mean(times) == pytest.approx(statistics.fmean(newest), rel=0.15)
    exact = learn(RunTimes(), [typical] * 100)
    assert quantile(exact, 0.9) == pytest.approx(typical, rel=0.1)


def test_what_is_older_weighs_less() -> None:
    slow = learn(RunTimes(), [10.0] * 1000)
    turned = learn(slow, [1.0] * int(HALF))
    assert mean(turned) == pytest.approx(4.9, rel=0.1), "of all that counts, the older runs are still three sevenths"
    assert quantile(learn(turned, [1.0] * int(2 * HALF)), 0.5) == pytest.approx(1.0, rel=0.1)


def test_merging_is_like_having_seen_the_newer_afterwards() -> None:
    first, second = [2.0, 3.0] * 200, [5.0] * 300
    together = learn(learn(RunTimes(), first), second)
    merged = merge(learn(RunTimes(), first), learn(RunTimes(), second))
    assert mean(merged) == pytest.approx(mean(together), rel=0.1)
    assert quantile(merged, 0.5) == quantile(together, 0.5)


def test_a_run_that_has_gone_on_for_long_is_one_of_the_long_ones() -> None:
    times = learn(RunTimes(), [1.0] * 90 + [100.0] * 10)
    assert remaining(times, 0.0) == pytest.approx(1.0, rel=0.1)
    assert remaining(times, 10.0) == pytest.approx(90.0, rel=0.15)
    assert remaining(times, 500.0) == 250.0


def test_it_is_kept_in_few_bytes() -> None:
    chance = random.Random(2)
    times = learn(RunTimes(), [chance.lognormvariate(0, 3) for _ in range(5000)])
    assert unpack(pack(times)) == times
    assert len(pack(times)) < 1500


def test_absurd_run_times_break_nothing() -> None:
    times = learn(RunTimes(), [0.0, -1.0, 1e300])
    assert mean(times) is not None
