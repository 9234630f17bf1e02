"""Jobs as records: adding them, reading them, and dropping all there is of them.

Knows the tables of jobs; says nothing of who runs them (`work`) or of what state comes next (`moving`).
"""

from collections.abc import Sequence
from typing import NamedTuple

from windlass.model.job import NewJob
from windlass.model.names import DEFAULT_TENANT, ID_SIZE, JobKey, raw_key, tenant_of
from windlass.store import Draft, Reading
from windlass.store.alike import alike
from windlass.store.flow import StaleRules
from windlass.store.micros import from_micros, span, to_micros
from windlass.store.sqlite import batches, following, records
from windlass.store.sqlite.transaction import Transaction
from windlass.store.sqlite.values import BLOCKED, QUEUED, SCHEDULED, ids, keys
from windlass.store.terms import pack, pack_then

MOST_INLINE = 1000
"""Bytes of a payload that sits in its job's own row: rewritten with it, but also found with it."""

_OWNERS = "SELECT id FROM job WHERE id BETWEEN ? AND ?"
_KNOWN = "SELECT id FROM job WHERE id IN carray(?)"
_ADD = """
    INSERT INTO job (
        lane, line, state, priority, files, followed, waits, created_at, updated_at, run_at, expires_at, abandon_at,
        terms, id, size, payload
    ) VALUES {rows}
"""
_ADD_LARGE = "INSERT INTO payload (job, data) SELECT seq, ?2 FROM job WHERE id = ?1"

_ADD_FILE = "INSERT INTO file (job, name, data) SELECT seq, ?2, ?3 FROM job WHERE id = ?1"

_VANISH = (
    "DELETE FROM lease WHERE job IN carray(?)",
    "DELETE FROM progress WHERE job IN carray(?)",
    "DELETE FROM error WHERE job IN carray(?)",
    "DELETE FROM result WHERE job IN carray(?)",
    "DELETE FROM output WHERE job IN carray(?)",
    "DELETE FROM input WHERE job IN carray(?)",
    "DELETE FROM payload WHERE job IN carray(?)",
    "DELETE FROM file WHERE job IN carray(?)",
    "DELETE FROM job WHERE seq IN carray(?)",
)


class Rows(NamedTuple):
    """Jobs that are alike, in the order of `_ADD`."""

    shared: batches.Row
    own: list[batches.Row]


def add(tx: Transaction, drafts: Sequence[Draft]) -> list[bool]:
    grouping = tx.rules.grouping
    if any(draft.grouping != grouping for draft in drafts):
        raise StaleRules
    named = keys(drafts)
    seen = set(tx.column(_KNOWN, batches.blobs(named)))
    if not seen and len(set(named)) == len(named):
        _add(tx, drafts, named)
        return [True] * len(drafts)
    fresh: dict[bytes, Draft] = {}
    answers = []
    for key, draft in zip(named, drafts, strict=True):
        new = key not in seen
        answers.append(new)
        if new:
            seen.add(key)
            fresh[key] = draft
    _add(tx, list(fresh.values()), list(fresh))
    return answers


def _add(tx: Transaction, drafts: Sequence[Draft], named: Sequence[bytes]) -> None:
    """Keep jobs that are not there yet."""
    kinds, start = [], 0
    for some in alike(drafts):
        kinds.append(_rows(tx, some, named[start : start + len(some)]))
        start += len(some)
    if len(kinds) == 1:
        tx.run_all(_ADD, kinds[0].own, kinds[0].shared)
    else:
        tx.run_all(_ADD, [(*shared, *row) for shared, own in kinds for row in own])
    for key, draft in zip(named, drafts, strict=True):
        new = draft.new
        if new.files or new.then is not None or len(memoryview(new.payload)) > MOST_INLINE:
            _add_more(tx, draft, key)


def _rows(tx: Transaction, drafts: Sequence[Draft], named: Sequence[bytes]) -> Rows:
    """Jobs that are alike; they are counted."""
    new, now = drafts[0].new, tx.now
    lane = tx.lane(drafts[0].tenant, new.queue, new.task, drafts[0].group)
    due = _due(new, now)
    state = BLOCKED if new.after else QUEUED if due is None else SCHEDULED
    waits = ids(new.after) if new.after else None
    expires_at = None if new.expires is None else now + span(new.expires)
    abandon_at = None if new.unattended is None else now + span(new.unattended)
    tx.count(lane.id, state, len(drafts))
    if state == QUEUED:
        tx.topics.add(f"work/{lane.queue}")
    what = (lane.id, lane.line, state, new.priority, len(new.files), new.then is not None, waits)
    when = (now, now, due, expires_at, abandon_at)
    payloads = [bytes(draft.new.payload) for draft in drafts]
    own: list[batches.Row] = [
        (key, len(payload), payload if len(payload) <= MOST_INLINE else None)
        for key, payload in zip(named, payloads, strict=True)
    ]
    return Rows((*what, *when, pack(new)), own)


def _add_more(tx: Transaction, draft: Draft, key: bytes) -> None:
    """What has no place in the row of a job."""
    new, payload = draft.new, bytes(draft.new.payload)
    if len(payload) > MOST_INLINE:
        tx.run(_ADD_LARGE, key, payload)
    for name, data in new.files.items():
        tx.run(_ADD_FILE, key, name, data)
    if new.then is not None:
        following.note(tx, key, pack_then(draft.tenant, new.then))


def _due(new: NewJob, now: int) -> int | None:
    """When the job may run, if not at once."""
    if new.run_at is not None:
        due = to_micros(new.run_at)
    elif new.delay:
        due = now + span(new.delay)
    else:
        return None
    return due if due > now else None


def read(tx: Transaction, wanted: Sequence[JobKey], *, payload: bool) -> Reading:
    return Reading(now=from_micros(tx.now), records=records.by_key(tx, wanted, payload=payload))


def owners(tx: Transaction, texts: Sequence[str]) -> list[list[str]]:
    """For each id the tenants that have a job of it: keys begin with the id."""
    found = []
    for text in texts:
        first = raw_key(text, DEFAULT_TENANT)
        rows = tx.column(_OWNERS, first, first + b"\xff") if len(first) == ID_SIZE else []
        found.append(sorted(map(tenant_of, rows)))
    return found


def vanish(tx: Transaction, seqs: Sequence[int]) -> None:
    """Drop jobs and everything of them. Whoever calls this has counted them out."""
    if seqs:
        following.vanish(tx, seqs)
        for statement in _VANISH:
            tx.run(statement, batches.numbers(seqs))
