"""A job in a worker's hands."""

import asyncio
import itertools
from collections.abc import Iterator
from datetime import datetime
from enum import StrEnum
from operator import itemgetter

from windlass.model.job import MOST_CHUNK, Job, NewChunk, Progress, Stream
from windlass.model.operations import Alive
from windlass.model.worker import SandboxTier
from windlass.worker.frames import Said
from windlass.worker.pool import Context

MOST_UNSAID = 256 << 10
"""Bytes of output that wait to be passed on."""


class Stop(StrEnum):
    """Why a running job is being stopped."""

    CANCEL = "cancel"
    """It was told to: the outcome says so."""
    TIMEOUT = "timeout"
    """It ran too long."""
    OUTPUT = "output"
    """It printed too much."""
    MEMORY = "memory"
    """It took too much memory."""
    LOST = "lost"
    """It is no longer ours: nothing is reported."""
    BACK = "back"
    """Its worker ends, or its context had to be killed for another job: it is given back, this run uncounted."""


def _chunks(log: list[tuple[Stream, bytes | memoryview]]) -> Iterator[NewChunk]:
    """Neighbours of one stream put together, in pieces that the queue takes."""
    for stream, pieces in itertools.groupby(log, key=itemgetter(0)):
        data = b"".join(piece for _, piece in pieces)
        for start in range(0, len(data), MOST_CHUNK):
            yield NewChunk(stream=stream, data=data[start : start + MOST_CHUNK])


class Held:
    """One run of one job, from its claim to its report."""

    __slots__ = (
        "_unsaid", "asked", "began", "context", "deadline", "given", "id", "job", "log", "number", "process",
        "progress", "sandbox", "saying", "since", "stopping", "taken", "tenant", "timer", "token", "version",
    )  # fmt: skip

    def __init__(self, number: int, job: Job, token: str, since: float, tenant: str | None = None) -> None:
        self.number = number
        self.job = job
        self.id = job.id
        self.token = token
        self.tenant = tenant
        """Whose it is, where its reports must say that: the worker serves all tenants."""
        self.since = since
        """When it was claimed, by the supervisor's own clock."""
        self.deadline = job.deadline
        """When it is stopped, as the queue says."""
        self.context: Context | None = None
        """The context of the app that runs it; null = its code is kept in the queue."""
        self.process: int | None = None
        """The process that runs such code, if one does."""
        self.sandbox: SandboxTier | None = None
        self.version: int | None = None
        """Of such code: what it runs in, and its handler's version."""
        self.began = False
        """Whether the queue has been told its pid."""
        self.stopping: Stop | None = None
        self.timer: asyncio.TimerHandle | None = None
        """Its time limit, then the next step of stopping it."""
        self.progress: Progress | None = None
        """What it last said and nobody has been told yet."""
        self.log: list[tuple[Stream, bytes | memoryview]] = []
        """What it printed (stream, bytes) and nobody has been told yet."""
        self._unsaid = 0
        self.saying: asyncio.Future[None] | None = None
        """Done when what it has said, and is on its way, is known to be heard or not: its end must not overtake it."""
        self.given = self.taken = 0
        """Messages that it was passed, and that its task has taken."""
        self.asked = False
        """Whether the question on its way asks for more."""

    @property
    def heard(self) -> int | None:
        """The last message that it has; null = it takes none, or not now.

        One at a time: what its task has not taken waits in the queue, which can say that it is full.
        """
        takes = self.job.input and self.context is not None
        return self.given if takes and self.taken >= self.given else None

    @property
    def limit(self) -> float | None:
        """Seconds that it may run. Both times are the queue's, so its clock need not be ours."""
        if self.deadline is None or self.job.started_at is None:
            return None
        return (self.deadline - self.job.started_at).total_seconds()

    @property
    def told_deadline(self) -> datetime | None:
        """The deadline, where it may change: the queue says so only if ours is another."""
        return self.deadline if self.job.assigned is not None else None

    def set_timer(self, timer: asyncio.TimerHandle | None) -> None:
        if self.timer is not None:
            self.timer.cancel()
        self.timer = timer

    def hear(self, said: Said) -> None:
        """It says something of itself."""
        if said.progress is not None:
            self.progress = said.progress
        if said.taken is not None:
            self.taken = said.taken
        if said.log is not None:
            self.print("log", said.log.encode() + b"\n")

    def print(self, stream: Stream, data: bytes | memoryview) -> None:
        """It prints something; of what nobody was told yet only the newest is kept."""
        data = data[-MOST_UNSAID:]
        self.log.append((stream, data))
        self._unsaid += len(data)
        while (excess := self._unsaid - MOST_UNSAID) > 0:
            whose, oldest = self.log.pop(0)
            if len(oldest) > excess:  # a view, for a piece may be cut again and again
                self.log.insert(0, (whose, memoryview(oldest)[excess:]))
            self._unsaid -= min(len(oldest), excess)

    def take_back(self, alive: Alive) -> None:
        """Its last update was lost, or may be: send it again, before what has come since."""
        self.progress = self.progress or alive.progress
        since, self.log, self._unsaid = self.log, [], 0
        for stream, data in [*((chunk.stream, chunk.data) for chunk in alive.output), *since]:
            self.print(stream, data)

    @property
    def pid(self) -> int | None:
        return self.process if self.context is None else self.context.pid

    @property
    def has_news(self) -> bool:
        return self.progress is not None or bool(self.log)

    def tell(self) -> Alive:
        """What it has said since it was last asked."""
        progress, self.progress = self.progress, None
        log, self.log, self._unsaid = self.log, [], 0
        return Alive(
            id=self.id,
            token=self.token,
            tenant=self.tenant,
            progress=progress,
            output=[*_chunks(log)],
            deadline=self.told_deadline,
        )
