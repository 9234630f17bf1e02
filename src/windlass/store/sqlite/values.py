"""Values as the file keeps them: numbers for states, bytes for the key of a job.

Pure, and the same for every table.
"""

from collections.abc import Iterable

from windlass.model.job import FINISHED, State
from windlass.model.names import DEFAULT_TENANT, JobKey, OfTenant, raw_key

STATES = tuple(State)
"""A state's number in the file is its place here: change this and `schema.sql` together."""

NUMBERS = {state: number for number, state in enumerate(STATES)}

BLOCKED = NUMBERS[State.BLOCKED]
SCHEDULED = NUMBERS[State.SCHEDULED]
QUEUED = NUMBERS[State.QUEUED]
RUNNING = NUMBERS[State.RUNNING]
SUCCEEDED = NUMBERS[State.SUCCEEDED]

ENDED = frozenset(NUMBERS[state] for state in FINISHED)


def key(job: JobKey) -> bytes:
    """The bytes that a job is named by."""
    return raw_key(*job)


def keys(jobs: Iterable[OfTenant]) -> list[bytes]:
    return [raw_key(job.id, job.tenant) for job in jobs]


def ids(texts: Iterable[str]) -> bytes:
    """Ids of jobs of one tenant, one after the other."""
    return b"".join(raw_key(text, DEFAULT_TENANT) for text in texts)
