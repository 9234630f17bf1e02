"""Operations on how long jobs wait."""

from windlass.model.estimate import Estimate, QueueEstimate
from windlass.model.names import Name
from windlass.model.operations.table import Operation, operation


@operation("GET", "/jobs/{id}/estimate", "read")
class GetEstimate(Operation[Estimate], frozen=True, kw_only=True):
    """How long a job will still wait, and for what."""

    id: str


@operation("GET", "/queues/{queue}/estimate", "read")
class GetQueueEstimate(Operation[QueueEstimate], frozen=True, kw_only=True):
    """How long a job that came now would wait in a queue, and how right estimates have been there."""

    queue: Name
