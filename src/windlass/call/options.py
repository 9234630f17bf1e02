"""What may be said of a job beside its arguments, as people say it, and as fields of a job.

Knows durations and policies as people write them; whether a value is in bounds is the model's business.
"""

from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from typing import Any, Literal, Protocol, TypedDict

import msgspec

from windlass.call.arguments import CallSignature
from windlass.model.duration import seconds
from windlass.model.errors import Invalid
from windlass.model.new_job import AfterFailure, KeepResult, NewJob, OnDuplicate, OnLost, WithResults
from windlass.model.output import OutputPolicy
from windlass.model.retry import PRESETS, RetryPolicy
from windlass.model.stdin import Stdin
from windlass.model.wire import invalid

Duration = float | int | str | timedelta
"""Seconds, or "90s", "10m", "2h 30m", or a timedelta."""


class TaskOptions(TypedDict, total=False):
    """What may be said of all jobs of a task, or of one with `using`."""

    queue: str
    """The named line it waits in."""
    unique: Literal["pending", "queued"] | Duration | None
    """For how long there is one such job: while it waits or runs, while it waits, or for a time after it was queued."""
    unique_key: str | None
    """What makes a job of the task the same one; None = its arguments."""
    on_duplicate: OnDuplicate
    """What becomes of a second one: it is the first ("join"), renews it ("replace"), or is refused ("reject")."""
    priority: int
    """Lower goes first."""
    tags: list[str]
    """Words to find it by."""
    timeout: Duration | None
    """How long one run may take."""
    max_retry: int | None
    """How many re-runs a failing job gets; None = as many as the policy's deadline allows."""
    retry: RetryPolicy | Literal["exponential", "from-start", "until-deadline"] | dict[str, Any]
    """When those re-runs come."""
    tier: str | float | None
    yielding: bool
    on_failure: "Following | str | None"
    """A task, or its name, that is queued when the job has failed; it gets the job's record as its one argument."""
    isolate: bool
    """Whether each job gets a process of its own."""
    on_lost: OnLost | None
    """What to do if its process or worker is killed, or its worker stops, while it runs: "fail" never runs it again."""
    output: OutputPolicy | dict[str, Any] | None
    """How much it may print, what happens then, and whether stderr is part of stdout; None = as its queue says."""
    input: bool
    """Whether messages may be sent to it while it runs: `current.input` in the task."""
    stdin: Stdin | None
    """Whether its process has a standard input, where it reads what is sent to it: "pipe", or "terminal"."""
    most_input: int | None
    """Bytes that may be sent to one run in all."""
    keep_result: KeepResult
    keep_result_for: Duration | None
    """How long the result stays, if the record stays longer; None = as long as the record."""
    keep_success: Duration | None
    keep_failure: Duration | None
    expires: Duration | None
    """How long it may wait for its first run."""
    owner_timeout: Duration | None
    """How long it may go without its owner asking for it, before it is cancelled as abandoned."""
    headers: dict[str, str]


class Options(TaskOptions, total=False):
    """What may be said of one job."""

    id: str
    key: str
    """The caller's own name for the job: the same key again is the same job."""
    delay: Duration
    run_at: datetime
    after: "str | Identified | Sequence[str | Identified]"
    """One job or several, or their ids, that must have succeeded first."""
    after_failure: AfterFailure
    """If one of them does not: "skip" cancels this job, "fail" lets it fail, "run" queues it once all have ended."""
    with_results: WithResults | None
    """How it gets what those in `after` returned: "list" = all of it is its first argument, "one" = that of the only
    job is, "current" = only `current.results` has it."""
    then: "Following"
    """A task that is queued when this job has succeeded; it gets the result as its one argument."""
    files: dict[str, bytes]
    """Files that go with the job, by name: `current.files` in the task."""


class Identified(Protocol):
    """A job that was queued."""

    id: str


class Following(Protocol):
    """A task, with options of its own."""

    plan: CallSignature

    @property
    def template(self) -> NewJob: ...


DURATIONS = ("timeout", "keep_result_for", "keep_success", "keep_failure", "expires", "owner_timeout", "delay")
POLICY_DURATIONS = ("base", "cap", "deadline")


def to_fields(options: Options) -> dict[str, Any]:
    """Options as fields of a job: durations in seconds, the retry policy by its name."""
    fields: dict[str, Any] = dict(options)
    unknown = fields.keys() - Options.__annotations__.keys()
    if unknown:
        raise Invalid(
            f"there is no such option; there are {', '.join(sorted(Options.__annotations__))}", at=min(unknown)
        )
    for name in DURATIONS:
        if fields.get(name) is not None:
            fields[name] = duration_of(fields[name], at=name)
    for name in CONVERTED.keys() & fields.keys():
        fields[name] = CONVERTED[name](fields[name])
    return fields


def _ids(given: Any) -> list[str]:
    """Of one job or several, given as handles or ids."""
    several = [given] if isinstance(given, str) or hasattr(given, "id") else given
    return [one if isinstance(one, str) else one.id for one in several]


def _following(task: Any) -> NewJob:
    """The job that follows: its task must be able to take the result."""
    new = getattr(task, "template", None)
    if not isinstance(new, NewJob):
        raise Invalid("give a task: then=notify, or then=notify.using(…)", at="then")
    if not task.plan.takes_one:
        called = f"{new.task}{task.plan.signature}"
        raise Invalid(f"{called} cannot be called with one argument, the result", at="then")
    return new


def _failure_task(task: Any) -> str | None:
    """Its name: its options are those that it was declared with."""
    if task is None or isinstance(task, str):
        return task
    new = getattr(task, "template", None)
    if not isinstance(new, NewJob) or task.said:
        raise Invalid("give a task, or its name, without options of this call: on_failure=notify", at="on_failure")
    if not task.plan.takes_one:
        called = f"{new.task}{task.plan.signature}"
        raise Invalid(f"{called} cannot be called with one argument, the failed job's record", at="on_failure")
    return new.task


def duration_of(given: Any, at: str) -> float:
    if not isinstance(given, Duration):
        raise Invalid(f"{given!r} is not a duration: write 90, '90s', '10m', '2h 30m' or '7d'", at=at)
    return seconds(given, at=at)


def _output(given: Any) -> Any:
    if not isinstance(given, dict):
        return given
    try:
        return msgspec.convert(given, OutputPolicy)
    except msgspec.ValidationError as fault:
        raise invalid(fault, at="output", kind=OutputPolicy) from None


def _policy(given: Any) -> Any:
    """A policy by its name, or as a map, whose durations may be written as people write them."""
    if isinstance(given, str):
        if given not in PRESETS:
            raise Invalid(f"{given!r} is no policy: {', '.join(PRESETS)}, or a Retry of your own", at="retry")
        return PRESETS[given]
    if not isinstance(given, dict):
        return given
    durations = {name: duration_of(given[name], at=f"retry.{name}") for name in POLICY_DURATIONS if given.get(name)}
    try:
        return msgspec.convert({**given, **durations}, RetryPolicy)
    except msgspec.ValidationError as fault:
        raise invalid(fault, at="retry", kind=RetryPolicy) from None


def _unique(given: Any) -> Any:
    return given if given in (None, "pending", "queued") else duration_of(given, at="unique")


CONVERTED: dict[str, Callable[[Any], Any]] = {
    "unique": _unique,
    "after": _ids,
    "then": _following,
    "on_failure": _failure_task,
    "retry": _policy,
    "output": _output,
}
"""Options that people write in other ways than a job has them."""
