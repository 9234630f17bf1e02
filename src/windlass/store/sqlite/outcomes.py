"""How runs ended: counters for each task, which stay when its jobs and lanes are gone."""

from collections import defaultdict

from windlass.model.lifecycle import Verdict
from windlass.model.names import EVERY_TENANT
from windlass.store.beside import MOST_COUNTED, Ran
from windlass.store.sqlite.transaction import Transaction

VERDICTS = tuple(Verdict)

_COLUMNS = ", ".join(VERDICTS)
_ADDED = ", ".join(f"{verdict} = {verdict} + ?" for verdict in VERDICTS)
_ADD = f"UPDATE outcome SET {_ADDED} WHERE tenant = ? AND queue = ? AND task = ?"
_BEGIN = f"""
    INSERT INTO outcome ({_COLUMNS}, tenant, queue, task) SELECT ?, ?, ?, ?, ?, ?, ?
    WHERE (SELECT count(*) FROM outcome) < {MOST_COUNTED}
"""
_READ = f"SELECT tenant, queue, task, {_COLUMNS} FROM outcome WHERE tenant = ?1 OR ?1 = '{EVERY_TENANT}'"


def write(tx: Transaction) -> None:
    """Add what was counted in a transaction."""
    tasks: defaultdict[tuple[str, str, str], list[int]] = defaultdict(lambda: [0] * len(VERDICTS))
    for (number, verdict), count in tx.outcomes.items():
        lane = tx.lanes.get(number)
        tasks[lane.tenant, lane.queue, lane.task][VERDICTS.index(verdict)] += count
    for task, counts in tasks.items():
        tx.run(_ADD, *counts, *task)
        if not tx.changed():
            tx.run(_BEGIN, *counts, *task)


def read(tx: Transaction, tenant: str) -> list[Ran]:
    found = [
        Ran(owner, queue, task, verdict, count)
        for owner, queue, task, *counts in tx.rows(_READ, tenant)
        for verdict, count in zip(VERDICTS, counts, strict=True)
        if count
    ]
    return sorted(found, key=lambda ran: (ran.tenant, ran.queue, ran.task, ran.outcome))
