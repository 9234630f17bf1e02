"""Operations made in Python, held to the same bounds as operations that were sent."""

from typing import TypeVar

from msgspec import UNSET
from msgspec.structs import replace

from windlass.model import wire
from windlass.model.names import EVERY_TENANT, check_name
from windlass.model.operations import Enqueue, EnqueueMany, Finish, Operation

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
        case Finish() if any(item.result is not UNSET or item.jobs for item in operation.jobs):
            bares = [replace(item, result=UNSET, jobs=[]) for item in operation.jobs]
            bare = wire.checked(replace(operation, jobs=bares))
            pairs = zip(bare.jobs, operation.jobs, strict=True)
            return replace(bare, jobs=[replace(item, result=given.result, jobs=given.jobs) for item, given in pairs])
        case _:
            return wire.checked(operation)
