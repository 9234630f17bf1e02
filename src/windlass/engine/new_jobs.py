"""New jobs: checked against declared types and bounds, given their ids, batched and added to the store.

Answers Enqueue, EnqueueMany and EnqueueLines. The journal uses the same checks and ids. Jobs that follow from other
jobs (`then`, jobs made by a success) are added here too.
"""

import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from itertools import compress
from typing import Any

import msgspec
from msgspec import Raw, Struct
from msgspec.structs import asdict, replace

from windlass.engine.batcher import Batcher
from windlass.engine.context import EngineContext, no_job
from windlass.engine.dependencies import add_parents, own_id, unblock, with_follow_up
from windlass.engine.estimate.answers import estimate_at_enqueue
from windlass.engine.files import check_lines, with_files, with_files_of_many
from windlass.engine.flow.tiers import admit_yielding, rebalance
from windlass.model import wire
from windlass.model.admission import ValidatedJobs, check_all, check_new, payloads_in
from windlass.model.dependency import find_cycle
from windlass.model.errors import Conflict, Full, Invalid, NotReplicated, Partly, Unavailable, WindlassError
from windlass.model.job import TEXT
from windlass.model.names import (
    EVERY_TENANT,
    ID_SIZE,
    JobKey,
    check_name,
    child_id,
    fresh_id,
    ids_like,
    key_of,
    marked,
    marked_id,
    raw_ids,
    text_id,
    text_ids,
    texts_like,
)
from windlass.model.new_job import NOTHING, NewJob
from windlass.model.operations import (
    MOST_AT_ONCE,
    Accepted,
    Enqueue,
    Enqueued,
    EnqueueLines,
    EnqueueMany,
    Operation,
)
from windlass.model.template import JobTemplate
from windlass.model.unique import identity_of
from windlass.store.data import Added, Draft, Record, stored_as
from windlass.store.flow import StaleRules
from windlass.store.optional import PreparedCommand

job_log = logging.getLogger("windlass.job")
"""One line for each step of a job's life."""

WIDEST = 4
"""Bytes of a character, at most."""

MOST_RULE_CHANGES = 100
"""How often jobs are added again because the rules changed. High, because some of them may be stored by then."""

MOST_NAMED = 3
"""Ids named in an error."""

MOST_TEMPLATES = 1000
"""Prepared commands that are cached."""

Check = Callable[[Sequence[Draft], str], Awaitable[None]]
"""Refuses jobs that ask for what their queues do not have."""

Find = Callable[[list[str]], Awaitable[int]]
"""How many of these jobs exist."""

_pack = msgspec.msgpack.Encoder().encode
_unpack = msgspec.msgpack.Decoder(list[bytes]).decode


# Operations


async def enqueue(context: EngineContext, operation: Enqueue) -> Accepted:
    if operation.job.hashes or operation.most_files is not None or context.flow_config.may_have_bounds:
        operation = await with_files(context, operation)
    (new,) = to_drafts(context, operation)
    await check_terms(context, [new], "job")
    with name_unreplicated([new.id]):
        record, created = await _add_lone(context, new)
        if record is None and not created:  # the job that was there has just ended and left no record
            record, created = await _add_lone(context, new)
    if record is None:
        raise no_job(new.id)
    if not created:
        return Accepted(**asdict(record.job), created=False)
    found = await estimate_at_enqueue(context, record)
    waits = {"estimate": found.seconds, "estimate_at_most": found.at_most}
    return Accepted(**{**asdict(record.job), **waits}, created=True)


async def _add_lone(context: EngineContext, new: Draft) -> tuple[Record | None, bool]:
    if new.new.yielding or new.new.unique is not None:  # by itself: whether it is refused is its own matter
        return (await _add_and_read(context, [new]))[0]
    return await _batcher(context).submit(new)


def _batcher(context: EngineContext) -> Batcher[Draft, tuple[Record | None, bool]]:
    if context.batcher is None:
        context.batcher = Batcher(partial(_add_and_read, context))
    return context.batcher


async def _add_and_read(context: EngineContext, drafts: list[Draft]) -> list[tuple[Record | None, bool]]:
    """Each job as it is now (null = deleted already), and whether it is new."""
    added = await add(context, drafts, wait_for_replicas=True)
    reading = await context.store.jobs.read(list(map(stored_as, drafts, added)))
    return list(zip(reading.records, map(bool, added), strict=True))


async def enqueue_many(context: EngineContext, operation: EnqueueMany) -> Enqueued:
    operation = await with_files_of_many(context, operation)
    parts = await checked_parts(context, operation, partial(check_terms, context))
    return await _enqueue_parts(context, operation.tenant, parts)


async def enqueue_lines(context: EngineContext, operation: EnqueueLines) -> Enqueued:
    drafts = to_drafts(context, operation)
    await check_lines(context, operation.tenant, operation.options.queue, (draft.new.payload for draft in drafts))
    await check_terms(context, drafts[:1], "options")
    parts = (drafts[start : start + MOST_AT_ONCE] for start in range(0, len(drafts), MOST_AT_ONCE))
    return await _enqueue_parts(context, operation.tenant, parts)


async def _enqueue_parts(context: EngineContext, tenant: str, parts: Iterable[list[Draft]]) -> Enqueued:
    """One part after the other: an error in the middle names the jobs that were accepted."""
    ids: list[str] = []
    existing: list[str] = []
    created = 0
    for drafts in parts:
        some = [draft.id for draft in drafts]
        async with name_accepted(ids, some, partial(_count_existing, context, tenant)):
            with name_unreplicated(some):
                new = await add(context, drafts, wait_for_replicas=True)
        if not all(new):
            some = [key.id for key in map(stored_as, drafts, new)]
        ids += some
        created += sum(map(bool, new))
        if not all(new):
            made = set(compress(some, new))
            existing += [id for id in dict.fromkeys(some) if id not in made]
    return Enqueued(ids=ids, created=created, existing=existing)


async def _count_existing(context: EngineContext, tenant: str, ids: list[str]) -> int:
    reading = await context.store.jobs.read([JobKey(id, tenant) for id in ids])
    return sum(record is not None for record in reading.records)


# Errors that name the jobs of a request


@contextmanager
def name_unreplicated(ids: Sequence[str]) -> Iterator[None]:
    """`NotReplicated` names these jobs, so that the caller can read them or send them again under the same ids."""
    try:
        yield
    except NotReplicated as fault:
        raise NotReplicated(f"{_named(ids)} accepted, but {fault.detail}") from fault


def _named(ids: Sequence[str]) -> str:
    if len(ids) == 1:
        return f"job {ids[0]} (it may be sent again under this id) is"
    named = ", ".join([*ids[:MOST_NAMED], *(["…"] if len(ids) > MOST_NAMED else [])])
    return f"{len(ids)} jobs ({named}: they may be sent again under these ids) are"


@asynccontextmanager
async def name_accepted(before: list[str], ids: list[str], find: Find | None = None) -> AsyncIterator[None]:
    """An error while `ids` are added after `before` names the jobs of the request that were accepted.

    `find` counts the stored jobs: a full store may have taken some of them, or one whose other partition refused a
    unique job. Null = the store takes all or none.
    """
    try:
        yield
    except WindlassError as fault:
        accepted, unsure = await _accepted_of(fault, ids, find)
        if before or accepted or unsure:
            fault.partly = Partly([*before, *accepted], unsure)
        raise


async def _accepted_of(fault: WindlassError, ids: list[str], find: Find | None) -> tuple[list[str], list[str]]:
    """The jobs that are accepted, and those that may be."""
    if isinstance(fault, NotReplicated):
        return ids, []
    if isinstance(fault, Unavailable):
        return [], ids
    if not isinstance(fault, Full | Conflict) or find is None:
        return [], []
    try:
        found = await find(ids)
    except WindlassError:
        return [], ids
    if found == len(ids):
        return ids, []
    return [], (ids if found else [])


# Checks and ids


def to_drafts(context: EngineContext, operation: Enqueue | EnqueueMany | EnqueueLines) -> list[Draft]:
    """The new jobs of an operation, checked, with their ids."""
    match operation:
        case Enqueue():
            return [to_draft(context, operation.tenant, operation.job, "job")]
        case EnqueueMany(jobs=[new]):
            return [to_draft(context, operation.tenant, new, "jobs[0]")]
        case EnqueueMany():
            if len(operation.jobs) > MOST_AT_ONCE:
                raise Invalid(f"{len(operation.jobs)} jobs in one batch, at most {MOST_AT_ONCE} are allowed", at="jobs")
            return _many_drafts(context, operation)
        case _:
            return drafts_in(to_batch(context, operation))


async def checked_parts(context: EngineContext, operation: EnqueueMany, check: Check) -> Iterable[list[Draft]]:
    """The new jobs of an operation in parts that a store takes at once. Errors are raised before the first part."""
    parts = _parts(operation)
    if len(parts) > 1 and not any(map(has_terms, operation.jobs)):
        return (to_drafts(context, part) for part in parts)  # there may be a hundred thousand: each in its turn
    made = [to_drafts(context, part) for part in parts]
    await check([draft for drafts in made for draft in drafts], "jobs")
    return made


def _parts(operation: EnqueueMany) -> list[EnqueueMany]:
    news = operation.jobs
    if not isinstance(news, ValidatedJobs) or len(news) <= MOST_AT_ONCE:
        return [operation]
    starts = range(0, len(news), MOST_AT_ONCE)
    return [EnqueueMany(tenant=operation.tenant, jobs=news.part(start, start + MOST_AT_ONCE)) for start in starts]


def _many_drafts(context: EngineContext, operation: EnqueueMany) -> list[Draft]:
    tenant = operation.tenant
    _check_tenant(tenant)
    news = check_all(operation.jobs, context.settings.most_payload, "jobs[{}]".format)
    own = [own_id(tenant, new) for new in news]
    fresh = iter(texts_like(context.chance.uuid7(), own.count(None)))
    pairs = zip(news, own, strict=True)
    made = [_draft_of(tenant, marked_id(next(fresh), new.queue) if id is None else id, new) for new, id in pairs]
    waiting = [draft for draft in made if draft.new.after]
    if waiting:
        _check_cycles(made)
    return made


def _check_cycles(made: Sequence[Draft]) -> None:
    """Refuse jobs of one request that wait for each other, or for one that may not come: they would never run."""
    unique = {draft.id for draft in made if draft.new.unique is not None}
    for place, named in enumerate(made):
        _check_after(named, f"jobs[{place}]")
        if not unique.isdisjoint(named.new.after):
            raise Invalid(
                "it waits for a unique job of the same request, which may turn out to be another one: send that first",
                at=f"jobs[{place}].after",
            )
    places = {draft.id: place for place, draft in enumerate(made)}
    cycle = find_cycle({draft.id: draft.new.after for draft in made if draft.new.after})
    if cycle:
        shown = cycle if len(cycle) <= MOST_NAMED + 1 else [*cycle[:MOST_NAMED], "…", cycle[-1]]
        raise Invalid(
            f"these jobs wait for each other in a circle, and none would ever run: {' after '.join(shown)}",
            at=f"jobs[{places[cycle[0]]}].after",
        )


def to_draft(context: EngineContext, tenant: str, new: NewJob, at: str) -> Draft:
    """Check one new job and give it its id."""
    _check_tenant(tenant)
    checked = check_job(context, new, at)
    named = _draft_of(tenant, own_id(tenant, checked) or fresh_id(context.chance.uuid7(), checked.queue), checked)
    _check_after(named, at)
    return named


def _draft_of(tenant: str, id: str, new: NewJob) -> Draft:
    if new.then is not None or new.follow_up is not None:
        new = with_follow_up(tenant, id, new)
    return Draft(tenant, id, new)


def check_job(context: EngineContext, new: NewJob, at: str) -> NewJob:
    return check_new(new, context.settings.most_payload, at)


def _check_after(named: Draft, at: str) -> None:
    if named.id in named.new.after:
        raise Invalid("a job cannot wait for itself", at=f"{at}.after")


def _check_tenant(tenant: str) -> None:
    if tenant == EVERY_TENANT:
        raise Invalid("a job belongs to one tenant, not to '-'", at="tenant")


def child_draft(context: EngineContext, tenant: str, parent: str, name: str, new: NewJob) -> Draft:
    """A job made by another job. Its id is derived from its parent and name, so it is made only once."""
    if new.id is None and new.key is None:
        new = replace(new, id=child_id(parent, name, new.queue))
    return replace(to_draft(context, tenant, new, name), follows=True)


def has_terms(new: NewJob) -> bool:
    """Whether a job asks for something that its queue may not have."""
    return new.tier is not None or new.yielding


async def check_terms(context: EngineContext, drafts: Sequence[Draft], at: str) -> None:
    """Refuse tiers that a queue does not have."""
    asking = [(place, draft) for place, draft in enumerate(drafts) if has_terms(draft.new)]
    if not asking:
        return
    config = await context.flow_config.refreshed()
    for place, draft in asking:
        try:
            config.resolve(draft, strict=True)
        except Invalid as fault:
            where = f"{at}[{place}]" if at == "jobs" else at
            raise Invalid(fault.detail, at=f"{where}.{fault.at}") from None


# Batches of equal jobs


class JobBatch(Struct, frozen=True, gc=False):
    """Jobs of one tenant that differ only in id and payload, packed: there may be many thousands of them."""

    tenant: str
    common: NewJob
    """Each of them without its payload."""
    ids: bytes
    """Concatenated, ascending."""
    packed: Raw
    """The payloads: a list in MessagePack."""

    def __len__(self) -> int:
        return len(self.ids) // ID_SIZE


def to_batch(context: EngineContext, operation: EnqueueLines) -> JobBatch:
    """The jobs of a text, checked, with their ids."""
    for name in ("key", "unique_key"):
        if getattr(operation.options, name) is not None:
            raise Invalid("each line is a job of its own: lines cannot share a key", at=f"options.{name}")
    _check_tenant(operation.tenant)
    options = {**asdict(operation.options), "content_type": TEXT}
    new = NewJob(task=operation.task, delay=operation.delay, **options)
    common = check_job(context, new, "options")
    payloads = payloads_in(operation.text)
    most = context.settings.most_payload
    if len(operation.text) > most // WIDEST and max(map(len, payloads), default=0) > most:
        _refuse_largest(operation.text, most)
    ids = ids_like(marked(context.chance.uuid7(), common.queue), len(payloads))
    return make_batch(operation.tenant, common, ids, payloads)


def _refuse_largest(text: str, most: int) -> None:
    """Raise an error that names the line that is too large."""
    for number, line in enumerate(text.split("\n"), start=1):
        for payload in payloads_in(line):
            wire.check_size(payload, most, at=f"line {number}.payload")


def make_batch(tenant: str, common: NewJob, ids: bytes, payloads: Sequence[bytes]) -> JobBatch:
    return JobBatch(tenant, common, ids, Raw(_pack(payloads)))


def batch_of(drafts: Sequence[Draft]) -> JobBatch:
    """A batch from jobs that are alike and have ascending ids."""
    common = replace(drafts[0].new, id=None, payload=NOTHING)
    ids = raw_ids(draft.id for draft in drafts)
    return make_batch(drafts[0].tenant, common, ids, [bytes(draft.new.payload) for draft in drafts])


def payloads_of(batch: JobBatch) -> list[bytes]:
    return _unpack(batch.packed)


def split_batch(batch: JobBatch, most: int) -> list[JobBatch]:
    """The same in batches of at most so many jobs."""
    if len(batch) <= most:
        return [batch]
    tenant, common, ids, payloads = batch.tenant, batch.common, batch.ids, payloads_of(batch)
    return [
        make_batch(tenant, common, ids[start * ID_SIZE : (start + most) * ID_SIZE], payloads[start : start + most])
        for start in range(0, len(payloads), most)
    ]


def drafts_in(batch: JobBatch, start: int = 0, end: int | None = None) -> list[Draft]:
    """All jobs of a batch, or those between two indexes."""
    tenant, common = batch.tenant, batch.common
    texts = text_ids(batch.ids[start * ID_SIZE : None if end is None else end * ID_SIZE])
    named = zip(texts, payloads_of(batch)[start:end], strict=True)
    return [Draft(tenant, id, replace(common, payload=Raw(payload))) for id, payload in named]


def first_draft(batch: JobBatch) -> Draft:
    """The first job of a batch, without its payload."""
    return Draft(batch.tenant, text_id(batch.ids[:ID_SIZE]), batch.common)


# Adding


async def add(context: EngineContext, drafts: Sequence[Draft], *, wait_for_replicas: bool = False) -> list[Added]:
    """Add new jobs; for each whether it is new. Jobs with `after` are decided at once: their parents may have ended.

    `wait_for_replicas`: answer when the store's replicas have the jobs, if the store is set up so. Jobs that follow
    from another job do not wait: they must not delay their parent.
    """
    write = partial(context.writes.add, wait_for_replicas=wait_for_replicas)
    yielding = [draft for draft in drafts if draft.new.yielding and not draft.follows]
    try:
        if yielding:
            created = await _add_some_yielding(context, drafts, write)
        else:
            created = await _add(context, drafts, write)
    except NotReplicated:
        await unblock(context, [key_of(draft) for draft in drafts if draft.new.after])
        raise
    if job_log.isEnabledFor(logging.DEBUG):
        for draft, new in zip(drafts, created, strict=True):
            log_entered(stored_as(draft, new).id, draft.new.task, created=bool(new))
    if waiting := [(draft, new) for draft, new in zip(drafts, created, strict=True) if draft.new.after]:
        await add_parents(context, [draft for draft, new in waiting if new])
        await unblock(context, [stored_as(draft, new) for draft, new in waiting if not new])
    return created


Write = Callable[[Sequence[Draft]], Awaitable[list[Added]]]


async def _add_some_yielding(context: EngineContext, drafts: Sequence[Draft], write: Write) -> list[Added]:
    """Add new jobs; the yielding ones of each queue first, if a slot is free for each of them."""
    yielding: dict[tuple[str, str], list[Draft]] = {}
    others: list[Draft] = []
    for draft in drafts:
        (yielding.setdefault((draft.tenant, draft.new.queue), []) if draft.new.yielding else others).append(draft)
    created: dict[JobKey, Added] = {}
    for (tenant, queue), some in yielding.items():
        admitted = await admit_yielding(context, tenant, queue, some)
        created |= zip(map(key_of, some), admitted, strict=True)
    if others:
        created |= zip(map(key_of, others), await _add(context, others, write), strict=True)
    return [created[key_of(draft)] for draft in drafts]


async def _add(context: EngineContext, drafts: Sequence[Draft], write: Write) -> list[Added]:
    """Add new jobs, each with its limit keys under the current rules."""
    unique = [draft for draft in drafts if draft.new.unique is not None]
    if unique:
        drafts = [_identified(draft) for draft in drafts]
    config = await context.flow_config.current()
    try:
        created = await write(config.resolve_all(drafts))
    except StaleRules as stale:
        created = await _add_rest(context, drafts, write, stale)
        config = await context.flow_config.current()
    for tenant, queue in config.tiered(drafts):
        await rebalance(context, tenant, queue)
    return created


def _identified(draft: Draft) -> Draft:
    if draft.new.unique is None:
        return draft
    return replace(draft, identity=identity_of(draft.tenant, draft.new))


async def _add_rest(context: EngineContext, drafts: Sequence[Draft], write: Write, stale: StaleRules) -> list[Added]:
    """The rules have changed: add the jobs that are not stored yet under the new rules.

    Jobs that were stored under the old rules are regrouped like all waiting jobs.
    """
    created: list[Added | None] = [*stale.answers] or [None] * len(drafts)
    for _ in range(MOST_RULE_CHANGES):
        context.flow_config.invalidate()
        config = await context.flow_config.current()
        places = [place for place, new in enumerate(created) if new is None]
        answers: Sequence[Added | None]
        try:
            answers = await write(config.resolve_all([drafts[place] for place in places]))
        except StaleRules as again:
            answers = again.answers
        for place, new in zip(places, answers, strict=False):
            created[place] = new
        if None not in created:
            return [new for new in created if new is not None]
    raise Unavailable("the rules change faster than jobs can be added: try again")


def log_entered(id: str, task: str, *, created: bool) -> None:
    job_log.debug("%s %s entered%s", id, task, "" if created else ", again")


class PreparedCommands:
    """A cache of prepared commands, for callers without an event loop.

    Jobs of one template differ only in id and payload. Everything else was checked and encoded for the first of them.
    Available only while no flow rules are in force, and only if the store has such commands.
    """

    def __init__(self, context: EngineContext) -> None:
        self._context = context
        self._prepare = context.store.prepare
        self._most_payload = context.settings.most_payload
        self._commands: dict[tuple[str, bytes], PreparedCommand] = {}
        """By tenant and encoded options."""

    def add(self, tenant: str, template: JobTemplate, id: bytes, payload: bytes) -> bool | None:
        """Add a job; whether it is new. Null = it was not added and must be enqueued as an operation."""
        name = tenant, template.encoded
        command = self._commands.get(name) or self._new_command(name, template.new)
        if command is None or len(payload) > self._most_payload:
            return None
        created = command(id, payload)
        if created is None and command.invalid:  # there may be rules now: the next call checks
            self._commands.pop(name, None)
        return created

    async def publish(self, tenant: str, template: JobTemplate, id: bytes, *, created: bool) -> None:
        """Log and publish a job that was added."""
        if job_log.isEnabledFor(logging.DEBUG):
            log_entered(text_id(id), template.new.task, created=created)
        if created and not self._context.store.events.quiet:
            await self._context.writes.publish_queued([JobKey(text_id(id), tenant)])

    def _new_command(self, name: tuple[str, bytes], new: NewJob) -> PreparedCommand | None:
        tenant, encoded = name
        if self._prepare is None or not encoded or not self._context.flow_config.is_empty:
            return None
        try:
            example = to_draft(self._context, check_name(tenant, at="tenant"), new, "job")
        except WindlassError:
            return None  # the operation raises it again for the caller
        command = self._prepare.command(example)
        if command is not None:
            if len(self._commands) >= MOST_TEMPLATES:
                self._commands.clear()
            self._commands[name] = command
        return command


ANSWERS: dict[type[Operation[Any]], Callable[[EngineContext, Any], Awaitable[Any]]] = {
    Enqueue: enqueue,
    EnqueueMany: enqueue_many,
    EnqueueLines: enqueue_lines,
}
