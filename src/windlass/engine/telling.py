"""A store whose writes are told: after each, news goes out on the wire, if anybody watches.

Stands between the engine and every write, so that nothing that happens to a job can be forgotten. A line of news is the
name of an event, the id of a job and its tenant; who hears it looks the job up. Of one that is gone the line also says
of which queue and task it was, and its last state. What cannot be told is not told: a write that was done never fails
for it.
"""

from collections.abc import Coroutine, Mapping, Sequence
from contextlib import suppress
from typing import Any, cast

from windlass.model.errors import NotReplicated, WindlassError
from windlass.model.events import move_event
from windlass.model.job import Job
from windlass.model.lifecycle import GONE, Move
from windlass.model.names import JobKey, OfTenant, key_of
from windlass.store import Done, Draft, Record, Store, Sweep, Swept, Touch, Touched, Wish
from windlass.store.beside import Haul, Hauled, Ledger, Replicating, Wire
from windlass.store.flow import StaleRules

DELETED = "deleted"
"""What is told of a job whose record is gone: nobody can look it up any more."""


class Telling:
    """A store, and the news of it. What is not written is asked of the store itself."""

    def __init__(self, store: Store, wire: Wire) -> None:
        self._store = store
        self._wire = wire
        for name in _PASSED_ON:
            setattr(self, name, getattr(store, name))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def add(self, drafts: Sequence[Draft]) -> Coroutine[Any, Any, list[bool]]:
        return self._store.add(drafts) if self._wire.quiet else self._add(drafts)

    async def _add(self, drafts: Sequence[Draft]) -> list[bool]:
        return await self._added(self._store.add(drafts), drafts)

    async def add_surely(self, drafts: Sequence[Draft]) -> list[bool]:
        try:
            return await self._added(cast("Replicating", self._store).add_surely(drafts), drafts)
        except NotReplicated:
            await self._tell_queued(drafts, [True] * len(drafts))  # they are there; which are new was not said
            raise

    async def _added(self, adding: Coroutine[Any, Any, list[bool]], drafts: Sequence[Draft]) -> list[bool]:
        try:
            created = await adding
        except StaleRules as stale:  # some may be kept all the same
            await self._tell_queued(drafts, stale.answers)
            raise
        await self._tell_queued(drafts, created)
        return created

    async def _tell_queued(self, drafts: Sequence[Draft], created: Sequence[bool | None]) -> None:
        if not self._wire.quiet:
            pairs = zip(drafts, created, strict=False)  # none are told of if they were drained before
            await self.tell_queued([key_of(draft) for draft, new in pairs if new])

    async def tell_queued(self, keys: Sequence[JobKey]) -> None:
        await self._tell([_news("queued", key) for key in keys])

    async def drain(self, haul: Haul) -> Hauled:
        hauled = await cast("Ledger", self._store).drain(haul)
        await self._tell_queued(haul.drafts, hauled.created)
        return hauled

    def claim(self, wish: Wish) -> Coroutine[Any, Any, list[Record]]:
        return self._store.claim(wish) if self._wire.quiet else self._claim(wish)

    async def _claim(self, wish: Wish) -> list[Record]:
        records = await self._store.claim(wish)
        await self._tell([_news("started", record.job) for record in records])
        return records

    def touch(self, touches: Sequence[Touch], lease: float) -> Coroutine[Any, Any, list[Touched]]:
        return self._store.touch(touches, lease) if self._wire.quiet else self._touch(touches, lease)

    async def _touch(self, touches: Sequence[Touch], lease: float) -> list[Touched]:
        touched = await self._store.touch(touches, lease)
        held = [touch for touch, answer in zip(touches, touched, strict=True) if answer.held]
        output = [_news("output", touch) for touch in held if touch.output]
        await self._tell(output + [_news("progress", touch) for touch in held if touch.progress is not None])
        return touched

    def succeed(self, dones: Sequence[Done]) -> Coroutine[Any, Any, list[bool]]:
        return self._store.succeed(dones) if self._wire.quiet else self._succeed(dones)

    async def _succeed(self, dones: Sequence[Done]) -> list[bool]:
        held = await self._store.succeed(dones)
        await self._tell([_news("succeeded", done) for done, ok in zip(dones, held, strict=True) if ok])
        return held

    def apply(self, moves: Sequence[Move]) -> Coroutine[Any, Any, list[bool]]:
        return self._store.apply(moves) if self._wire.quiet else self._apply(moves)

    async def _apply(self, moves: Sequence[Move]) -> list[bool]:
        doomed = await self._read([key_of(move) for move in moves if move.target is GONE])
        applied = await self._store.apply(moves)
        written = [move for move, done in zip(moves, applied, strict=True) if done]
        await self._tell([line for move in written if (line := _line(move, doomed)) is not None])
        return applied

    async def _read(self, keys: Sequence[JobKey]) -> dict[JobKey, Job]:
        """Jobs that will be gone in a moment."""
        found = (await self._store.read(keys)).records if keys else []
        return {key_of(record.job): record.job for record in found if record is not None}

    def sweep(self, clock: Sweep, limit: int) -> Coroutine[Any, Any, list[Swept]]:
        return self._store.sweep(clock, limit) if self._wire.quiet else self._sweep(clock, limit)

    async def _sweep(self, clock: Sweep, limit: int) -> list[Swept]:
        swept = await self._store.sweep(clock, limit)
        dropped = [one for one in swept if not one.result_only]
        await self._tell([_news("queued", one) if clock is Sweep.RUN else _gone(one) for one in dropped])
        return swept

    async def _tell(self, news: list[str]) -> None:
        if news:
            with suppress(WindlassError):
                await self._wire.publish(news)


def _line(move: Move, doomed: Mapping[JobKey, Job]) -> str | None:
    if move.target is GONE:
        key = key_of(move)
        return _gone(doomed[key]) if key in doomed else None
    word = move_event(move)
    return None if word is None else _news(word, move)


def _news(word: str, job: OfTenant) -> str:
    return f"{word} {job.id} {job.tenant}"


def _gone(job: Job | Swept) -> str:
    return f"{DELETED} {job.id} {job.tenant} {job.queue} {job.task} {job.state}"


_PASSED_ON = ("read", "result", "output", "page", "tally", "overdue", "bind", "ripe", "listen", "greet")
"""What is asked often enough to be found at once."""
