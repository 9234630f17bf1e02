"""The life of a job: with `dependency` and `editing`, the only place that says which state comes next.

Two rules: everything that decides a state is in these three files; and they know neither a store nor a clock nor a
worker. Stores apply the `Move`s made here, guarded by what the job was when the move was decided; if the job has
changed since, the move is refused and decided again.

How to read it: `enter` says in which state a new job begins; `TABLE` says what is possible from there. Claiming,
promoting and succeeding need no decision: stores do them themselves. `finish` … `rerun`, `dependency.unblock` and
`editing.edit_waiting` make the moves for the rest. The drawing in the docs is made from `TABLE`.
"""

import math
from collections.abc import Iterable
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Literal

from msgspec import Struct
from msgspec.structs import replace

from windlass.model.edit import JobEdit
from windlass.model.errors import Conflict
from windlass.model.handler import NO_HANDLER, HandlerRun
from windlass.model.job import FINISHED, Error, Job, Reason, State
from windlass.model.new_job import AT_MOST_ONCE, NewJob, OnLost
from windlass.model.outcome import (
    CODES,
    HALTED,
    LOST,
    UNBEGUN,
    Outcome,
    Verdict,
    error_entry,
    own_error,
    time_limit,
)
from windlass.model.retry import backoff
from windlass.model.worker import Adopter


class Step(StrEnum):
    """What can happen to a job after it was added."""

    MEET = "meet"  # some of the jobs it waits for are done
    UNBLOCK = "unblock"  # the jobs it waited for are done
    MISS = "miss"  # one of them did not succeed, and it fails with that
    PROMOTE = "promote"  # its time has come, or a caller has taken its time away
    CLAIM = "claim"  # a worker takes it
    SUCCEED = "succeed"  # its outcome is ok
    FAIL = "fail"  # its outcome is final, or nothing allows another run
    RETRY = "retry"  # it is run again after a wait
    RECLAIM = "reclaim"  # its process or worker died: it goes back at once
    RELEASE = "release"  # its worker gives it back unrun
    SNOOZE = "snooze"  # the task wants a later time
    SHRINK = "shrink"  # time is taken from it for jobs that wait
    LOWER = "lower"  # a caller lowers its time limit
    HALT = "halt"  # its place is taken for jobs that wait
    ADOPT = "adopt"  # another worker takes its process over
    CANCEL = "cancel"  # a caller cancels it
    STOP = "stop"  # the worker has stopped a cancelled job
    EXPIRE = "expire"  # it was not started in time
    TOUCH_OWNER = "touch_owner"  # its owner asks for it: the owner clock restarts
    ABANDON = "abandon"  # its owner has not asked for it for too long
    EDIT = "edit"  # a caller changes something of it
    DEFER = "defer"  # a caller gives it a later time
    RERUN = "rerun"  # a caller runs a finished job again
    DELETE = "delete"  # a caller deletes it


Gone = Literal["gone"]
GONE: Gone = "gone"
"""Where a deleted job goes: not a state, it has no record any more."""

WAITING = (State.BLOCKED, State.SCHEDULED, State.QUEUED)

_RULES: list[tuple[Iterable[State], list[Step], State | Gone]] = [
    ([State.BLOCKED], [Step.MEET, Step.TOUCH_OWNER], State.BLOCKED),
    ([State.BLOCKED], [Step.UNBLOCK], State.QUEUED),
    ([State.BLOCKED], [Step.MISS], State.FAILED),
    ([State.SCHEDULED], [Step.TOUCH_OWNER], State.SCHEDULED),
    ([State.SCHEDULED], [Step.PROMOTE], State.QUEUED),
    ([State.SCHEDULED, State.QUEUED], [Step.DEFER], State.SCHEDULED),
    ([State.QUEUED], [Step.TOUCH_OWNER], State.QUEUED),
    ([State.QUEUED], [Step.CLAIM], State.RUNNING),
    (WAITING, [Step.CANCEL, Step.ABANDON], State.CANCELLED),
    (WAITING, [Step.EXPIRE], State.FAILED),
    ([State.RUNNING], [Step.SUCCEED], State.SUCCEEDED),
    ([State.RUNNING], [Step.FAIL], State.FAILED),
    ([State.RUNNING], [Step.RETRY, Step.SNOOZE], State.SCHEDULED),
    ([State.RUNNING], [Step.RECLAIM, Step.RELEASE], State.QUEUED),
    ([State.RUNNING], [Step.TOUCH_OWNER, Step.SHRINK, Step.LOWER, Step.ADOPT], State.RUNNING),
    # A running job is only ordered to stop: it keeps its slot until its worker reports that it has stopped.
    ([State.RUNNING], [Step.CANCEL, Step.ABANDON, Step.DELETE, Step.HALT], State.RUNNING),
    ([State.RUNNING], [Step.STOP], State.CANCELLED),
    (FINISHED, [Step.RERUN], State.QUEUED),
    *(([state], [Step.EDIT], state) for state in State),
    ([*WAITING, *FINISHED], [Step.DELETE], GONE),
]

TABLE = {
    (state, step): target for state in State for sources, steps, target in _RULES if state in sources for step in steps
}
"""Which state follows. A pair that is not here cannot happen."""

MOST_CRASHES = 3  # the crash with this number ends a job, whatever its `max_retry` says: it is poison
MOST_LOSSES = 10  # so does this many lost workers: a job that keeps killing its worker is poison too

STOP_ORDERS = frozenset({Reason.CANCELLED, Reason.DELETED, Reason.HALTED, Reason.ABANDONED})
"""Reasons of a running job that was ordered to stop. One that was ordered to take less time is shrunk or lowered."""

Lapse = Literal["lease", "owner"]


class Move(Struct, frozen=True, kw_only=True):
    """One change of one job: what it must be, and what it becomes. Made only here, in `dependency` and in `editing`."""

    id: str
    tenant: str
    step: Step
    # A store refuses the move unless the job …
    source: State  # … is in this state,
    attempt_before: int  # at this attempt,
    reason_before: Reason | None  # for this reason: else a job that was ordered to stop meanwhile would run again;
    fence: bytes | None = None  # if it runs, is under this token
    assigned_before: str | None = None  # and at this tier;
    waits_before: list[str] = []  # if it is blocked, waits for exactly these;
    lapsed: Lapse | None = None  # and, if set, this clock has run out (lease not renewed, owner not seen).
    # Then the job gets:
    target: State | Gone
    reason: Reason | None
    attempt: int
    crashes: int
    losses: int
    run_at: datetime | None  # when a scheduled job is due
    code: int | None
    adopter: Adopter | None = None  # a run that goes on: from now on it is this worker's
    assigned: tuple[str | None, float] | None = None  # (new tier or None, seconds); frees its places at longer tiers
    waits_for: list[str] = []  # what a job that stays blocked still waits for
    error: Error | None = None  # added to its errors
    outcome: Verdict | None = None  # what its run is counted as; null = not counted
    finished_at: datetime | None = None  # as its worker says; null = the store's now
    ran: HandlerRun = NO_HANDLER  # what ran it, if a worker says so
    keep: float | None = None  # seconds that the record of a finished job stays; null = forever
    edit: JobEdit | None = None  # what a caller changes of it; refused if it is not the next edit
    owner_timeout: float | None = None  # to which the owner clock is set; null = left as it is; an end removes it


def enter(new: NewJob, now: datetime) -> tuple[State, datetime | None]:
    """The first state of a new job, and when it is due if it is scheduled.

    `now` is the store's time, in the step that adds the job. On Redis, `lua/add.lua` makes the same decision.
    """
    if new.after:
        return State.BLOCKED, None
    due = now + timedelta(seconds=new.delay) if new.delay is not None else new.run_at
    return (State.SCHEDULED, due) if due is not None and due > now else (State.QUEUED, None)


def next_state(state: State, step: Step) -> State | Gone:
    """Look a step up in the table; what is not there is refused."""
    try:
        return TABLE[state, step]
    except KeyError:
        raise Conflict(f"a {state} job cannot {step}") from None


def finish(job: Job, outcome: Outcome, now: datetime, chance: float, on_lost: OnLost = "retry") -> Move:
    """An attempt has ended. `chance` is from [0, 1).

    A run may end without a word of its own: its process dies (the reason `crashed`), its worker falls silent (`lose`),
    or stops (`release` with `stopped`). In each case `on_lost` says whether the job may run again.
    """
    move = replace(_finish(job, outcome, now, chance, on_lost), code=outcome.code or CODES[outcome.verdict])
    return move if move.step is Step.STOP else replace(move, outcome=outcome.verdict)


def _finish(job: Job, outcome: Outcome, now: datetime, chance: float, on_lost: OnLost) -> Move:
    if outcome.verdict is Verdict.OK:
        return make_move(job, Step.SUCCEED)
    ordered = job.reason if job.reason in STOP_ORDERS else None
    reason = ordered or outcome.reason or Reason(outcome.verdict.value)
    error = error_entry(job, own_error(job, outcome), reason, now)
    if ordered is not None:
        return make_move(job, Step.STOP, ordered, error)
    if reason is Reason.CRASHED:
        crashes = job.crashes + 1
        step = Step.FAIL if on_lost in AT_MOST_ONCE or crashes >= MOST_CRASHES else Step.RECLAIM
        return replace(make_move(job, step, reason, error), crashes=crashes)
    used_up = job.max_retry is not None and reruns(job) >= job.max_retry
    if outcome.verdict is Verdict.FAILED or used_up:
        return make_move(job, Step.FAIL, reason, error)
    due = _due(job, outcome.delay, now, chance)
    if job.retry.deadline is not None and due > job.created_at + timedelta(seconds=job.retry.deadline):
        return make_move(job, Step.FAIL, Reason.DEADLINE, error)
    return replace(make_move(job, Step.RETRY, reason, error), run_at=due)


def reruns(job: Job) -> int:
    """How many of its `max_retry` re-runs a job has used: crashes and lost workers are counted apart."""
    return max(0, job.attempt - 1 - job.crashes - job.losses)


def _due(job: Job, delay: float | None, now: datetime, chance: float) -> datetime:
    if delay is not None:
        return now + timedelta(seconds=delay)
    anchor = job.started_at if job.retry.anchor == "start" else None
    return (anchor or now) + timedelta(seconds=backoff(job.retry, reruns(job), chance))


def lose(job: Job, now: datetime, on_lost: OnLost = "retry") -> Move:
    """The lease of a running job has run out: its worker counts as dead."""
    if job.reason in STOP_ORDERS:
        error = HALTED if job.reason is Reason.HALTED else LOST
        reason = Reason.HALTED if job.reason is Reason.HALTED else Reason.LOST
        return replace(make_move(job, Step.STOP, job.reason, error_entry(job, error, reason, now)), lapsed="lease")
    if on_lost == "requeue" or (on_lost in AT_MOST_ONCE and job.pid is None):
        error = error_entry(job, UNBEGUN if job.pid is None else LOST, Reason.LOST, now)
        return replace(make_move(job, Step.RECLAIM, Reason.LOST, error), attempt=job.attempt - 1, lapsed="lease")
    losses = job.losses + 1
    step = Step.FAIL if on_lost in AT_MOST_ONCE or losses >= MOST_LOSSES else Step.RECLAIM
    move = make_move(job, step, Reason.LOST, error_entry(job, LOST, Reason.LOST, now))
    return replace(move, losses=losses, lapsed="lease", outcome=Verdict.ERROR)


def release(
    job: Job, now: datetime, delay: float | None = None, *, stopped: str | None = None, on_lost: OnLost = "retry"
) -> Move:
    """A worker gives a job back; the run does not count. With a delay it comes back later (a snooze).

    `stopped`: why its code, which had begun, was stopped; null = it had not begun, or asked for a later time itself.
    """
    if job.reason in STOP_ORDERS:
        error = error_entry(job, HALTED, Reason.HALTED, now) if job.reason is Reason.HALTED else None
        return make_move(job, Step.STOP, job.reason, error)
    if stopped is not None and on_lost in AT_MOST_ONCE:
        move = make_move(job, Step.FAIL, Reason.LOST, error_entry(job, Error(message=stopped), Reason.LOST, now))
        return replace(move, losses=job.losses + 1, outcome=Verdict.ERROR)
    if not delay:
        entry = None if stopped is None else error_entry(job, Error(message=stopped), Reason.RELEASED, now)
        return replace(make_move(job, Step.RELEASE, Reason.RELEASED, entry), attempt=job.attempt - 1)
    due = now + timedelta(seconds=delay)
    return replace(make_move(job, Step.SNOOZE, Reason.SNOOZED), attempt=job.attempt - 1, run_at=due)


def adopt(job: Job, adopter: Adopter) -> Move:
    """A worker takes over the process of a running job; orders to the job stand."""
    return replace(make_move(job, Step.ADOPT, job.reason), adopter=adopter)


def cancel(job: Job) -> Move:
    """A caller cancels the job. A running one is ordered to stop."""
    return _order(job, Step.CANCEL, Reason.CANCELLED)


def check_running(job: Job) -> None:
    """Only a run can be ended by hand: what waits is cancelled, and what has ended stays as it ended."""
    if job.state is not State.RUNNING:
        hint = "run it again with retry" if job.state in FINISHED else "cancel it"
        raise Conflict(f"job {job.id} is {job.state}: only a running job can be finished or failed by hand; {hint}")


def fail_by_hand(job: Job, message: str, now: datetime) -> Move:
    """A caller ends a run as failed, whatever its worker and its process do: their reports come too late."""
    check_running(job)
    move = make_move(job, Step.FAIL, Reason.BY_HAND, error_entry(job, Error(message=message), Reason.BY_HAND, now))
    return replace(move, code=CODES[Verdict.FAILED], outcome=Verdict.FAILED)


def shrink(job: Job, tier: str, seconds: float) -> Move:
    """Take time from a running job for others that wait: it goes on at a shorter tier, never with more time."""
    seconds = min(seconds, time_limit(job) or seconds)
    return replace(_order(job, Step.SHRINK, Reason.SHRUNK), assigned=(tier, seconds))


def lower(job: Job, seconds: float, tier: str | None) -> Move | None:
    """Give a running job less time, at this tier; None = nothing to lower: it is stopping, or has no more anyway."""
    if job.state is not State.RUNNING:
        raise Conflict(f"job {job.id} is {job.state}: only the time limit of a running job can be lowered")
    if job.reason in STOP_ORDERS or seconds >= (time_limit(job) or math.inf):
        return None
    return replace(_order(job, Step.LOWER, Reason.LOWERED), assigned=(tier, seconds))


def halt(job: Job) -> Move:
    """The slot of a running job is needed for jobs that wait: it is ordered to stop."""
    return _order(job, Step.HALT, Reason.HALTED)


def abandon(job: Job) -> Move:
    """The owner has not asked for the job for too long: like a cancel, with its own reason."""
    return replace(_order(job, Step.ABANDON, Reason.ABANDONED), lapsed="owner")


def delete(job: Job) -> Move:
    """A caller deletes the job. A running one is ordered to stop and is removed once it has."""
    return make_move(job, Step.DELETE, Reason.DELETED)


def expire(job: Job, now: datetime) -> Move:
    """The job was not started in time."""
    return make_move(job, Step.EXPIRE, Reason.EXPIRED, error_entry(job, Error(), Reason.EXPIRED, now))


def touch_owner(job: Job) -> Move | None:
    """The owner asked for the job; null = nothing needs to be written."""
    if job.owner_timeout is None or (job.state, Step.TOUCH_OWNER) not in TABLE or job.reason in STOP_ORDERS:
        return None
    return replace(
        make_move(job, Step.TOUCH_OWNER, job.reason), waits_for=job.waits_for, owner_timeout=job.owner_timeout
    )


def rerun(job: Job) -> Move:
    """A caller runs a finished job again, from its first attempt."""
    move = replace(make_move(job, Step.RERUN), attempt=0, crashes=0, losses=0)
    return replace(move, run_at=None, code=None, owner_timeout=job.owner_timeout)


def _order(job: Job, step: Step, reason: Reason) -> Move:
    """End a job that waits; order a running one. The first order to stop keeps its reason."""
    return make_move(job, step, job.reason if job.state is State.RUNNING and job.reason in STOP_ORDERS else reason)


def make_move(job: Job, step: Step, reason: Reason | None = None, error: Error | None = None) -> Move:
    """Build the move for a step. How long a finished job is kept depends on how it ended."""
    target = next_state(job.state, step)
    keep = job.keep_success if target is State.SUCCEEDED else job.keep_failure
    return Move(
        id=job.id,
        tenant=job.tenant,
        step=step,
        source=job.state,
        attempt_before=job.attempt,
        reason_before=job.reason,
        waits_before=job.waits_for,
        assigned_before=job.assigned,
        target=target,
        reason=reason,
        attempt=job.attempt,
        crashes=job.crashes,
        losses=job.losses,
        run_at=job.run_at,
        code=job.code,
        error=error,
        keep=(0.0 if job.reason is Reason.DELETED else keep) if target in FINISHED else None,
    )
