"""The engine: answers operations in process, over a store.

Combines the pure rooms with a store; knows neither SQL nor keys nor HTTP. `Engine` is a `Service`: whoever
holds one need not know whether it sits beside the store or across the network. It also tells what happens to jobs.
"""

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, aclosing
from functools import partial
from typing import Any, cast

from windlass.engine import estimates, handlers, jobs, limits, output, queues, quotas, sending, tokens, watching, work
from windlass.engine.chutes import Chutes
from windlass.engine.desk import Desk, Settings
from windlass.engine.feed import Feed
from windlass.engine.sound import sound
from windlass.model.events import Event, News, Place, Watching, place, state_event
from windlass.model.job import FINISHED, Job
from windlass.model.match import Match
from windlass.model.operations import A, GetStats, Hand, Operation, Show
from windlass.model.ports import Chance
from windlass.store import Store

__all__ = ["ANSWERS", "Engine", "Settings"]

ANSWERS: dict[type[Operation[Any]], Callable[[Desk, Any], Awaitable[Any]]] = (
    jobs.ANSWERS
    | work.ANSWERS
    | output.ANSWERS
    | sending.ANSWERS
    | tokens.ANSWERS
    | quotas.ANSWERS
    | limits.ANSWERS
    | queues.ANSWERS
    | estimates.ANSWERS
    | handlers.ANSWERS
)


class Engine:
    """Answers operations over a store."""

    def __init__(self, store: Store, chance: Chance, settings: Settings | None = None) -> None:
        self.desk = Desk(store, chance, settings or Settings())
        self.feed = Feed(self.desk.store, self.desk.wire)
        self.chutes = Chutes(self.desk)
        """For callers without a loop."""

    async def __call__(self, operation: Operation[A], /) -> A:
        answer = await ANSWERS[type(operation)](self.desk, sound(operation))
        return cast("A", answer)

    async def check_ready(self) -> None:
        """Raise what keeps it from taking new jobs and telling of them."""
        await self(GetStats(tenant="default"))
        if self.desk.bounded is not None:
            await self.desk.bounded.check_room()

    def hand_to(self, worker: str, hand: Hand) -> None:
        """Let a worker in this process have what its waiting claim is given, ahead of the claim's answer."""
        self.desk.hands[worker] = hand

    def follow(self, job: Job, place: Place) -> AsyncGenerator[News | None, None]:
        return watching.follow(self, self.feed, job, place, foretell=partial(estimates.lately, self.desk))

    def watching(self, tenant: str, match: Match) -> AbstractAsyncContextManager[Watching]:
        return self.feed.watching(tenant, match)

    def wake(self) -> None:
        self.feed.wake()

    async def story(self, tenant: str, id: str, since: str = "") -> AsyncGenerator[Event, None]:
        job = await self(Show(tenant=tenant, id=id))
        at = place(since)
        if job.state in FINISHED and at.told == state_event(job):
            return
        async with aclosing(self.follow(job, at)) as stream:
            async for news in stream:
                if news is not None:
                    yield news[0]

    async def watch(self, tenant: str, match: Match) -> AsyncGenerator[Event, None]:
        async with self.watching(tenant, match) as watcher:
            while True:
                for event in await watcher.take(60):
                    yield event
