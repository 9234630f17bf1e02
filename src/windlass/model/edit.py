"""What a caller changes of a stored job, as `lifecycle.edit` puts it into a move. Data alone."""

from collections.abc import Mapping

from msgspec import Struct

from windlass.model.new_job import NewJob


class JobEdit(Struct, frozen=True, kw_only=True):
    """One edit of one job: written whole, or refused if there was another one meanwhile."""

    number: int
    """How many edits came before it."""
    annotations: Mapping[str, str]
    """All that the job has afterwards."""
    new: NewJob | None = None
    """What a waiting job is from now on: its terms and payload. Null = as it was; its time is in the move."""
    group: str = ""
    """What bounds it then, as a `Draft` says it."""
    group_epoch: int = 0
    identity: bytes = b""
    """What it is known by then, if it is unique."""
