"""The operation on failed jobs in groups. What is done to a group is done to the jobs that match its fingerprint."""

from typing import Annotated

from msgspec import Meta, Struct

from windlass.model.failure import FailureGroup
from windlass.model.match import Match
from windlass.model.operations.table import MOST_AT_ONCE, Operation, operation


class FailurePage(Struct, frozen=True, kw_only=True):
    """Groups among some of the failed jobs. The same group may come again on a later page: counts add up."""

    groups: list[FailureGroup]
    """The largest first."""
    scanned: int
    """How many failed jobs were read."""
    next: str | None = None
    """Give this as `after` for the following page; null = all were read."""


@operation("GET", "/failures", "read")
class Failures(Operation[FailurePage], frozen=True, kw_only=True):
    """Failed jobs that match, in groups of the same task and failure, from the newest on (10,000 jobs per page)."""

    match: Match = Match()
    limit: Annotated[int, Meta(ge=1, le=MOST_AT_ONCE)] = 100
    """A page ends where it has so many groups."""
    after: str | None = None
