"""`windlass top`: queues, workers and the newest failures, refreshed.

A frame compares two snapshots, for rates per second. Knows the terminal and its `q` key.
"""

import asyncio
import heapq
import sys
import termios
import tty
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import Annotated

from msgspec import Struct
from rich.console import Group, RenderableType
from rich.live import Live
from rich.text import Text

from windlass.cli import console, terminal
from windlass.cli.job_view import error_line, wait_text
from windlass.cli.options import flag, option, seconds
from windlass.cli.queues import QueueCounts, count_queues, outcomes_text, state_columns, worker_columns
from windlass.cli.target import HERE, Queue, Target, open_queue
from windlass.cli.terminal import Column
from windlass.model.errors import Invalid
from windlass.model.estimate import Estimate, QueueEstimate
from windlass.model.job import FINISHED, Job, State
from windlass.model.match import Match
from windlass.model.operations import MOST_AT_ONCE, GetQueueEstimate, GetStats, Workers
from windlass.model.worker import Worker, counted_slots
from windlass.system import SystemClock

MOST_QUEUES, MOST_WORKERS, MOST_FAILURES = 20, 10, 5
"""Rows of each part of a frame."""

MOST_LOOKED_AT = 5 * MOST_AT_ONCE
"""Failed jobs that are read to find the newest: a listing is sorted by arrival, not by end."""

LOOK_AGAIN = 10.0
"""Seconds after which failures are read again even if their number is unchanged."""

SHORTEST = 0.1


class Snapshot(Struct, frozen=True, kw_only=True):
    """A queue at one moment."""

    at: datetime
    queues: list[QueueCounts]
    workers: list[Worker]
    waits: dict[str, QueueEstimate] = {}
    """By `TENANT/QUEUE`: the wait of a job that is enqueued now, for queues with waiting jobs."""
    failures: list[Job]
    """Newest first."""
    failures_at: datetime
    """When they were read."""


async def top(
    *,
    every: Annotated[float, option("TIME", "The interval (1s).", read=seconds)] = 1.0,
    once: Annotated[bool, flag("Print one frame and exit.")] = False,
    target: Target = HERE,
) -> None:
    """Watch queues, workers and the newest failures; `q` quits.

    For example:
      windlass top
      windlass top --once
      windlass top --every 10s --json >> log.ndjson
    """
    if every < SHORTEST:
        raise Invalid(f"{console.span(every)} is too short: use 100ms or more", at="--every")
    async with open_queue(target) as queue:
        if target.json or once or not terminal.stdout().is_terminal:
            await _stream(queue, every, once=once, json=target.json)
        else:
            await _screen(queue, every)


async def _stream(queue: Queue, pause: float, *, once: bool, json: bool) -> None:
    before: Snapshot | None = None
    while True:
        now = await _take_snapshot(queue, before)
        if json:
            console.write_json(now)
        else:
            terminal.stdout().print(*([] if before is None else [""]), frame(before, now), sep="\n")
        sys.stdout.flush()
        if once:
            return
        before = now
        await SystemClock().sleep(pause)


async def _screen(queue: Queue, pause: float) -> None:
    before: Snapshot | None = None
    with _keys() as pressed, Live(console=terminal.stdout(), screen=True, auto_refresh=False) as live:
        while not pressed.is_set():
            now = await _take_snapshot(queue, before)
            live.update(frame(before, now), refresh=True)
            before = now
            try:
                await asyncio.wait_for(pressed.wait(), pause)
            except TimeoutError:
                continue


@contextmanager
def _keys() -> Iterator[asyncio.Event]:
    """Set when `q` is pressed, while there is a keyboard."""
    pressed = asyncio.Event()
    if not sys.stdin.isatty():
        yield pressed
        return
    keyboard = sys.stdin.fileno()
    loop = asyncio.get_running_loop()

    def press() -> None:
        if sys.stdin.read(1) in ("q", "Q", ""):
            pressed.set()

    usual = termios.tcgetattr(keyboard)
    tty.setcbreak(keyboard)
    loop.add_reader(keyboard, press)
    try:
        yield pressed
    finally:
        loop.remove_reader(keyboard)
        termios.tcsetattr(keyboard, termios.TCSADRAIN, usual)


async def _take_snapshot(queue: Queue, before: Snapshot | None) -> Snapshot:
    workers = await queue(Workers())
    found = count_queues((await queue(GetStats())).queues, workers)
    now = await queue.now()
    if before and failed(found) == failed(before.queues) and (now - before.failures_at).total_seconds() < LOOK_AGAIN:
        failures, failures_at = before.failures, before.failures_at
    else:
        failures, failures_at = await _failures(queue), now
    waits = {name(line): await _estimate(queue, line) for line in found[:MOST_QUEUES] if line.states.get(State.QUEUED)}
    return Snapshot(at=now, queues=found, workers=workers, waits=waits, failures=failures, failures_at=failures_at)


def name(line: QueueCounts) -> str:
    return f"{line.tenant}/{line.queue}"


async def _estimate(queue: Queue, line: QueueCounts) -> QueueEstimate:
    return await queue.service(GetQueueEstimate(tenant=line.tenant, queue=line.queue))


def failed(found: list[QueueCounts]) -> int:
    return sum(line.states.get(State.FAILED, 0) for line in found)


async def _failures(queue: Queue) -> list[Job]:
    looked_at = [job async for job in queue.jobs(Match(state=["failed"]), most=MOST_LOOKED_AT)]
    return heapq.nlargest(MOST_FAILURES, looked_at, key=lambda job: job.updated_at)


def frame(before: Snapshot | None, now: Snapshot) -> RenderableType:
    running = sum(worker.running for worker in now.workers)
    slots = sum(counted_slots(worker) for worker in now.workers)
    head = [Text("windlass", style="bold"), Text(now.at.astimezone().strftime("%H:%M:%S"))]
    head.append(Text(f"{console.plural(len(now.workers), 'worker')}, {running} of {slots} slots in use"))
    parts: list[RenderableType] = [Text("  ").join(head), Text()]
    parts += _queues(before, now)
    if now.workers:
        parts += [Text(), _worker_table(now), *_more(len(now.workers) - MOST_WORKERS, "worker")]
    if now.failures:
        parts += [Text(), *_failures_table(now)]
    return Group(*parts)


def _queues(before: Snapshot | None, now: Snapshot) -> list[RenderableType]:
    if not now.queues:
        return [Text("no jobs", style="dim")]
    several = len({line.tenant for line in now.queues}) > 1

    def wait(line: QueueCounts) -> Text:
        found = now.waits.get(name(line), QueueEstimate())
        return Text(wait_text(Estimate(seconds=found.seconds, at_most=found.at_most, why=found.why)), style="dim")

    columns = [
        Column("queue", name if several else lambda line: line.queue),
        Column("in/s", lambda line: _rates(before, now, line)[0], right=True),
        Column("done/s", lambda line: _rates(before, now, line)[1], right=True),
        *state_columns(now.queues),
        Column("runs", lambda line: outcomes_text(line.outcomes)),
        Column("wait", wait),
    ]
    return [terminal.Table(columns, now.queues[:MOST_QUEUES]), *_more(len(now.queues) - MOST_QUEUES, "queue")]


def _worker_table(now: Snapshot) -> terminal.Table:
    return terminal.Table(worker_columns(now.workers, now.at), now.workers[:MOST_WORKERS])


def _rates(before: Snapshot | None, now: Snapshot, line: QueueCounts) -> tuple[str, str]:
    """Jobs per second that arrived and that ended since the last snapshot, except for records deleted meanwhile."""
    if before is None:
        return "", ""
    same = (old.states for old in before.queues if (old.tenant, old.queue) == (line.tenant, line.queue))
    earlier = next(same, {})
    seconds = max((now.at - before.at).total_seconds(), 0.001)
    came = sum(line.states.values()) - sum(earlier.values())
    ended = sum(line.states.get(state, 0) - earlier.get(state, 0) for state in FINISHED)
    return f"{max(0, came) / seconds:,.0f}", f"{max(0, ended) / seconds:,.0f}"


def _failures_table(now: Snapshot) -> list[RenderableType]:
    columns = [
        Column("failed", lambda job: job.id),
        Column("task", lambda job: job.task),
        Column("when", lambda job: console.ago(job.updated_at, now.at)),
        Column("", lambda job: error_line(job.error) if job.error else str(job.reason or "")),
    ]
    return [terminal.Table(columns, now.failures)]


def _more(count: int, noun: str) -> list[RenderableType]:
    return [Text(f"and {console.plural(count, f'more {noun}')}", style="dim")] if count > 0 else []
