"""Windlass: a job queue that starts as a file and grows to Redis with the same code."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from windlass.app import Task, Windlass
    from windlass.call.current import RunningJob, current
    from windlass.call.dependencies import Depends
    from windlass.call.hooks import TaskOutcome
    from windlass.call.signals import Cancelled, Fail, RateLimited, Retry, Snooze, SoftTimeout
    from windlass.call.steps import step
    from windlass.job_handle import Job, JobFailed
    from windlass.model.errors import (
        Busy,
        Conflict,
        Damaged,
        Denied,
        FilesMissing,
        Full,
        Invalid,
        JournalFull,
        Missing,
        NotReplicated,
        TooLarge,
        Unauthenticated,
        Unavailable,
        WindlassError,
    )
    from windlass.model.events import Event
    from windlass.model.names import job_id
    from windlass.model.operations import BatchProgress
    from windlass.model.output import OutputPolicy
    from windlass.model.retry import RetryPolicy
    from windlass.outbox import OUTBOX_TABLE
    from windlass.workflow import Batch, chain, group

    __version__: str

__all__ = [
    "OUTBOX_TABLE",
    "Batch",
    "BatchProgress",
    "Busy",
    "Cancelled",
    "Conflict",
    "Damaged",
    "Denied",
    "Depends",
    "Event",
    "Fail",
    "FilesMissing",
    "Full",
    "Invalid",
    "Job",
    "JobFailed",
    "JournalFull",
    "Missing",
    "NotReplicated",
    "OutputPolicy",
    "RateLimited",
    "Retry",
    "RetryPolicy",
    "RunningJob",
    "Snooze",
    "SoftTimeout",
    "Task",
    "TaskOutcome",
    "TooLarge",
    "Unauthenticated",
    "Unavailable",
    "Windlass",
    "WindlassError",
    "__version__",
    "chain",
    "current",
    "group",
    "job_id",
    "step",
]

# Imported when first used: the command line and a worker's processes need only parts of this.
_PLACES = {
    "Batch": "windlass.workflow",
    "BatchProgress": "windlass.model.operations",
    "Busy": "windlass.model.errors",
    "Cancelled": "windlass.call.signals",
    "Conflict": "windlass.model.errors",
    "Damaged": "windlass.model.errors",
    "Denied": "windlass.model.errors",
    "Depends": "windlass.call.dependencies",
    "Event": "windlass.model.events",
    "Fail": "windlass.call.signals",
    "FilesMissing": "windlass.model.errors",
    "Full": "windlass.model.errors",
    "Invalid": "windlass.model.errors",
    "Job": "windlass.job_handle",
    "JobFailed": "windlass.job_handle",
    "JournalFull": "windlass.model.errors",
    "Missing": "windlass.model.errors",
    "NotReplicated": "windlass.model.errors",
    "RateLimited": "windlass.call.signals",
    "Retry": "windlass.call.signals",
    "OUTBOX_TABLE": "windlass.outbox",
    "OutputPolicy": "windlass.model.output",
    "RetryPolicy": "windlass.model.retry",
    "RunningJob": "windlass.call.current",
    "Snooze": "windlass.call.signals",
    "SoftTimeout": "windlass.call.signals",
    "Task": "windlass.app",
    "TaskOutcome": "windlass.call.hooks",
    "TooLarge": "windlass.model.errors",
    "Unauthenticated": "windlass.model.errors",
    "Unavailable": "windlass.model.errors",
    "Windlass": "windlass.app",
    "WindlassError": "windlass.model.errors",
    "chain": "windlass.workflow",
    "current": "windlass.call.current",
    "group": "windlass.workflow",
    "job_id": "windlass.model.names",
    "step": "windlass.call.steps",
}


def __getattr__(name: str) -> Any:
    if name == "__version__":
        return import_module("importlib.metadata").version("windlass")
    if name not in _PLACES:
        raise AttributeError(f"module 'windlass' has no attribute {name!r}")
    return getattr(import_module(_PLACES[name]), name)
