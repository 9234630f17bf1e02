"""Says whether a file is sound: every promise of `schema.sql` as a question whose answer should be nothing.

Reads only, and reads everything: for tests and for `doctor`, not for every day.
"""

from itertools import islice

from windlass.model.job import MOST_CHUNKS, MOST_INPUT, MOST_MESSAGES, MOST_OUTPUT
from windlass.model.lifecycle import ORDERS
from windlass.model.names import DEFAULT_TENANT, ID_SIZE
from windlass.store.micros import span
from windlass.store.sqlite import scrub_flow
from windlass.store.sqlite.moving import MOST_ERRORS
from windlass.store.sqlite.results import first_stage
from windlass.store.sqlite.store import SqliteStore
from windlass.store.sqlite.transaction import Transaction
from windlass.store.sqlite.values import BLOCKED, ENDED, QUEUED, RUNNING, SCHEDULED, STATES
from windlass.store.terms import unpack

MOST_SHOWN = 20
"""Findings of one kind."""

_BELONGINGS = ("payload", "lease", "progress", "error", "result", "output", "input", "file")

_ENDED = ", ".join(map(str, sorted(ENDED)))

# What would be wrong, and a statement that names the jobs of which it is true.
QUESTIONS: dict[str, str] = {
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
        SELECT hex(id) FROM job LEFT JOIN (SELECT job, count(*) AS kept FROM file GROUP BY job) AS f ON f.job = job.seq
        WHERE files <> coalesce(kept, 0)""",
    "has output with a gap, or more of it than is kept": f"""
        SELECT hex(id) FROM job JOIN (
            SELECT job, count(*) AS kept, max(n) - min(n) + 1 AS span, max(n) AS newest, sum(length(data)) AS bytes
            FROM output GROUP BY job
        ) AS o ON o.job = job.seq
        WHERE kept <> span OR newest <> chunks OR kept > {MOST_CHUNKS} OR bytes > {MOST_OUTPUT}""",
    "has ended, but there is input for it": f"""
        SELECT DISTINCT hex(id) FROM input JOIN job ON job.seq = input.job WHERE state IN ({_ENDED})""",
    "has input with a gap, or more of it than may wait": f"""
        SELECT hex(id) FROM job JOIN (
            SELECT job, count(*) - 1 AS kept, max(n) - min(n) AS span, sum(length(data)) AS bytes,
                max(finish) - min(finish) AS said FROM input GROUP BY job
        ) AS i ON i.job = job.seq
        WHERE kept <> span OR bytes <> said OR kept > {MOST_MESSAGES} OR bytes > {MOST_INPUT}""",
    "is blocked but waits for nothing, or waits but is not blocked": f"""
        SELECT hex(id) FROM job WHERE (coalesce(length(waits), 0) > 0) <> (state = {BLOCKED})""",
    "has something that is to follow it, or waits for it, but is neither followed nor ripe": """
        SELECT hex(parent) FROM (SELECT parent FROM edge UNION SELECT parent FROM sequel)
        WHERE parent NOT IN (SELECT id FROM job WHERE followed) AND parent NOT IN (SELECT id FROM ripe)""",
    "has a result that was read and should not be there": """
        SELECT hex(id) FROM result JOIN job ON job.seq = result.job WHERE spent AND id NOT IN (SELECT id FROM ripe)""",
    "is in a lane that is not there": "SELECT hex(id) FROM job WHERE lane NOT IN (SELECT id FROM lane)",
    "has another tenant in its key than in its lane": f"""
        SELECT hex(job.id) FROM job JOIN lane ON lane.id = job.lane WHERE length(job.id) < {ID_SIZE}
            OR CAST(substr(job.id, {ID_SIZE + 1}) AS TEXT) <> iif(lane.tenant = '{DEFAULT_TENANT}', '', lane.tenant)""",
    "is in another line than its lane": """
        SELECT hex(job.id) FROM job JOIN lane ON lane.id = job.lane WHERE job.line <> lane.line""",
    **{
        f"is gone but has left something in `{table}`": f"""
            SELECT job FROM {table} WHERE job NOT IN (SELECT seq FROM job)"""
        for table in _BELONGINGS
    },
}

_OWNED = f"SELECT hex(id), terms, reason, abandon_at FROM job WHERE state NOT IN ({_ENDED})"
_TIMED = """
    SELECT hex(job.id), job.terms, job.updated_at, job.purge_at
    FROM result JOIN job ON job.seq = result.job WHERE NOT result.spent
"""
_COUNTS = "SELECT lane, state, count(*) FROM job GROUP BY lane, state"
_COUNTED = f"SELECT id, {', '.join(STATES)} FROM lane"
_LINES = """
    SELECT lane.id FROM lane LEFT JOIN line ON line.id = lane.line
    WHERE line.tenant IS NOT lane.tenant OR line.queue IS NOT lane.queue
"""


async def scrub(store: SqliteStore) -> list[str]:
    """What is wrong with the store's file; empty when it is sound."""
    return await store.examine(_findings)


def _findings(tx: Transaction) -> list[str]:
    found = [f"SQLite: {answer}" for answer in tx.column("PRAGMA integrity_check") if answer != "ok"]
    for wrong, question in QUESTIONS.items():
        found += [f"job {job} {wrong}" for job in tx.column(f"{question} LIMIT {MOST_SHOWN}")]
    found += [f"lane {lane} has other names than its line" for lane in tx.column(_LINES)]
    return found + _misowned(tx) + _mistimed(tx) + _miscounts(tx) + list(islice(scrub_flow.findings(tx), MOST_SHOWN))


def _misowned(tx: Transaction) -> list[str]:
    """Pending jobs have an owner clock if they ask for one; those that were told to stop may have lost it."""
    return [
        f"job {job} {'has no owner clock' if abandon_at is None else 'has an owner clock without asking for one'}"
        for job, packed, reason, abandon_at in tx.rows(_OWNED)
        if ("unattended" in unpack(packed)) != (abandon_at is not None) and reason not in ORDERS
    ][:MOST_SHOWN]


def _mistimed(tx: Transaction) -> list[str]:
    """Results that have a time of their own go by the first stage of the keep clock."""
    return [
        f"job {job} has a result with a time of its own, but its keep clock says {purge_at}"
        for job, packed, ended_at, purge_at in tx.rows(_TIMED)
        if (seconds := first_stage(unpack(packed))) is not None and purge_at != ended_at + span(seconds)
    ][:MOST_SHOWN]


def _miscounts(tx: Transaction) -> list[str]:
    said = {(lane, state): n for lane, *counts in tx.rows(_COUNTED) for state, n in enumerate(counts) if n}
    true = {(lane, state): n for lane, state, n in tx.rows(_COUNTS)}
    return [
        f"lane {lane} has {true.get((lane, state), 0)} {STATES[state]} jobs but counts {said.get((lane, state), 0)}"
        for lane, state in sorted(true.keys() | said.keys())
        if true.get((lane, state)) != said.get((lane, state))
    ]
