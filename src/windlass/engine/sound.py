"""Operations made in Python, held to the same bounds as operations that were sent."""

from operator import attrgetter
from typing import TypeVar

from msgspec import UNSET
from msgspec.structs import replace

from windlass.model import wire
from windlass.model.lifecycle import Verdict
from windlass.model.names import EVERY_TENANT, check_name, is_name
from windlass.model.operations import (
    MOST_AT_ONCE,
    MOST_TEXT,
    Enqueue,
    EnqueueLines,
    EnqueueMany,
    Finish,
    Finished,
    Operation,
)

O = TypeVar("O", bound=Operation)  # type: ignore[type-arg] # noqa: E741 - whatever it answers


def sound(operation: O) -> O:
    """The operation, if everything in it is as declared.

    Payloads and results are not looked at, and new jobs are checked where they are given their ids.
    """
    if operation.tenant != EVERY_TENANT:
        check_name(operation.tenant, at="tenant")
    match operation:
        case Enqueue() | EnqueueMany():
            return operation  # each job is checked as it is given its id
        case EnqueueLines(text=str(text)) if len(text) <= MOST_TEXT:
            return replace(wire.checked(replace(operation, text="")), text=text)
        case Finish() if _is_short(operation) and all(map(_is_plain, operation.jobs)):
            return operation
        case Finish() if any(item.result is not UNSET or item.jobs for item in operation.jobs):
            bares = [replace(item, result=UNSET, jobs=[]) for item in operation.jobs]
            bare = wire.checked(replace(operation, jobs=bares))
            pairs = zip(bare.jobs, operation.jobs, strict=True)
            return replace(bare, jobs=[replace(item, result=given.result, jobs=given.jobs) for item, given in pairs])
        case _:
            return wire.checked(operation)


_details = attrgetter(
    *(name for name in Finished.__struct_fields__ if name not in {"id", "token", "tenant", "outcome", "result"})
)
_no_details = _details(Finished(id="", token="", outcome=Verdict.OK))


def _is_short(operation: Finish) -> bool:
    return type(operation.worker) is str and type(operation.jobs) is list and len(operation.jobs) <= MOST_AT_ONCE


def _is_plain(report: Finished) -> bool:
    """Whether a report says no more than that a job ended so, as most do: there is little to check then."""
    return (
        type(report.id) is str
        and type(report.token) is str
        and (report.tenant is None or (type(report.tenant) is str and is_name(report.tenant)))
        and type(report.outcome) is Verdict
        and _details(report) == _no_details
    )
