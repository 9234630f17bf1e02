"""`windlass top`: queues, workers and the newest failures, again and again.

A frame is made of two snapshots, so that numbers have a speed. Knows the terminal as far as one key.
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

from cyclopts import Parameter
from msgspec import Struct
from rich.console import Group, RenderableType
from rich.live import Live
from rich.text import Text

from windlass.cli import following, saying
from windlass.cli.card import wait
from windlass.cli.place import HERE, Place, Queue, opened
from windlass.cli.queues import QueueLine, ended_as, lines, numbers, occurring
from windlass.cli.workers import table_of
from windlass.model import duration
from windlass.model.errors import Invalid
from windlass.model.estimate import Estimate, QueueEstimate
from windlass.model.job import FINISHED, Job, State
from windlass.model.match import Match
from windlass.model.operations import MOST_AT_ONCE, GetQueueEstimate, GetStats, List, Workers
from windlass.model.worker import Worker
from windlass.system import SystemClock

MOST_QUEUES, MOST_WORKERS, MOST_FAILURES = 20, 10, 5
"""Rows of each part of a frame."""

MOST_LOOKED_AT = 5 * MOST_AT_ONCE
"""Failed jobs among which the newest are looked for: a listing goes by arrival, not by end."""

LOOK_AGAIN = 10.0
"""Seconds after which failures are looked for even if there are as many as before."""

SHORTEST = 0.1


class Snapshot(Struct, frozen=True, kw_only=True):
    """A queue at one moment."""

    at: datetime
    queues: list[QueueLine]
    workers: list[Worker]
    waits: dict[str, QueueEstimate] = {}
    """By `TENANT/QUEUE`: how long a job that came now would wait, where any does."""
    failures: list[Job]
    """The newest of those that were looked at, newest first."""
    failures_at: datetime
    """When they were looked for."""


async def top(
    *,
    every: Annotated[str, Parameter(metavar="TIME", help="Between two looks (1s).")] = "1s",
    once: Annotated[bool, Parameter(help="Print one frame and end.")] = False,
    place: Place = HERE,
) -> None:
    """Watch queues, workers and the newest failures; `q` ends it.

    For example:
      windlass top
      windlass top --once
      windlass top --every 10s --json >> log.ndjson
    """
    pause = duration.seconds(every, at="--every")
    if pause < SHORTEST:
        raise Invalid(f"a look every {saying.span(pause)} is more than a store should have to bear", at="--every")
    async with opened(place) as queue:
        if place.json or once or not saying.paper().is_terminal:
            await _stream(queue, pause, once=once, json=place.json)
        else:
            await _screen(queue, pause)


async def _stream(queue: Queue, pause: float, *, once: bool, json: bool) -> None:
    before: Snapshot | None = None
    while True:
        now = await _look(queue, before)
        if json:
            saying.write_json(now)
        else:
            saying.paper().print(*([] if before is None else [""]), frame(before, now), sep="\n")
        sys.stdout.flush()
        if once:
            return
        before = now
        await SystemClock().sleep(pause)


async def _screen(queue: Queue, pause: float) -> None:
    before: Snapshot | None = None
    with _keys() as pressed, Live(console=saying.paper(), screen=True, auto_refresh=False) as live:
        while not pressed.is_set():
            now = await _look(queue, before)
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


async def _look(queue: Queue, before: Snapshot | None) -> Snapshot:
    workers = await queue(Workers())
    found = lines((await queue(GetStats())).queues, workers)
    now = SystemClock().now()
    if before and failed(found) == failed(before.queues) and (now - before.failures_at).total_seconds() < LOOK_AGAIN:
        failures, failures_at = before.failures, before.failures_at
    else:
        failures, failures_at = await _failures(queue), now
    waits = {name(line): await _newcomer(queue, line) for line in found[:MOST_QUEUES] if line.states.get(State.QUEUED)}
    return Snapshot(at=now, queues=found, workers=workers, waits=waits, failures=failures, failures_at=failures_at)


def name(line: QueueLine) -> str:
    return f"{line.tenant}/{line.queue}"


async def _newcomer(queue: Queue, line: QueueLine) -> QueueEstimate:
    return await queue.service(GetQueueEstimate(tenant=line.tenant, queue=line.queue))


def failed(found: list[QueueLine]) -> int:
    return sum(line.states.get(State.FAILED, 0) for line in found)


async def _failures(queue: Queue) -> list[Job]:
    newest: list[Job] = []
    after, looked_at = None, 0
    while looked_at < MOST_LOOKED_AT:
        page = await queue(List(match=Match(state=["failed"]), limit=MOST_AT_ONCE, after=after))
        newest = heapq.nlargest(MOST_FAILURES, newest + page.jobs, key=lambda job: job.updated_at)
        after, looked_at = page.next, looked_at + MOST_AT_ONCE
        if after is None:
            break
    return newest


def frame(before: Snapshot | None, now: Snapshot) -> RenderableType:
    running = sum(worker.running for worker in now.workers)
    slots = sum(worker.slots for worker in now.workers)
    head = [Text("windlass", style="bold"), Text(now.at.astimezone().strftime("%H:%M:%S"))]
    head.append(Text(f"{saying.plural(len(now.workers), 'worker')}, {running} of {slots} slots in use"))
    parts: list[RenderableType] = [Text("  ").join(head), Text()]
    parts += _queues(before, now)
    if now.workers:
        parts += [Text(), table_of(now.workers[:MOST_WORKERS]), *_more(len(now.workers) - MOST_WORKERS, "worker")]
    if now.failures:
        parts += [Text(), *_failed_lately(now)]
    return Group(*parts)


def _queues(before: Snapshot | None, now: Snapshot) -> list[RenderableType]:
    if not now.queues:
        return [Text("no jobs", style="dim")]
    states = occurring(line.states for line in now.queues)
    columns = ("in/s", "done/s", *states)
    made = saying.Table("queue", *columns, "runs", "wait", right=columns)
    several = len({line.tenant for line in now.queues}) > 1
    for line in now.queues[:MOST_QUEUES]:
        shown = name(line) if several else line.queue
        waits = now.waits.get(name(line), QueueEstimate())
        said = Text(wait(Estimate(seconds=waits.seconds, why=waits.why)), style="dim")
        made.add(shown, *_speeds(before, now, line), *numbers(line.states, states), ended_as(line.outcomes), said)
    return [made, *_more(len(now.queues) - MOST_QUEUES, "queue")]


def _speeds(before: Snapshot | None, now: Snapshot, line: QueueLine) -> tuple[str, str]:
    """Jobs per second that came and that ended since the last look; records that were dropped hide some."""
    if before is None:
        return "", ""
    same = (old.states for old in before.queues if (old.tenant, old.queue) == (line.tenant, line.queue))
    earlier = next(same, {})
    seconds = max((now.at - before.at).total_seconds(), 0.001)
    came = sum(line.states.values()) - sum(earlier.values())
    ended = sum(line.states.get(state, 0) - earlier.get(state, 0) for state in FINISHED)
    return f"{max(0, came) / seconds:,.0f}", f"{max(0, ended) / seconds:,.0f}"


def _failed_lately(now: Snapshot) -> list[RenderableType]:
    made = saying.Table("failed", "task", "when", "")
    for job in now.failures:
        said = following.message(job.error) if job.error else str(job.reason or "")
        made.add(job.id, job.task, saying.ago(job.updated_at, now.at), said)
    return [made]


def _more(count: int, noun: str) -> list[RenderableType]:
    return [Text(f"and {saying.plural(count, f'more {noun}')}", style="dim")] if count > 0 else []
