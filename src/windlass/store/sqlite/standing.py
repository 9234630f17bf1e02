"""How flow control stands, for those who ask: what waits, how full buckets are, when the clock will open something.

Reads only; nothing here is asked by a claim.
"""

from collections.abc import Sequence

from windlass.model.names import EVERY_TENANT, JobKey, raw_key, text_id
from windlass.store.flow import KEY, MOST_RANKED, Usage, Waiting
from windlass.store.micros import LATEST, from_micros
from windlass.store.sqlite import batches
from windlass.store.sqlite.buckets import Bucket, any_bucket
from windlass.store.sqlite.groups import eligible, level_buckets, levels_of
from windlass.store.sqlite.lanes import Lane
from windlass.store.sqlite.transaction import Transaction
from windlass.store.sqlite.values import QUEUED

MOST_LOOKED_AT = 100
"""Open lanes whose buckets are looked at one by one."""

_LANES = "SELECT id, queued FROM lane WHERE tenant = ?1 AND queue = ?2 AND arrival IS NOT NULL ORDER BY task, bounds"
_LANES_OF_ALL = """
    SELECT lane.id, lane.queued FROM line CROSS JOIN lane ON lane.tenant = line.tenant AND lane.queue = line.queue
    WHERE line.queue = ? AND lane.arrival IS NOT NULL ORDER BY line.tenant, lane.task, lane.bounds
"""
_JOBS = f"SELECT priority, seq, id FROM job WHERE state = {QUEUED} AND lane = ? ORDER BY priority, seq LIMIT ?"

_PLACE = f"SELECT lane, priority, seq FROM job WHERE id = ? AND state = {QUEUED}"
_AHEAD = f"""
    SELECT count(*) FROM (
        SELECT 1 FROM job INDEXED BY job_ready WHERE state = {QUEUED} AND lane = ?1 AND priority < ?2
        UNION ALL
        SELECT 1 FROM job INDEXED BY job_ready WHERE state = {QUEUED} AND lane = ?1 AND priority = ?2 AND seq < ?3
        LIMIT {MOST_RANKED}
    )
"""

_BUCKETS = """
    SELECT name FROM bucket WHERE (name = ?1 OR (name > ?2 AND name < ?3)) AND running > 0
    UNION SELECT bucket FROM member CROSS JOIN lane ON lane.id = member.lane
    WHERE (bucket = ?1 OR (bucket > ?2 AND bucket < ?3)) AND lane.arrival IS NOT NULL
    ORDER BY 1
"""
_MEMBERS = """
    SELECT lane.id, lane.queued FROM member CROSS JOIN lane ON lane.id = member.lane
    WHERE member.bucket = ? AND lane.arrival IS NOT NULL
"""

_WAKE = """
    SELECT min(wake_at) FROM bucket WHERE wake_at IS NOT NULL AND EXISTS (
        SELECT 1 FROM lane INDEXED BY lane_parked
        WHERE parked = bucket.name AND parked IS NOT NULL AND arrival IS NOT NULL AND shut IS NULL
            AND queue IN carray(?1)
    )
"""
_SHUT = "SELECT min(shut) FROM lane WHERE shut IS NOT NULL AND arrival IS NOT NULL AND queue IN carray(?1)"
_OPEN = f"""
    SELECT id FROM lane INDEXED BY lane_open WHERE queue IN carray(?1) AND arrival IS NOT NULL AND parked IS NULL
        AND shut IS NULL AND turns = 0 AND bounds <> '' LIMIT {MOST_LOOKED_AT}
"""


def waiting(tx: Transaction, tenant: str, queue: str, limit: int) -> list[Waiting]:
    lanes = tx.rows(_LANES_OF_ALL, queue) if tenant == EVERY_TENANT else tx.rows(_LANES, tenant, queue)
    return [_waiting(tx, tx.lanes.get(lane), queued, limit) for lane, queued in lanes]


def _waiting(tx: Transaction, lane: Lane, queued: int, limit: int) -> Waiting:
    jobs = [(priority, seq, text_id(id)) for priority, seq, id in tx.rows(_JOBS, lane.id, limit)]
    return Waiting(lane.tenant, lane.queue, lane.task, lane.group, queued, jobs)


def rank(tx: Transaction, job: JobKey) -> int | None:
    for place in tx.rows(_PLACE, raw_key(*job)):
        return int(tx.column(_AHEAD, *place)[0])
    return None


def usage(tx: Transaction, allowance: str, limit: int) -> list[Usage]:
    known = Known(tx)
    found: list[Usage] = []
    for name in tx.column(_BUCKETS, allowance, allowance + KEY, allowance + chr(ord(KEY) + 1)):
        if len(found) >= limit:
            break
        bucket = known.bucket(name)
        passed = sum(queued for lane, queued in tx.rows(_MEMBERS, name) if known.obstacles(tx.lanes.get(lane)))
        if bucket.running or passed:
            free_at = bucket.free_at(tx.now)
            found.append(Usage(name, bucket.running, passed, from_micros(free_at) if free_at > tx.now else None))
    return found


def opening(tx: Transaction, queues: Sequence[str]) -> float | None:
    if not queues:
        return None
    wanted = tuple(queues)
    times = [time for statement in (_WAKE, _SHUT) for time in tx.column(statement, batches.texts(wanted)) if time]
    known = Known(tx)
    for lane in tx.column(_OPEN, batches.texts(wanted)):  # no claim may have tried these yet
        obstacles = known.obstacles(tx.lanes.get(lane))
        if obstacles and all(bucket.places > 0 for bucket in obstacles):
            times.append(max(bucket.free_at(tx.now) for bucket in obstacles))
    times = [time for time in times if tx.now < time < LATEST]
    return (min(times) - tx.now) / 1_000_000 if times else None


class Known:
    """The buckets that one call has looked at."""

    def __init__(self, tx: Transaction) -> None:
        self._tx = tx
        self._rules = tx.rules
        self._buckets: dict[str, Bucket] = {}

    def bucket(self, name: str) -> Bucket:
        if name not in self._buckets:
            self._buckets[name] = any_bucket(self._tx, self._rules, name)
        return self._buckets[name]

    def obstacles(self, lane: Lane) -> list[Bucket]:
        """What keeps a job of a lane from being started now."""
        places = eligible(lane.kind, levels_of(self._rules, lane.tenant, lane.queue))
        levels = level_buckets(lane.tenant, lane.queue, places[-1]) if places else ()
        bounds = [self.bucket(name) for name in (*lane.buckets, *levels)]
        return [bucket for bucket in bounds if not bucket.open(self._tx.now)]
