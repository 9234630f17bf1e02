"""`windlass audit`: who changed what by hand."""

from collections.abc import AsyncIterator, Sequence
from typing import Annotated

from cyclopts import App, validators

from windlass.cli import COMMANDS, console, terminal
from windlass.cli.options import option
from windlass.cli.target import HERE, OPTIONS, Queue, Target, open_queue
from windlass.cli.terminal import Column
from windlass.model.audit import AuditEntry
from windlass.model.match import ANY
from windlass.model.operations import MOST_AT_ONCE, Audit

SHOWN = 50
"""Rows of a table without `--limit`."""

audit = App(name="audit", help=COMMANDS["audit"][2], group_parameters=OPTIONS)


@audit.default
async def ls(
    *,
    limit: Annotated[
        int | None, option("N", "Show at most N lines (50; with --json all).", validator=validators.Number(gte=1))
    ] = None,
    job: Annotated[str | None, option("ID", "Show only what was done to this job by its id.")] = None,
    target: Target = HERE,
) -> None:
    """Show who cancelled, retried, deleted, ended or annotated jobs by hand, or changed queues, limits, handlers or
    tokens, the newest first.

    For example:
      windlass audit --limit 10
      windlass audit --job 01936f2e-…
      windlass audit --tenant - --json | jq 'select(.action == "delete")'
    """
    most = limit or (None if target.json else SHOWN)
    async with open_queue(target) as queue:
        entries = [entry async for entry in _entries(queue, most, job)]
    if target.json:
        for entry in entries:
            console.write_json(entry)
    elif entries:
        terminal.stdout().print(terminal.Table(_columns(entries), entries))
    else:
        console.note("nothing was changed by hand yet" if job is None else "nothing was done to it by hand")


async def _entries(queue: Queue, most: int | None, job: str | None) -> AsyncIterator[AuditEntry]:
    after, left = None, most
    while left is None or left > 0:
        page = await queue(Audit(limit=min(left or MOST_AT_ONCE, MOST_AT_ONCE), after=after, job=job))
        for entry in page.entries:
            yield entry
        if (after := page.next) is None:
            return
        left = None if left is None else left - len(page.entries)


def _columns(entries: Sequence[AuditEntry]) -> list[Column]:
    columns = [
        Column("at", lambda entry: f"{entry.at.astimezone():%Y-%m-%d %H:%M:%S}"),
        Column("by", lambda entry: f"{entry.by} ({entry.note})" if entry.note else entry.by),
    ]
    if len({entry.tenant for entry in entries}) > 1:
        columns.append(Column("tenant", lambda entry: entry.tenant))
    return [
        *columns,
        Column("action", lambda entry: entry.action),
        Column("jobs", lambda entry: "" if entry.count is None else str(entry.count)),
        Column("", _what),
    ]


def _what(entry: AuditEntry) -> str:
    """What it concerned, and what stopped it."""
    match = "" if entry.match is None else "all jobs" if entry.match == ANY else console.to_json(entry.match)
    words = [entry.name, " ".join(entry.ids), match, entry.details, f"stopped: {entry.error}" if entry.error else ""]
    return "  ".join(word for word in words if word)
