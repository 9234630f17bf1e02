"""Operations on durable steps: a run loads the results of the steps that earlier runs of its job have finished, and
saves its own before it goes on. Both carry the token of the lease: a run that has lost it can save nothing.
"""

from typing import Annotated

from msgspec import Meta, Struct

from windlass.model.operations.table import MOST_AT_ONCE, Operation, operation
from windlass.model.operations.work import Applied, LeasedJob
from windlass.model.steps import StepEntry, StepName


class LoadedStep(Struct, frozen=True, kw_only=True):
    """The result of a step that has finished."""

    name: str
    result: bytes
    """As it was saved."""
    age: float
    """Seconds since then."""


class JobSteps(Struct, frozen=True, kw_only=True):
    """The finished steps of one job, in the order in which they finished."""

    id: str
    steps: list[LoadedStep] = []


@operation("POST", "/workers/{worker}/steps/load", "work", body="jobs")
class LoadSteps(Operation[list[JobSteps]], frozen=True, kw_only=True):
    """The finished steps of jobs that this worker runs, with their results. A job that it does not hold is left out."""

    worker: str
    jobs: Annotated[list[LeasedJob], Meta(max_length=MOST_AT_ONCE)]


class FinishedStep(LeasedJob, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True, gc=False):
    """A step of a running job has finished."""

    name: StepName
    """Among the steps of its job. One that is saved already stays as it is."""
    result: bytes
    """What the next run gets in its place; opaque to the queue."""


@operation("POST", "/workers/{worker}/steps", "work", body="jobs")
class SaveSteps(Operation[Applied], frozen=True, kw_only=True):
    """Keep the results of finished steps until their jobs are deleted. The code goes on when this is answered."""

    worker: str
    jobs: Annotated[list[FinishedStep], Meta(max_length=MOST_AT_ONCE)]


@operation("GET", "/jobs/{id}/steps", "read")
class GetSteps(Operation[list[StepEntry]], frozen=True, kw_only=True):
    """The steps that a job has finished, in that order."""

    id: str
