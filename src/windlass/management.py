"""Queues, limits and jobs as a Python user manages them: `app.queues`, `app.limits`, `app.jobs(…)`.

Turns calls into operations. Each call has a form for asynchronous code, with an `a` before its name.
"""

from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Literal, TypedDict, Unpack

from msgspec.structs import replace

from windlass.call.options import Duration
from windlass.model.duration import seconds
from windlass.model.errors import Invalid
from windlass.model.failure import FailureGroup, in_order, merge
from windlass.model.job import Job as Record
from windlass.model.limit import Limit, NewLimit, Pause, Rate, Wanted, Which, read_rate
from windlass.model.match import Match, Scalar, StateWord
from windlass.model.operations import (
    MOST_AT_ONCE,
    Cancel,
    ChangeQueue,
    Count,
    Delete,
    Failures,
    GetLimit,
    GetQueue,
    LimitCard,
    Limits,
    List,
    PauseLimit,
    PutLimit,
    QueueCard,
    Queues,
    RemoveLimit,
    Rerun,
)
from windlass.model.queue import QueueChange
from windlass.system import SystemClock

if TYPE_CHECKING:
    from windlass.app import Windlass

_clock = SystemClock()

DURATIONS = ("timeout", "keep_success", "keep_failure")


def until(time: Duration | None) -> datetime | None:
    """The end of a pause that begins now; null = it has none."""
    return None if time is None else _clock.now() + timedelta(seconds=seconds(time, at="time"))


def _check_known(given: Mapping[str, Any], options: type) -> None:
    known = sorted(options.__annotations__)
    if unknown := given.keys() - set(known):
        raise Invalid(f"there is no such option; there are {', '.join(known)}", at=min(unknown))


class QueueTerms(TypedDict, total=False):
    """What may be set for a queue; `None` takes it back."""

    policy: Literal["fair", "priority"]
    weights: dict[str, float]
    tiers: list[Any]
    timeout: Duration | None
    isolate: bool
    on_lost: Literal["retry", "requeue", "fail", "adopt"]
    keep_success: Duration | None
    keep_failure: Duration | None
    most_payload: int | None
    most_files: int | None


class QueueHandles:
    """The queues."""

    def __init__(self, app: "Windlass") -> None:
        self._app = app

    def __getitem__(self, name: str) -> "QueueHandle":
        return QueueHandle(self._app, name)

    def all(self) -> list[QueueCard]:
        """All queues that have jobs, workers or settings."""
        return self._app.ask(Queues())

    async def aall(self) -> list[QueueCard]:
        return await self._app.aask(Queues())


class QueueHandle:
    """One queue, by its name."""

    def __init__(self, app: "Windlass", name: str) -> None:
        self._app = app
        self.name = name

    def show(self) -> QueueCard:
        """Its settings, and how many jobs it has."""
        return self._app.ask(GetQueue(queue=self.name))

    async def ashow(self) -> QueueCard:
        return await self._app.aask(GetQueue(queue=self.name))

    def pause(self, time: Duration | None = None, *, why: str = "") -> QueueCard:
        """Start none of its jobs, for so long or until it is resumed. What runs goes on."""
        return self._app.ask(self._paused(time, why))

    async def apause(self, time: Duration | None = None, *, why: str = "") -> QueueCard:
        return await self._app.aask(self._paused(time, why))

    def resume(self) -> QueueCard:
        """Start its jobs again."""
        return self._app.ask(ChangeQueue(queue=self.name, change=QueueChange(paused=False)))

    async def aresume(self) -> QueueCard:
        return await self._app.aask(ChangeQueue(queue=self.name, change=QueueChange(paused=False)))

    def set(self, **options: Unpack[QueueTerms]) -> QueueCard:
        """Change how it is run; what is not named stays."""
        return self._app.ask(self._changed(options))

    async def aset(self, **options: Unpack[QueueTerms]) -> QueueCard:
        return await self._app.aask(self._changed(options))

    def _paused(self, time: Duration | None, why: str) -> ChangeQueue:
        return ChangeQueue(queue=self.name, change=QueueChange(paused=True, until=until(time), why=why))

    def _changed(self, options: QueueTerms) -> ChangeQueue:
        given: dict[str, Any] = dict(options)
        _check_known(given, QueueTerms)
        for name in DURATIONS:
            if given.get(name) is not None:
                given[name] = seconds(given[name], at=name)
        return ChangeQueue(queue=self.name, change=QueueChange(**given))

    def __repr__(self) -> str:
        return f"<queue {self.name}>"


class LimitHandles:
    """The limits."""

    def __init__(self, app: "Windlass") -> None:
        self._app = app

    def __getitem__(self, name: str) -> "LimitHandle":
        return LimitHandle(self._app, name)

    def all(self) -> list[Limit]:
        """All limits of this tenant."""
        return self._app.ask(Limits())

    async def aall(self) -> list[Limit]:
        return await self._app.aask(Limits())

    def set(self, name: str, **bounds: Unpack["LimitBounds"]) -> LimitCard:
        """Bound the jobs that match, in the place of any limit of that name; in force at once."""
        return self._app.ask(_put(name, bounds))

    async def aset(self, name: str, **bounds: Unpack["LimitBounds"]) -> LimitCard:
        return await self._app.aask(_put(name, bounds))


class LimitBounds(TypedDict, total=False):
    """What a limit bounds, and how."""

    running: int
    """At most so many at once."""
    rate: str | Rate
    """At most so many starts per period: `"100/1m"`."""
    key: str
    """A bucket of its own for each value of `task`, `queue`, or `payload.FIELD`."""
    task: str
    queue: str
    tag: list[str]
    payload: dict[str, Wanted]


def _put(name: str, bounds: LimitBounds) -> PutLimit:
    given: dict[str, Any] = dict(bounds)
    _check_known(given, LimitBounds)
    match = Which(**{field: given.pop(field) for field in ("task", "queue", "tag", "payload") if field in given})
    if isinstance(given.get("rate"), str):
        given["rate"] = read_rate(given["rate"], at="rate")
    return PutLimit(name=name, limit=NewLimit(match=match, **given))


class LimitHandle:
    """One limit, by its name."""

    def __init__(self, app: "Windlass", name: str) -> None:
        self._app = app
        self.name = name

    def show(self) -> LimitCard:
        """Its bounds, and how its buckets stand."""
        return self._app.ask(GetLimit(name=self.name))

    async def ashow(self) -> LimitCard:
        return await self._app.aask(GetLimit(name=self.name))

    def pause(self, time: Duration | None = None, *, why: str = "") -> LimitCard:
        """Start none of the jobs that it bounds, for so long or until it is resumed."""
        return self._app.ask(PauseLimit(name=self.name, pause=Pause(paused=True, until=until(time), why=why)))

    async def apause(self, time: Duration | None = None, *, why: str = "") -> LimitCard:
        return await self._app.aask(PauseLimit(name=self.name, pause=Pause(paused=True, until=until(time), why=why)))

    def resume(self) -> LimitCard:
        """Start them again."""
        return self._app.ask(PauseLimit(name=self.name, pause=Pause()))

    async def aresume(self) -> LimitCard:
        return await self._app.aask(PauseLimit(name=self.name, pause=Pause()))

    def remove(self) -> None:
        """Bound these jobs no more."""
        self._app.ask(RemoveLimit(name=self.name))

    async def aremove(self) -> None:
        await self._app.aask(RemoveLimit(name=self.name))

    def __repr__(self) -> str:
        return f"<limit {self.name}>"


class JobFilter(TypedDict, total=False):
    """Which jobs are meant; all that is given must hold."""

    state: StateWord | Sequence[StateWord]
    """One or several of them; `pending` and `finished` stand for several."""
    task: str
    queue: str
    tag: str | Sequence[str]
    """All of these must be there."""
    worker: str
    node: str
    reason: str
    key: str
    created_after: datetime
    created_before: datetime
    payload: dict[str, Scalar]
    """Fields of the payload, by path, and the value that each must equal."""
    text: str
    """A text in the message of the last error."""
    fingerprint: str
    """What its last error has in common with those of other jobs: see `app.failures`."""


def _match(which: JobFilter) -> Match:
    given: dict[str, Any] = dict(which)
    _check_known(given, JobFilter)
    for name in ("state", "tag"):
        if name in given:
            given[name] = [given[name]] if isinstance(given[name], str) else list(given[name])
    return Match(**given)


class JobQuery:
    """Some of the jobs: to go through, a page at a time however many they are, to count, or to act on."""

    def __init__(self, app: "Windlass", which: JobFilter) -> None:
        self._app = app
        self.match = _match(which)

    def __iter__(self) -> Iterator[Record]:
        after = None
        while True:
            page = self._app.ask(List(match=self.match, limit=MOST_AT_ONCE, after=after))
            yield from page.jobs
            if (after := page.next) is None:
                return

    async def __aiter__(self) -> AsyncIterator[Record]:
        after = None
        while True:
            page = await self._app.aask(List(match=self.match, limit=MOST_AT_ONCE, after=after))
            for job in page.jobs:
                yield job
            if (after := page.next) is None:
                return

    def count(self) -> int:
        """How many they are."""
        return self._app.ask(Count(match=self.match)).count

    async def acount(self) -> int:
        return (await self._app.aask(Count(match=self.match))).count

    def retry(self) -> int:
        """Queue those that have finished again; how many these were."""
        return self._app.ask(Rerun(match=self.match)).changed

    async def aretry(self) -> int:
        return (await self._app.aask(Rerun(match=self.match))).changed

    def cancel(self) -> int:
        """Cancel those that have not finished; how many these were."""
        return self._app.ask(Cancel(match=self.match)).changed

    async def acancel(self) -> int:
        return (await self._app.aask(Cancel(match=self.match))).changed

    def delete(self) -> int:
        """Delete them, with their results; how many these were."""
        return self._app.ask(Delete(match=self.match)).changed

    async def adelete(self) -> int:
        return (await self._app.aask(Delete(match=self.match))).changed


def failures(app: "Windlass", which: JobFilter) -> list[FailureGroup]:
    """The groups among the failed jobs that match, however many pages they take."""
    asked, found = Failures(match=_match(which)), dict[tuple[str, str], FailureGroup]()
    while True:
        page = app.ask(asked)
        merge(found, page.groups)
        if page.next is None:
            return in_order(found.values())
        asked = replace(asked, after=page.next)


async def afailures(app: "Windlass", which: JobFilter) -> list[FailureGroup]:
    asked, found = Failures(match=_match(which)), dict[tuple[str, str], FailureGroup]()
    while True:
        page = await app.aask(asked)
        merge(found, page.groups)
        if page.next is None:
            return in_order(found.values())
        asked = replace(asked, after=page.next)
