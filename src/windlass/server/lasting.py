"""Streams and long waits: each ends when its token is removed or expires."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple, TypeVar

from starlette.requests import HTTPConnection

from windlass.model.errors import Unauthenticated, WindlassError
from windlass.model.token import Scope
from windlass.server.gate import Gate

T = TypeVar("T")

LOOK_EVERY = 0.4
"""Seconds between two looks at the tokens; with the time that a look is remembered for, less than a second."""

BREATH = 100
"""Tokens after which others of this event loop have their turn."""


class Asked(NamedTuple):
    """In whose name, and for what."""

    shown: str
    tenant: str
    scope: Scope


class Lasting:
    """All that goes on at one server."""

    def __init__(self, gate: Gate) -> None:
        self._gate = gate
        self._open: dict[Asked, set[asyncio.Future[None]]] = {}
        self._connections: dict[Asked, tuple[HTTPConnection, str | None]] = {}
        self._looking: asyncio.Task[None] | None = None
        self._undoing: set[asyncio.Task[Any]] = set()

    @contextmanager
    def opened(
        self, connection: HTTPConnection, scope: Scope, token: str | None = None
    ) -> "Iterator[asyncio.Future[None]]":
        """While something goes on: what is handed out is done when the token is good no more."""
        shown = connection.headers.get("authorization", "") if token is None else token
        asked = Asked(shown, connection.path_params["tenant"], scope)
        ended = asyncio.get_running_loop().create_future()
        self._open.setdefault(asked, set()).add(ended)
        self._connections.setdefault(asked, (connection, token))
        if self._looking is None:
            self._looking = asyncio.create_task(self._look(), name="windlass-lasting")
        try:
            yield ended
        finally:
            self._open[asked].discard(ended)
            if not self._open[asked]:
                del self._open[asked], self._connections[asked]
            if not self._open:
                self._looking.cancel()
                self._looking = None

    async def wait_for(
        self,
        connection: HTTPConnection,
        scope: Scope,
        work: Coroutine[Any, Any, T],
        undo: Callable[[T], Awaitable[object]] | None,
    ) -> T:
        """The answer to a long wait. `undo`: what to do with one that comes too late; null = give up at once."""
        task = asyncio.create_task(work)
        try:
            with self.opened(connection, scope) as ended:
                either: set[asyncio.Future[Any]] = {task, ended}
                await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
                if not ended.done():
                    return task.result()
        except asyncio.CancelledError:
            task.cancel()
            raise
        if undo is None:
            task.cancel()
        else:  # to break it off might leave what it was just given with nobody
            undoing = asyncio.create_task(_undone(task, undo))
            self._undoing.add(undoing)
            undoing.add_done_callback(self._undoing.discard)
        raise Unauthenticated("this token is not known any more", at="authorization")

    async def _look(self) -> None:
        while True:
            await asyncio.sleep(LOOK_EVERY)
            for number, asked in enumerate(list(self._open), start=1):
                if number % BREATH == 0:
                    await asyncio.sleep(0)
                known = self._connections.get(asked)
                if known is None or await self._gate.still_admits(known[0], asked.scope, token=known[1]):
                    continue
                for ended in self._open.get(asked, ()):
                    if not ended.done():
                        ended.set_result(None)


async def _undone(task: "asyncio.Task[T]", undo: Callable[[T], Awaitable[object]]) -> None:
    with suppress(WindlassError):
        await undo(await task)
