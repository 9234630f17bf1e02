"""Durable steps: parts of a task whose results are kept with its job, so that its next run does not repeat them."""

from datetime import datetime
from typing import Annotated

from msgspec import Meta, Struct

MOST_STEPS = 1000
"""Steps of one job."""

MOST_STEP_BYTES = 4 * 2**20
"""Bytes of the results of all steps of one job."""

MOST_STEP_NAME = 128
"""Characters of a step's name."""

StepName = Annotated[str, Meta(min_length=1, max_length=MOST_STEP_NAME, pattern=r"^[^\x00-\x1f\x7f]+$(?!\n)")]


class StepEntry(Struct, frozen=True, kw_only=True):
    """A step that a job has finished."""

    name: str
    finished_at: datetime
    size: int
    """Bytes of its result."""
