"""One job on a card, for people: what is out of the ordinary, and nothing else."""

from collections.abc import Iterator
from datetime import datetime
from typing import Any

import msgspec
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from windlass.cli import following, saying, values
from windlass.model.estimate import Estimate, Why
from windlass.model.job import FINISHED, PENDING, Job, Wishes

MOST_ERRORS = 5
"""Errors in the list, the newest; the last one is shown in full."""

FOR = {
    Why.SLOTS: "its turn",
    Why.LIMIT: "a place in limit",
    Why.TIER: "a place at tier",
    Why.TIME: "its time",
    Why.JOBS: "other jobs",
    Why.PAUSE: "the end of a pause",
    Why.WORKER: "a worker of its queue: there is none",
    Why.HANDLER: "a worker that knows its task, or runs its handler: there is none",
}
"""What a job waits for, in words."""

TIMES = {"timeout", "keep_result_for", "keep_success", "keep_failure", "expires", "unattended"}
"""Wishes that are lengths of time."""


def card(job: Job, waits: Estimate, payload: Any, now: datetime) -> RenderableType:
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="dim", no_wrap=True)
    grid.add_column(overflow="fold")
    for name, said in _rows(job, waits, now):
        grid.add_row(name, said)
    parts: list[RenderableType] = [grid]
    if payload is not None:
        note = f", {values.BYTES}" if values.has_bytes(payload) else ""
        parts += _section(f"payload ({saying.size(job.size)}{note})", values.pretty(payload))
    if job.error is not None:
        parts += _section("last error", job.error.traceback.rstrip() or following.message(job.error))
    return Group(*parts)


def _section(title: str, text: str) -> list[RenderableType]:
    return [Text(), Text(title, style="dim"), Text("\n".join(f"  {line}" for line in text.splitlines()))]


def _rows(job: Job, waits: Estimate, now: datetime) -> Iterator[tuple[str, Text]]:
    yield "job", Text(job.id, style="bold")
    yield "task", Text(f"{job.task}  in queue {job.queue}" + ("" if job.tenant == "default" else f" of {job.tenant}"))
    yield "state", _state(job)
    if waits.why is not None:
        yield "waits", Text(wait(waits))
    if job.progress is not None and job.state in PENDING:
        yield "progress", Text(following.progress(job.progress))
    for name, moment in _moments(job):
        yield name, Text.assemble(saying.ago(moment, now), (f"  {saying.exactly(moment)}", "dim"))
    if job.started_at and job.finished_at:
        yield "took", Text(saying.span((job.finished_at - job.started_at).total_seconds()))
    if job.worker:
        place = f" on {job.node}" if job.node else ""
        place += f", version {job.handler_version} of its handler" if job.handler_version else ""
        place += f", sandbox {job.sandbox}" if job.sandbox else ""
        yield "worker", Text(job.worker + place + (f", process {job.pid}" if job.pid else ""))
    for name, said in _unusual(job):
        yield name, Text(said)
    yield from _errors(job, now)


def wait(waits: Estimate) -> str:
    """How long a job will wait, and for what."""
    parts = [] if waits.seconds is None else [f"about {saying.span(waits.seconds)}"]
    if waits.position is not None:
        parts.append(f"position {waits.position}")
    if waits.why is Why.HANDLER and waits.name:
        return ", ".join([*parts, f"for a worker that can run its handler: {waits.name}"])
    named = f" {waits.name}" if waits.name else ""
    return ", ".join([*parts, f"for {FOR[waits.why]}{named}" if waits.why else ""]).strip(", ")


def _state(job: Job) -> Text:
    said = [f"code {job.code}"] if job.code and job.state in FINISHED else []
    if job.reason and job.reason.value != job.state.value:
        said.append(str(job.reason))
    if job.attempt:
        said.append(f"attempt {job.attempt}")
    if job.crashes or job.losses:
        crashes = [saying.plural(job.crashes, "crash", "crashes")] if job.crashes else []
        said += [*crashes, *([f"{job.losses} lost"] if job.losses else [])]
    return Text.assemble(saying.state(job.state), f"  {', '.join(said)}" if said else "")


def _moments(job: Job) -> Iterator[tuple[str, datetime]]:
    yield "created", job.created_at
    if job.run_at is not None and job.state in PENDING:
        yield "due", job.run_at
    if job.started_at is not None:
        yield "started", job.started_at
    if job.deadline is not None:
        yield "stopped at", job.deadline
    if job.finished_at is not None:
        yield "finished", job.finished_at


def _unusual(job: Job) -> Iterator[tuple[str, str]]:
    """The wishes that differ from what every job gets."""
    for field in msgspec.structs.fields(Wishes):
        value = getattr(job, field.name)
        default = field.default_factory() if field.default is msgspec.NODEFAULT else field.default
        if field.name == "queue" or value == default:
            continue
        yield field.name.replace("_", " "), _wish(field.name, value)


def _wish(name: str, value: Any) -> str:
    if value is None:
        return "no limit"
    if name in TIMES:
        return saying.span(value)
    match value:
        case bool():
            return "yes" if value else "no"
        case list():
            return ", ".join(value)
        case dict() | msgspec.Struct():
            known = value if isinstance(value, dict) else msgspec.to_builtins(value)
            return ", ".join(f"{key} {item}" for key, item in known.items())
        case _:
            return str(value)


def _errors(job: Job, now: datetime) -> Iterator[tuple[str, Text]]:
    if len(job.errors) < 2:  # noqa: PLR2004 - a single one is shown in full
        return
    for place, error in enumerate(job.errors[-MOST_ERRORS:]):
        when = f"  {saying.ago(error.at, now)}" if error.at else ""
        name = saying.plural(len(job.errors), "error") if place == 0 else ""
        yield name, Text.assemble(f"attempt {error.attempt}: {following.message(error)}", (when, "dim"))
