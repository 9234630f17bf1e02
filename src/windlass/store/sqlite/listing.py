"""Listing and counting jobs: pages, counters, what waits in a queue, and the rank of a job.

A listing goes by tenant and queue, and within a tenant's queue by arrival. Each state's jobs are in that order in one
index; the wanted states are merged. So a job that changes its state meanwhile keeps its place.
"""

import re
from typing import NamedTuple

from windlass.model.errors import Invalid
from windlass.model.names import EVERY_TENANT, JobKey, raw_key, text_id
from windlass.store.data import Counts, JobCount, ListScope, RecordPage, RunCount, sorted_counts
from windlass.store.flow import MOST_RANKED, LaneBacklog
from windlass.store.sqlite.jobs import records_by_seq
from windlass.store.sqlite.transaction import QUEUED, STATE_NUMBERS, STATES, VERDICTS, Lane, Transaction

MOST_TENANT_QUEUES = 100
"""Tenants' queues that one call looks at; most of them may have no wanted job."""

BEYOND = "~"
"""Sorts after every tenant's name."""

LAST = 10**18 - 1
"""Larger than every job's number."""

_CURSOR = re.compile(r"([\w.-]{1,128})/([\w.-]{1,128})/([0-9]{1,18})", re.ASCII)

_TENANT_QUEUES = f"""
    SELECT id, tenant, queue FROM tenant_queue WHERE (tenant, queue) >= (?1, ?2) AND tenant <= ?3
    ORDER BY tenant, queue LIMIT {MOST_TENANT_QUEUES}
"""
_TENANT_QUEUES_OF_QUEUE = f"""
    SELECT id, tenant, queue FROM tenant_queue WHERE tenant BETWEEN ?1 AND ?3 AND queue = ?2
    ORDER BY tenant LIMIT {MOST_TENANT_QUEUES}
"""
_SEQS = "SELECT seq FROM job WHERE tenant_queue = ? AND state = ? AND seq > ? ORDER BY seq LIMIT ?"
_SEQS_BACKWARDS = "SELECT seq FROM job WHERE tenant_queue = ? AND state = ? AND seq < ? ORDER BY seq DESC LIMIT ?"

_SUMS = f"SELECT tenant, queue, task, {', '.join(f'sum({state})' for state in STATES)} FROM lane"
_COUNTS = f"{_SUMS} GROUP BY tenant, queue, task"
_COUNTS_OF_TENANT = f"{_SUMS} WHERE tenant = ? GROUP BY tenant, queue, task"

_LANES_OF_TENANT = (
    "SELECT id, queued FROM lane WHERE tenant = ?1 AND queue = ?2 AND arrival IS NOT NULL ORDER BY task, limit_keys"
)
_LANES_OF_QUEUE = """
    SELECT lane.id, lane.queued
    FROM tenant_queue CROSS JOIN lane ON lane.tenant = tenant_queue.tenant AND lane.queue = tenant_queue.queue
    WHERE tenant_queue.queue = ? AND lane.arrival IS NOT NULL ORDER BY tenant_queue.tenant, lane.task, lane.limit_keys
"""
_QUEUED_JOBS = f"SELECT priority, seq, id FROM job WHERE state = {QUEUED} AND lane = ? ORDER BY priority, seq LIMIT ?"

_POSITION = f"SELECT lane, priority, seq FROM job WHERE id = ? AND state = {QUEUED}"
_COUNT_AHEAD = f"""
    SELECT count(*) FROM (
        SELECT 1 FROM job INDEXED BY job_ready WHERE state = {QUEUED} AND lane = ?1 AND priority < ?2
        UNION ALL
        SELECT 1 FROM job INDEXED BY job_ready WHERE state = {QUEUED} AND lane = ?1 AND priority = ?2 AND seq < ?3
        LIMIT {MOST_RANKED}
    )
"""

_OUTCOMES = f"SELECT tenant, queue, task, {', '.join(VERDICTS)} FROM outcome WHERE tenant = ?1 OR ?1 = '{EVERY_TENANT}'"


class Cursor(NamedTuple):
    """The last position that a listing has shown."""

    tenant: str = ""
    queue: str = ""
    seq: int = 0

    @classmethod
    def parse(cls, text: str | None) -> "Cursor":
        if text is None:
            return cls()
        parts = _CURSOR.fullmatch(text)
        if parts is None:
            raise Invalid("not the `next` of an earlier page", at="after")
        return cls(parts[1], parts[2], int(parts[3]))

    def __str__(self) -> str:
        return f"{self.tenant}/{self.queue}/{self.seq}"


def page(tx: Transaction, scope: ListScope, after: Cursor, limit: int) -> RecordPage:
    """At most `limit` records, from at most `MOST_TENANT_QUEUES`, after a position."""
    found = _tenant_queues(tx, scope, after)
    seqs: list[int] = []
    place: Cursor | None = None
    first, last = (LAST, 0) if scope.newest_first else (0, LAST)
    for id, tenant, queue in found:
        start = after.seq if (tenant, queue) == (after.tenant, after.queue) else first
        seqs += _merged(tx, id, scope, start, limit - len(seqs))
        if len(seqs) >= limit:
            place = Cursor(tenant, queue, seqs[-1])
            break
    else:
        if len(found) == MOST_TENANT_QUEUES:
            place = Cursor(found[-1][1], found[-1][2], last)
    return RecordPage(records=records_by_seq(tx, seqs), next=None if place is None else str(place))


def _tenant_queues(tx: Transaction, scope: ListScope, after: Cursor) -> list[tuple[int, str, str]]:
    lowest, highest = ("", BEYOND) if scope.tenant == EVERY_TENANT else (scope.tenant, scope.tenant)
    start = max(lowest, after.tenant)
    if scope.queue is not None:
        return tx.rows(_TENANT_QUEUES_OF_QUEUE, start, scope.queue, highest)
    return tx.rows(_TENANT_QUEUES, start, after.queue if start == after.tenant else "", highest)


def _merged(tx: Transaction, tenant_queue: int, scope: ListScope, after: int, limit: int) -> list[int]:
    """The next jobs of a tenant's queue that are in one of the wanted states."""
    statement = _SEQS_BACKWARDS if scope.newest_first else _SEQS
    found: list[int] = []
    for state in scope.states:
        found += tx.column(statement, tenant_queue, STATE_NUMBERS[state], after, limit)
    return sorted(found, reverse=scope.newest_first)[:limit]


def counts(tx: Transaction, tenant: str) -> Counts:
    lanes = tx.rows(_COUNTS) if tenant == EVERY_TENANT else tx.rows(_COUNTS_OF_TENANT, tenant)
    jobs = [
        JobCount(owner, queue, task, state, count)
        for owner, queue, task, *numbers in lanes
        for state, count in zip(STATES, numbers, strict=True)
        if count
    ]
    runs = [
        RunCount(owner, queue, task, verdict, count)
        for owner, queue, task, *numbers in tx.rows(_OUTCOMES, tenant)
        for verdict, count in zip(VERDICTS, numbers, strict=True)
        if count
    ]
    return sorted_counts(jobs, runs)


def backlog(tx: Transaction, tenant: str, queue: str, limit: int) -> list[LaneBacklog]:
    lanes = tx.rows(_LANES_OF_QUEUE, queue) if tenant == EVERY_TENANT else tx.rows(_LANES_OF_TENANT, tenant, queue)
    return [_lane_backlog(tx, tx.lanes.get(lane), queued, limit) for lane, queued in lanes]


def _lane_backlog(tx: Transaction, lane: Lane, queued: int, limit: int) -> LaneBacklog:
    jobs = [(priority, seq, text_id(id)) for priority, seq, id in tx.rows(_QUEUED_JOBS, lane.id, limit)]
    return LaneBacklog(lane.tenant, lane.queue, lane.task, lane.limit_keys, queued, jobs)


def rank(tx: Transaction, job: JobKey) -> int | None:
    for place in tx.rows(_POSITION, raw_key(*job)):
        return int(tx.column(_COUNT_AHEAD, *place)[0])
    return None
