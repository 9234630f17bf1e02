"""Runs batches of functions: in contexts, reused for the same tenant and handler (or `eid`), or behind a URL.

Knows where each job is, so that it can be stopped; when a context starts, which batch gets it, and when it ends.
To end one and start another costs more than many jobs: so a batch that finds none of its own waits for a while before
one that others use is ended for it, and after that none goes before it. The functions that decide this are pure. No
context is ever used for another tenant. How a context works and what confines it is not known here.
"""

import asyncio
import logging
import os
from collections.abc import Coroutine, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

from windlass.model.handler import Handler
from windlass.model.ports import Randomness
from windlass.worker.functions import (
    ERROR,
    LANGUAGES,
    FunctionJob,
    FunctionListener,
    FunctionOptions,
    FunctionOutcome,
    languages,
)
from windlass.worker.functions.context import FunctionContext
from windlass.worker.functions.languages import Interpreter
from windlass.worker.functions.process import NotStarted
from windlass.worker.functions.sandbox.folders import Folders, Users, closed_to_others, end_leftovers
from windlass.worker.functions.sandbox.plans import PlanRequest, available, in_force, plan
from windlass.worker.network import Network

if TYPE_CHECKING:
    from windlass.worker.functions.http import HttpBatch, HttpCalls

C = TypeVar("C")

LEAD, MOST_LEAD = 0.5, 3.0
"""Seconds that work for warm contexts may go before work that waits for one."""
STARTS = 5
"""That lead as a multiple of the last start, where a start takes long."""


class ContextKey(NamedTuple):
    """What handlers must have in common to share a context."""

    tenant: str
    lang: str
    eid: str | None
    task: str
    memory: int
    disk: int
    network: bool


class WaitingBatch(Generic[C]):
    """A batch that has no context yet."""

    def __init__(self, key: ContextKey, due_at: float) -> None:
        self.key = key
        self.due_at = due_at
        self.room: C | None = None
        """The context that is being ended for it."""


class IdleContext(NamedTuple):
    """A context without work."""

    key: ContextKey
    since: float
    dead: bool


def lead(start: float) -> float:
    """Longer where the last start took longer: on a busy machine a switch costs more."""
    return min(MOST_LEAD, max(LEAD, STARTS * start))


def may_open(mine: WaitingBatch[C], waiting: Iterable[WaitingBatch[C]], now: float) -> bool:
    """Whether no batch of another kind came before and has waited long enough."""
    for one in waiting:  # those that came first are due first
        if one is mine or one.due_at > now:
            return True
        if one.key != mine.key:
            return False
    return True


def may_go_on(mine: WaitingBatch[C], waiting: Iterable[WaitingBatch[C]], now: float) -> bool:
    """Whether a warm context may be taken: batches for which room is being made do not need it."""
    return may_open(mine, (one for one in waiting if one.room is None or one is mine), now)


def to_make_way(
    mine: WaitingBatch[C], waiting: Iterable[WaitingBatch[C]], idle: Mapping[C, IdleContext], now: float
) -> C | None:
    """The idle context to be ended for a batch; null = none yet. Those idle for longest come first in `idle`."""
    wanted = {one.key for one in waiting}
    spare = [context for context, rest in idle.items() if rest.dead or rest.key not in wanted]
    if mine.due_at <= now:
        return next(iter(spare or idle), None)
    return next((one for one in spare if idle[one].dead or now - idle[one].since >= LEAD), None)


CLOSED = "its worker stopped"

log = logging.getLogger("windlass.functions")


class Functions:
    """The functions that one worker runs, and their contexts. To be closed."""

    def __init__(self, options: FunctionOptions, network: Network, *, chance: Randomness) -> None:
        self._options = options
        self._chance = chance
        self._network = network
        self._calls: HttpCalls | None = None
        """Those of functions behind a URL, from the first one on."""
        self._users = Users(options.uids)
        if options.tier == "limits" and os.geteuid() != 0:
            log.warning(
                "under the tier limits, uploaded code can do all that this worker can, which does not run as root: "
                "choose --sandbox confined"
            )
        self._interpreters: dict[str, Interpreter | str] = {}
        self._folders: Folders | None = None
        self._loop = asyncio.get_running_loop()
        self._batches: dict[HttpBatch | _ContextBatch, Sequence[FunctionJob]] = {}
        """Where each job is, the latest batch last."""
        self._waiting: dict[WaitingBatch[FunctionContext], None] = {}
        """Batches without a context, in the order in which they came."""
        self._living: set[FunctionContext] = set()
        self._busy: dict[FunctionContext, ContextKey] = {}
        self._idle: dict[FunctionContext, tuple[ContextKey, float, asyncio.TimerHandle]] = {}
        """Contexts without work, and since when: the one idle for longest first."""
        self._start = 0.0
        """Seconds that the last start took."""
        self._freed = asyncio.Event()
        self._endings: set[asyncio.Task[None]] = set()
        self._closed = False

    # What can be run

    def refusal(self, handler: Handler) -> str | None:
        """Why jobs of a handler cannot be run here now: its interpreter is missing, or the tier is not available."""
        found = None if handler.lang == "http" else self.forbidden(handler) or self._interpreter(handler.lang)
        return found if isinstance(found, str) else None

    def forbidden(self, handler: Handler) -> str | None:
        """Why this worker will never run them; null = it would."""
        if handler.lang != "http" and handler.options.network and not self._options.network:
            return "its handler asks for the network, which this worker does not allow"
        return None

    def _interpreter(self, lang: str) -> Interpreter | str:
        """What runs a language here, or why nothing does."""
        if lang not in self._interpreters:
            found = self._tier_fault() or languages.find(lang, self._options.interpreters, as_another=os.geteuid() == 0)
            self._interpreters[lang] = found
        return self._interpreters[lang]

    def _tier_fault(self) -> str | None:
        return available(self._options.tier) or closed_to_others(self._options.folder)

    async def unable(self) -> dict[str, str]:
        """The languages that cannot be run here, each with the reason, found out by trying them."""
        self._interpreters.clear()
        if (why := self._tier_fault()) is not None:
            return dict.fromkeys(LANGUAGES, why)
        return await languages.unable(self._options)

    def warm(self) -> tuple[set[tuple[str, str]], set[tuple[str, str | None]]]:
        """Tasks and engines (`eid`) that have a context waiting for them, each with its tenant."""
        keys = [key for key, _, _ in self._idle.values()]
        tasks = {(key.tenant, key.task) for key in keys if key.eid is None}
        return tasks, {(key.tenant, key.eid) for key in keys if key.eid is not None}

    # Batches run

    async def run(self, handler: Handler, jobs: Sequence[FunctionJob], listener: FunctionListener) -> None:
        """Run a batch to its end; `listener.ended` is called once for each job, as soon as it has ended.

        A job that kills its process costs only itself: those after it go on in a fresh context. Cancelling this ends
        what runs and reports no more of it.
        """
        http = handler.lang == "http"
        batch = self._http_batch(handler, listener) if http else _ContextBatch(self, handler, listener)
        self._batches[batch] = jobs
        try:
            await batch.run(jobs)
        finally:
            del self._batches[batch]

    def _http_batch(self, handler: Handler, listener: FunctionListener) -> "HttpBatch":
        from windlass.worker.functions.http import HttpBatch, HttpCalls  # noqa: PLC0415 - takes long to load

        self._calls = self._calls or HttpCalls(self._network)
        return HttpBatch(self._calls, handler, listener)

    def stop(self, id: str, tenant: str, why: str) -> None:
        """Stop a job: it ends with 500 and `message` = why when it has stopped; `unrun` if it had not begun."""
        for batch, jobs in reversed(self._batches.items()):  # a job may run again before its last run has stopped
            if any(job.id == id and job.tenant == tenant for job in jobs):
                batch.stop(id, why)
                return

    def monitors(self) -> list[int]:
        """Our processes that watch over running code."""
        return [context.process.monitor for context in self._living if context.process.monitor]

    async def close(self) -> None:
        """End everything at once; what still runs ends as stopped, what has not begun as `unrun`."""
        self._closed = True
        for batch, jobs in list(self._batches.items()):
            for job in jobs:
                batch.stop(job.id, CLOSED)
        for context in list(self._idle):
            self._retire(context)
        for context in list(self._busy):
            context.end(None, CLOSED)
        while self._living:
            self._freed.set()  # batches that wait for a context get none
            self._freed.clear()
            await self._freed.wait()
        self._freed.set()
        await asyncio.gather(*self._endings)
        if self._folders is not None:
            await self._folders.close()
        if self._calls is not None:
            await self._calls.close()

    # Contexts start and end

    async def take(self, handler: Handler) -> FunctionContext:
        """A context for a batch of this handler, as soon as there is one; `NotStarted` if there can be none."""
        key = self._key(handler)
        mine: WaitingBatch[FunctionContext] = WaitingBatch(key, self._loop.time() + lead(self._start))
        self._waiting[mine] = None
        try:
            while not self._closed:
                now = self._loop.time()
                if may_go_on(mine, self._waiting, now) and (found := self._free(key, handler)) is not None:
                    self._busy[found] = key
                    return found
                if len(self._living) < self._options.contexts and may_open(mine, self._waiting, now):
                    break
                self._make_room(mine, now)
                await self._wait(mine.due_at - now)
        finally:
            del self._waiting[mine]
            self._freed.set()  # others waited for this one
        return await self._open(key, handler)

    def _key(self, handler: Handler) -> ContextKey:
        wanted = handler.options
        memory = self._options.memory if wanted.memory is None else min(wanted.memory, self._options.memory)
        disk = self._options.disk if wanted.disk is None else min(wanted.disk, self._options.disk)
        task = handler.task if handler.eid is None else ""
        return ContextKey(handler.tenant, handler.lang, handler.eid, task, memory, disk, wanted.network)

    def _free(self, key: ContextKey, handler: Handler) -> FunctionContext | None:
        """An idle context of this kind; those with another version of the handler are retired."""
        for context in [one for one, (kind, _, _) in self._idle.items() if kind == key]:
            if context.dead or context.broken or not context.fits(handler):
                self._retire(context)
                continue
            _, _, timer = self._idle.pop(context)
            timer.cancel()
            return context
        return None

    def _make_room(self, mine: WaitingBatch[FunctionContext], now: float) -> None:
        if not self._idle or mine.room in self._living:
            return
        idle = {one: IdleContext(key, since, one.dead) for one, (key, since, _) in self._idle.items()}
        mine.room = to_make_way(mine, self._waiting, idle, now)
        if mine.room is not None:
            self._retire(mine.room)

    async def _wait(self, longest: float) -> None:
        """Until something is free, at most so long; without bound if that time is over."""
        self._freed.clear()
        with suppress(TimeoutError):
            async with asyncio.timeout(longest if longest > 0 else None):
                await self._freed.wait()

    async def _open(self, key: ContextKey, handler: Handler) -> FunctionContext:
        why = CLOSED if self._closed else self.refusal(handler)
        interpreter = self._interpreter(handler.lang)
        if why is not None or isinstance(interpreter, str):
            raise NotStarted(why)
        uid = self._users.of(key.tenant)
        context = FunctionContext(self._options, self._chance.token().hex(), self._folder(uid, interpreter), uid)
        request = PlanRequest(interpreter, context.folder, uid, key.memory, key.disk, key.network)
        self._living.add(context)
        began = self._loop.time()
        try:
            await context.process.start(plan(request, self._options, os.environ))
        except BaseException:
            self._spawn(self._remove(context))
            raise
        if self._closed:
            self._end(context)
            raise NotStarted(CLOSED)
        self._start = self._loop.time() - began
        self._busy[context] = key
        tier, measures = self._options.tier, ", ".join(in_force(self._options.tier, network=key.network, uid=uid))
        log.info("context %d of %s runs %s under %s: %s", context.process.pid, key.tenant, key.lang, tier, measures)
        return context

    def _folder(self, uid: int | None, interpreter: Interpreter) -> str:
        try:
            if self._folders is None:
                self._folders = Folders(self._options.folder)
                self._spawn(self._folders.sweep())
            return self._folders.make(uid, interpreter.bootstrap, interpreter.source())
        except OSError as fault:
            raise NotStarted(f"its folder could not be made: {fault}") from None

    def put_back(self, context: FunctionContext, handler: Handler) -> None:
        """Its batch is over."""
        key = self._busy.pop(context)
        recycle = handler.options.recycle
        if context.dead or context.broken or (recycle is not None and context.jobs >= recycle):
            self._end(context)
            return
        timer = self._loop.call_later(self._options.idle, self._retire, context)
        self._idle[context] = key, self._loop.time(), timer
        self._freed.set()

    def _retire(self, context: FunctionContext) -> None:
        _, _, timer = self._idle.pop(context)
        timer.cancel()
        self._end(context)

    def _end(self, context: FunctionContext) -> None:
        context.end()
        self._spawn(self._remove(context))

    async def _remove(self, context: FunctionContext) -> None:
        """Remove its folder when the last of its processes has ended."""
        await context.process.gone.wait()
        if not context.process.monitored:
            await asyncio.to_thread(end_leftovers, context.uid, context.folder)
        self._living.discard(context)
        self._freed.set()
        if self._folders is not None:
            await self._folders.remove(context.folder)

    def _spawn(self, ending: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(ending)
        self._endings.add(task)
        task.add_done_callback(self._endings.discard)


class _ContextBatch:
    """A batch on its path through as many contexts as it takes."""

    def __init__(self, functions: Functions, handler: Handler, listener: FunctionListener) -> None:
        self._functions = functions
        self._handler = handler
        self._listener = listener
        self._context: FunctionContext | None = None
        self._unwanted: dict[str, str] = {}
        """Jobs that were stopped while they waited for a context, and why."""

    def stop(self, id: str, why: str) -> None:
        if self._context is not None:
            self._context.stop(id, why)
        else:
            self._unwanted[id] = why

    async def run(self, jobs: Sequence[FunctionJob]) -> None:
        left = list(jobs)
        try:
            while left:
                left = await self._in_one_context(left)
        except NotStarted as fault:
            for job in left:
                self._not_run(job, str(fault))

    async def _in_one_context(self, jobs: list[FunctionJob]) -> list[FunctionJob]:
        """The jobs that are left when their context has ended before them."""
        context = await self._functions.take(self._handler)
        try:
            for job in [job for job in jobs if job.id in self._unwanted]:
                jobs.remove(job)
                self._not_run(job, self._unwanted.pop(job.id))
            self._context = context
            return await context.run(self._handler, jobs, self._listener) if jobs else []
        except BaseException:
            context.end()
            raise
        finally:
            self._context = None
            self._functions.put_back(context, self._handler)

    def _not_run(self, job: FunctionJob, why: str) -> None:
        self._listener.ended(FunctionOutcome(id=job.id, code=ERROR, type="Refused", message=why, unrun=True))
