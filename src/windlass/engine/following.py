"""Jobs that wait for others (`after`), and jobs that follow others (`then`).

The jobs may lie in different partitions, so nothing here is one atomic step: each step is guarded, does nothing when it
is done again, and whatever a crash leaves undone is found again, by the index of ripe jobs or among the blocked ones.
"""

import logging
from collections.abc import Awaitable, Callable, Sequence
from itertools import islice

from msgspec import Raw
from msgspec.structs import replace

from windlass.engine.desk import MOST_ROUNDS, Desk
from windlass.engine.drafts import own_id
from windlass.engine.tiers import attend
from windlass.model import lifecycle
from windlass.model.errors import NotReplicated, Unavailable
from windlass.model.job import MSGPACK, NOTHING, NewJob, State
from windlass.model.names import JobKey, child_id, key_of
from windlass.store import Draft, Edge, Kept, Ripe
from windlass.store.flow import StaleRules

MOST_REGIMES = 100
"""How often jobs are taken in anew because the rules have changed; not given up soon, for some may be kept by then."""

life = logging.getLogger("windlass.job")
"""One line for each step of a job's life, for whoever wants to read along."""


def log_entered(id: str, task: str, *, created: bool) -> None:
    life.debug("%s %s entered%s", id, task, "" if created else ", again")


Add = Callable[[Sequence[Draft]], Awaitable[list[bool]]]


async def add(desk: Desk, drafts: Sequence[Draft], *, surely: bool = False) -> list[bool]:
    """Keep new jobs. Those that wait are decided at once: what they wait for may have ended already.

    `surely`: where replicas must have them too, wait for that. Whatever follows from another job does not: its parent
    must not be held up.
    """
    try:
        created = await _add(desk, drafts, desk.store.add if desk.sure is None or not surely else desk.sure.add_surely)
    except NotReplicated:
        await unblock(desk, [key_of(draft) for draft in drafts if draft.new.after])
        raise
    if life.isEnabledFor(logging.DEBUG):
        for draft, new in zip(drafts, created, strict=True):
            log_entered(draft.id, draft.new.task, created=new)
    if waiting := [key_of(draft) for draft in drafts if draft.new.after]:
        await unblock(desk, waiting)
    return created


async def _add(desk: Desk, drafts: Sequence[Draft], put: Add) -> list[bool]:
    """Keep new jobs, each in its group under the rules in force."""
    regime = await desk.regimes.current()
    try:
        created = await put(regime.all_admitted(drafts))
    except StaleRules as stale:
        created = await _add_others(desk, drafts, put, stale)
        regime = await desk.regimes.current()
    for tenant, queue in regime.tiered(drafts):
        await attend(desk, tenant, queue)
    return created


async def _add_others(desk: Desk, drafts: Sequence[Draft], put: Add, stale: StaleRules) -> list[bool]:
    """The rules have changed: keep those that are not kept yet under the new ones. Others may have come in by then, and
    are sorted like all who wait.
    """
    created: list[bool | None] = [*stale.answers] or [None] * len(drafts)
    for _ in range(MOST_REGIMES):
        desk.regimes.forget()
        regime = await desk.regimes.current()
        places = [place for place, new in enumerate(created) if new is None]
        answers: Sequence[bool | None]
        try:
            answers = await put(regime.all_admitted([drafts[place] for place in places]))
        except StaleRules as again:
            answers = again.answers
        for place, new in zip(places, answers, strict=False):
            created[place] = new
        if None not in created:
            return [bool(new) for new in created]
    raise Unavailable("the rules change faster than jobs come in: try again")


async def unblock(desk: Desk, keys: Sequence[JobKey]) -> set[JobKey]:
    """Decide blocked jobs again; those that could not be settled now.

    What each waits for is bound to it first: so whatever is still pending then will say when it has ended.
    """
    rest = list(dict.fromkeys(keys))
    for _ in range(MOST_ROUNDS):
        if not rest:
            break
        reading = await desk.store.read(rest)
        blocked = [record.job for record in reading.records if record and record.job.state is State.BLOCKED]
        edges = [Edge(parent, job.tenant, job.id) for job in blocked for parent in job.waits_for]
        states = iter(await desk.store.bind(edges))
        stand = [dict(zip(job.waits_for, islice(states, len(job.waits_for)), strict=True)) for job in blocked]
        decided = [lifecycle.unblock(job, parents, reading.now) for job, parents in zip(blocked, stand, strict=True)]
        moves = [move for move in decided if move is not None]
        applied = await desk.store.apply(moves)
        rest = [key_of(move) for move, done in zip(moves, applied, strict=True) if not done]
    return set(rest)


async def follow_up(desk: Desk, ripe: Sequence[Ripe]) -> None:
    """Do what is due now that these jobs have ended, and take them off the list."""
    ordered = sorted(ripe, key=lambda one: (one.id, one.tenant))
    await add(desk, [_following(one, one.then) for one in ordered if one.then and one.state is State.SUCCEEDED])
    unsettled = await unblock(desk, [JobKey(child, one.tenant) for one in ripe for child in one.children])
    done = [
        replace(one, children=[child for child in one.children if JobKey(child, one.tenant) not in unsettled])
        for one in ripe
    ]
    await desk.store.ripe(done, 0)


def _following(one: Ripe, then: NewJob) -> Draft:
    """The job that follows; it was checked when the first of them was enqueued."""
    new = _given(then, one.result)
    return Draft(one.tenant, own_id(one.tenant, new) or child_id(one.id, "then", new.queue), new, follows=True)


def _given(new: NewJob, result: Kept | None) -> NewJob:
    if new.payload is not NOTHING:
        return new
    if result is None:
        return replace(new, content_type=MSGPACK, one_argument=True)
    return replace(new, payload=Raw(result.data), content_type=result.content_type, one_argument=True)
