"""Operations on what jobs wait for: limits, queues, pauses, and how long."""

from typing import Annotated

from msgspec import UNSET, Meta, Struct, UnsetType, field

from windlass.model.duration import Time
from windlass.model.estimate import Estimate, QueueEstimate
from windlass.model.estimate import Why as EstimateWhy
from windlass.model.job import State
from windlass.model.limit import Limit, NewLimit, Pause
from windlass.model.names import Name
from windlass.model.new_job import JobOptions
from windlass.model.operations.table import Operation, operation
from windlass.model.queue import QueueChange, QueueSettings

Why = Annotated[str, Meta(max_length=500)]


class LimitBucket(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How one bucket of a limit stands."""

    key: str | None = None
    """Which; null if the limit has one bucket for all."""
    running: int = 0
    waiting: int = 0
    """Queued jobs that are passed by."""
    free_at: Time | None = None
    """When the next may start, if its rate or a pause holds it up now."""


class LimitCard(Limit, frozen=True, kw_only=True, omit_defaults=True):
    """A limit, and how it stands."""

    sorting: bool = False
    """Whether jobs that waited before it came are still being sorted; those that it may concern wait meanwhile."""
    buckets: list[LimitBucket] = field(default_factory=list)
    """Those in use or waited for; the first hundred."""


class QueueWaits(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How long jobs of a queue wait, and how its tiers are used."""

    oldest: Time | None = None
    """Since when the oldest queued job waits; null = none is queued."""
    seconds: float | None = None
    """Until a job that is enqueued now is expected to start; null = unknown."""
    why: EstimateWhy | None = None
    """What that job would wait for; null = for nothing."""
    tiers: dict[str, int] = field(default_factory=dict)
    """By tier, how many jobs run at it or at a longer one: what its cap bounds."""


class QueueCard(QueueSettings, frozen=True, kw_only=True, omit_defaults=True):
    """A queue: how it is run, and how many jobs it has."""

    tenant: str
    queue: str
    states: dict[State, int] = field(default_factory=dict)
    workers: int = 0
    slots: int = 0
    """How many jobs the live workers that serve it can run at once."""
    caps: dict[str, int] = field(default_factory=dict)
    """By tier, what its cap amounts to now."""
    estimate_error: float | None = None
    """Median error of recent estimates here, as a part of the actual wait, over all tenants; null = unknown."""
    waits: QueueWaits | UnsetType = UNSET
    """How long its jobs wait, where that was asked for."""


@operation("PUT", "/limits/{name}", "operate", body="limit")
class PutLimit(Operation[LimitCard], frozen=True, kw_only=True):
    """Bound jobs that match, in the place of any limit of that name; in force at once, for waiting jobs too."""

    name: Name
    limit: NewLimit


@operation("GET", "/limits/{name}", "read")
class GetLimit(Operation[LimitCard], frozen=True, kw_only=True):
    """A limit, and how its buckets stand."""

    name: Name


@operation("GET", "/limits", "read")
class Limits(Operation[list[Limit]], frozen=True, kw_only=True):
    """All limits of a tenant."""


@operation("PATCH", "/limits/{name}", "operate", body="pause")
class PauseLimit(Operation[LimitCard], frozen=True, kw_only=True):
    """Let no job of a limit start for a while, or let them again."""

    name: Name
    pause: Pause


@operation("DELETE", "/limits/{name}", "operate", 204)
class RemoveLimit(Operation[None], frozen=True, kw_only=True):
    """Bound these jobs no more."""

    name: Name


@operation("GET", "/queues", "read")
class Queues(Operation[list[QueueCard]], frozen=True, kw_only=True):
    """All queues that have jobs, workers or settings."""

    waits: bool = False
    """Whether to say of each how long its jobs wait; of the first 100 queues with jobs."""


@operation("GET", "/queues/{queue}", "read")
class GetQueue(Operation[QueueCard], frozen=True, kw_only=True):
    """How a queue is run, and how many jobs it has."""

    queue: Name
    waits: bool = False
    """Whether to say how long its jobs wait."""


@operation("PATCH", "/queues/{queue}", "operate", body="change")
class ChangeQueue(Operation[QueueCard], frozen=True, kw_only=True):
    """Change how a queue is run, pause it or let it go on; what is not named stays."""

    queue: Name
    change: QueueChange


class TaskCard(Pause, frozen=True, kw_only=True, omit_defaults=True):
    """A task: whether it is paused, and what its jobs get that come by name."""

    options: JobOptions | None = None
    """The options that the last worker registered for it, those that differ from the defaults; null = none did."""


@operation("GET", "/tasks/{task}", "read")
class GetTask(Operation[TaskCard], frozen=True, kw_only=True):
    """Whether a task is paused, and its options."""

    task: Name


class TaskEntry(TaskCard, frozen=True, kw_only=True, omit_defaults=True):
    """A task by name."""

    tenant: str
    task: str


@operation("GET", "/tasks", "read")
class Tasks(Operation[list[TaskEntry]], frozen=True, kw_only=True):
    """The tasks that are paused or have options, also those of all tenants."""


@operation("PATCH", "/tasks/{task}", "operate", body="pause")
class PauseTask(Operation[Pause], frozen=True, kw_only=True):
    """Let no job of a task start for a while, or let them again."""

    task: Name
    pause: Pause


@operation("GET", "/jobs/{id}/estimate", "read")
class GetEstimate(Operation[Estimate], frozen=True, kw_only=True):
    """How long a job will still wait, and for what."""

    id: str


@operation("GET", "/queues/{queue}/estimate", "read")
class GetQueueEstimate(Operation[QueueEstimate], frozen=True, kw_only=True):
    """How long a job that came now would wait in a queue, and how right estimates have been there."""

    queue: Name
