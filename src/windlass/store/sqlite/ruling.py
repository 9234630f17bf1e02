"""Changing the rules: what is put in force, and what has to be looked at anew because of it.

Lanes that wait at something that has changed are opened again; the next claims put away what still has to wait. Costs
as much as there are lanes concerned: rules change seldom.
"""

from windlass.store.flow import KEY, Rules
from windlass.store.sqlite import turns
from windlass.store.sqlite.groups import LEVEL, held_levels
from windlass.store.sqlite.parking import open_lanes
from windlass.store.sqlite.patterns import NOBODY, shut_until, turns_of
from windlass.store.sqlite.transaction import Transaction
from windlass.store.sqlite.values import RUNNING

_PARKED = "arrival IS NOT NULL AND parked IS NOT NULL AND shut IS NULL"
_PARKED_AT = f"SELECT id FROM lane INDEXED BY lane_parked WHERE parked = ? AND {_PARKED}"
_PARKED_BETWEEN = f"SELECT id FROM lane INDEXED BY lane_parked WHERE parked > ? AND parked < ? AND {_PARKED}"
_CALM = "UPDATE bucket SET wake_at = NULL, stirred = 0 WHERE name = ?1 OR (name > ?2 AND name < ?3)"

_DROP_LEVELS = "UPDATE bucket SET running = 0 WHERE name > ? AND name < ?"
_ASSIGNED = f"""
    SELECT job.assigned, count(*) FROM line CROSS JOIN job INDEXED BY job_listing ON job.line = line.id
    WHERE line.tenant = ? AND line.queue = ? AND job.state = {RUNNING} AND job.assigned IS NOT NULL
    GROUP BY job.assigned
"""

_NAMES = "SELECT DISTINCT tenant, queue, task FROM lane"
_SHUT = "SELECT id, arrival IS NOT NULL FROM lane WHERE tenant = ? AND queue = ? AND task = ? AND shut IS NOT ?"
_SET_SHUT = "UPDATE lane SET shut = ?2, parked = NULL WHERE id = ?1"

_LINES = "SELECT id, tenant, queue FROM line"
_SET_TURNS = "UPDATE lane SET turns = ?2 WHERE line = ?1 AND tenant = ?3 AND queue = ?4 RETURNING id"


def rules(tx: Transaction) -> Rules:
    return tx.rules


def regulate(tx: Transaction, new: Rules) -> bool:
    old = tx.rules
    if new.edition != old.edition + 1:
        return False
    tx.put_rules(new)
    _change_allowances(tx, old, new)
    _change_tiers(tx, old, new)
    if new.shut != old.shut:
        _change_shut(tx, new)
    if (new.fair_queues, new.fair_lines) != (old.fair_queues, old.fair_lines):
        _change_turns(tx, old, new)
    return True


def _change_allowances(tx: Transaction, old: Rules, new: Rules) -> None:
    for name in sorted(old.allowances.keys() | new.allowances.keys()):
        if old.allowances.get(name) != new.allowances.get(name):
            _look_again(tx, name, name + KEY)


def _change_tiers(tx: Transaction, old: Rules, new: Rules) -> None:
    for name in sorted(old.tiers.keys() | new.tiers.keys()):
        if old.tiers.get(name) == new.tiers.get(name):
            continue
        # Places at levels go by the tier's name, wherever it stands now.
        tenant, _, queue = name.partition(",")
        tx.run(_DROP_LEVELS, name + LEVEL, _beyond(name + LEVEL))
        for assigned, count in tx.rows(_ASSIGNED, tenant, queue):
            tx.place(held_levels(new, tenant, queue, assigned), count)
        _look_again(tx, name, name + LEVEL)


def _look_again(tx: Transaction, name: str, start: str) -> None:
    """Open all lanes that are parked at a bucket or at one whose name has this start."""
    end = _beyond(start)
    open_lanes(tx, tx.column(_PARKED_AT, name) + tx.column(_PARKED_BETWEEN, start, end))
    tx.run(_CALM, name, start, end)


def _beyond(start: str) -> str:
    """Comes after every text with this start."""
    return start[:-1] + chr(ord(start[-1]) + 1)


def _change_shut(tx: Transaction, new: Rules) -> None:
    for tenant, queue, task in tx.rows(_NAMES):
        until = shut_until(new, tenant, queue, task)
        until = until if until is not None and until > tx.now else None
        for lane, waits in tx.rows(_SHUT, tenant, queue, task, until):
            tx.run(_SET_SHUT, lane, until)
            tx.stirred.add(lane)
            if waits and until is None:
                tx.topics.add(f"work/{queue}")


def _change_turns(tx: Transaction, old: Rules, new: Rules) -> None:
    for queue in old.fair_queues.keys() ^ new.fair_queues.keys():
        turns.forget_queue(tx, queue)
    for line, tenant, queue in tx.rows(_LINES):
        before, after = turns_of(old, tenant, queue), turns_of(new, tenant, queue)
        fair = (queue in old.fair_queues, queue in new.fair_queues)
        if before == after and fair[0] == fair[1]:
            continue
        if before != after:
            turns.forget_line(tx, line)
        if after == NOBODY:
            turns.take_out(tx, line)
        tx.stirred.update(tx.column(_SET_TURNS, line, after, tenant, queue))
