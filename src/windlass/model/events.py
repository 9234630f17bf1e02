"""Events: what happens to jobs, and how events are encoded as server-sent events and JSON lines.

Knows the names and forms. An event shows the job as it is; what happened between two reads is reported as its last
state.
"""

from base64 import b64decode
from collections.abc import AsyncGenerator, AsyncIterable
from contextlib import AbstractAsyncContextManager
from datetime import datetime
from typing import Literal, Protocol, get_args

import msgspec
from msgspec import Raw, Struct

from windlass.model.estimate import Estimate
from windlass.model.job import FINISHED, Job, Reason, State
from windlass.model.lifecycle import Move, Step
from windlass.model.match import Match
from windlass.model.output import Chunk, Stream

JobEventName = Literal[
    "queued",
    "estimate",
    "edited",
    "started",
    "begun",
    "progress",
    "output",
    "shrunk",
    "lowered",
    "halted",
    "stopping",
    "adopted",
    "retrying",
    "succeeded",
    "failed",
    "cancelled",
]

EventName = Literal[JobEventName, "deleted", "gap"]
"""Only those who watch many jobs hear of `deleted`, and of `gap`: that some events were missed."""

NAMES: tuple[JobEventName, ...] = get_args(JobEventName)
"""Those of one job."""

ALONE = ("estimate", "begun", "output")
"""Those that only followers of that job receive."""

MOST_ID = 60


class OutputData(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A chunk of output in an event: as text, or as bytes where it is not UTF-8."""

    n: int
    attempt: int
    at: datetime
    stream: Stream
    text: str | None = None
    base64: str | None = None
    size: int | None = None
    """Only where the bytes follow by themselves."""

    @property
    def data(self) -> bytes:
        return self.text.encode() if self.text is not None else b64decode(self.base64 or "")

    @property
    def piece(self) -> Chunk:
        return Chunk(n=self.n, attempt=self.attempt, at=self.at, stream=self.stream, data=self.data)


class DeletedJob(Struct, frozen=True):
    """A job whose record was dropped or deleted: what is still known of it."""

    id: str
    tenant: str
    queue: str
    task: str
    state: State
    """The last that it was in."""


class EventCursor(Struct, frozen=True):
    """How far a follower has read a job's events: the id of an event, and where to continue after it."""

    after: int = 0
    """The number of the last piece of output."""
    sent: str = ""
    """The last state event that was sent."""
    attempt: int = 0

    def __str__(self) -> str:
        return f"{self.after}-{self.sent}-{self.attempt}"


class Event(Struct, frozen=True, kw_only=True):
    """Something that happened to a job."""

    name: EventName
    id: str = ""
    """Sent as `Last-Event-ID`, it says where to go on; empty where there is no going back."""
    job: Job | None = None
    """The job as it is now; null for an estimate, for output, for one that is gone, and for a gap."""
    chunk: OutputData | None = None
    """A piece of output."""
    estimate: Estimate | None = None
    """How long the job will still wait."""
    gone: DeletedJob | None = None
    """What is left to say of a job that is deleted."""


EventWithOutput = tuple[Event, Chunk | None]
"""An event and, if it is of output, the bytes."""


class EventSubscription(Protocol):
    """One subscription to events."""

    async def take(self, seconds: float) -> list[Event]:
        """All that has happened since, waiting so long for it."""
        ...


class LiveEvents(Protocol):
    """Streams events of jobs, in this process."""

    def follow(self, job: Job, cursor: EventCursor) -> AsyncGenerator[EventWithOutput | None, None]:
        """What is new of a job from a place on, until it has ended; null = nothing, now and then."""
        ...

    def watching(self, tenant: str, match: Match) -> AbstractAsyncContextManager[EventSubscription]:
        """What happens to all matching jobs from now on."""
        ...

    def wake(self) -> None:
        """Let everybody look up, though there is no news."""
        ...


class EventSource(Protocol):
    """Streams events one after the other, in process or over HTTP."""

    def follow_job(self, tenant: str, id: str, since: str = "") -> AsyncGenerator[Event, None]:
        """Those of one job, after the event with this id, until it has ended."""
        ...

    def watch(self, tenant: str, match: Match) -> AsyncGenerator[Event, None]:
        """Those of all matching jobs from now on. At most once each; `gap` where some were missed."""
        ...


def cursor(id: str) -> EventCursor:
    """The place that an event's id names; what is none is the beginning."""
    after, _, rest = id.partition("-")
    sent, _, attempt = rest.partition("-")
    if not (after.isascii() and after.isdecimal() and attempt.isascii() and attempt.isdecimal() and len(id) <= MOST_ID):
        return EventCursor()
    return EventCursor(min(int(after), 2**53), sent, int(attempt))


def state_event(job: Job) -> EventName:
    """What the state of a job is called as an event."""
    if job.state in FINISHED:
        return _ENDS[job.state]
    if job.state is State.RUNNING:
        return "started"
    return "retrying" if job.attempt else "queued"


def order_event(job: Job) -> EventName | None:
    """What a running job was ordered to do, as an event: to take less time, or to stop; null = nothing."""
    return _ORDERS.get(job.reason) if job.state is State.RUNNING else None


def move_event(move: Move) -> EventName | None:
    """What a change of a job is called as an event; null = no event."""
    if move.step is Step.TOUCH_OWNER:
        return None
    if move.step is Step.EDIT:
        return "edited"
    if move.target in _ENDS:
        return _ENDS[State(move.target)]
    if move.target in (State.QUEUED, State.SCHEDULED):
        return "retrying" if move.attempt else "queued"
    return _IN_PLACE.get(move.step)


_ENDS: dict[State, EventName] = {
    State.SUCCEEDED: "succeeded",
    State.FAILED: "failed",
    State.CANCELLED: "cancelled",
}

_IN_PLACE: dict[Step, EventName] = {
    Step.SHRINK: "shrunk",
    Step.LOWER: "lowered",
    Step.HALT: "halted",
    Step.CANCEL: "stopping",
    Step.DELETE: "stopping",
    Step.ABANDON: "stopping",
    Step.ADOPT: "adopted",
}

_ORDERS: dict[Reason | None, EventName] = {
    Reason.SHRUNK: "shrunk",
    Reason.LOWERED: "lowered",
    Reason.HALTED: "halted",
    Reason.CANCELLED: "stopping",
    Reason.DELETED: "stopping",
    Reason.ABANDONED: "stopping",
}


def output_data(chunk: Chunk) -> OutputData:
    """A piece of output as text if it can be."""
    said = {"n": chunk.n, "attempt": chunk.attempt, "at": chunk.at, "stream": chunk.stream}
    try:
        return msgspec.convert({**said, "text": chunk.data.decode()}, OutputData)
    except UnicodeDecodeError:
        return msgspec.convert({**said, "base64": msgspec.to_builtins(chunk.data)}, OutputData)


def encode_sse(event: Event) -> bytes:
    """An event, encoded for a stream of server-sent events."""
    id = f"id: {event.id}\n" if event.id else ""
    return b"event: %s\n%sdata: %s\n\n" % (event.name.encode(), id.encode(), data_of(event))


def data_of(event: Event) -> bytes:
    """The data of an event, as JSON."""
    return msgspec.json.encode(event.job or event.chunk or event.estimate or event.gone or {})


class JsonLine(Struct, frozen=True):
    """An event as a line of its own."""

    event: EventName
    data: Raw


def encode_line(event: Event) -> bytes:
    """An event, encoded as a JSON line."""
    return msgspec.json.encode(JsonLine(event.name, Raw(data_of(event)))) + b"\n"


async def read(lines: AsyncIterable[str]) -> AsyncGenerator[Event, None]:
    """The events in the lines of a stream; whatever else is there is passed over."""
    name, id, data = "", "", ""
    async for line in lines:
        field, _, value = line.rstrip("\r\n").partition(":")
        value = value.removeprefix(" ")
        match field:
            case "event":
                name = value
            case "id":
                id = value
            case "data":
                data = f"{data}\n{value}" if data else value
            case "" if not value and not line.startswith(":"):
                if name in (*NAMES, "deleted", "gap") and data:
                    yield _event(name, id, data)
                name, data = "", ""


def _event(name: str, id: str, data: str) -> Event:
    known = msgspec.convert(name, EventName)
    if known == "gap":
        return Event(name=known, id=id)
    if known == "output":
        return Event(name=known, id=id, chunk=msgspec.json.decode(data, type=OutputData))
    if known == "estimate":
        return Event(name=known, id=id, estimate=msgspec.json.decode(data, type=Estimate))
    if known == "deleted":
        return Event(name=known, id=id, gone=msgspec.json.decode(data, type=DeletedJob))
    return Event(name=known, id=id, job=msgspec.json.decode(data, type=Job))
