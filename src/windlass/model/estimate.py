"""Estimates: how long a job will still wait, and for what. Only the words; `policy.estimate` finds them."""

from enum import StrEnum

from msgspec import Struct


class Why(StrEnum):
    """What a job waits for."""

    SLOTS = "slots"
    """Its turn: jobs before it, or of queues that its workers prefer, take the slots."""
    LIMIT = "limit"
    """A place within a limit."""
    TIER = "tier"
    """A place at its tier."""
    TIME = "time"
    """The time before which it may not run."""
    JOBS = "jobs"
    """Other jobs, which must succeed first."""
    PAUSE = "pause"
    """For its queue, its task or its limit to be resumed."""
    WORKER = "worker"
    """A worker: no live one takes jobs from its queue."""
    HANDLER = "handler"
    """A worker that knows its task: no live one of its queue does."""


class Estimate(Struct, frozen=True, kw_only=True, gc=False):
    """How long a job will still wait."""

    seconds: float | None = None
    """Until it is expected to start; null = unknown, or it no longer waits."""
    at_most: float | None = None
    """Until it starts if each run takes as long as its tier allows; null = no tiers, or a run is without a limit."""
    position: int | None = None
    """Its place among its tenant's jobs in its queue, from 1; null = it is not in line (yet)."""
    why: Why | None = None
    """What it waits for; null = it waits no more."""
    name: str | None = None
    """Of the limit or the tier that it waits for; of a `handler`, why no worker runs it."""


class QueueEstimate(Struct, frozen=True, kw_only=True):
    """How long jobs of a queue wait."""

    seconds: float | None = None
    """Until a job that is enqueued now is expected to start; null = unknown."""
    at_most: float | None = None
    """Until it starts if each run takes as long as its tier allows; null = no tiers, or a run is without a limit."""
    waiting: int = 0
    """How many jobs wait."""
    why: Why | None = None
    """What that job would wait for; null = for nothing."""
    error: float | None = None
    """Median error of recent estimates here, as a part of the actual wait; null = none is known yet."""
