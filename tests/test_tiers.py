"""Tiers with real workers, on each kind of store: the checklist of S0, with shorter times.

Fast 0.8 s, medium 2 s, slow 6 s; at most 1 slow, 2 slow or medium, 3 in all, unless a test says otherwise. Where
nobody is to be stopped by time, the times are a hundred times as long, and jobs run until the test is over.
"""

import signal
from datetime import UTC, datetime
from typing import Any

import pytest

from tests.patience import PATIENCE
from tests.workers import Worker, Workshop, tell, until
from windlass.handle import Job
from windlass.model.errors import Busy, Invalid
from windlass.model.job import Reason, State
from windlass.model.operations import ChangeQueue, GetQueue, Workers
from windlass.model.queue import QueueChange, Tier

FAST, MEDIUM, SLOW = 0.8, 2.0, 6.0


def regulate(
    workshop: Workshop, slow: int | str = 1, medium: int | str = 2, fast: int | str = "100%", *, times: float = 1.0
) -> None:
    tiers = [
        Tier(name="fast", seconds=FAST * times, cap=fast),
        Tier(name="medium", seconds=MEDIUM * times, cap=medium),
        Tier(name="slow", seconds=SLOW * times, cap=slow),
    ]
    workshop.app.ask(ChangeQueue(queue="default", change=QueueChange(tiers=tiers)))


def run(workshop: Workshop, seconds: float = 60, **options: Any) -> Job[Any]:
    """A job that takes so long, if it is let."""
    job: Job[Any] = workshop.chores.co_nap.using(**options).enqueue(seconds, "job")
    return job


def started(job: Job[Any], within: float = PATIENCE) -> Any:
    """The record of a job that has been claimed."""
    until(lambda: job.state not in (State.QUEUED, State.SCHEDULED), within)
    return job.refresh()


def assigned(job: Job[Any]) -> str | None:
    return job.refresh().assigned


def took(record: Any) -> float:
    return float((record.finished_at - record.started_at).total_seconds())


def waited(record: Any) -> float:
    return float((record.started_at - record.created_at).total_seconds())


def test_s0_1_a_job_is_stopped_at_its_tiers_time_with_an_error_that_names_it(workshop: Workshop) -> None:
    regulate(workshop)
    workshop.start("-c", "3")
    fast, medium = run(workshop, tier="fast"), run(workshop, tier="medium")
    for job, limit in ((fast, FAST), (medium, MEDIUM)):
        record = workshop.ended(job)
        assert (record.state, record.reason) == (State.FAILED, Reason.TIMEOUT)
        assert record.error is not None
        assert f"time limit of {limit:g} s" in record.error.message
        assert limit <= took(record)


def test_s0_2_and_3_g1_flexible_jobs_get_the_longest_tiers_that_have_room(workshop: Workshop) -> None:
    regulate(workshop, times=100)
    workshop.start("-c", "3")
    jobs = []
    for _ in range(3):
        jobs.append(run(workshop))
        started(jobs[-1])
    assert [assigned(job) for job in jobs] == ["slow", "medium", "fast"]


def test_s0_2_on_an_idle_line_a_flexible_job_may_run_as_long_as_the_longest_tier_and_no_longer(
    workshop: Workshop,
) -> None:
    regulate(workshop)
    workshop.start("-c", "1")
    record = workshop.ended(run(workshop))
    assert (record.state, record.reason) == (State.FAILED, Reason.TIMEOUT)
    assert took(record) >= SLOW


def test_s0_9_a_job_that_is_shrunk_below_the_time_it_has_used_stops_at_once(workshop: Workshop) -> None:
    regulate(workshop)
    workshop.start("-c", "1")
    flexible = run(workshop)
    begun = started(flexible).started_at
    until(lambda: (datetime.now(UTC) - begun).total_seconds() > FAST + 0.5)
    fast = run(workshop, 0.1, tier="fast")
    stopped: Any = workshop.ended(flexible)
    next_: Any = workshop.ended(fast)
    assert (stopped.state, stopped.reason) == (State.FAILED, Reason.TIMEOUT)
    assert next_.created_at <= stopped.finished_at, "not before somebody needed the place"
    assert next_.started_at >= stopped.finished_at


def test_s0_4_9_10_13_g2_a_slow_job_takes_time_from_flexible_ones_and_starts_when_one_ends(workshop: Workshop) -> None:
    regulate(workshop)
    workshop.start("-c", "3")
    flexible = []
    for _ in range(3):
        flexible.append(run(workshop))
        started(flexible[-1])
    slow = run(workshop, 3.0, tier="slow")
    until(lambda: [assigned(job) for job in flexible] in (["fast"] * 3, [None] * 3))
    assert slow.state is State.QUEUED or any(job.state is State.FAILED for job in flexible), "there is no place yet"
    records: list[Any] = [workshop.ended(job) for job in flexible]
    for record in records:
        assert (record.state, record.reason) == (State.FAILED, Reason.TIMEOUT)
        assert took(record) >= FAST
    assert started(slow).assigned == "slow"
    last: Any = workshop.ended(slow)
    assert last.state is State.SUCCEEDED
    assert took(last) >= 3.0, "longer than medium allows: nobody took time from it"


def test_s0_5_g3_yielding_jobs_are_denied_at_once_and_time_is_taken_step_by_step(workshop: Workshop) -> None:
    regulate(workshop, times=100)
    workshop.start("-c", "3")
    flexible = run(workshop)
    assert started(flexible).assigned == "slow"
    others = [run(workshop, tier="fast"), run(workshop, tier="fast")]
    for job in others:
        started(job)
    seen = []
    for _ in range(3):
        with pytest.raises(Busy):
            run(workshop, yielding=True)
        seen.append(assigned(flexible))
    assert seen == ["medium", "fast", "fast"]
    assert [job.state for job in others] == [State.RUNNING] * 2, "there was no place all the while"


def test_s0_6_and_16_g4_a_yielding_job_is_halted_for_one_that_waits(workshop: Workshop) -> None:
    regulate(workshop, times=100)
    worker = workshop.start("-c", "3")
    yielding = run(workshop, yielding=True)
    started(yielding)
    others = [run(workshop, tier="fast"), run(workshop, tier="fast")]
    for job in others:
        started(job)
    fast = run(workshop, 0.1, tier="fast")
    record: Any = workshop.ended(yielding)
    assert (record.state, record.reason) == (State.CANCELLED, Reason.HALTED)
    taken: Any = workshop.ended(fast)
    assert taken.state is State.SUCCEEDED
    tell(f"took the place after {waited(taken):.2f} s")
    assert [job.state for job in others] == [State.RUNNING] * 2, "it took the halted one's place, no other was free"
    assert worker.running
    assert taken.worker == record.worker


def test_s0_7_g5_a_medium_job_starts_at_once_where_a_flexible_one_can_be_shrunk(workshop: Workshop) -> None:
    regulate(workshop, slow=1, medium=1)
    workshop.start("-c", "2")
    flexible = run(workshop)
    assert started(flexible).assigned == "slow"
    medium = run(workshop, 1.0, tier="medium")
    record = started(medium)
    assert record.assigned == "medium"
    stopped: Any = workshop.ended(flexible)
    assert (stopped.reason, stopped.assigned) == (Reason.TIMEOUT, None)
    assert record.started_at < stopped.finished_at, "on the other slot: the flexible one ran on to its new end"
    assert took(stopped) >= FAST
    assert workshop.ended(medium).state is State.SUCCEEDED


def test_s0_8_g6_a_fast_job_overtakes_a_slow_one_for_which_there_is_no_room(workshop: Workshop) -> None:
    regulate(workshop, times=100)
    workshop.start("-c", "3")
    long = [run(workshop, tier="slow"), run(workshop, tier="medium")]
    for job in long:
        started(job)
    slow, fast = run(workshop, 0.1, tier="slow"), run(workshop, 0.1, tier="fast")
    assert workshop.ended(fast).state is State.SUCCEEDED
    assert slow.state is State.QUEUED
    assert [assigned(job) for job in long] == ["slow", "medium"], "both still run"
    long[0].cancel()
    last: Any = workshop.ended(slow)
    assert last.state is State.SUCCEEDED
    holder: Any = workshop.ended(long[0])
    assert last.started_at >= holder.finished_at


def test_s0_12_jobs_of_the_same_tier_start_in_order_of_arrival(workshop: Workshop) -> None:
    regulate(workshop)
    jobs = [run(workshop, 0.05, tier="slow") for _ in range(8)]
    workshop.start("-c", "3")
    times = [workshop.ended(job).started_at for job in jobs]
    assert times == sorted(times, key=lambda one: one or 0)


def test_s0_15_a_yielding_job_runs_at_once_where_there_is_a_place(workshop: Workshop) -> None:
    regulate(workshop)
    workshop.start("-c", "1")
    for _ in range(5):
        assert workshop.ended(run(workshop, 0.05, yielding=True)).state is State.SUCCEEDED


def test_without_a_worker_a_yielding_job_is_denied(workshop: Workshop) -> None:
    regulate(workshop)
    with pytest.raises(Busy):
        run(workshop, yielding=True)


def test_unknown_tiers_and_yielding_jobs_where_there_are_none_are_refused_clearly(workshop: Workshop) -> None:
    with pytest.raises(Invalid, match="no tiers"):
        run(workshop, yielding=True)
    regulate(workshop)
    with pytest.raises(Invalid, match=r"'huge' is no tier of this queue: fast \(0.8 s\), medium \(2 s\), slow \(6 s\)"):
        run(workshop, tier="huge")
    with pytest.raises(Invalid, match="is no tier"):
        run(workshop, tier=7.0)


def test_a_tier_may_be_given_in_seconds(workshop: Workshop) -> None:
    regulate(workshop)
    workshop.start("-c", "1")
    job = run(workshop, tier=1.2)
    assert started(job).assigned == "medium"
    assert took(workshop.ended(job)) >= 1.2


def caps(workshop: Workshop) -> dict[str, int]:
    return workshop.app.ask(GetQueue(queue="default")).caps


def test_s0_23_a_worker_that_joins_raises_the_caps_and_waiting_jobs_start_at_once(workshop: Workshop) -> None:
    regulate(workshop, slow="25%", medium="50%", times=100)
    workshop.start("-c", "4")
    assert caps(workshop) == {"fast": 4, "medium": 2, "slow": 1}
    jobs = [run(workshop, tier="slow") for _ in range(2)]
    started(jobs[0])
    assert jobs[1].state is State.QUEUED
    workshop.start("-c", "4")
    assert caps(workshop) == {"fast": 8, "medium": 4, "slow": 2}
    assert started(jobs[1]).assigned == "slow"
    assert jobs[0].state is State.RUNNING, "nobody had to end for it"


def test_s0_24_a_worker_that_leaves_lowers_the_caps_at_once_and_its_job_is_told_to_have_ended(
    workshop: Workshop,
) -> None:
    regulate(workshop, slow="25%", medium="50%")
    for _ in range(2):
        workshop.start("-c", "4")
    last = run(workshop, 3.0, tier="slow")
    workshop.noted("start")
    leaving = process_of(workshop, started(last).worker)
    assert caps(workshop) == {"fast": 8, "medium": 4, "slow": 2}
    leaving.send(signal.SIGTERM)
    leaving.hear("stopping; 1 job")
    others = [run(workshop, 0.1, tier="slow") for _ in range(2)]
    assert leaving.ended() == 0
    assert caps(workshop) == {"fast": 4, "medium": 2, "slow": 1}, "when it is gone, its slots are"
    record = last.refresh()
    assert record.state is State.SUCCEEDED, "and its job is known to have ended"
    for job in others:
        found = workshop.ended(job)
        assert (found.state, found.worker == record.worker) == (State.SUCCEEDED, False), "it took nothing new"


def process_of(workshop: Workshop, worker: str) -> Worker:
    (name,) = [one.name for one in workshop.app.ask(Workers()) if one.id == worker]
    (found,) = [one for one in workshop.workers if name.endswith(f"-{one.pid}")]
    return found


def test_s0_24_a_job_that_a_leaving_worker_cannot_wait_for_does_not_keep_its_place(workshop: Workshop) -> None:
    regulate(workshop)
    leaving = workshop.start("-c", "1")
    long = run(workshop, 5.0, tier="slow")
    workshop.noted("start")
    leaving.send(signal.SIGTERM)
    leaving.hear("stopping; 1 job")
    leaving.send(signal.SIGTERM)
    assert leaving.ended() == 0
    record = long.refresh()
    assert (record.state, record.assigned) == (State.QUEUED, None), "it was given back, and is told to run no more"
    workshop.start("-c", "1")
    again: Any = workshop.ended(long)
    assert again.state is State.SUCCEEDED
    assert again.attempt == 1, "nobody did anything wrong"


def test_s0_25_a_worker_that_is_killed_lowers_the_caps_when_its_lease_is_over(workshop: Workshop) -> None:
    regulate(workshop, slow="25%", medium="50%")
    killed = workshop.start("-c", "4", lease="4s")
    workshop.start("-c", "4", lease="4s")
    assert caps(workshop) == {"fast": 8, "medium": 4, "slow": 2}
    killed.send(signal.SIGKILL)
    until(lambda: caps(workshop) == {"fast": 4, "medium": 2, "slow": 1})
