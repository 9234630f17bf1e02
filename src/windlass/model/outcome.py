"""How one run of a job ended: as its worker reports it, and as an entry among the errors of the job.

What becomes of the job is decided in `lifecycle`.
"""

from datetime import datetime
from enum import StrEnum

from msgspec import Struct
from msgspec.structs import replace

from windlass.model.job import Error, Job, Reason, State


class Verdict(StrEnum):
    """What an attempt says of itself."""

    OK = "ok"  # 2xx
    FAILED = "failed"  # 4xx: ran well, cannot succeed; final
    RETRY = "retry"  # 1xx: run me again
    ERROR = "error"  # 5xx: something broke; run again


CODES = {Verdict.RETRY: 100, Verdict.OK: 200, Verdict.FAILED: 400, Verdict.ERROR: 500}


class Outcome(Struct, frozen=True, kw_only=True):
    """How an attempt ended, as its worker reports it."""

    verdict: Verdict
    code: int | None = None  # finer than the verdict; null = that of CODES
    error: Error | None = None
    reason: Reason | None = None  # what the worker knows beyond the verdict: `timeout`, `crashed` …
    delay: float | None = None  # seconds before the next run that the task asked for; null = by its retry policy


HALTED = Error(type="Halted", message="its place was needed for a job that waits")
LOST = Error(message="its worker was not heard of for a whole lease")
UNBEGUN = Error(message="its worker was not heard of for a whole lease; its code had not begun")


def time_limit(job: Job) -> float | None:
    """Seconds that the current run of a job may take; null = as long as it likes."""
    return None if job.deadline is None or job.started_at is None else (job.deadline - job.started_at).total_seconds()


def own_error(job: Job, outcome: Outcome) -> Error:
    """What a run says of its end, and that it was not its own fault if it had to give way."""
    if job.reason is Reason.HALTED:
        return HALTED
    error = outcome.error
    if outcome.reason is not Reason.TIMEOUT or error is None or job.reason not in (Reason.SHRUNK, Reason.LOWERED):
        return error or Error()
    limit = time_limit(job)
    why = "lowered while it ran" if limit is None else f"lowered to {limit:g} s while it ran"
    if job.reason is Reason.SHRUNK:
        why = f"shortened to tier {job.assigned}, for a job that waits"
    return replace(error, message=f"{error.message}: it was {why}" if error.message else f"its time was {why}")


def error_entry(job: Job, error: Error, reason: Reason, now: datetime) -> Error:
    """An error as it is added to those of the job: with the reason, the attempt, and where it ran."""
    entry = replace(error, reason=reason, attempt=job.attempt, at=now)
    if job.state is not State.RUNNING:
        return entry
    return replace(entry, worker=job.worker, node=job.node, pid=job.pid)
