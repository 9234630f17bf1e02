"""Whoever asks for a job attends to it: then its owner clock starts anew, though not at every question.

Remembers when that was last written down by this engine; writes nothing itself.
"""

import math
from datetime import datetime, timedelta

from windlass.model import lifecycle
from windlass.model.job import Job
from windlass.model.lifecycle import Move
from windlass.model.names import JobKey, key_of
from windlass.store import Record

PART = 0.25
"""Of an owner clock: so much must have passed before it is set anew."""

MOST_REMEMBERED = 10_000


class Attention:
    """When the owner clocks of jobs were last set."""

    def __init__(self) -> None:
        self._set_at: dict[JobKey, datetime] = {}

    def is_due(self, job: Job, now: datetime) -> bool:
        """Whether it is time to set the clock anew."""
        if lifecycle.attend(job) is None:
            return False
        return now >= self._set_at.get(key_of(job), job.created_at) + timedelta(seconds=attend_every(job))

    def note(self, key: JobKey, now: datetime) -> None:
        self._set_at.pop(key, None)  # so that those that were not asked for longest are the first to be forgotten
        if len(self._set_at) >= MOST_REMEMBERED:
            self._set_at.pop(next(iter(self._set_at)))
        self._set_at[key] = now


def attend_every(job: Job) -> float:
    """Seconds after which somebody who waits for a job must ask again."""
    return math.inf if job.unattended is None else job.unattended * PART


def attended(record: Record, _: datetime) -> Move | None:
    return lifecycle.attend(record.job)
