"""What a caller changes of a stored job, as `lifecycle.edit` puts it into a move. Data alone."""

from collections.abc import Mapping

from msgspec import Struct


class JobEdit(Struct, frozen=True, kw_only=True):
    """One edit of one job: written whole, or refused if there was another one meanwhile."""

    number: int
    """How many edits came before it."""
    annotations: Mapping[str, str]
    """All that the job has afterwards."""
