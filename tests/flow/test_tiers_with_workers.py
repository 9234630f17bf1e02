"""Tiers with real workers, on each kind of store: the checklist of S0, with shorter times.

Fast 0.8 s, medium 2 s, slow 6 s; at most 1 slow, 2 slow or medium, 3 in all, unless a test says otherwise. Where
no job may be stopped by time, the times are a hundred times as long, and jobs run until the test is over.
"""

import signal
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from typing import Any

import pytest

from tests.support.engines import packed
from tests.support.patience import PATIENCE
from tests.support.worker_harness import Worker, WorkerHarness, tell, until
from windlass.app import Windlass
from windlass.job_handle import Job
from windlass.model.errors import Busy, Invalid
from windlass.model.job import Reason, State
from windlass.model.new_job import NewJob
from windlass.model.operations import ChangeQueue, Enqueue, GetQueue, Workers
from windlass.model.queue import QueueChange, Tier

FAST, MEDIUM, SLOW = 0.8, 2.0, 6.0


def regulate(
    harness: WorkerHarness, slow: int | str = 1, medium: int | str = 2, fast: int | str = "100%", *, times: float = 1.0
) -> None:
    tiers = [
        Tier(name="fast", seconds=FAST * times, cap=fast),
        Tier(name="medium", seconds=MEDIUM * times, cap=medium),
        Tier(name="slow", seconds=SLOW * times, cap=slow),
    ]
    harness.app.ask(ChangeQueue(queue="default", change=QueueChange(tiers=tiers)))


def run(harness: WorkerHarness, seconds: float = 60, **options: Any) -> Job[Any]:
    """A job that takes so long, if it is let."""
    job: Job[Any] = harness.tasks.co_nap.using(**options).enqueue(seconds, "job")
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


def test_s0_1_a_job_is_stopped_at_its_tiers_time_with_an_error_that_names_it(harness: WorkerHarness) -> None:
    regulate(harness)
    harness.start("-c", "3")
    fast, medium = run(harness, tier="fast"), run(harness, tier="medium")
    for job, limit in ((fast, FAST), (medium, MEDIUM)):
        record = harness.ended(job)
        assert (record.state, record.reason) == (State.FAILED, Reason.TIMEOUT)
        assert record.error is not None
        assert f"time limit of {limit:g} s" in record.error.message
        assert limit <= took(record)


def test_s0_2_and_3_g1_flexible_jobs_get_the_longest_tiers_that_have_room(harness: WorkerHarness) -> None:
    regulate(harness, times=100)
    harness.start("-c", "3")
    jobs = []
    for _ in range(3):
        jobs.append(run(harness))
        started(jobs[-1])
    assert [assigned(job) for job in jobs] == ["slow", "medium", "fast"]


def test_s0_2_on_an_idle_line_a_flexible_job_may_run_as_long_as_the_longest_tier_and_no_longer(
    harness: WorkerHarness,
) -> None:
    regulate(harness)
    harness.start("-c", "1")
    record = harness.ended(run(harness))
    assert (record.state, record.reason) == (State.FAILED, Reason.TIMEOUT)
    assert took(record) >= SLOW


def test_s0_9_a_job_that_is_shrunk_below_the_time_it_has_used_stops_at_once(harness: WorkerHarness) -> None:
    regulate(harness)
    harness.start("-c", "1")
    flexible = run(harness)
    begun = started(flexible).started_at
    until(lambda: (datetime.now(UTC) - begun).total_seconds() > FAST + 0.5)
    fast = run(harness, 0.1, tier="fast")
    stopped: Any = harness.ended(flexible)
    next_: Any = harness.ended(fast)
    assert (stopped.state, stopped.reason) == (State.FAILED, Reason.TIMEOUT)
    assert next_.created_at <= stopped.finished_at, "not before another job needed the place"
    # It may be claimed while the end of the other is on its way to the store.
    assert next_.finished_at >= stopped.finished_at


def test_s0_4_9_10_13_g2_a_slow_job_takes_time_from_flexible_ones_and_starts_when_one_ends(
    harness: WorkerHarness,
) -> None:
    regulate(harness)
    harness.start("-c", "3")
    flexible = []
    for _ in range(3):
        flexible.append(run(harness))
        started(flexible[-1])
    slow = run(harness, 3.0, tier="slow")
    until(lambda: [assigned(job) for job in flexible] in (["fast"] * 3, [None] * 3))
    assert slow.state is State.QUEUED or any(job.state is State.FAILED for job in flexible), "there is no place yet"
    records: list[Any] = [harness.ended(job) for job in flexible]
    for record in records:
        assert (record.state, record.reason) == (State.FAILED, Reason.TIMEOUT)
        assert took(record) >= FAST
    assert started(slow).assigned == "slow"
    last: Any = harness.ended(slow)
    assert last.state is State.SUCCEEDED
    assert took(last) >= 3.0, "longer than medium allows: it was not shrunk"


def test_s0_5_g3_yielding_jobs_are_denied_at_once_and_time_is_taken_step_by_step(harness: WorkerHarness) -> None:
    regulate(harness, times=100)
    harness.start("-c", "3")
    flexible = run(harness)
    assert started(flexible).assigned == "slow"
    others = [run(harness, tier="fast"), run(harness, tier="fast")]
    for job in others:
        started(job)
    seen = []
    for _ in range(3):
        with pytest.raises(Busy):
            run(harness, yielding=True)
        seen.append(assigned(flexible))
    assert seen == ["medium", "fast", "fast"]
    assert [job.state for job in others] == [State.RUNNING] * 2, "there was no place all the while"


def test_s0_6_and_16_g4_a_yielding_job_is_halted_for_one_that_waits(harness: WorkerHarness) -> None:
    regulate(harness, times=100)
    worker = harness.start("-c", "3")
    yielding = run(harness, yielding=True)
    started(yielding)
    others = [run(harness, tier="fast"), run(harness, tier="fast")]
    for job in others:
        started(job)
    fast = run(harness, 0.1, tier="fast")
    record: Any = harness.ended(yielding)
    assert (record.state, record.reason) == (State.CANCELLED, Reason.HALTED)
    taken: Any = harness.ended(fast)
    assert taken.state is State.SUCCEEDED
    tell(f"took the place after {waited(taken):.2f} s")
    assert [job.state for job in others] == [State.RUNNING] * 2, "it took the halted one's place, no other was free"
    assert worker.running
    assert taken.worker == record.worker


def test_s0_7_g5_a_medium_job_starts_at_once_where_a_flexible_one_can_be_shrunk(harness: WorkerHarness) -> None:
    regulate(harness, slow=1, medium=1, times=4)
    harness.start("-c", "2")
    flexible = run(harness)
    assert started(flexible).assigned == "slow"
    medium = run(harness, 4.0, tier="medium")
    record = started(medium)
    assert record.assigned == "medium"
    stopped: Any = harness.ended(flexible)
    assert (stopped.reason, stopped.assigned) == (Reason.TIMEOUT, None)
    assert record.started_at < stopped.finished_at, "on the other slot: the flexible one ran on to its new end"
    assert took(stopped) >= 4 * FAST
    assert harness.ended(medium).state is State.SUCCEEDED


def test_s0_8_g6_a_fast_job_overtakes_a_slow_one_for_which_there_is_no_room(harness: WorkerHarness) -> None:
    regulate(harness, times=100)
    harness.start("-c", "3")
    long = [run(harness, tier="slow"), run(harness, tier="medium")]
    for job in long:
        started(job)
    slow, fast = run(harness, 0.1, tier="slow"), run(harness, 0.1, tier="fast")
    assert harness.ended(fast).state is State.SUCCEEDED
    assert slow.state is State.QUEUED
    assert [assigned(job) for job in long] == ["slow", "medium"], "both still run"
    long[0].cancel()
    last: Any = harness.ended(slow)
    assert last.state is State.SUCCEEDED
    holder: Any = harness.ended(long[0])
    assert last.started_at >= holder.finished_at


def test_s0_12_jobs_of_the_same_tier_start_in_order_of_arrival(harness: WorkerHarness) -> None:
    regulate(harness)
    jobs = [run(harness, 0.05, tier="slow") for _ in range(8)]
    harness.start("-c", "3")
    times = [harness.ended(job).started_at for job in jobs]
    assert times == sorted(times, key=lambda one: one or 0)


def test_s0_15_a_yielding_job_runs_at_once_where_there_is_a_place(harness: WorkerHarness) -> None:
    regulate(harness)
    harness.start("-c", "1")
    for _ in range(5):
        assert harness.ended(run(harness, 0.05, yielding=True)).state is State.SUCCEEDED


def test_s0_15_of_five_callers_with_connections_of_their_own_one_gets_the_slot(harness: WorkerHarness) -> None:
    regulate(harness, times=100)
    harness.start("-c", "1")
    apps = [Windlass(harness.app.store, tenant=harness.tenant) for _ in range(5)]

    def ask(app: Windlass) -> str | None:
        try:
            return app.ask(Enqueue(job=NewJob(task="co_nap", payload=packed([60, "job"]), yielding=True))).id
        except Busy:
            return None

    with ThreadPoolExecutor(5) as callers:
        for _ in range(3):
            (accepted,) = [id for id in callers.map(ask, apps) if id is not None]
            job = harness.app.job(accepted)
            assert started(job).state is State.RUNNING
            job.cancel()
            harness.ended(job)
    for app in apps:
        app.close()


def test_without_a_worker_a_yielding_job_is_denied(harness: WorkerHarness) -> None:
    regulate(harness)
    with pytest.raises(Busy):
        run(harness, yielding=True)


def test_unknown_tiers_and_yielding_jobs_where_there_are_none_are_refused_clearly(harness: WorkerHarness) -> None:
    with pytest.raises(Invalid, match="no tiers"):
        run(harness, yielding=True)
    regulate(harness)
    with pytest.raises(Invalid, match=r"'huge' is no tier of this queue: fast \(0.8 s\), medium \(2 s\), slow \(6 s\)"):
        run(harness, tier="huge")
    with pytest.raises(Invalid, match="is no tier"):
        run(harness, tier=7.0)


def test_a_tier_may_be_given_in_seconds(harness: WorkerHarness) -> None:
    regulate(harness, times=100)
    harness.start("-c", "1")
    job = run(harness, tier=120.0)
    assert started(job).assigned == "medium"
    job.cancel()
    harness.ended(job)
    regulate(harness)
    assert took(harness.ended(run(harness, tier=1.2))) >= 1.2


def caps(harness: WorkerHarness) -> dict[str, int]:
    return harness.app.ask(GetQueue(queue="default")).caps


def test_s0_23_a_worker_that_joins_raises_the_caps_and_waiting_jobs_start_at_once(harness: WorkerHarness) -> None:
    regulate(harness, slow="25%", medium="50%", times=100)
    harness.start("-c", "4")
    assert caps(harness) == {"fast": 4, "medium": 2, "slow": 1}
    jobs = [run(harness, tier="slow") for _ in range(2)]
    started(jobs[0])
    assert jobs[1].state is State.QUEUED
    harness.start("-c", "4")
    assert caps(harness) == {"fast": 8, "medium": 4, "slow": 2}
    assert started(jobs[1]).assigned == "slow"
    assert jobs[0].state is State.RUNNING, "no job had to end for it"


def test_s0_23_no_flexible_job_is_shrunk_while_a_worker_that_joins_has_a_place(harness: WorkerHarness) -> None:
    regulate(harness, slow="50%", medium="100%", times=100)
    harness.start("-c", "2")
    flexible = run(harness)
    assert started(flexible).assigned == "slow"
    other = Windlass(harness.app.store, tenant=harness.tenant)
    for _ in range(4):
        joined = harness.start_raw("-c", "2")
        until(lambda: caps(harness)["slow"] == 2)
        new = [
            app.ask(Enqueue(job=NewJob(task="co_nap", payload=packed([600, "job"]), tier=tier)))
            for app, tier in ((other, "slow"), (harness.app, None))
        ]
        jobs = [harness.app.job(one.id) for one in new]
        assert [started(job).assigned for job in jobs] == ["slow", "medium"]
        assert assigned(flexible) == "slow"
        for job in jobs:
            job.cancel()
            harness.ended(job)
        assert joined.stop() == 0
        until(lambda: caps(harness)["slow"] == 1)
    other.close()


def test_s0_24_a_worker_that_leaves_lowers_the_caps_at_once_and_its_job_has_ended(
    harness: WorkerHarness,
) -> None:
    regulate(harness, slow="25%", medium="50%", times=100)
    for _ in range(2):
        harness.start("-c", "4")
    last = harness.tasks.co_stay.using(tier="slow").enqueue("last")
    harness.noted("start")
    leaving = process_of(harness, started(last).worker)
    assert caps(harness) == {"fast": 8, "medium": 4, "slow": 2}
    leaving.send(signal.SIGTERM)
    leaving.hear("stopping; 1 job")
    others = [run(harness, 0.1, tier="slow") for _ in range(2)]
    (harness.folder / "let go").touch()
    assert leaving.ended() == 0
    assert caps(harness) == {"fast": 4, "medium": 2, "slow": 1}, "when it is gone, its slots are"
    record = last.refresh()
    assert record.state is State.SUCCEEDED, "and its job is known to have ended"
    for job in others:
        found = harness.ended(job)
        assert (found.state, found.worker == record.worker) == (State.SUCCEEDED, False), "it took nothing new"


def process_of(harness: WorkerHarness, worker: str) -> Worker:
    (name,) = [one.name for one in harness.app.ask(Workers()) if one.id == worker]
    (found,) = [one for one in harness.workers if name.endswith(f"-{one.pid}")]
    return found


def test_s0_24_a_job_that_a_leaving_worker_cannot_wait_for_does_not_keep_its_place(harness: WorkerHarness) -> None:
    regulate(harness, times=100)
    leaving = harness.start("-c", "1")
    long = harness.tasks.co_stay.using(tier="slow").enqueue("long")
    harness.noted("start")
    leaving.send(signal.SIGTERM)
    leaving.hear("stopping; 1 job")
    leaving.send(signal.SIGTERM)
    assert leaving.ended() == 0
    record = long.refresh()
    assert (record.state, record.assigned) == (State.QUEUED, None), "it was released"
    (harness.folder / "let go").touch()
    harness.start("-c", "1")
    again: Any = harness.ended(long)
    assert again.state is State.SUCCEEDED
    assert again.attempt == 1, "no attempt was used up"


def test_s0_25_a_worker_that_is_killed_lowers_the_caps_when_its_lease_is_over(harness: WorkerHarness) -> None:
    regulate(harness, slow="25%", medium="50%")
    killed = harness.start("-c", "4", lease="4s")
    harness.start("-c", "4", lease="4s")
    assert caps(harness) == {"fast": 8, "medium": 4, "slow": 2}
    killed.send(signal.SIGKILL)
    until(lambda: caps(harness) == {"fast": 4, "medium": 2, "slow": 1})
