"""The life of a job: the only place that says which state comes next.

Two rules keep it whole. Everything that decides a state is in this file; and this file knows neither a
store nor a clock nor a worker. Stores apply the `Move`s made here, guarded by what the job was when the
move was decided; if the job has changed since, the move is refused and decided again.

How to read it: `enter` says in which state a new job begins; `TABLE` says what is possible from there; `unblock`,
`finish`, `lose`, `release`, `cancel`, `rerun`, `expire`, `touch_owner`, `abandon` and `delete` say what happens, as one
`Move` each. The drawing in the docs is made from `TABLE`.
"""

from collections.abc import Mapping
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Literal

from msgspec import Struct
from msgspec.structs import replace

from windlass.model.errors import Conflict
from windlass.model.job import NO_HANDLER, Error, HandlerRun, Job, NewJob, Reason, State
from windlass.model.retry import backoff


class Step(StrEnum):
    """What can happen to a job after it was added."""

    MEET = "meet"  # some of the jobs it waits for are done
    UNBLOCK = "unblock"  # the jobs it waited for are done
    PROMOTE = "promote"  # its time has come
    CLAIM = "claim"  # a worker takes it
    SUCCEED = "succeed"  # its outcome is ok
    FAIL = "fail"  # its outcome is final, or nothing allows another run
    RETRY = "retry"  # it is run again after a wait
    RECLAIM = "reclaim"  # its process or worker died: it goes back at once
    RELEASE = "release"  # its worker gives it back unrun
    SNOOZE = "snooze"  # the task wants a later time
    SHRINK = "shrink"  # time is taken from it for jobs that wait
    HALT = "halt"  # its place is taken for jobs that wait
    CANCEL = "cancel"  # a caller cancels it
    STOP = "stop"  # the worker has stopped a cancelled job
    EXPIRE = "expire"  # it was not started in time
    ATTEND = "touch_owner"  # its owner asks for it: the owner clock restarts
    ABANDON = "abandon"  # its owner has not asked for it for too long
    RERUN = "rerun"  # a caller runs a finished job again
    DELETE = "delete"  # a caller deletes it


class Gone(StrEnum):
    """Where a deleted job goes: not a state, it has no record any more."""

    GONE = "gone"


GONE = Gone.GONE

TABLE: dict[tuple[State, Step], State | Gone] = {
    (State.BLOCKED, Step.MEET): State.BLOCKED,
    (State.BLOCKED, Step.UNBLOCK): State.QUEUED,
    (State.BLOCKED, Step.CANCEL): State.CANCELLED,
    (State.BLOCKED, Step.EXPIRE): State.FAILED,
    (State.BLOCKED, Step.ATTEND): State.BLOCKED,
    (State.BLOCKED, Step.ABANDON): State.CANCELLED,
    (State.BLOCKED, Step.DELETE): GONE,
    (State.SCHEDULED, Step.PROMOTE): State.QUEUED,
    (State.SCHEDULED, Step.CANCEL): State.CANCELLED,
    (State.SCHEDULED, Step.EXPIRE): State.FAILED,
    (State.SCHEDULED, Step.ATTEND): State.SCHEDULED,
    (State.SCHEDULED, Step.ABANDON): State.CANCELLED,
    (State.SCHEDULED, Step.DELETE): GONE,
    (State.QUEUED, Step.CLAIM): State.RUNNING,
    (State.QUEUED, Step.CANCEL): State.CANCELLED,
    (State.QUEUED, Step.EXPIRE): State.FAILED,
    (State.QUEUED, Step.ATTEND): State.QUEUED,
    (State.QUEUED, Step.ABANDON): State.CANCELLED,
    (State.QUEUED, Step.DELETE): GONE,
    (State.RUNNING, Step.SUCCEED): State.SUCCEEDED,
    (State.RUNNING, Step.FAIL): State.FAILED,
    (State.RUNNING, Step.RETRY): State.SCHEDULED,
    (State.RUNNING, Step.RECLAIM): State.QUEUED,
    (State.RUNNING, Step.RELEASE): State.QUEUED,
    (State.RUNNING, Step.SNOOZE): State.SCHEDULED,
    (State.RUNNING, Step.ATTEND): State.RUNNING,
    # A running job is only ordered to stop: it keeps its slot until its worker reports that it has stopped.
    (State.RUNNING, Step.CANCEL): State.RUNNING,
    (State.RUNNING, Step.ABANDON): State.RUNNING,
    (State.RUNNING, Step.DELETE): State.RUNNING,
    (State.RUNNING, Step.SHRINK): State.RUNNING,
    (State.RUNNING, Step.HALT): State.RUNNING,
    (State.RUNNING, Step.STOP): State.CANCELLED,
    (State.SUCCEEDED, Step.RERUN): State.QUEUED,
    (State.SUCCEEDED, Step.DELETE): GONE,
    (State.FAILED, Step.RERUN): State.QUEUED,
    (State.FAILED, Step.DELETE): GONE,
    (State.CANCELLED, Step.RERUN): State.QUEUED,
    (State.CANCELLED, Step.DELETE): GONE,
}

MOST_CRASHES = 3
"""The crash with this number ends a job, whatever its `max_retry` says: it is poison."""

MOST_LOSSES = 10
"""The lost worker with this number ends a job: what takes a whole worker down each time is poison too."""

ORDERS = frozenset({Reason.CANCELLED, Reason.DELETED, Reason.HALTED, Reason.ABANDONED})
"""Reasons that, on a running job, mean that it was ordered to stop."""

HALTED = Error(type="Halted", message="halted: its place was needed for a job that waits")
"""What is said of a job that had to give its place to another."""

NEVER: dict[State | None, str] = {
    State.FAILED: "has failed",
    State.CANCELLED: "was cancelled",
    None: "is not there",
}
"""What is said of a job that will not succeed any more."""

OnLost = Literal["retry", "requeue", "fail"]

Lapse = Literal["lease", "owner"]
"""A clock that may be restarted until the moment its expiry is acted on."""


class Verdict(StrEnum):
    """What an attempt says of itself."""

    OK = "ok"  # 2xx
    FAILED = "failed"  # 4xx: ran well, cannot succeed; final
    RETRY = "retry"  # 1xx: run me again
    ERROR = "error"  # 5xx: something broke; run again


CODES = {Verdict.RETRY: 100, Verdict.OK: 200, Verdict.FAILED: 400, Verdict.ERROR: 500}


class Outcome(Struct, frozen=True, kw_only=True):
    """How an attempt ended."""

    verdict: Verdict
    code: int | None = None
    """Finer than the verdict; null = 200, 400, 100 or 500."""
    error: Error | None = None
    reason: Reason | None = None
    """What the worker knows beyond the verdict: `timeout`, `crashed`."""
    delay: float | None = None
    """The wait the task asked for before its next run; null = by its retry policy."""


class Move(Struct, frozen=True, kw_only=True):
    """One change of one job: what it must be, and what it becomes. Made only in this file."""

    id: str
    tenant: str
    step: Step
    source: State
    """Guard: refused unless the job is in this state…"""
    attempt_before: int
    """…at this attempt…"""
    reason_before: Reason | None
    """…for this reason (else a job that was ordered to stop meanwhile would be run again)…"""
    fence: bytes | None = None
    """…and, if it runs, under this token."""
    waits_before: list[str] = []
    """Guard: refused unless a blocked job still waits for exactly these."""
    assigned_before: str | None = None
    """Guard: refused unless a running job is at this tier."""
    lapsed: Lapse | None = None
    """Guard: refused if this clock was restarted meanwhile: the lease renewed, the owner seen."""
    target: State | Gone
    assigned: tuple[str, float] | None = None
    """The shorter tier of a job that is shrunk, and its seconds; its places at longer ones are given back."""
    waits_for: list[str] = []
    """What a job that stays blocked still waits for."""
    reason: Reason | None
    attempt: int
    crashes: int
    losses: int
    run_at: datetime | None
    """When a scheduled job is due."""
    code: int | None
    error: Error | None = None
    """Added to the job's errors."""
    outcome: Verdict | None = None
    """What the run that ends by it is counted as; null = not at all: it was stopped, or does not count."""
    finished_at: datetime | None = None
    """When it ended, as its worker says; null = the store's now."""
    ran: HandlerRun = NO_HANDLER
    """What ran it, if a worker says so."""
    keep: float | None = None
    """Seconds the record of a finished job stays; null = forever."""
    unattended: float | None = None
    """Seconds from now to which the owner clock is set; null = it is left as it is. An end takes it away."""


def enter(new: NewJob, now: datetime) -> tuple[State, datetime | None]:
    """The first state of a new job, and when it is due if it is scheduled.

    Stores decide by their own clock in the same step that adds the job, and must decide the same.
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


def unblock(job: Job, parents: Mapping[str, State | None], now: datetime) -> Move | None:
    """What becomes of a blocked job when those that it waits for stand like this (null = there is no such job)."""
    for id in job.waits_for:
        state = parents[id]
        if state in NEVER:
            error = _entry(job, Error(message=f"job {id}, which it waited for, {NEVER[state]}"), Reason.DEPENDENCY, now)
            return _move(job, Step.CANCEL, reason=Reason.DEPENDENCY, error=error, keep=_keep(job, job.keep_failure))
    rest = [id for id in job.waits_for if parents[id] is not State.SUCCEEDED]
    if not rest:
        return _move(job, Step.UNBLOCK)
    return replace(_move(job, Step.MEET), waits_for=rest) if rest != job.waits_for else None


def finish(job: Job, outcome: Outcome, now: datetime, chance: float) -> Move:
    """An attempt has ended."""
    move = _finish(job, outcome, now, chance)
    return move if move.step is Step.STOP else replace(move, outcome=outcome.verdict)


def _finish(job: Job, outcome: Outcome, now: datetime, chance: float) -> Move:
    code = outcome.code or CODES[outcome.verdict]
    if outcome.verdict is Verdict.OK:
        return _move(job, Step.SUCCEED, code=code, keep=_keep(job, job.keep_success))
    reason = outcome.reason or Reason(outcome.verdict.value)
    error = _entry(job, _giving_way(job, outcome), reason, now)
    if job.reason in ORDERS:
        return _move(job, Step.STOP, reason=job.reason, code=code, error=error, keep=_keep(job, job.keep_failure))
    if reason is Reason.CRASHED:
        crashes = job.crashes + 1
        if crashes < MOST_CRASHES:
            return _move(job, Step.RECLAIM, reason=reason, crashes=crashes, code=code, error=error)
        return _failed(job, reason, code=code, error=error, crashes=crashes)
    if outcome.verdict is Verdict.FAILED:
        return _failed(job, reason, code=code, error=error)
    if job.max_retry is not None and reruns(job) >= job.max_retry:
        return _failed(job, reason, code=code, error=error)
    due = _due(job, outcome.delay, now, chance)
    if job.retry.deadline is not None and due > job.created_at + timedelta(seconds=job.retry.deadline):
        return _failed(job, Reason.DEADLINE, code=code, error=error)
    return _move(job, Step.RETRY, reason=reason, run_at=due, code=code, error=error)


def lose(job: Job, now: datetime, on_lost: OnLost = "retry") -> Move:
    """The lease of a running job has run out: its worker is taken for dead."""
    error = _entry(job, Error(message="its worker was not heard of for a whole lease"), Reason.LOST, now)
    if job.reason is Reason.HALTED:
        error = _entry(job, HALTED, Reason.HALTED, now)
    if job.reason in ORDERS:
        move = _move(job, Step.STOP, reason=job.reason, error=error, keep=_keep(job, job.keep_failure))
    elif on_lost == "requeue":
        move = _move(job, Step.RECLAIM, reason=Reason.LOST, attempt=job.attempt - 1)
    elif on_lost == "fail" or job.losses + 1 >= MOST_LOSSES:
        move = _failed(job, Reason.LOST, error=error, losses=job.losses + 1)
    else:
        move = _move(job, Step.RECLAIM, reason=Reason.LOST, error=error, losses=job.losses + 1)
    counts = move.step is not Step.STOP and on_lost != "requeue"
    return replace(move, lapsed="lease", outcome=Verdict.ERROR if counts else None)


def release(job: Job, now: datetime, delay: float | None = None) -> Move:
    """A worker gives a job back; the run does not count. With a delay it comes back later (a snooze)."""
    if job.reason in ORDERS:
        error = _entry(job, HALTED, Reason.HALTED, now) if job.reason is Reason.HALTED else None
        return _move(job, Step.STOP, reason=job.reason, error=error, keep=_keep(job, job.keep_failure))
    attempt = job.attempt - 1
    if not delay:
        return _move(job, Step.RELEASE, reason=Reason.RELEASED, attempt=attempt)
    return _move(job, Step.SNOOZE, reason=Reason.SNOOZED, attempt=attempt, run_at=now + timedelta(seconds=delay))


def cancel(job: Job) -> Move:
    """A caller cancels the job. A running one is ordered to stop."""
    if job.state is State.RUNNING:
        return _move(job, Step.CANCEL, reason=job.reason if job.reason in ORDERS else Reason.CANCELLED)
    return _move(job, Step.CANCEL, reason=Reason.CANCELLED, keep=_keep(job, job.keep_failure))


def shrink(job: Job, tier: str, seconds: float) -> Move:
    """Time is taken from a running job for others that wait: it goes on at a shorter tier."""
    reason = job.reason if job.reason in ORDERS else Reason.SHRUNK
    return replace(_move(job, Step.SHRINK, reason=reason), assigned=(tier, seconds))


def halt(job: Job) -> Move:
    """The slot of a running job is needed for jobs that wait: it is ordered to stop."""
    return _move(job, Step.HALT, reason=job.reason if job.reason in ORDERS else Reason.HALTED)


def delete(job: Job) -> Move:
    """A caller deletes the job. A running one is ordered to stop and is removed once it has."""
    return _move(job, Step.DELETE, reason=Reason.DELETED)


def expire(job: Job, now: datetime) -> Move:
    """The job was not started in time."""
    return _failed(job, Reason.EXPIRED, step=Step.EXPIRE, error=_entry(job, None, Reason.EXPIRED, now))


def touch_owner(job: Job) -> Move | None:
    """The owner asked for the job; null = nothing needs to be written."""
    if job.unattended is None or (job.state, Step.ATTEND) not in TABLE or job.reason in ORDERS:
        return None
    return replace(_move(job, Step.ATTEND, reason=job.reason), waits_for=job.waits_for, unattended=job.unattended)


def abandon(job: Job) -> Move:
    """The owner has not asked for the job for too long: like a cancel, with its own reason."""
    if job.state is State.RUNNING:
        move = _move(job, Step.ABANDON, reason=job.reason if job.reason in ORDERS else Reason.ABANDONED)
    else:
        move = _move(job, Step.ABANDON, reason=Reason.ABANDONED, keep=_keep(job, job.keep_failure))
    return replace(move, lapsed="owner")


def rerun(job: Job) -> Move:
    """A caller runs a finished job again, from its first attempt."""
    move = _move(job, Step.RERUN, attempt=0, crashes=0, losses=0)
    return replace(move, run_at=None, code=None, unattended=job.unattended)


def reruns(job: Job) -> int:
    """How many of its `max_retry` re-runs a job has used: deaths and lost workers are counted apart."""
    return max(0, job.attempt - 1 - job.crashes - job.losses)


def _due(job: Job, delay: float | None, now: datetime, chance: float) -> datetime:
    if delay is not None:
        return now + timedelta(seconds=delay)
    wait = timedelta(seconds=backoff(job.retry, reruns(job), chance))
    if job.retry.anchor == "start" and job.started_at is not None:
        return job.started_at + wait
    return now + wait


def _keep(job: Job, keep: float | None) -> float | None:
    return 0.0 if job.reason is Reason.DELETED else keep


def _giving_way(job: Job, outcome: Outcome) -> Error | None:
    """What a run says of its end, and that it was not its own fault if it had to give way."""
    if job.reason is Reason.HALTED:
        return HALTED
    error = outcome.error
    if job.reason is Reason.SHRUNK and outcome.reason is Reason.TIMEOUT and error is not None:
        shortened = f"that was shortened to tier {job.assigned}, for a job that waits"
        return replace(error, message=f"{error.message}: {shortened}" if error.message else shortened)
    return error


def _entry(job: Job, error: Error | None, reason: Reason, now: datetime) -> Error:
    given = error or Error()
    return Error(
        type=given.type,
        message=given.message,
        traceback=given.traceback,
        reason=reason,
        attempt=job.attempt,
        at=now,
    )


def _failed(
    job: Job,
    reason: Reason,
    *,
    step: Step = Step.FAIL,
    code: int | None = None,
    error: Error | None = None,
    crashes: int | None = None,
    losses: int | None = None,
) -> Move:
    keep = _keep(job, job.keep_failure)
    return _move(job, step, reason=reason, code=code, error=error, crashes=crashes, losses=losses, keep=keep)


def _move(
    job: Job,
    step: Step,
    *,
    reason: Reason | None = None,
    attempt: int | None = None,
    crashes: int | None = None,
    losses: int | None = None,
    run_at: datetime | None = None,
    code: int | None = None,
    error: Error | None = None,
    keep: float | None = None,
) -> Move:
    return Move(
        id=job.id,
        tenant=job.tenant,
        step=step,
        source=job.state,
        attempt_before=job.attempt,
        reason_before=job.reason,
        waits_before=job.waits_for,
        assigned_before=job.assigned,
        target=next_state(job.state, step),
        reason=reason,
        attempt=job.attempt if attempt is None else attempt,
        crashes=job.crashes if crashes is None else crashes,
        losses=job.losses if losses is None else losses,
        run_at=run_at or job.run_at,
        code=job.code if code is None else code,
        error=error,
        keep=keep,
    )
