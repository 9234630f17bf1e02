"""The words of a queue of pushers and workers: their jobs, reports and states, and what a worker is sent.

Knows those shapes and which of ours they are; asks nobody anything. The id that a worker is sent also holds the right
to finish that run, so that a report needs nothing else.
"""

from typing import Annotated, Any, Literal

from msgspec import UNSET, Meta, Raw, Struct, UnsetType, field
from msgspec.structs import replace

from windlass.model import wire
from windlass.model.errors import Invalid, Missing
from windlass.model.job import HIGHEST, LOWEST, NOTHING, Error, Job, NewJob, Reason, State, Time
from windlass.model.lifecycle import Verdict
from windlass.model.names import Name, check_id
from windlass.model.operations import Claimed, Finished, Result
from windlass.model.retry import Seconds
from windlass.model.wire import Format
from windlass.model.worker import Slots, Worker
from windlass.server import bodies, translation
from windlass.server.translation import SPOKEN
from windlass.worker.delivering import Language

WORKER_JOB = "/worker-job"

TYPES: dict[Format, str] = {"json": "application/json", "msgpack": "application/msgpack"}

REPORTED = "failure"
"""The type of an error that a worker reported; its own value stands beside it, as JSON."""

MOST_ERROR = 8192
"""Characters of that value: what is longer is cut, and told as the text that is left."""


HELD_FOR = 3600.0
"""Seconds that a result waits for whoever fetches it."""


class Submission(Struct, frozen=True):
    """A job as it is sent in."""

    name: Name
    argument: Raw
    priority: Annotated[int, Meta(ge=LOWEST, le=HIGHEST)] = 0
    max_retry: Annotated[int, Meta(ge=0, le=1_000_000)] = 10
    keep_result: bool = False
    timeout: Seconds = 30.0


class Queued(Struct, frozen=True):
    """A job that was taken in."""

    job_id: str


class Introduction(Struct, frozen=True):
    """A worker as it introduces itself."""

    name: Annotated[str, Meta(min_length=1, max_length=128)]
    max_jobs: Slots
    url: str


class Joined(Struct, frozen=True):
    """A worker that is known now."""

    worker_id: str
    lease: float
    """Seconds in which it must say that it lives."""
    secret: str | UnsetType
    """What its jobs are signed with."""


class Report(Struct, frozen=True, kw_only=True, tag_field="type"):
    """How a run ended."""

    job_id: str
    finished_at: Time | None = None


class Success(Report, frozen=True, kw_only=True, tag="success"):
    """It did what it should."""

    result: Raw


class Failure(Report, frozen=True, kw_only=True, tag="failure"):
    """It did not."""

    should_retry: bool
    reason: Literal["other", "timeout"] = "other"
    message: str = ""
    error: Raw = field(default_factory=lambda: NOTHING)


class Sent(Struct, frozen=True):
    """A job as a worker gets it."""

    id: str
    name: str
    argument: Raw
    timeout: float | None


class Status(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How a job fares."""

    status: Literal["queued", "running", "retrying", "error", "done"]
    retry_count: int
    message: str
    worker_id: str | None = None
    result: Raw | UnsetType = UNSET
    error: Any = None
    finished_at: str | None = None


def job_id(text: str) -> str:
    """The id of a job, also as a worker knows it. To these people an id is a text: one that cannot be is not there."""
    id = text.partition(".")[0]
    try:
        return check_id(id)
    except Invalid:
        raise Missing(f"there is no job {id[:60]}", at="job_id") from None


def new_job(sent: Submission, form: Format) -> NewJob:
    return NewJob(
        task=sent.name,
        payload=sent.argument,
        content_type=SPOKEN[form],
        priority=sent.priority,
        max_retry=sent.max_retry,
        keep_result="once" if sent.keep_result else "none",
        keep_result_for=HELD_FOR if sent.keep_result else None,
        timeout=sent.timeout,
    )


def finished(sent: Success | Failure, form: Format) -> Finished:
    """The report of a run: which one it was is in the id that was sent with it."""
    id, token = job_id(sent.job_id), sent.job_id.partition(".")[2]
    if not token:
        raise Missing("no run has this id: it is the one that was sent to the worker", at="job_id")
    if isinstance(sent, Success):
        ended = Finished(id=id, token=token, outcome=Verdict.OK, result=sent.result, content_type=SPOKEN[form])
        return replace(ended, finished_at=sent.finished_at)
    text = "" if sent.error is NOTHING else bytes(translation.value(sent.error, SPOKEN[form], "json")).decode()
    return Finished(
        id=id,
        token=token,
        finished_at=sent.finished_at,
        outcome=Verdict.ERROR if sent.should_retry else Verdict.FAILED,
        error=Error(type=REPORTED, message=sent.message, traceback=text[:MOST_ERROR]),
        reason=Reason.TIMEOUT if sent.reason == "timeout" else None,
    )


# Answers


def known(job: Job) -> Job:
    """A job that was cancelled is gone."""
    if job.state is State.CANCELLED:
        raise Missing(f"there is no job {job.id}", at="id")
    return job


def status(job: Job, kept: Result | None, form: Format) -> Status:
    """How a job fares; `kept` is what there is of its result, once it is done."""
    word = _word(known(job))
    error = job.error if word in ("error", "retrying") else None
    return Status(
        status=word,
        retry_count=max(0, job.attempt - 1),
        message=error.message if error else "",
        worker_id=job.worker,
        result=UNSET if kept is None else _result(kept, form),
        error=_error(error) if error else None,
        finished_at=job.finished_at.isoformat() if job.finished_at else None,
    )


def _result(kept: Result, form: Format) -> Raw:
    if not isinstance(kept.result, Raw):
        return bodies.NULL[form]
    return translation.value(kept.result, kept.content_type, form)


def _word(job: Job) -> Literal["queued", "running", "retrying", "error", "done"]:
    match job.state:
        case State.RUNNING:
            return "running"
        case State.SUCCEEDED:
            return "done"
        case State.FAILED:
            return "error"
        case State.SCHEDULED if job.attempt:
            return "retrying"
        case _:
            return "queued"


def _error(error: Error) -> Any:
    """The value that a worker reported, or what we call what went wrong."""
    if error.type != REPORTED:
        return error.type or error.reason
    try:
        return wire.decode(error.traceback.encode(), object, "json") if error.traceback else None
    except Invalid:
        return error.traceback


# To workers


def is_spoken_by(worker: Worker) -> bool:
    """Whether a worker is one of these: its address says so."""
    return worker.url is not None and worker.url.endswith(WORKER_JOB)


def _sent(claimed: Claimed, form: Format) -> bytes:
    job = claimed.job
    argument = translation.value(claimed.payload, job.content_type, form)
    return wire.encode(Sent(f"{job.id}.{claimed.token}", job.task, argument, job.timeout), form)


LANGUAGE = Language(_sent, bodies.decode, TYPES)
