"""The answer to `Failures`: failed jobs in groups, by their fingerprints.

Reads failed jobs page by page and keeps one entry per group, so a request costs the same however many jobs failed.
"""

from collections.abc import Awaitable, Callable
from typing import Any

from windlass.engine.context import EngineContext
from windlass.engine.jobs import MOST_SCANNED, matching_records
from windlass.model.failure import FailureGroup, group_of, in_order, merge
from windlass.model.job import State
from windlass.model.match import states
from windlass.model.operations import FailurePage, Failures, Operation
from windlass.store.data import ListScope

PAGE = 200
"""Jobs read at once: failed ones are large, with the tracebacks of all their runs."""


async def failures(context: EngineContext, operation: Failures) -> FailurePage:
    match = operation.match
    scope = ListScope(operation.tenant, match.queue, states(match) & {State.FAILED}, newest_first=True)
    groups: dict[tuple[str, str], FailureGroup] = {}
    after, scanned = operation.after, 0
    while True:
        piece = await context.store.jobs.list(scope, after, PAGE)
        merge(groups, [group_of(record.job) for record in await matching_records(context, match, piece.records)])
        after, scanned = piece.next, scanned + len(piece.records)
        if after is None or len(groups) >= operation.limit or scanned >= MOST_SCANNED:
            return FailurePage(groups=in_order(groups.values()), scanned=scanned, next=after)


ANSWERS: dict[type[Operation[Any]], Callable[[EngineContext, Any], Awaitable[Any]]] = {Failures: failures}
