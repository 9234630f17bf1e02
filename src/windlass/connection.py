"""From Python code to a service, with an event loop or without one.

Asynchronous callers get an engine of their own event loop. Callers without a loop share a thread that runs one; on a
file or a Redis server an operation that need not wait runs in the caller's own thread instead, on a blocking store: a
hop between threads costs as much as the operation itself. After a fork everything is opened again: no connection is
ever shared with a parent.

An engine lives as long as its event loop. It is the value of an asynchronous generator, because a loop closes its
generators when it ends.
"""

import asyncio
import os
import threading
import weakref
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterable, Iterator
from contextlib import AsyncExitStack, aclosing
from typing import Any, Generic, NamedTuple, Protocol, TypeVar, cast
from weakref import WeakKeyDictionary

from windlass.addresses import enter_service, file_of, open_blocking_store
from windlass.engine import Engine, Settings
from windlass.engine.batcher import Batcher
from windlass.model.errors import Unavailable, WindlassError
from windlass.model.events import Event, EventSource
from windlass.model.operations import (
    A,
    Cancel,
    Count,
    Delete,
    Edit,
    Enqueued,
    EnqueueMany,
    FailByHand,
    Failures,
    FinishByHand,
    GetProgress,
    GetResult,
    GetStats,
    GetSteps,
    List,
    LowerTimeout,
    Operation,
    Rerun,
    Service,
    Show,
)
from windlass.model.template import JobTemplate
from windlass.model.wire import FAULTS
from windlass.system import SystemRandomness, local_user

T = TypeVar("T")

NEEDS_NO_LOOP = (
    *(Show, GetProgress, GetResult, GetSteps, List, Failures, Count, GetStats),
    *(Edit, Cancel, Rerun, Delete, FinishByHand, FailByHand, LowerTimeout),
)
"""What an engine can answer without an event loop, unless it shall wait; and new jobs, see `_needs_no_loop`."""

_Batchers = dict[str, Batcher[EnqueueMany, Enqueued | Exception]]
"""Of one event loop, by tenant."""

Ask = Callable[[EventSource], AsyncGenerator[Event, None]]
"""Which events are wanted."""


class Transport(Protocol):
    """How an app's operations reach the queue. `app.testing` puts another in the place of `AppConnection`."""

    def at_once(self, tenant: str, template: JobTemplate, id: bytes, payload: bytes, /) -> bool: ...

    def ask(self, operation: Operation[A], /) -> A: ...

    async def aask(self, operation: Operation[A], /) -> A: ...

    def ask_each(self, operations: Iterable[Operation[A]], /) -> list[A]: ...

    def hear(self, ask: "Ask", /) -> Iterator[Event]: ...

    def ahear(self, ask: "Ask", /) -> AsyncGenerator[Event, None]: ...

    def close(self) -> None: ...

    async def aclose(self) -> None: ...


class AppConnection:
    """One address, for every kind of caller in every process."""

    def __init__(
        self,
        address: str,
        settings: Settings | None = None,
        token: str | None = None,
        journal: str | None = None,
    ) -> None:
        self._address = address
        self._journal = journal
        self._settings = settings
        self._token = token
        self._here = _Here()
        self._lock = threading.Lock()
        self._inherited: list[_Here] = []
        _mind_forks(self)

    def at_once(self, tenant: str, template: JobTemplate, id: bytes, payload: bytes) -> bool:
        """Enqueue a lone job from code without an event loop; false = send it with `ask` instead, under the same id."""
        here = self._here
        quick = here.quick if here.tried_quick else self._quick(here)
        if quick is None or (created := quick.prepared.add(tenant, template, id, payload)) is None:
            return False
        run_sync(quick.prepared.publish(tenant, template, id, created=created))
        return True

    def ask(self, operation: Operation[A]) -> A:
        """Ask from code without an event loop."""
        here = self._in_this_process()
        quick = self._quick(here)
        if quick is not None and _needs_no_loop(operation):
            return run_sync(quick(operation))
        return here.loop_thread().run(self._ask_in_loop_thread(operation))

    async def aask(self, operation: Operation[A]) -> A:
        """Ask from an event loop. A lone new job is sent together with others that are queued there just now."""
        if not isinstance(operation, EnqueueMany) or not _may_go_with_others(operation):
            return await self._send(operation)
        batchers = self._in_this_process().batchers.setdefault(asyncio.get_running_loop(), {})
        batcher = batchers.get(operation.tenant) or batchers.setdefault(
            operation.tenant, Batcher(self._enqueue_together)
        )
        answer = await batcher.submit(operation)
        if isinstance(answer, Exception):
            raise answer
        return cast("A", answer)

    async def _enqueue_together(self, lone: list[EnqueueMany]) -> list[Enqueued | Exception]:
        """One operation for lone jobs of a tenant; each gets an answer of its own."""
        jobs = [job for one in lone for job in one.jobs]
        try:
            answer = await self._send(EnqueueMany(tenant=lone[0].tenant, jobs=jobs, exact=True))
        except FAULTS as fault:
            if len(lone) == 1:
                return [fault]
            # A batch is accepted whole or not at all: only its own error is an answer.
            return [(await self._enqueue_together([one]))[0] for one in lone]
        there = set(answer.existing)
        answers: list[Enqueued | Exception] = []
        for id in answer.ids:
            existing = [id] if id in there else []
            answers.append(Enqueued(ids=[id], created=1 - len(existing), existing=existing))
            there.add(id)  # any other call with this id comes second
        return answers

    async def _send(self, operation: Operation[A], /) -> A:
        if self._journal is None:
            return await (await self._service())(operation)
        return await self._in_loop_thread(self._ask_in_loop_thread(operation))

    def ask_each(self, operations: Iterable[Operation[A]]) -> list[A]:
        """Ask one after the other; while one is answered, the next is made."""
        if not (quick := self._quick(self._in_this_process())):
            return [self.ask(operation) for operation in operations]
        answers: list[A] = []
        asked: PendingCall[A] | None = None
        for operation in operations:
            if not _needs_no_loop(operation):
                answers.append(self.ask(operation))
                continue
            following = PendingCall(quick(operation))
            if asked is not None:
                answers.append(asked.answer())
            asked = following
        if asked is not None:
            answers.append(asked.answer())
        return answers

    async def _ask_in_loop_thread(self, operation: Operation[A]) -> A:
        while True:
            service = await self._service()
            try:
                return await service(operation)
            except Unavailable:
                if await self._service() is service:  # else it was closed for a fork meanwhile
                    raise

    async def _in_loop_thread(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """For a caller in another loop: a journal has one writer in a process, so one service."""
        loop = self._in_this_process().loop_thread().loop
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(coroutine, loop))

    async def _service(self) -> Service:
        """The engine or client of the running event loop, opened if need be."""
        here = self._in_this_process()
        loop = asyncio.get_running_loop()
        opened = here.opened.get(loop)
        if opened is None:
            life = self._life(here, loop)
            opened = here.opened[loop] = _Opened(life, asyncio.ensure_future(anext(life)))
        try:
            return await asyncio.shield(opened.service)
        except WindlassError:
            if here.opened.get(loop) is opened:  # or another caller has opened it again
                del here.opened[loop]
            raise

    async def _life(self, here: "_Here", loop: asyncio.AbstractEventLoop) -> AsyncGenerator[Service, None]:
        async with AsyncExitStack() as stack:
            service = await enter_service(stack, self._address, self._settings, self._token, self._journal)
            try:
                yield service
            finally:
                here.opened.pop(loop, None)

    def hear(self, ask: Ask) -> Iterator[Event]:
        """Events, one after the other, for code without an event loop."""
        thread = self._in_this_process().loop_thread()
        stream = self._stream(ask)
        try:
            while (event := thread.run(_next(stream))) is not None:
                yield event
        finally:
            thread.run(_closed(stream))

    async def ahear(self, ask: Ask) -> AsyncGenerator[Event, None]:
        """The same in an event loop."""
        stream = self._stream(ask)
        if self._journal is None:
            async with aclosing(stream):
                async for event in stream:
                    yield event
            return
        try:
            while (next_event := await self._in_loop_thread(_next(stream))) is not None:
                yield next_event
        finally:
            await self._in_loop_thread(_closed(stream))

    async def _stream(self, ask: Ask) -> AsyncGenerator[Event, None]:
        source = cast("EventSource", await self._service())  # every service is one
        async with aclosing(ask(source)) as stream:
            async for event in stream:
                yield event

    def close(self) -> None:
        """Close what code without a loop has opened here."""
        here = self._in_this_process()
        self._here = _Here()
        here.close()

    async def aclose(self) -> None:
        """Close what this event loop has opened."""
        opened = self._in_this_process().opened.get(asyncio.get_running_loop())
        if opened is not None:
            await opened.life.aclose()

    def rest(self) -> None:
        """Close a file that the loop thread has opened, until it is needed again.

        SQLite must not have a file open when its process forks: the child could never use that file. A blocking store
        does the same by itself.
        """
        if file_of(self._address) not in (None, ":memory:"):
            self._in_this_process().close_loop_service()

    def _in_this_process(self) -> "_Here":
        if self._here.pid != os.getpid():  # forked outside Python, as uWSGI does
            self.reset_after_fork()
        return self._here

    def reset_after_fork(self) -> None:
        """Drop what the parent process has opened: it is not for this child."""
        # It is never freed: collecting its event loop here would break the parent's own.
        self._inherited.append(self._here)
        self._here, self._lock = _Here(), threading.Lock()

    def _quick(self, here: "_Here") -> Engine | None:
        if not here.tried_quick:
            with self._lock:
                if not here.tried_quick:
                    here.quick = self._quickly_opened()
                    here.tried_quick = True
        return here.quick

    def _quickly_opened(self) -> Engine | None:
        store = None if self._journal else run_sync(open_blocking_store(self._address, self._settings))
        return None if store is None else Engine(store, SystemRandomness(), self._settings, user=local_user())


def _may_go_with_others(operation: EnqueueMany) -> bool:
    """Whether lone jobs of several callers can be one operation: a unique one may be refused by itself."""
    return len(operation.jobs) == 1 and operation.exact and operation.jobs[0].unique is None


def _needs_no_loop(operation: Operation[Any]) -> bool:
    """Whether an engine answers this without waiting for anything but its store, and without looking at a clock."""
    if isinstance(operation, EnqueueMany):
        return not any(new.yielding for new in operation.jobs)
    return isinstance(operation, NEEDS_NO_LOOP) and not getattr(operation, "wait", 0.0)


def _mind_forks(connection: AppConnection) -> None:
    found = weakref.ref(connection)  # the hook stays registered forever: it must not hold the connection

    def rest() -> None:
        if (here := found()) is not None:
            here.rest()

    def reset_after_fork() -> None:
        if (here := found()) is not None:
            here.reset_after_fork()

    os.register_at_fork(before=rest, after_in_child=reset_after_fork)


class _Here:
    """What one process has opened."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self.quick: Engine | None = None
        self.tried_quick = False
        self.opened: WeakKeyDictionary[asyncio.AbstractEventLoop, _Opened] = WeakKeyDictionary()
        self.batchers: WeakKeyDictionary[asyncio.AbstractEventLoop, _Batchers] = WeakKeyDictionary()
        self._thread: LoopThread | None = None
        self._lock = threading.Lock()

    def loop_thread(self) -> "LoopThread":
        with self._lock:
            if self._thread is None:
                self._thread = LoopThread()
            return self._thread

    def close(self) -> None:
        if self.quick is not None:
            run_sync(self.quick.context.store.close())
        self.close_loop_service()
        if self._thread is not None:
            self._thread.close()

    def close_loop_service(self) -> None:
        """Close what the loop thread has opened."""
        if self._thread is not None and (opened := self.opened.get(self._thread.loop)) is not None:
            self._thread.run(_closed(opened.life))


class _Opened(NamedTuple):
    """What one event loop has opened."""

    life: AsyncGenerator[Service, None]
    service: "asyncio.Future[Service]"


async def _closed(life: AsyncGenerator[Any, None]) -> None:
    await life.aclose()


async def _next(stream: AsyncGenerator[T, None]) -> T | None:
    return await anext(stream, None)


# Coroutines for code without an event loop: in a thread with a loop, or inline where they never wait


class LoopThread:
    """A thread that runs an event loop for callers without one."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, name="windlass", daemon=True)
        self._thread.start()

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        future = asyncio.run_coroutine_threadsafe(coroutine, self.loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()  # the caller was interrupted
            raise

    def close(self) -> None:
        self.run(self.loop.shutdown_asyncgens())
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()
        self.loop.close()


class PendingCall(Generic[T]):
    """A coroutine that never waits for a loop, run up to the point where its request was sent."""

    def __init__(self, coroutine: Coroutine[Any, Any, T]) -> None:
        self._coroutine = coroutine
        self._answered = False
        self._step()

    def _step(self) -> None:
        try:
            pause = self._coroutine.send(None)
        except StopIteration as end:
            self._answer: T = end.value
            self._answered = True
            return
        if pause is not None:
            self._coroutine.close()
            raise RuntimeError("this needs an event loop")

    def answer(self) -> T:
        while not self._answered:
            self._step()
        return self._answer


def run_sync(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine that never waits for a loop to its end."""
    return PendingCall(coroutine).answer()
