"""Checks that a file is sound: each promise of `schema.sql` as a query whose answer should be empty.

Flow control too: first jobs, places, blocked and paused lanes and turns are what jobs and rules say. Reads only, and
reads everything: for tests and for `doctor`.
"""

from collections import Counter
from collections.abc import Iterator
from itertools import islice

from windlass.model.lifecycle import STOP_ORDERS
from windlass.model.names import DEFAULT_TENANT, ID_SIZE
from windlass.model.output import MOST_INPUT, MOST_KEPT, MOST_MESSAGES, MOST_OUTPUT
from windlass.store.encoding import span, unpack_terms
from windlass.store.sqlite.flow import any_bucket
from windlass.store.sqlite.jobs import result_kept_for
from windlass.store.sqlite.store import SqliteStore
from windlass.store.sqlite.transaction import (
    BLOCKED,
    ENDED,
    NO_TURNS,
    QUEUED,
    RUNNING,
    SCHEDULED,
    STATES,
    TASK_TURNS,
    Transaction,
    held_levels,
    paused_until,
    turns_of,
)
from windlass.store.sqlite.transitions import MOST_ERRORS

MOST_FINDINGS = 20
"""Of one kind."""

LARGEST_QUICK = 256 << 20
"""Bytes of a file that is checked in about a second."""

_TABLES_OF_A_JOB = ("payload", "lease", "progress", "error", "result", "output", "input", "file")

_ENDED = ", ".join(map(str, sorted(ENDED)))

# What would be wrong, and a query for the jobs of which it is true.
CHECKS: dict[str, str] = {
    "runs without a lease": f"""
        SELECT hex(id) FROM job WHERE state = {RUNNING} AND seq NOT IN (SELECT job FROM lease)""",
    "has a lease but does not run": f"""
        SELECT hex(job.id) FROM lease JOIN job ON job.seq = lease.job WHERE job.state <> {RUNNING}""",
    "is leased to another worker than its record says": """
        SELECT hex(job.id) FROM lease JOIN job ON job.seq = lease.job WHERE job.worker IS NOT lease.worker""",
    "is leased without a token": """
        SELECT hex(job.id) FROM lease JOIN job ON job.seq = lease.job WHERE length(lease.token) = 0""",
    "runs but was never started": f"""
        SELECT hex(id) FROM job WHERE state = {RUNNING} AND (started_at IS NULL OR attempt < 1)""",
    "is scheduled without a time": f"SELECT hex(id) FROM job WHERE state = {SCHEDULED} AND run_at IS NULL",
    "has a wait clock but does not wait for its first run": f"""
        SELECT hex(id) FROM job WHERE expires_at IS NOT NULL AND (state > {QUEUED} OR started_at IS NOT NULL)""",
    "has an owner clock but has ended": f"""
        SELECT hex(id) FROM job WHERE abandon_at IS NOT NULL AND state IN ({_ENDED})""",
    "has a keep clock but has not ended": f"""
        SELECT hex(id) FROM job WHERE purge_at IS NOT NULL AND state NOT IN ({_ENDED})""",
    "has ended without a time, or has a time without having ended": f"""
        SELECT hex(id) FROM job WHERE (finished_at IS NOT NULL) <> (state IN ({_ENDED}))""",
    "has a result but has not ended": f"""
        SELECT hex(job.id) FROM result JOIN job ON job.seq = result.job WHERE job.state NOT IN ({_ENDED})""",
    "has its payload twice or not at all": """
        SELECT hex(id) FROM job WHERE (payload IS NULL) <> (seq IN (SELECT job FROM payload))""",
    "has a payload of another size than its record says": """
        SELECT hex(id) FROM job LEFT JOIN payload ON payload.job = job.seq
        WHERE size <> length(coalesce(job.payload, payload.data))""",
    "has other errors than its record says": f"""
        SELECT hex(id) FROM job
        LEFT JOIN (SELECT job, count(*) AS kept, max(n) AS newest FROM error GROUP BY job) AS e ON e.job = job.seq
        WHERE min(errors, {MOST_ERRORS}) <> coalesce(kept, 0) OR errors <> coalesce(newest + 1, 0)""",
    "has other files than its record says": """
        SELECT hex(id) FROM job
        LEFT JOIN (SELECT job, count(*) AS kept FROM file WHERE NOT from_run GROUP BY job) AS f ON f.job = job.seq
        WHERE files <> coalesce(kept, 0)""",
    "has output with a gap, or more of it than is kept": f"""
        SELECT hex(id) FROM job JOIN (
            SELECT job, count(*) AS kept, max(n) - min(n) + 1 AS span, max(n) AS newest, sum(length(data)) AS bytes
            FROM output GROUP BY job
        ) AS o ON o.job = job.seq
        WHERE kept <> span OR newest <> chunks OR kept > {MOST_KEPT} OR bytes > {MOST_OUTPUT}""",
    "has ended, but there is input for it": f"""
        SELECT DISTINCT hex(id) FROM input JOIN job ON job.seq = input.job WHERE state IN ({_ENDED})""",
    "has input with a gap, or more of it than may wait": f"""
        SELECT hex(id) FROM job JOIN (
            SELECT job, count(*) - 1 AS kept, max(n) - min(n) AS span, sum(length(data)) AS bytes,
                max(finish) - min(finish) AS stored FROM input GROUP BY job
        ) AS i ON i.job = job.seq
        WHERE kept <> span OR bytes <> stored OR kept > {MOST_MESSAGES} OR bytes > {MOST_INPUT}""",
    "is blocked but waits for nothing, or waits but is not blocked": f"""
        SELECT hex(id) FROM job WHERE (coalesce(length(waits), 0) > 0) <> (state = {BLOCKED})""",
    "has a follow-up or a dependent job, but is neither followed nor completed": """
        SELECT hex(parent) FROM (SELECT parent FROM dependency UNION SELECT parent FROM follow_up)
        WHERE parent NOT IN (SELECT id FROM job WHERE followed) AND parent NOT IN (SELECT id FROM completed_parent)""",
    "has a result that was read and should be deleted": """
        SELECT hex(id) FROM result JOIN job ON job.seq = result.job
        WHERE spent AND id NOT IN (SELECT id FROM completed_parent)""",
    "is in a lane that does not exist": "SELECT hex(id) FROM job WHERE lane NOT IN (SELECT id FROM lane)",
    "has another tenant in its key than in its lane": f"""
        SELECT hex(job.id) FROM job JOIN lane ON lane.id = job.lane WHERE length(job.id) < {ID_SIZE}
            OR CAST(substr(job.id, {ID_SIZE + 1}) AS TEXT) <> iif(lane.tenant = '{DEFAULT_TENANT}', '', lane.tenant)""",
    "is in another tenant's queue than its lane": """
        SELECT hex(job.id) FROM job JOIN lane ON lane.id = job.lane WHERE job.tenant_queue <> lane.tenant_queue""",
    **{
        f"is deleted but has rows in `{table}`": f"""
            SELECT job FROM {table} WHERE job NOT IN (SELECT seq FROM job)"""
        for table in _TABLES_OF_A_JOB
    },
}

_OWNED = f"SELECT hex(id), terms, reason, abandon_at FROM job WHERE state NOT IN ({_ENDED})"
_TIMED = """
    SELECT hex(job.id), job.terms, job.updated_at, job.purge_at
    FROM result JOIN job ON job.seq = result.job WHERE NOT result.spent
"""
_COUNTS = "SELECT lane, state, count(*) FROM job GROUP BY lane, state"
_COUNTED = f"SELECT id, {', '.join(STATES)} FROM lane"
_MISNAMED_LANES = """
    SELECT lane.id FROM lane LEFT JOIN tenant_queue ON tenant_queue.id = lane.tenant_queue
    WHERE tenant_queue.tenant IS NOT lane.tenant OR tenant_queue.queue IS NOT lane.queue
"""


async def scrub(store: SqliteStore) -> list[str]:
    """What is wrong with the store's file; empty when it is sound."""
    return await store.examine(_findings)


async def quick_check(store: SqliteStore) -> list[str] | None:
    """What is damaged in the pages of the store's file; null = it is too large for that."""
    return await store.examine(_quick_check)


def _quick_check(tx: Transaction) -> list[str] | None:
    size = sum(tx.column("SELECT page_count * page_size FROM pragma_page_count, pragma_page_size"))
    return None if size > LARGEST_QUICK else _damage(tx, f"quick_check({MOST_FINDINGS})")


def _damage(tx: Transaction, check: str) -> list[str]:
    return [f"SQLite: {answer}" for answer in tx.column(f"PRAGMA {check}") if answer != "ok"]


def _findings(tx: Transaction) -> list[str]:
    found = _damage(tx, "integrity_check")
    for wrong, query in CHECKS.items():
        found += [f"job {job} {wrong}" for job in tx.column(f"{query} LIMIT {MOST_FINDINGS}")]
    found += [f"lane {lane} has other names than its tenant's queue" for lane in tx.column(_MISNAMED_LANES)]
    return (
        found
        + _wrong_owner_clocks(tx)
        + _wrong_keep_clocks(tx)
        + _wrong_counts(tx)
        + list(islice(_flow_findings(tx), MOST_FINDINGS))
    )


def _wrong_owner_clocks(tx: Transaction) -> list[str]:
    """Pending jobs have an owner clock if they ask for one; those that were ordered to stop may have lost it."""
    return [
        f"job {job} {'has no owner clock' if abandon_at is None else 'has an owner clock without asking for one'}"
        for job, packed, reason, abandon_at in tx.rows(_OWNED)
        if ("owner_timeout" in unpack_terms(packed)) != (abandon_at is not None) and reason not in STOP_ORDERS
    ][:MOST_FINDINGS]


def _wrong_keep_clocks(tx: Transaction) -> list[str]:
    """Results with a time of their own are kept by the first stage of the keep clock."""
    return [
        f"job {job} has a result with a time of its own, but its keep clock says {purge_at}"
        for job, packed, ended_at, purge_at in tx.rows(_TIMED)
        if (seconds := result_kept_for(unpack_terms(packed))) is not None and purge_at != ended_at + span(seconds)
    ][:MOST_FINDINGS]


def _wrong_counts(tx: Transaction) -> list[str]:
    stored = {(lane, state): n for lane, *counts in tx.rows(_COUNTED) for state, n in enumerate(counts) if n}
    actual = {(lane, state): n for lane, state, n in tx.rows(_COUNTS)}
    return [
        f"lane {lane} has {actual.get((lane, state), 0)} {STATES[state]} jobs but counts {stored.get((lane, state), 0)}"
        for lane, state in sorted(actual.keys() | stored.keys())
        if actual.get((lane, state)) != stored.get((lane, state))
    ]


# --- Flow control -------------------------------------------------------------------------------------

_HEADS = f"""
    SELECT id, priority, arrival, (
        SELECT seq FROM job WHERE job.lane = lane.id AND state = {QUEUED} ORDER BY job.priority, seq LIMIT 1
    ) AS seq, (SELECT min(job.priority) FROM job WHERE job.lane = lane.id AND state = {QUEUED}) AS least
    FROM lane WHERE arrival IS NOT seq OR lane.priority IS NOT least
"""
_RUNS = f"SELECT lane, assigned, count(*) FROM job WHERE state = {RUNNING} GROUP BY lane, assigned"
_ASSIGNED = f"SELECT hex(id) FROM job WHERE state <> {RUNNING} AND (assigned IS NOT NULL OR seconds IS NOT NULL)"
_BUCKETS = "SELECT name, running FROM bucket WHERE running <> 0"
_MEMBERS = "SELECT bucket, lane FROM member"
_BLOCKERS = """
    SELECT DISTINCT blocker FROM lane LEFT JOIN bucket ON bucket.name = lane.blocker
    WHERE arrival IS NOT NULL AND blocker IS NOT NULL AND paused_until IS NULL
        AND NOT coalesce(dirty, 0) AND coalesce(wake_at, ?1 + 1) > ?1
"""
_LANES = "SELECT id, paused_until, turns FROM lane"

_OPEN = "arrival IS NOT NULL AND blocker IS NULL AND paused_until IS NULL"
_OFFERS = f"SELECT tenant_queue, task, priority, arrival FROM lane WHERE {_OPEN}"
_TENANT_QUEUES = "SELECT id, tenant, queue, priority, arrival FROM tenant_queue"
_TURNS = "SELECT tenant_queue, task, priority, arrival FROM turn WHERE arrival IS NOT NULL"

Position = tuple[int, int]


def _flow_findings(tx: Transaction) -> Iterator[str]:
    for lane, _, arrival, seq, _ in tx.rows(_HEADS):
        yield f"lane {lane} has job {arrival} as its first, not {seq}"
    for job in tx.column(_ASSIGNED):
        yield f"job {job} has a tier but does not run"
    yield from _wrong_places(tx)
    yield from _wrong_lanes(tx)
    yield from _wrong_turns(tx)


def _wrong_places(tx: Transaction) -> Iterator[str]:
    actual: Counter[str] = Counter()
    for id, assigned, count in tx.rows(_RUNS):
        lane = tx.lanes.get(id)
        for name in (*lane.buckets, *held_levels(tx.rules, lane.tenant, lane.queue, assigned)):
            actual[name] += count
    stored = dict(tx.rows(_BUCKETS))
    for name in sorted(actual.keys() | stored.keys()):
        if actual[name] != stored.get(name, 0):
            yield f"bucket {name} has {actual[name]} running jobs but counts {stored.get(name, 0)}"
    for name in tx.column(_BLOCKERS, tx.now):
        if any_bucket(tx, tx.rules, name).open(tx.now):
            yield f"bucket {name} has room but blocks lanes"


def _wrong_lanes(tx: Transaction) -> Iterator[str]:
    members = set(tx.rows(_MEMBERS))
    for id, pause, turns in tx.rows(_LANES):
        lane = tx.lanes.get(id)
        wanted = paused_until(tx.rules, lane.tenant, lane.queue, lane.task)
        if _still_to_come(pause, tx.now) != _still_to_come(wanted, tx.now):
            yield f"lane {id} is paused until {pause}, not {wanted}"
        if turns != turns_of(tx.rules, lane.tenant, lane.queue):
            yield f"lane {id} takes other turns than the rules say"
        for bucket in lane.buckets:
            if (bucket, id) not in members:
                yield f"lane {id} is not known to its bucket {bucket}"


def _still_to_come(pause: int | None, now: int) -> int | None:
    return pause if pause is not None and pause > now else None


def _wrong_turns(tx: Transaction) -> Iterator[str]:
    tenant_queues: dict[int, Position] = {}
    tasks: dict[tuple[int, str], Position] = {}
    for tenant_queue, task, priority, arrival in tx.rows(_OFFERS):
        place = (priority, arrival)
        tenant_queues[tenant_queue] = min(place, tenant_queues.get(tenant_queue, place))
        tasks[tenant_queue, task] = min(place, tasks.get((tenant_queue, task), place))
    fair: dict[int, int] = {}
    for id, tenant, queue, priority, arrival in tx.rows(_TENANT_QUEUES):
        fair[id] = turns_of(tx.rules, tenant, queue)
        wanted = tenant_queues.get(id, (None, None)) if fair[id] != NO_TURNS else (None, None)
        if (priority, arrival) != wanted:
            yield f"tenant queue {id} offers job {arrival}, not {wanted[1]}"
    stored = {(tenant_queue, task): (priority, arrival) for tenant_queue, task, priority, arrival in tx.rows(_TURNS)}
    actual = {name: place for name, place in tasks.items() if fair[name[0]] == TASK_TURNS}
    for tenant_queue, task in sorted(stored.keys() | actual.keys()):
        if stored.get((tenant_queue, task)) != actual.get((tenant_queue, task)):
            yield f"task {task} of tenant queue {tenant_queue} offers another job than its lanes"
