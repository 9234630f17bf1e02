"""New jobs on their way into a store: checked against what is declared and allowed, and given their ids."""

from collections.abc import Awaitable, Callable, Iterable, Sequence

from msgspec.structs import asdict, replace

from windlass.engine.desk import Desk
from windlass.engine.lines import Lines, drafts_in, lines_with
from windlass.engine.tiers import admit
from windlass.model import wire
from windlass.model.admission import Sound, check_all, check_new
from windlass.model.errors import Invalid
from windlass.model.fresh_ids import ids_like, texts_like
from windlass.model.job import TEXT, NewJob
from windlass.model.names import EVERY_TENANT, child_id, fresh_id, keyed_id, marked, marked_id
from windlass.model.operations import MOST_AT_ONCE, Enqueue, EnqueueLines, EnqueueMany
from windlass.model.texts import payloads_in
from windlass.store import Draft

WIDEST = 4
"""Bytes of a character, at the most."""


def drafts_of(desk: Desk, operation: Enqueue | EnqueueMany | EnqueueLines) -> list[Draft]:
    """All the new jobs that an operation brings, if all of them may be."""
    match operation:
        case Enqueue():
            return [draft(desk, operation.tenant, operation.job, "job")]
        case EnqueueMany(jobs=[new]):
            return [draft(desk, operation.tenant, new, "jobs[0]")]
        case EnqueueMany():
            if len(operation.jobs) > MOST_AT_ONCE:
                raise Invalid(f"{len(operation.jobs)} jobs in one batch, at most {MOST_AT_ONCE} are allowed", at="jobs")
            return _drafts(desk, operation)
        case _:
            return drafts_in(lines_of(desk, operation))


async def checked_parts(desk: Desk, operation: EnqueueMany, check: "Check") -> Iterable[list[Draft]]:
    """All the new jobs of an operation, no more in each part than a store takes at once. What is wrong with any of them
    is reported before the first part.
    """
    parts = _parts(operation)
    if len(parts) > 1 and not any(map(has_terms, operation.jobs)):
        return (drafts_of(desk, part) for part in parts)  # there may be a hundred thousand: none before its turn
    made = [drafts_of(desk, part) for part in parts]
    await check([draft for drafts in made for draft in drafts], "jobs")
    return made


Check = Callable[[Sequence[Draft], str], Awaitable[None]]
"""Refuses jobs that ask for what their queues do not have."""


def _parts(operation: EnqueueMany) -> list[EnqueueMany]:
    news = operation.jobs
    if not isinstance(news, Sound) or len(news) <= MOST_AT_ONCE:
        return [operation]
    starts = range(0, len(news), MOST_AT_ONCE)
    return [EnqueueMany(tenant=operation.tenant, jobs=news.part(start, start + MOST_AT_ONCE)) for start in starts]


def _drafts(desk: Desk, operation: EnqueueMany) -> list[Draft]:
    tenant = operation.tenant
    _check_tenant(tenant)
    news = check_all(operation.jobs, desk.settings.most_payload, "jobs[{}]".format)
    own = [own_id(tenant, new) for new in news]
    fresh = iter(texts_like(desk.chance.uuid7(), own.count(None)))
    pairs = zip(news, own, strict=True)
    made = [Draft(tenant, marked_id(next(fresh), new.queue) if id is None else id, new) for new, id in pairs]
    for place, named in enumerate(made):
        if named.new.after:
            _check_other(named, f"jobs[{place}]")
    return made


def lines_of(desk: Desk, operation: EnqueueLines) -> Lines:
    """The jobs of a text, if all of them may be."""
    if operation.wishes.key is not None:
        raise Invalid("each line is a job of its own: they cannot share a key", at="wishes.key")
    _check_tenant(operation.tenant)
    wishes = {**asdict(operation.wishes), "content_type": TEXT}
    common = check(desk, NewJob(task=operation.task, delay=operation.delay, **wishes), "wishes")
    payloads = payloads_in(operation.text)
    most = desk.settings.most_payload
    if len(operation.text) > most // WIDEST and max(map(len, payloads), default=0) > most:
        _refuse_largest(operation.text, most)
    ids = ids_like(marked(desk.chance.uuid7(), common.queue), len(payloads))
    return lines_with(operation.tenant, common, ids, payloads)


def _refuse_largest(text: str, most: int) -> None:
    """Tell which line is too large."""
    for number, line in enumerate(text.split("\n"), start=1):
        for payload in payloads_in(line):
            wire.check_size(payload, most, at=f"line {number}.payload")


def draft(desk: Desk, tenant: str, new: NewJob, at: str) -> Draft:
    """Check one new job and give it its id."""
    _check_tenant(tenant)
    sound = check(desk, new, at)
    named = Draft(tenant, own_id(tenant, sound) or fresh_id(desk.chance.uuid7(), sound.queue), sound)
    _check_other(named, at)
    return named


def _check_other(named: Draft, at: str) -> None:
    if named.id in named.new.after:
        raise Invalid("a job cannot wait for itself", at=f"{at}.after")


def _check_tenant(tenant: str) -> None:
    if tenant == EVERY_TENANT:
        raise Invalid("a job belongs to one tenant, not to '-'", at="tenant")


def has_terms(new: NewJob) -> bool:
    """Whether a job asks for something that its queue may not have."""
    return new.tier is not None or new.yielding


async def check_terms(desk: Desk, drafts: Sequence[Draft], at: str) -> None:
    """Refuse tiers that their queues do not have, and yielding jobs for which there is no place now."""
    if not any(has_terms(new.new) for new in drafts):
        return
    regime = await desk.regimes.refreshed()
    for place, new in enumerate(drafts):
        if not has_terms(new.new):
            continue
        try:
            regime.admitted(new, strict=True)
        except Invalid as fault:
            where = f"{at}[{place}]" if at == "jobs" else at
            raise Invalid(fault.detail, at=f"{where}.{fault.at}") from None
    lines: dict[tuple[str, str], list[str]] = {}
    for new in drafts:
        if new.new.yielding:
            lines.setdefault((new.tenant, new.new.queue), []).append(new.id)
    for (tenant, queue), ids in lines.items():
        await admit(desk, tenant, queue, ids)


def own_id(tenant: str, new: NewJob) -> str | None:
    """The id that a job comes with, if it does."""
    if new.id is None and new.key is not None:
        return keyed_id(tenant, new.queue, new.key)
    return new.id


def check(desk: Desk, new: NewJob, at: str) -> NewJob:
    return check_new(new, desk.settings.most_payload, at)


def child(desk: Desk, tenant: str, parent: str, name: str, new: NewJob) -> Draft:
    """A job that another one brings about, under an id that is the same each time it does."""
    if new.id is None and new.key is None:
        new = replace(new, id=child_id(parent, name, new.queue))
    return replace(draft(desk, tenant, new, name), follows=True)
