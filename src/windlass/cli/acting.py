"""`windlass jobs cancel|retry|rm`: change jobs, by their ids or all that match; never all by accident.

And `send`, which speaks to one.
"""

import asyncio
import sys
from typing import Annotated, NamedTuple

from cyclopts import Parameter

from windlass.cli import saying
from windlass.cli.choosing import ANY_JOB, Chosen
from windlass.cli.place import HERE, Place, Queue, opened
from windlass.model.errors import Conflict, Invalid
from windlass.model.match import ANY, Match
from windlass.model.operations import MOST_AT_ONCE, Cancel, Changed, Delete, Retry, Selection, Send, Show


class Action(NamedTuple):
    """What is done to jobs, and how that is said."""

    operation: type[Selection]
    infinitive: str
    participle: str


CANCEL = Action(Cancel, "cancel", "cancelled")
RETRY = Action(Retry, "queue again", "queued again")
DELETE = Action(Delete, "delete", "deleted")


class Wanted(NamedTuple):
    """Which jobs, in one of three ways, and whether in earnest."""

    ids: tuple[str, ...]
    match: Match
    everything: bool
    dry_run: bool


Ids = Annotated[str, Parameter(name="IDS", help="Ids of jobs, in the place of options that say which.")]
All = Annotated[bool, Parameter(name="--all", help="Every job of the tenant, whatever it is.")]
Dry = Annotated[bool, Parameter(name="--dry-run", help="Change nothing, only say how many it would be.")]


async def cancel(
    *ids: Ids, chosen: Chosen = ANY_JOB, everything: All = False, dry_run: Dry = False, place: Place = HERE
) -> None:
    """Cancel jobs; running ones are stopped.

    For example:
      windlass jobs cancel 01936f2e-…
      windlass jobs cancel --queue mail --state pending --dry-run
    """
    await _act(CANCEL, Wanted(ids, chosen.match(), everything, dry_run), place)


async def retry(
    *ids: Ids, chosen: Chosen = ANY_JOB, everything: All = False, dry_run: Dry = False, place: Place = HERE
) -> None:
    """Queue finished jobs again, their attempts counted anew.

    For example:
      windlass jobs retry 01936f2e-…
      windlass jobs retry --state failed --task mail --text timed
    """
    await _act(RETRY, Wanted(ids, chosen.match(), everything, dry_run), place)


async def rm(
    *ids: Ids, chosen: Chosen = ANY_JOB, everything: All = False, dry_run: Dry = False, place: Place = HERE
) -> None:
    """Delete jobs and their records; running ones are stopped first.

    For example:
      windlass jobs rm 01936f2e-…
      windlass jobs rm --state finished --created-before 30d
      windlass jobs rm --all --dry-run
    """
    await _act(DELETE, Wanted(ids, chosen.match(), everything, dry_run), place)


async def send(
    id: Annotated[str, Parameter(name="ID", help="The id of a job that takes input.")],
    message: Annotated[
        str | None, Parameter(name="MESSAGE", help="What to send; without it, each line that is read is a message.")
    ] = None,
    /,
    *,
    place: Place = HERE,
) -> None:
    """Send a message to a running job, or to one that is still to run. An empty one is by custom the last.

    For example:
      windlass jobs send 01936f2e-… 'go on'
      tail -f orders | windlass jobs send 01936f2e-…
    """
    async with opened(place) as queue:
        if message is not None:
            await queue(Send(id=id, data=message.encode()))
            return
        while line := await asyncio.to_thread(sys.stdin.buffer.readline):
            await queue(Send(id=id, data=line.removesuffix(b"\n")))


async def _act(action: Action, wanted: Wanted, place: Place) -> None:
    _check(wanted)
    async with opened(place) as queue:
        changed = await _by_ids(queue, action, wanted) if wanted.ids else await _by_match(queue, action, wanted)
    if place.json:
        saying.write_json(Changed(changed=changed))
        return
    verb = f"would {action.infinitive}" if wanted.dry_run else action.participle
    saying.write(f"{verb} {saying.plural(changed, 'job')}")


def _check(wanted: Wanted) -> None:
    ways = sum((bool(wanted.ids), wanted.match != ANY, wanted.everything))
    if ways == 0:
        raise Invalid("say which jobs: their ids, options such as --state failed, or --all")
    if ways > 1:
        raise Invalid("say which jobs in one way: by ids, by options such as --state, or by --all")


async def _by_ids(queue: Queue, action: Action, wanted: Wanted) -> int:
    """A thousand at a time: any number of ids may be given."""
    changed = 0
    for start in range(0, len(wanted.ids), MOST_AT_ONCE):
        some = list(wanted.ids[start : start + MOST_AT_ONCE])
        changed += (await queue(action.operation(ids=some, dry_run=wanted.dry_run))).changed
    if not changed and len(wanted.ids) == 1:
        job = await queue(Show(id=wanted.ids[0]))
        raise Conflict(f"job {job.id} is {job.state}: there is nothing to {action.infinitive}", at="id")
    return changed


async def _by_match(queue: Queue, action: Action, wanted: Wanted) -> int:
    return (await queue(action.operation(match=wanted.match, dry_run=wanted.dry_run))).changed
