"""New jobs on their way into a store: checked against what is declared and allowed, and given their ids."""

from msgspec.structs import replace

from windlass.engine.desk import Desk
from windlass.model import wire
from windlass.model.errors import Invalid, TooLarge
from windlass.model.job import NewJob
from windlass.model.names import EVERY_TENANT, check_file_name, check_id, check_mark, child_id, fresh_id, keyed_id
from windlass.store import Draft


def draft(desk: Desk, tenant: str, new: NewJob, at: str) -> Draft:
    """Check one new job and give it its id."""
    if tenant == EVERY_TENANT:
        raise Invalid("a job belongs to one tenant, not to '-'", at="tenant")
    sound = check(desk, new, at)
    if sound.id is not None:
        return Draft(tenant, sound.id, sound)
    if sound.key is not None:
        return Draft(tenant, keyed_id(tenant, sound.queue, sound.key), sound)
    return Draft(tenant, fresh_id(desk.chance.uuid7(), sound.queue), sound)


def check(desk: Desk, new: NewJob, at: str) -> NewJob:
    """The same job, if all of it may be; else the fault is told with the path of its field."""
    try:
        sound = wire.checked_job(new)
        wire.check_size(sound.payload, desk.settings.most_payload)
        _check_files(sound, desk.settings.most_payload)
        if sound.id is not None and sound.key is not None:
            raise Invalid("send an id or a key, not both", at="key")
        if sound.delay is not None and sound.run_at is not None:
            raise Invalid("send a delay or a run_at, not both", at="run_at")
        if sound.id is not None:
            check_id(sound.id)
            check_mark(sound.id, sound.queue)
    except wire.FAULTS as fault:
        raise type(fault)(fault.detail, at=f"{at}.{fault.at}".strip(".")) from None
    return sound


def _check_files(new: NewJob, most: int) -> None:
    if not new.files:
        return
    for name in new.files:
        check_file_name(name, at="files")
    size = sum(map(len, new.files.values())) + len(memoryview(new.payload))
    if size > most:
        raise TooLarge(f"{size} bytes with the payload, at most {most}: keep large files elsewhere", at="files")


def child(desk: Desk, tenant: str, parent: str, name: str, new: NewJob) -> Draft:
    """A job that another one brings about, under an id that is the same each time it does."""
    if new.id is None and new.key is None:
        new = replace(new, id=child_id(parent, name, new.queue))
    return draft(desk, tenant, new, name)
