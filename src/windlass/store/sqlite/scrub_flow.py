"""Says whether flow control is sound: heads, places, parked and shut lanes and turns are what jobs and rules say.

Reads only, and reads everything; part of `scrub`.
"""

from collections import Counter
from collections.abc import Iterator

from windlass.store.sqlite.buckets import any_bucket
from windlass.store.sqlite.groups import held_levels
from windlass.store.sqlite.patterns import NOBODY, TASKS, shut_until, turns_of
from windlass.store.sqlite.transaction import Transaction
from windlass.store.sqlite.values import QUEUED, RUNNING

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
_PARKED = """
    SELECT DISTINCT parked FROM lane LEFT JOIN bucket ON bucket.name = lane.parked
    WHERE arrival IS NOT NULL AND parked IS NOT NULL AND shut IS NULL
        AND NOT coalesce(stirred, 0) AND coalesce(wake_at, ?1 + 1) > ?1
"""
_LANES = "SELECT id, shut, turns FROM lane"

_OPEN = "arrival IS NOT NULL AND parked IS NULL AND shut IS NULL"
_OFFERS = f"SELECT line, task, priority, arrival FROM lane WHERE {_OPEN}"
_LINES = "SELECT id, tenant, queue, priority, arrival FROM line"
_TURNS = "SELECT line, task, priority, arrival FROM turn WHERE arrival IS NOT NULL"

Place = tuple[int, int]


def findings(tx: Transaction) -> Iterator[str]:
    for lane, _, arrival, seq, _ in tx.rows(_HEADS):
        yield f"lane {lane} takes job {arrival} for its first, which is {seq}"
    for job in tx.column(_ASSIGNED):
        yield f"job {job} has a tier but does not run"
    yield from _places(tx)
    yield from _lanes(tx)
    yield from _turns(tx)


def _places(tx: Transaction) -> Iterator[str]:
    true: Counter[str] = Counter()
    for id, assigned, count in tx.rows(_RUNS):
        lane = tx.lanes.get(id)
        for name in (*lane.buckets, *held_levels(tx.rules, lane.tenant, lane.queue, assigned)):
            true[name] += count
    said = dict(tx.rows(_BUCKETS))
    for name in sorted(true.keys() | said.keys()):
        if true[name] != said.get(name, 0):
            yield f"bucket {name} has {true[name]} running jobs but counts {said.get(name, 0)}"
    for name in tx.column(_PARKED, tx.now):
        if any_bucket(tx, tx.rules, name).open(tx.now):
            yield f"bucket {name} has room but lanes are parked there"


def _lanes(tx: Transaction) -> Iterator[str]:
    members = set(tx.rows(_MEMBERS))
    for id, shut, turns in tx.rows(_LANES):
        lane = tx.lanes.get(id)
        wanted = shut_until(tx.rules, lane.tenant, lane.queue, lane.task)
        if _lasting(shut, tx.now) != _lasting(wanted, tx.now):
            yield f"lane {id} is shut until {shut}, not {wanted}"
        if turns != turns_of(tx.rules, lane.tenant, lane.queue):
            yield f"lane {id} takes other turns than the rules say"
        for bucket in lane.buckets:
            if (bucket, id) not in members:
                yield f"lane {id} is not known to its bucket {bucket}"


def _lasting(shut: int | None, now: int) -> int | None:
    return shut if shut is not None and shut > now else None


def _turns(tx: Transaction) -> Iterator[str]:
    lines: dict[int, Place] = {}
    tasks: dict[tuple[int, str], Place] = {}
    for line, task, priority, arrival in tx.rows(_OFFERS):
        place = (priority, arrival)
        lines[line] = min(place, lines.get(line, place))
        tasks[line, task] = min(place, tasks.get((line, task), place))
    fair: dict[int, int] = {}
    for line, tenant, queue, priority, arrival in tx.rows(_LINES):
        fair[line] = turns_of(tx.rules, tenant, queue)
        wanted = lines.get(line, (None, None)) if fair[line] != NOBODY else (None, None)
        if (priority, arrival) != wanted:
            yield f"line {line} offers job {arrival}, not {wanted[1]}"
    said = {(line, task): (priority, arrival) for line, task, priority, arrival in tx.rows(_TURNS)}
    true = {name: place for name, place in tasks.items() if fair[name[0]] == TASKS}
    for line, task in sorted(said.keys() | true.keys()):
        if said.get((line, task)) != true.get((line, task)):
            yield f"task {task} of line {line} offers another job than its lanes"
