"""The contract between a worker's loop and whatever runs its jobs.

A `Runner` takes a batch of claimed jobs and reports to the `RunTable` what becomes of each: an update, output, an
outcome. An `ActiveRun` is one run of one job from claim to report. Nothing here talks to the queue or starts a process.
"""

import asyncio
import itertools
from collections.abc import Iterator, Sequence
from datetime import datetime
from enum import StrEnum
from operator import itemgetter
from typing import Protocol

from msgspec import Struct

from windlass.model.job import MSGPACK, Error, Job, NewJob, Reason
from windlass.model.lifecycle import Verdict
from windlass.model.operations import Alive, Began, Claimed, Released
from windlass.model.output import MOST_CHUNK, NewChunk, Progress, Stream
from windlass.model.worker import SandboxTier

MOST_UNSENT = 256 << 10
"""Bytes of a run's output that wait to be sent to the queue."""


class Assignment(Struct, frozen=True, array_like=True, gc=False):
    """One job to run, with all that the code which runs it may ask."""

    number: int
    """Names the run between a worker and its contexts."""
    task: str
    payload: bytes
    content_type: str
    id: str
    queue: str
    tenant: str
    attempt: int
    priority: int
    created_at: float
    """Seconds since 1970."""
    timeout: float | None = None
    max_retry: int | None = 0
    tags: list[str] = []
    headers: dict[str, str] = {}
    files: dict[str, bytes] = {}
    input: bool = False
    """Whether it takes messages."""
    one_argument: bool = False
    """Whether its payload is one argument, whatever its type."""


def assignment_of(number: int, claimed: Claimed) -> Assignment:
    """What a claim's answer says of one job. Its payload is not decoded."""
    job = claimed.job
    return Assignment(
        number,
        job.task,
        bytes(claimed.payload),
        job.content_type,
        job.id,
        job.queue,
        job.tenant,
        job.attempt,
        job.priority,
        job.created_at.timestamp(),
        job.timeout,
        job.max_retry,
        job.tags,
        job.headers,
        claimed.files,
        job.input,
        job.one_argument,
    )


class RunOutcome(Struct, frozen=True, array_like=True, gc=False):
    """How a run ended."""

    number: int
    verdict: Verdict
    result: bytes | None = None
    code: int | None = None
    error: Error | None = None
    delay: float | None = None
    snooze: float | None = None
    """Seconds after which the job wants to run again; this run does not count."""
    rests: str | None = None
    """A limit (empty = every limit of the job) under which nothing starts while the job snoozes."""
    jobs: list[NewJob] = []
    """Jobs to be queued with its success."""
    reason: Reason | None = None
    """`crashed`, `timeout` …, where the code itself did not end it."""
    content_type: str = MSGPACK
    """Of the result."""


class RunUpdate(Struct, frozen=True, array_like=True, gc=False):
    """What a running job reports."""

    number: int
    progress: Progress | None = None
    log: str | None = None
    taken: int | None = None
    """How many messages it has taken so far."""


class Stop(StrEnum):
    """Why a running job is being stopped."""

    CANCEL = "cancel"
    """It was cancelled: the outcome says so."""
    TIMEOUT = "timeout"
    """It ran too long."""
    OUTPUT = "output"
    """It printed too much."""
    MEMORY = "memory"
    """It took too much memory."""
    LOST = "lost"
    """Its lease is lost: nothing is reported."""
    RELEASE = "release"
    """Its worker stops, or its context was killed for another job: it is released and this run does not count."""


class ActiveRun:
    """One run of one job, from its claim to its report."""

    __slots__ = (
        "_unsent_bytes", "asked", "began", "deadline", "given", "id", "job", "log", "number", "pid", "progress",
        "runner", "sandbox", "since", "stopping", "taken", "takes_messages", "tenant", "timer", "token",
        "version",
    )  # fmt: skip

    def __init__(
        self,
        number: int,
        job: Job,
        token: str,
        since: float,
        runner: "Runner",
        *,
        tenant: str | None = None,
    ) -> None:
        self.number = number
        self.job = job
        self.id = job.id
        self.token = token
        self.tenant = tenant
        """The job's tenant, where reports must name it: the worker serves all tenants."""
        self.runner = runner
        self.since = since
        """When it was claimed, by the worker's own clock."""
        self.deadline = job.deadline
        """When it is stopped, by the queue's clock."""
        self.pid: int | None = None
        """The process that runs it, once there is one."""
        self.sandbox: SandboxTier | None = None
        """What an uploaded function runs in."""
        self.version: int | None = None
        """The version of its handler."""
        self.began = False
        """Whether the queue knows its pid."""
        self.stopping: Stop | None = None
        self.timer: asyncio.TimerHandle | None = None
        """Its time limit, then the next step of stopping it."""
        self.progress: Progress | None = None
        """Its latest progress, if not sent yet."""
        self.log: list[tuple[Stream, bytes | memoryview]] = []
        """Output that is not sent yet."""
        self._unsent_bytes = 0
        self.takes_messages = False
        self.given = self.taken = 0
        """Messages that were passed to it, and that its task has taken."""
        self.asked = False
        """Whether the renewal in flight asks for more messages."""

    @property
    def heard(self) -> int | None:
        """The last message it has; null = it takes none, or none now.

        It gets one at a time: what its task has not taken waits in the queue, which can refuse more.
        """
        return self.given if self.takes_messages and self.taken >= self.given else None

    @property
    def limit(self) -> float | None:
        """Seconds it may run. Both times are the queue's, so its clock need not agree with ours."""
        if self.deadline is None or self.job.started_at is None:
            return None
        return (self.deadline - self.job.started_at).total_seconds()

    @property
    def known_deadline(self) -> datetime | None:
        """The deadline, where it may change: the queue answers only if it has another."""
        return self.deadline if self.job.assigned is not None else None

    @property
    def has_update(self) -> bool:
        return self.progress is not None or bool(self.log)

    def set_timer(self, timer: asyncio.TimerHandle | None) -> None:
        if self.timer is not None:
            self.timer.cancel()
        self.timer = timer

    def apply(self, update: RunUpdate) -> None:
        """Keep what the job reported until it is sent."""
        if update.progress is not None:
            self.progress = update.progress
        if update.taken is not None:
            self.taken = update.taken
        if update.log is not None:
            self.print("log", update.log.encode() + b"\n")

    def print(self, stream: Stream, data: bytes | memoryview) -> None:
        """Keep output until it is sent; of what waits too long only the newest part stays."""
        data = data[-MOST_UNSENT:]
        self.log.append((stream, data))
        self._unsent_bytes += len(data)
        while (excess := self._unsent_bytes - MOST_UNSENT) > 0:
            source, oldest = self.log.pop(0)
            if len(oldest) > excess:  # a view, because a piece may be cut many times
                self.log.insert(0, (source, memoryview(oldest)[excess:]))
            self._unsent_bytes -= min(len(oldest), excess)

    def take_update(self) -> Alive:
        """What it has reported since the last update."""
        progress, self.progress = self.progress, None
        log, self.log, self._unsent_bytes = self.log, [], 0
        return Alive(
            id=self.id,
            token=self.token,
            tenant=self.tenant,
            progress=progress,
            output=[*_chunks(log)],
            deadline=self.known_deadline,
        )

    def begun(self, pid: int) -> Began:
        """The report that a process runs it."""
        return Began(
            id=self.id,
            token=self.token,
            tenant=self.tenant,
            pid=pid,
            sandbox=self.sandbox,
            handler_version=self.version,
        )

    def released(self, delay: float | None = None, rests: str | None = None) -> Released:
        """The report that this run does not count; the job waits again, after a delay if there is one."""
        return Released(id=self.id, token=self.token, tenant=self.tenant, delay=delay, rests=rests)


def _chunks(log: list[tuple[Stream, bytes | memoryview]]) -> Iterator[NewChunk]:
    """Neighbouring pieces of one stream joined, in chunks of the size that the queue takes."""
    for stream, pieces in itertools.groupby(log, key=itemgetter(0)):
        data = b"".join(piece for _, piece in pieces)
        for start in range(0, len(data), MOST_CHUNK):
            yield NewChunk(stream=stream, data=data[start : start + MOST_CHUNK])


class Runner(Protocol):
    """Runs jobs: in contexts of the app, as functions, at a push worker, or inside a test. Reports to a `RunTable`."""

    def start(self, batch: Sequence[tuple[ActiveRun, Claimed]]) -> None:
        """Run these jobs. Must not wait."""
        ...

    def stop(self, run: ActiveRun) -> None:
        """End a run, within a grace that is the runner's own. It then ends like any other."""
        ...

    def kill(self, run: ActiveRun) -> None:
        """End a run at once, and report it before this returns: the worker stops."""
        ...

    def send(self, run: ActiveRun, messages: Sequence[bytes]) -> None:
        """Pass messages to a running job."""
        ...


class RunListener(Protocol):
    """Follows the runs of a worker."""

    def runs_started(self) -> None:
        """Some runs have started."""
        ...

    def run_has_room(self, run: ActiveRun) -> None:
        """A run has taken the messages it was given."""
        ...
