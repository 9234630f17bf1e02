"""`windlass failures`: failed jobs in groups of the same failure, to look at, to queue again, or to delete."""

from collections.abc import Sequence
from typing import Annotated

from cyclopts import App, Parameter
from rich.text import Text

from windlass.cli import COMMANDS, console, terminal
from windlass.cli.jobs import ACTIONS, DryRun, print_changed
from windlass.cli.match_options import ANY_JOB, MatchOptions
from windlass.cli.options import option
from windlass.cli.target import HERE, OPTIONS, Queue, Target, open_queue
from windlass.cli.terminal import Column
from windlass.model.errors import Missing
from windlass.model.failure import FailureGroup, in_order, merge
from windlass.model.job import State
from windlass.model.match import Match
from windlass.model.operations import Failures, Show

SHOWN = 50
"""Rows of a table without `--limit`."""

Fingerprint = Annotated[str, Parameter(name="FINGERPRINT", help="The fingerprint of the group, as `ls` shows it.")]

failures = App(name="failures", help=COMMANDS["failures"][2], group_parameters=OPTIONS)


@failures.command
async def ls(
    *,
    match_options: MatchOptions = ANY_JOB,
    limit: Annotated[int | None, option("N", "Show at most N groups (50; with --json all).")] = None,
    target: Target = HERE,
) -> None:
    """List the failures of failed jobs: the same task, the same error, the same place in the code. The most frequent
    first.

    For example:
      windlass failures ls --created-after 1d
      windlass failures ls --task mail --json | jq .fingerprint
    """
    async with open_queue(target) as queue:
        now = await queue.now()
        found = await _groups(queue, match_options.match(now))
    most = limit or (len(found) if target.json else SHOWN)
    if target.json:
        for group in found[:most]:
            console.write_json(group)
        return
    if not found:
        console.note("no failed jobs")
        return
    columns = [
        Column("fingerprint", lambda group: group.fingerprint),
        *_tenant(found),
        Column("task", lambda group: group.task),
        Column("jobs", lambda group: f"{group.count:,}", right=True),
        Column("first", lambda group: console.ago(group.first_at, now)),
        Column("last", lambda group: console.ago(group.last_at, now)),
        Column("failure", lambda group: Text(_what(group))),
    ]
    terminal.stdout().print(terminal.Table(columns, found[:most]))
    if len(found) > most:
        console.note(f"{len(found) - most} more; --limit shows more, --json shows all")


@failures.command
async def show(fingerprint: Fingerprint, /, *, target: Target = HERE) -> None:
    """Show a group of failures, with the error of its newest job.

    For example:
      windlass failures show 3f9a0c51d2e87b64
    """
    async with open_queue(target) as queue:
        group = await _group(queue, fingerprint)
        job = await queue.service(Show(tenant=group.tenant, id=group.sample))
        now = await queue.now()
    if target.json:
        console.write_json(group)
        return
    console.write(f"{group.task}: {_what(group)}")
    if group.where:
        console.write(f"in {group.where}")
    first, last = console.ago(group.first_at, now), console.ago(group.last_at, now)
    console.write(f"{console.plural(group.count, 'failed job')}, the first {first}, the last {last}: {job.id}")
    if group.versions:
        versions = ", ".join(f"version {one}: {count:,}" for one, count in group.versions.items())
        console.write(f"by the versions of its handler: {versions}")
    if job.error is not None and job.error.traceback:
        console.write("")
        console.write(job.error.traceback.rstrip())


@failures.command
async def retry(
    fingerprint: Fingerprint,
    /,
    *,
    dry_run: DryRun = False,
    target: Target = HERE,
) -> None:
    """Queue the failed jobs of a group again, with their attempts reset.

    For example:
      windlass failures retry 3f9a0c51d2e87b64 --dry-run
    """
    await _act("retry", fingerprint, target, dry_run=dry_run)


@failures.command
async def rm(
    fingerprint: Fingerprint,
    /,
    *,
    dry_run: DryRun = False,
    target: Target = HERE,
) -> None:
    """Delete the failed jobs of a group and their records.

    For example:
      windlass failures rm 3f9a0c51d2e87b64
    """
    await _act("rm", fingerprint, target, dry_run=dry_run)


async def _act(name: str, fingerprint: str, target: Target, *, dry_run: bool) -> None:
    action = ACTIONS[name]
    async with open_queue(target) as queue:
        changed = await queue(action.operation(match=_match(fingerprint), dry_run=dry_run))
        if not changed.changed:
            raise _no_group(fingerprint)
    print_changed(action, changed, dry_run=dry_run, json=target.json)


def _match(fingerprint: str) -> Match:
    return Match(state=["failed"], fingerprint=fingerprint)


async def _group(queue: Queue, fingerprint: str) -> FailureGroup:
    for group in await _groups(queue, _match(fingerprint)):
        return group
    raise _no_group(fingerprint)


def _no_group(fingerprint: str) -> Missing:
    return Missing(f"there is no {State.FAILED} job with the fingerprint {fingerprint}", at="FINGERPRINT")


async def _groups(queue: Queue, match: Match) -> list[FailureGroup]:
    found: dict[tuple[str, str], FailureGroup] = {}
    page = await queue(Failures(match=match))
    merge(found, page.groups)
    while page.next is not None:
        page = await queue(Failures(match=match, after=page.next))
        merge(found, page.groups)
    return in_order(found.values())


def _tenant(found: Sequence[FailureGroup]) -> list[Column]:
    return [Column("tenant", lambda group: group.tenant)] if len({group.tenant for group in found}) > 1 else []


def _what(group: FailureGroup) -> str:
    return f"{group.type}: {group.message}" if group.message else group.type
