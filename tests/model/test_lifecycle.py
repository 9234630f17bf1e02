"""The life of a job, decided without a store: every pair of the table, and every function that makes a move."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from itertools import pairwise, product
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from windlass.model.dependency import find_cycle, unblock
from windlass.model.errors import Conflict
from windlass.model.job import FINISHED, Error, Job, Reason, State
from windlass.model.lifecycle import (
    GONE,
    MOST_CRASHES,
    MOST_LOSSES,
    STOP_ORDERS,
    TABLE,
    Gone,
    Move,
    Step,
    abandon,
    cancel,
    delete,
    enter,
    expire,
    fail_by_hand,
    finish,
    lose,
    next_state,
    release,
    rerun,
    reruns,
    touch_owner,
)
from windlass.model.new_job import NewJob, OnLost
from windlass.model.outcome import Outcome, Verdict
from windlass.model.retry import FROM_START, UNTIL_DEADLINE, RetryPolicy, backoff

BORN = datetime(2026, 1, 1, tzinfo=UTC)
NOW = BORN + timedelta(seconds=100)

DRAWING = """
            blocked    scheduled  queued     running    succeeded  failed     cancelled
meet        blocked    .          .          .          .          .          .
unblock     queued     .          .          .          .          .          .
miss        failed     .          .          .          .          .          .
promote     .          queued     .          .          .          .          .
defer       .          scheduled  scheduled  .          .          .          .
claim       .          .          running    .          .          .          .
succeed     .          .          .          succeeded  .          .          .
fail        .          .          .          failed     .          .          .
retry       .          .          .          scheduled  .          .          .
reclaim     .          .          .          queued     .          .          .
release     .          .          .          queued     .          .          .
snooze      .          .          .          scheduled  .          .          .
shrink      .          .          .          running    .          .          .
lower       .          .          .          running    .          .          .
halt        .          .          .          running    .          .          .
adopt       .          .          .          running    .          .          .
cancel      cancelled  cancelled  cancelled  running    .          .          .
stop        .          .          .          cancelled  .          .          .
expire      failed     failed     failed     .          .          .          .
touch_owner blocked    scheduled  queued     running    .          .          .
abandon     cancelled  cancelled  cancelled  running    .          .          .
rerun       .          .          .          .          queued     queued     queued
edit        blocked    scheduled  queued     running    succeeded  failed     cancelled
delete      gone       gone       gone       running    gone       gone       gone
"""


def drawn() -> dict[tuple[str, str], str]:
    head, *rows = DRAWING.strip("\n").splitlines()
    states = head.split()
    return {
        (state, row.split()[0]): target for row in rows for state, target in zip(states, row.split()[1:], strict=True)
    }


def a_job(state: State = State.RUNNING, **fields: Any) -> Job:
    usual: dict[str, Any] = {"attempt": 1, "started_at": BORN + timedelta(seconds=90), "worker": "w1"}
    if state is not State.RUNNING:
        usual = {}
    known: dict[str, Any] = {"task": "work", "id": "j1", "tenant": "default", "created_at": BORN, "updated_at": BORN}
    return Job(**known | usual | {"state": state} | fields)


def said(verdict: Verdict, **more: Any) -> Outcome:
    return Outcome(verdict=verdict, **more)


def seconds_from_now(move: Move) -> float:
    assert move.run_at is not None
    return (move.run_at - NOW).total_seconds()


# The table


@pytest.mark.parametrize(
    ("asked", "state", "due"),
    [
        ({}, State.QUEUED, None),
        ({"delay": 0.0}, State.QUEUED, None),
        ({"delay": 1.5}, State.SCHEDULED, 1.5),
        ({"run_at": -1.0}, State.QUEUED, None),
        ({"run_at": 0.0}, State.QUEUED, None),
        ({"run_at": 60.0}, State.SCHEDULED, 60.0),
        ({"after": ["00000000-0000-7000-8000-0000000000df"]}, State.BLOCKED, None),
    ],
)
def test_a_new_job_is_blocked_scheduled_or_queued(asked: dict[str, Any], state: State, due: float | None) -> None:
    now = datetime(2026, 1, 1, tzinfo=UTC)
    if "run_at" in asked:
        asked = {"run_at": now + timedelta(seconds=asked["run_at"])}
    due_at = None if due is None else now + timedelta(seconds=due)
    assert enter(NewJob(task="a", **asked), now) == (state, due_at)


@pytest.mark.parametrize(("state", "step"), list(product(State, Step)))
def test_the_table_is_as_drawn(state: State, step: Step) -> None:
    target = drawn()[state, step]
    if target != ".":
        assert next_state(state, step) == target
        return
    with pytest.raises(Conflict, match=f"a {state} job cannot {step}"):
        next_state(state, step)


def test_the_table_has_nothing_that_is_not_drawn() -> None:
    assert {(str(state), str(step)) for state, step in TABLE} == {pair for pair, to in drawn().items() if to != "."}


def test_every_state_can_be_reached_and_left() -> None:
    assert {target for target in TABLE.values() if target is not GONE} | {State.BLOCKED} == set(State)
    assert {state for state, _ in TABLE} == set(State)


# How an attempt ends: (the job, what its worker says) -> what becomes of it


GOLDEN: list[tuple[str, dict[str, Any], Outcome, State | Gone, Reason | None, dict[str, Any]]] = [
    (
        "a success",
        {},
        said(Verdict.OK),
        State.SUCCEEDED,
        None,
        {"code": 200, "keep": 86400.0, "error": None},
    ),
    (
        "a success with a code of its own",
        {"keep_success": None},
        said(Verdict.OK, code=204),
        State.SUCCEEDED,
        None,
        {"code": 204, "keep": None},
    ),
    (
        "a success that was told to stop, too late",
        {"reason": Reason.CANCELLED},
        said(Verdict.OK),
        State.SUCCEEDED,
        None,
        {"keep": 86400.0},
    ),
    (
        "a success that was deleted meanwhile",
        {"reason": Reason.DELETED},
        said(Verdict.OK),
        State.SUCCEEDED,
        None,
        {"keep": 0.0},
    ),
    (
        "a final failure, whatever re-runs are left",
        {"max_retry": 5},
        said(Verdict.FAILED),
        State.FAILED,
        Reason.FAILED,
        {"code": 400, "keep": 7 * 86400.0},
    ),
    ("an error without re-runs", {}, said(Verdict.ERROR), State.FAILED, Reason.ERROR, {"code": 500}),
    ("a retry without re-runs", {}, said(Verdict.RETRY), State.FAILED, Reason.RETRY, {"code": 100}),
    ("an error with re-runs left", {"max_retry": 1}, said(Verdict.ERROR), State.SCHEDULED, Reason.ERROR, {"code": 500}),
    ("a retry with re-runs left", {"max_retry": 1}, said(Verdict.RETRY), State.SCHEDULED, Reason.RETRY, {"code": 100}),
    (
        "an error of the last re-run",
        {"max_retry": 2, "attempt": 3},
        said(Verdict.ERROR),
        State.FAILED,
        Reason.ERROR,
        {"attempt": 3},
    ),
    (
        "an error with endless re-runs",
        {"max_retry": None, "attempt": 10_000},
        said(Verdict.ERROR),
        State.SCHEDULED,
        Reason.ERROR,
        {},
    ),
    (
        "an error after crashes and losses, which use no re-run",
        {"max_retry": 1, "attempt": 6, "crashes": 2, "losses": 3},
        said(Verdict.ERROR),
        State.SCHEDULED,
        Reason.ERROR,
        {"crashes": 2, "losses": 3},
    ),
    (
        "a timeout is an error with a name",
        {"max_retry": 1},
        said(Verdict.ERROR, reason=Reason.TIMEOUT),
        State.SCHEDULED,
        Reason.TIMEOUT,
        {},
    ),
    (
        "a timeout without re-runs",
        {},
        said(Verdict.ERROR, reason=Reason.TIMEOUT),
        State.FAILED,
        Reason.TIMEOUT,
        {},
    ),
    (
        "the first crash, without re-runs",
        {},
        said(Verdict.ERROR, reason=Reason.CRASHED),
        State.QUEUED,
        Reason.CRASHED,
        {"crashes": 1, "attempt": 1},
    ),
    (
        "the third crash, with re-runs left",
        {"max_retry": 9, "crashes": 2, "attempt": 3},
        said(Verdict.ERROR, reason=Reason.CRASHED),
        State.FAILED,
        Reason.CRASHED,
        {"crashes": 3},
    ),
    (
        "an error of a job that was told to stop",
        {"max_retry": 5, "reason": Reason.CANCELLED},
        said(Verdict.ERROR),
        State.CANCELLED,
        Reason.CANCELLED,
        {"keep": 7 * 86400.0},
    ),
    (
        "a crash of a job that was told to stop",
        {"reason": Reason.HALTED},
        said(Verdict.ERROR, reason=Reason.CRASHED),
        State.CANCELLED,
        Reason.HALTED,
        {"crashes": 0},
    ),
    (
        "an error of a job that was deleted meanwhile",
        {"max_retry": 5, "reason": Reason.DELETED},
        said(Verdict.ERROR),
        State.CANCELLED,
        Reason.DELETED,
        {"keep": 0.0},
    ),
    (
        "an error whose re-run would come after the deadline",
        {"max_retry": None, "retry": RetryPolicy(base=10, jitter=0, deadline=109.9)},
        said(Verdict.ERROR),
        State.FAILED,
        Reason.DEADLINE,
        {},
    ),
    (
        "an error whose re-run comes just before the deadline",
        {"max_retry": None, "retry": RetryPolicy(base=10, jitter=0, deadline=110.0)},
        said(Verdict.ERROR),
        State.SCHEDULED,
        Reason.ERROR,
        {},
    ),
    (
        "a wait asked for beyond the deadline",
        {"max_retry": None, "retry": RetryPolicy(deadline=200.0)},
        said(Verdict.RETRY, delay=500.0),
        State.FAILED,
        Reason.DEADLINE,
        {},
    ),
    (
        "an error without re-runs, past the deadline, names the error",
        {"max_retry": 0, "retry": RetryPolicy(deadline=1.0)},
        said(Verdict.ERROR),
        State.FAILED,
        Reason.ERROR,
        {},
    ),
]


@pytest.mark.parametrize(
    ("job", "outcome", "target", "reason", "more"), [row[1:] for row in GOLDEN], ids=[row[0] for row in GOLDEN]
)
def test_what_becomes_of(
    job: dict[str, Any], outcome: Outcome, target: State | Gone, reason: Reason | None, more: dict[str, Any]
) -> None:
    move = finish(a_job(**job), outcome, NOW, 0.0)
    assert (move.target, move.reason) == (target, reason)
    assert {name: getattr(move, name) for name in more} == more


ENDS = list(
    product(
        Verdict,
        (None, Reason.TIMEOUT, Reason.CRASHED),
        (0, 2, None),  # max_retry
        (0, 1, 2),  # crashes so far
        (0, 1, 5),  # re-runs so far
        (None, *STOP_ORDERS),
        (None, 50.0, 10_000.0),  # retry deadline: none, passed, far
    )
)


def test_every_end_keeps_the_rules() -> None:
    for verdict, reason, most, crashes, used, order, deadline in ENDS:
        attempt = 1 + crashes + used
        job = a_job(
            attempt=attempt,
            crashes=crashes,
            reason=order,
            max_retry=most,
            retry=RetryPolicy(deadline=deadline, jitter=0),
        )
        move = finish(job, said(verdict, reason=reason), NOW, 0.0)
        where = f"{verdict} {reason} max_retry={most} crashes={crashes} used={used} {order} deadline={deadline}"

        assert (move.id, move.source, move.attempt_before) == ("j1", State.RUNNING, attempt), where
        assert move.target == TABLE[State.RUNNING, move.step], where
        assert move.attempt == attempt, where
        assert move.losses == 0, where
        assert (move.error is None) == (verdict is Verdict.OK), where
        if order is Reason.DELETED:
            assert move.keep == 0, where
        elif move.target in FINISHED:
            assert move.keep == (job.keep_success if verdict is Verdict.OK else job.keep_failure), where

        crashed = verdict is not Verdict.OK and reason is Reason.CRASHED and order is None
        assert move.crashes == crashes + crashed, where
        if verdict is Verdict.OK:
            assert move.target is State.SUCCEEDED, where
        elif order:
            assert (move.target, move.reason) == (State.CANCELLED, order), where
        elif crashed:
            assert move.target is (State.QUEUED if crashes < 2 else State.FAILED), where
        else:
            again = verdict is not Verdict.FAILED and (most is None or used < most) and deadline != 50.0
            assert move.target is (State.SCHEDULED if again else State.FAILED), where


def test_an_error_is_kept_as_text_with_its_attempt_reason_and_time() -> None:
    given_error = Error(type="ValueError", message="no", traceback="line 1", attempt=77, at=BORN)
    move = finish(a_job(attempt=4), said(Verdict.ERROR, error=given_error), NOW, 0.0)
    assert move.error == Error(
        type="ValueError", message="no", traceback="line 1", reason=Reason.ERROR, attempt=4, at=NOW, worker="w1"
    )


def test_a_failure_without_words_still_leaves_an_entry() -> None:
    move = finish(a_job(), said(Verdict.ERROR, reason=Reason.TIMEOUT), NOW, 0.0)
    assert move.error == Error(reason=Reason.TIMEOUT, attempt=1, at=NOW, worker="w1")


def test_a_wait_that_the_task_asks_for_is_kept_exactly() -> None:
    move = finish(a_job(max_retry=1), said(Verdict.RETRY, delay=5.0), NOW, 0.99)
    assert seconds_from_now(move) == 5.0


def test_a_wait_of_nothing_is_a_wait_too() -> None:
    move = finish(a_job(max_retry=1), said(Verdict.RETRY, delay=0.0), NOW, 0.99)
    assert (move.target, move.run_at) == (State.SCHEDULED, NOW)


# Waiting between runs


def starts(job: Job, lasting: float) -> tuple[list[float], Move]:
    """Seconds after its birth at which a job that always fails is started, and the move that ends it."""
    seen = []
    now = BORN
    while True:
        job = replace(job, attempt=job.attempt + 1, started_at=now)
        seen.append((now - BORN).total_seconds())
        move = finish(job, said(Verdict.ERROR), now + timedelta(seconds=lasting), 0.5)
        if move.target is not State.SCHEDULED:
            return seen, move
        assert move.run_at is not None
        now = max(move.run_at, now + timedelta(seconds=lasting))


def test_runs_counted_from_their_start_come_20_40_80_apart() -> None:
    seen, _ = starts(a_job(attempt=0, max_retry=6, retry=FROM_START), lasting=3)
    assert [later - earlier for earlier, later in pairwise(seen)] == [20, 40, 80, 160, 320, 640]


def test_a_run_longer_than_its_wait_is_followed_at_once() -> None:
    job = a_job(max_retry=1, retry=FROM_START, started_at=NOW - timedelta(seconds=60))
    move = finish(job, said(Verdict.ERROR), NOW, 0.0)
    assert (move.target, seconds_from_now(move)) == (State.SCHEDULED, -40.0)


def test_runs_until_a_deadline_come_every_five_minutes_for_six_hours() -> None:
    seen, last = starts(a_job(attempt=0, max_retry=None, retry=UNTIL_DEADLINE), lasting=0)
    assert seen == [300.0 * n for n in range(73)]
    assert (last.target, last.reason) == (State.FAILED, Reason.DEADLINE)


def test_the_default_waits_double_from_ten_seconds_up_to_an_hour() -> None:
    waits = [backoff(RetryPolicy(), rerun, 0.0) for rerun in range(10)]
    assert waits == [10, 20, 40, 80, 160, 320, 640, 1280, 2560, 3600]


RETRIES = st.builds(
    RetryPolicy,
    base=st.floats(0, 10_000),
    factor=st.floats(1, 100),
    cap=st.floats(0, 100_000),
    jitter=st.floats(0, 1),
)


@given(RETRIES, st.integers(0, 50), st.floats(0, 1, exclude_max=True))
def test_jitter_only_stretches_and_never_beyond_its_share(retry: RetryPolicy, rerun_number: int, chance: float) -> None:
    plain = min(retry.cap, retry.base * retry.factor**rerun_number)
    wait = backoff(retry, rerun_number, chance)
    assert plain <= wait <= plain * (1 + retry.jitter)


@given(RETRIES, st.integers(0, 1_000_000), st.floats(0, 1, exclude_max=True))
def test_no_number_of_re_runs_is_too_large_to_reckon_with(retry: RetryPolicy, rerun_number: int, chance: float) -> None:
    assert 0 <= backoff(retry, rerun_number, chance) <= 2 * retry.cap


@pytest.mark.parametrize("rerun_number", [0, 1, 1023, 1024, 100_000, 1_000_000])
def test_a_base_of_nothing_never_waits(rerun_number: int) -> None:
    assert backoff(RetryPolicy(base=0), rerun_number, 0.5) == 0


def test_the_millionth_re_run_is_still_a_date() -> None:
    job = a_job(attempt=1_000_000, max_retry=None, retry=RetryPolicy(factor=100, cap=3600, jitter=0))
    assert seconds_from_now(finish(job, said(Verdict.ERROR), NOW, 0.0)) == 3600


# Crashes and losses


def test_the_third_crash_is_the_last_whatever_max_retry_says() -> None:
    job = a_job(max_retry=100)
    targets = []
    for _ in range(MOST_CRASHES):
        move = finish(job, said(Verdict.ERROR, reason=Reason.CRASHED), NOW, 0.0)
        targets.append(move.target)
        job = replace(job, crashes=move.crashes, attempt=move.attempt + 1)
    assert targets == [State.QUEUED, State.QUEUED, State.FAILED]


def test_the_tenth_loss_is_the_last() -> None:
    job = a_job()
    targets = []
    for _ in range(MOST_LOSSES):
        move = lose(job, NOW)
        targets.append(move.target)
        job = replace(job, losses=move.losses, attempt=move.attempt + 1)
    assert targets == [State.QUEUED] * 9 + [State.FAILED]


def test_a_lost_job_goes_back_at_once_and_says_so() -> None:
    move = lose(a_job(attempt=2, losses=1, run_at=BORN, code=500), NOW)
    assert (move.step, move.target, move.reason) == (Step.RECLAIM, State.QUEUED, Reason.LOST)
    assert (move.attempt, move.losses, move.run_at, move.code) == (2, 2, BORN, 500)
    assert move.error is not None
    assert (move.error.reason, move.error.attempt, move.error.at) == (Reason.LOST, 2, NOW)


AT_MOST_ONCE = pytest.mark.parametrize("on_lost", ["fail", "adopt"])


@pytest.mark.parametrize("on_lost", ["retry", "requeue", "fail", "adopt"])
@pytest.mark.parametrize("order", [None, *sorted(STOP_ORDERS)])
def test_a_loss_is_only_written_while_the_lease_is_out(on_lost: OnLost, order: Reason | None) -> None:
    assert lose(a_job(reason=order), NOW, on_lost).lapsed == "lease"


@AT_MOST_ONCE
def test_a_queue_may_have_lost_jobs_fail(on_lost: OnLost) -> None:
    move = lose(a_job(pid=7), NOW, on_lost)
    assert (move.target, move.reason, move.losses, move.keep) == (State.FAILED, Reason.LOST, 1, 7 * 86400.0)


def test_a_queue_may_have_lost_jobs_back_as_if_never_run() -> None:
    move = lose(a_job(attempt=3, losses=MOST_LOSSES, pid=7), NOW, "requeue")
    assert (move.target, move.attempt, move.losses, move.outcome) == (State.QUEUED, 2, MOST_LOSSES, None)


@AT_MOST_ONCE
def test_a_lost_job_that_had_not_begun_does_not_fail(on_lost: OnLost) -> None:
    move = lose(a_job(attempt=3, losses=1), NOW, on_lost)
    assert (move.target, move.attempt, move.losses, move.outcome) == (State.QUEUED, 2, 1, None)
    assert move.error is not None
    assert move.error.message.endswith("its code had not begun")


@AT_MOST_ONCE
@pytest.mark.parametrize("max_retry", [0, 5, None])
def test_a_job_that_may_not_run_again_fails_at_its_first_crash(max_retry: int | None, on_lost: OnLost) -> None:
    move = finish(a_job(max_retry=max_retry), said(Verdict.ERROR, reason=Reason.CRASHED), NOW, 0.0, on_lost)
    assert (move.target, move.reason, move.crashes) == (State.FAILED, Reason.CRASHED, 1)


def test_what_such_a_job_says_itself_is_retried_as_ever() -> None:
    assert finish(a_job(max_retry=1), said(Verdict.ERROR), NOW, 0.0, "fail").target is State.SCHEDULED
    assert release(a_job(pid=7), NOW, 30.0, on_lost="fail").target is State.SCHEDULED


@AT_MOST_ONCE
def test_a_stopped_job_that_may_not_run_again_has_failed(on_lost: OnLost) -> None:
    move = release(a_job(pid=7, losses=1), NOW, stopped="its worker stopped", on_lost=on_lost)
    assert (move.target, move.reason, move.losses) == (State.FAILED, Reason.LOST, 2)
    assert move.outcome is Verdict.ERROR


def test_a_stopped_job_says_where_it_ran() -> None:
    move = release(a_job(attempt=3, worker="w", node="n", pid=7), NOW, stopped="its worker stopped")
    assert (move.target, move.reason, move.attempt) == (State.QUEUED, Reason.RELEASED, 2)
    where = Error(message="its worker stopped", reason=Reason.RELEASED, attempt=3, at=NOW, worker="w", node="n", pid=7)
    assert move.error == where


@pytest.mark.parametrize("order", sorted(STOP_ORDERS))
def test_a_lost_job_with_an_order_to_stop_has_stopped(order: Reason) -> None:
    move = lose(a_job(reason=order, losses=1), NOW)
    assert (move.step, move.target, move.reason, move.losses) == (Step.STOP, State.CANCELLED, order, 1)


@given(st.integers(0, 20), st.integers(0, 20), st.integers(0, 20))
def test_deaths_and_losses_are_no_re_runs(runs: int, crashes: int, losses: int) -> None:
    assert reruns(a_job(attempt=1 + runs + crashes + losses, crashes=crashes, losses=losses)) == runs


def test_before_its_first_run_a_job_has_used_no_re_run() -> None:
    assert reruns(a_job(State.QUEUED)) == 0


# Giving back


def test_a_job_given_back_has_not_used_an_attempt() -> None:
    move = release(a_job(attempt=3, run_at=BORN, code=500), NOW)
    assert (move.step, move.target, move.reason) == (Step.RELEASE, State.QUEUED, Reason.RELEASED)
    assert (move.attempt_before, move.attempt, move.error, move.run_at, move.code) == (3, 2, None, BORN, 500)


def test_a_snoozed_job_comes_later_and_has_not_used_an_attempt() -> None:
    move = release(a_job(attempt=3), NOW, 30.0)
    assert (move.step, move.target, move.reason) == (Step.SNOOZE, State.SCHEDULED, Reason.SNOOZED)
    assert (move.attempt, seconds_from_now(move)) == (2, 30.0)


def test_a_snooze_of_nothing_is_a_release() -> None:
    assert release(a_job(), NOW, 0.0).step is Step.RELEASE


@pytest.mark.parametrize("order", sorted(STOP_ORDERS))
@pytest.mark.parametrize("delay", [None, 30.0])
def test_a_job_with_an_order_to_stop_that_is_given_back_has_stopped(order: Reason, delay: float | None) -> None:
    move = release(a_job(reason=order), NOW, delay)
    assert (move.target, move.reason) == (State.CANCELLED, order)


# What people do to jobs

WAITING = (State.BLOCKED, State.SCHEDULED, State.QUEUED)


@pytest.mark.parametrize("state", WAITING)
def test_a_waiting_job_is_cancelled_at_once(state: State) -> None:
    move = cancel(a_job(state))
    assert (move.source, move.target, move.reason, move.keep) == (
        state,
        State.CANCELLED,
        Reason.CANCELLED,
        7 * 86400.0,
    )


@pytest.mark.parametrize(
    ("told", "reason"),
    [
        (None, Reason.CANCELLED),
        (Reason.CANCELLED, Reason.CANCELLED),
        (Reason.HALTED, Reason.HALTED),
        (Reason.DELETED, Reason.DELETED),
    ],
)
def test_a_running_job_is_ordered_to_stop_and_an_earlier_order_stands(told: Reason | None, reason: Reason) -> None:
    move = cancel(a_job(reason=told))
    assert (move.target, move.reason, move.attempt) == (State.RUNNING, reason, 1)


@pytest.mark.parametrize("state", sorted(FINISHED))
def test_what_has_ended_cannot_be_cancelled(state: State) -> None:
    with pytest.raises(Conflict):
        cancel(a_job(state))


@pytest.mark.parametrize("told", [None, Reason.SHRUNK, *sorted(STOP_ORDERS - {Reason.DELETED})])
def test_a_running_job_is_failed_by_hand_whatever_it_was_ordered(told: Reason | None) -> None:
    move = fail_by_hand(a_job(reason=told, max_retry=None, keep_failure=5.0), "no", NOW)
    assert (move.target, move.reason, move.outcome, move.keep) == (State.FAILED, Reason.BY_HAND, Verdict.FAILED, 5.0)
    assert move.error == Error(message="no", reason=Reason.BY_HAND, attempt=1, at=NOW, worker="w1")
    assert fail_by_hand(a_job(reason=Reason.DELETED), "no", NOW).keep == 0


@pytest.mark.parametrize("state", [*WAITING, *sorted(FINISHED)])
def test_a_job_that_does_not_run_is_not_failed_by_hand(state: State) -> None:
    with pytest.raises(Conflict):
        fail_by_hand(a_job(state), "no", NOW)


@pytest.mark.parametrize("state", [*WAITING, *sorted(FINISHED)])
def test_a_job_that_does_not_run_is_deleted_at_once(state: State) -> None:
    assert delete(a_job(state)).target is GONE


@pytest.mark.parametrize("told", [None, *sorted(STOP_ORDERS)])
def test_a_running_job_that_is_deleted_is_ordered_to_stop(told: Reason | None) -> None:
    move = delete(a_job(reason=told))
    assert (move.target, move.reason) == (State.RUNNING, Reason.DELETED)


ENDINGS: dict[str, Callable[[Job], Move]] = {
    "succeeding": lambda job: finish(job, said(Verdict.OK), NOW, 0.0),
    "failing": lambda job: finish(job, said(Verdict.FAILED), NOW, 0.0),
    "breaking": lambda job: finish(job, said(Verdict.ERROR), NOW, 0.0),
    "crashing": lambda job: finish(job, said(Verdict.ERROR, reason=Reason.CRASHED), NOW, 0.0),
    "getting lost": lambda job: lose(job, NOW),
    "being given back": lambda job: release(job, NOW),
    "being snoozed": lambda job: release(job, NOW, 60.0),
}


@pytest.mark.parametrize("ending", ENDINGS.values(), ids=ENDINGS.keys())
@pytest.mark.parametrize("keep", [None, 60.0])
def test_deleted_while_running_leaves_no_record_after(ending: Callable[[Job], Move], keep: float | None) -> None:
    job = a_job(reason=Reason.DELETED, max_retry=5, keep_success=keep, keep_failure=keep)
    move = ending(job)
    assert move.target in FINISHED
    assert move.keep == 0


@pytest.mark.parametrize("ending", ENDINGS.values(), ids=ENDINGS.keys())
def test_only_a_running_job_can_end_by(ending: Callable[[Job], Move]) -> None:
    for state in set(State) - {State.RUNNING}:
        with pytest.raises(Conflict):
            ending(a_job(state))


@pytest.mark.parametrize("state", WAITING)
def test_a_job_that_was_not_started_in_time_fails_as_expired(state: State) -> None:
    move = expire(a_job(state, keep_failure=5.0), NOW)
    assert (move.source, move.target, move.reason, move.keep) == (state, State.FAILED, Reason.EXPIRED, 5.0)
    assert move.error == Error(reason=Reason.EXPIRED, attempt=0, at=NOW)


@pytest.mark.parametrize("state", sorted(set(State) - set(WAITING)))
def test_what_was_started_cannot_expire(state: State) -> None:
    with pytest.raises(Conflict):
        expire(a_job(state), NOW)


@pytest.mark.parametrize("state", WAITING)
def test_a_waiting_job_without_a_client_is_cancelled_as_abandoned(state: State) -> None:
    move = abandon(a_job(state, owner_timeout=60.0, keep_failure=5.0))
    assert (move.target, move.reason, move.keep) == (State.CANCELLED, Reason.ABANDONED, 5.0)
    assert (move.lapsed, move.error, move.owner_timeout) == ("owner", None, None)


@pytest.mark.parametrize("told", [None, Reason.SHRUNK, *sorted(STOP_ORDERS)])
def test_a_running_job_without_a_client_is_ordered_to_stop_and_an_earlier_order_stands(told: Reason | None) -> None:
    move = abandon(a_job(owner_timeout=60.0, reason=told))
    assert (move.target, move.lapsed) == (State.RUNNING, "owner")
    assert move.reason is (told if told in STOP_ORDERS else Reason.ABANDONED)


@pytest.mark.parametrize("state", sorted(set(State) - FINISHED))
def test_a_client_that_asks_for_a_job_sets_its_owner_clock_and_nothing_else(state: State) -> None:
    job = a_job(state, owner_timeout=60.0, reason=Reason.RETRY, waits_for=["a"] if state is State.BLOCKED else [])
    move = touch_owner(job)
    assert move is not None
    assert (move.source, move.target, move.owner_timeout) == (state, state, 60.0)
    assert (move.reason, move.attempt, move.waits_for) == (job.reason, job.attempt, job.waits_for)


def test_asking_for_a_job_is_not_written_down_where_it_does_not_matter() -> None:
    for state in State:
        assert touch_owner(a_job(state)) is None
    for state in FINISHED:
        assert touch_owner(a_job(state, owner_timeout=60.0)) is None
    for order in STOP_ORDERS:
        assert touch_owner(a_job(owner_timeout=60.0, reason=order)) is None


@pytest.mark.parametrize("state", sorted(FINISHED))
def test_an_owner_clock_starts_again_with_a_job_that_is_run_again(state: State) -> None:
    assert rerun(a_job(state, owner_timeout=60.0)).owner_timeout == 60.0
    with pytest.raises(Conflict):
        abandon(a_job(state, owner_timeout=60.0))


@pytest.mark.parametrize("state", sorted(FINISHED))
def test_a_finished_job_that_is_run_again_starts_from_its_first_attempt(state: State) -> None:
    ended = a_job(state, attempt=4, crashes=2, losses=1, code=500, reason=Reason.ERROR, run_at=BORN)
    move = rerun(ended)
    assert (move.step, move.source, move.target) == (Step.RERUN, state, State.QUEUED)
    assert (move.attempt_before, move.attempt, move.crashes, move.losses) == (4, 0, 0, 0)
    assert (move.reason, move.run_at, move.code, move.error, move.keep) == (None, None, None, None, None)


@pytest.mark.parametrize("state", sorted(set(State) - FINISHED))
def test_what_has_not_ended_cannot_be_wanted_again(state: State) -> None:
    with pytest.raises(Conflict):
        rerun(a_job(state))


# Waiting for other jobs


def waiting(*ids: str, **fields: Any) -> Job:
    return a_job(State.BLOCKED, after=["gone by", *ids], waits_for=list(ids), **fields)


def test_a_job_goes_on_when_all_that_it_waits_for_have_succeeded() -> None:
    move = unblock(waiting("a", "b"), {"a": State.SUCCEEDED, "b": State.SUCCEEDED}, NOW)
    assert move is not None
    assert (move.step, move.target, move.reason, move.error) == (Step.UNBLOCK, State.QUEUED, None, None)
    assert (move.waits_before, move.waits_for) == (["a", "b"], [])


@pytest.mark.parametrize("other", [State.BLOCKED, State.SCHEDULED, State.QUEUED, State.RUNNING])
def test_a_job_notes_what_has_succeeded_and_waits_for_the_rest(other: State) -> None:
    move = unblock(waiting("a", "b", "c"), {"a": other, "b": State.SUCCEEDED, "c": other}, NOW)
    assert move is not None
    assert (move.step, move.target, move.waits_for) == (Step.MEET, State.BLOCKED, ["a", "c"])
    assert unblock(waiting("a", "c"), {"a": other, "c": other}, NOW) is None


@pytest.mark.parametrize(
    ("state", "said"), [(State.FAILED, "has failed"), (State.CANCELLED, "was cancelled"), (None, "is not there")]
)
def test_a_job_is_cancelled_for_the_first_that_will_not_succeed(state: State | None, said: str) -> None:
    standing = {"a": State.SUCCEEDED, "b": state, "c": State.FAILED}
    move = unblock(waiting("a", "b", "c", keep_failure=7.0), standing, NOW)
    assert move is not None
    assert (move.step, move.target, move.reason, move.keep) == (Step.CANCEL, State.CANCELLED, Reason.DEPENDENCY, 7.0)
    assert move.error == Error(message=f"job b, which it waited for, {said}", reason=Reason.DEPENDENCY, at=NOW)


@pytest.mark.parametrize("state", [State.FAILED, State.CANCELLED, None])
def test_a_job_fails_with_its_parent_if_it_says_so(state: State | None) -> None:
    move = unblock(waiting("a", "b", after_failure="fail", keep_failure=7.0), {"a": State.QUEUED, "b": state}, NOW)
    assert move is not None
    assert (move.step, move.target, move.reason, move.keep) == (Step.MISS, State.FAILED, Reason.DEPENDENCY, 7.0)
    assert move.error is not None
    assert "job b, which it waited for" in move.error.message


def test_a_job_that_runs_all_the_same_takes_any_end_for_an_end() -> None:
    standing = {"a": State.FAILED, "b": None, "c": State.RUNNING, "d": State.CANCELLED, "e": State.SUCCEEDED}
    move = unblock(waiting(*standing, after_failure="run"), standing, NOW)
    assert move is not None
    assert (move.step, move.waits_for) == (Step.MEET, ["c"])
    move = unblock(waiting("a", "b", after_failure="run"), {"a": State.FAILED, "b": None}, NOW)
    assert move is not None
    assert move.step is Step.UNBLOCK


def test_a_circle_of_jobs_is_found_by_name() -> None:
    assert find_cycle({}) == []
    assert find_cycle({"b": ["a"], "c": ["a", "b"], "d": ["c", "b", "x"]}) == []
    assert find_cycle({"x": ["a"], "a": ["c"], "b": ["a", "y"], "c": ["y", "b"]}) == ["a", "c", "b", "a"]
    assert find_cycle({"a": ["a"]}) == ["a", "a"]
    long = {str(number): [str(number + 1)] for number in range(10_000)}
    assert find_cycle(long) == []
    assert len(find_cycle(long | {"10000": ["0"]})) == 10_002
