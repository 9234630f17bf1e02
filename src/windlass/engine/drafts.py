"""New jobs on their way into a store: checked against what is declared and allowed, and given their ids."""

from msgspec.structs import replace

from windlass.engine.desk import Desk
from windlass.engine.tiers import admit
from windlass.model.admission import check_new
from windlass.model.errors import Invalid
from windlass.model.job import NewJob
from windlass.model.names import EVERY_TENANT, child_id, fresh_id, keyed_id
from windlass.store import Draft


def draft(desk: Desk, tenant: str, new: NewJob, at: str) -> Draft:
    """Check one new job and give it its id."""
    if tenant == EVERY_TENANT:
        raise Invalid("a job belongs to one tenant, not to '-'", at="tenant")
    sound = check(desk, new, at)
    named = Draft(tenant, own_id(tenant, sound) or fresh_id(desk.chance.uuid7(), sound.queue), sound)
    if named.id in sound.after:
        raise Invalid("a job cannot wait for itself", at=f"{at}.after")
    return named


async def check_terms(desk: Desk, new: Draft, at: str) -> None:
    """Refuse a tier that the queue does not have, and a yielding job for which there is no place now."""
    terms = new.new
    if terms.tier is None and not terms.yielding:
        return
    regime = await desk.regimes.refreshed()
    try:
        regime.admitted(new, strict=True)
    except Invalid as fault:
        raise Invalid(fault.detail, at=f"{at}.{fault.at}") from None
    if terms.yielding:
        await admit(desk, new.tenant, terms.queue)


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
    return draft(desk, tenant, new, name)
