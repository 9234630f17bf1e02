"""The function contexts of one worker: reused for the same tenant and handler (or `eid`), never for another tenant.

Knows when one is started, which batch gets it, and when it is ended. To end one and start another costs more than many
jobs: so a batch that finds none of its own waits for a while before one that others use is ended for it, and after
that none goes before it. The functions that decide this are pure. How a context works is its own business.
"""

import asyncio
import logging
import os
from collections.abc import Coroutine, Iterable, Mapping
from contextlib import suppress
from typing import Any, Generic, NamedTuple, TypeVar

from windlass.model.handler import Handler
from windlass.model.ports import Randomness
from windlass.worker.functions import FunctionOptions
from windlass.worker.functions.context import FunctionContext
from windlass.worker.functions.languages import Probe
from windlass.worker.functions.process import NotStarted
from windlass.worker.functions.sandbox.folders import Folders, Users, closed_to_others, end_leftovers
from windlass.worker.functions.sandbox.interpreters import Interpreter, find
from windlass.worker.functions.sandbox.plans import PlanRequest, available, in_force, plan

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


class FunctionPool:
    """The contexts of one worker. To be closed."""

    def __init__(self, options: FunctionOptions, chance: Randomness, environment: Mapping[str, str]) -> None:
        self._options = options
        self._chance = chance
        self._environment = environment
        self._users = Users(options.uids)
        if options.tier == "limits" and os.geteuid() != 0:
            log.warning(
                "under the tier limits, uploaded code can do all that this worker can, which does not run as root: "
                "choose --sandbox confined"
            )
        self._folders: Folders | None = None
        self._loop = asyncio.get_running_loop()
        self.idle: dict[FunctionContext, tuple[ContextKey, float, asyncio.TimerHandle]] = {}
        """Contexts without work, and since when: the one idle for longest first."""
        self._waiting: dict[WaitingBatch[FunctionContext], None] = {}
        """Batches without a context, in the order in which they came."""
        self._start = 0.0
        """Seconds that the last start took."""
        self._busy: dict[FunctionContext, ContextKey] = {}
        self._closed = False
        self._living: set[FunctionContext] = set()
        self._freed = asyncio.Event()
        self._endings: set[asyncio.Task[None]] = set()
        self._interpreters: dict[str, Interpreter | str] = {}
        self._probe: Probe | None = None
        self._tier_fault: str | None = None
        self._tier_known = False

    # What can be run

    def refusal(self, handler: Handler) -> str | None:
        """Why a handler's code cannot be run here; null = it can."""
        if (why := self.forbidden(handler)) is not None:
            return why
        if not self._tier_known:
            self._tier_fault = available(self._options.tier)
            if self._users.of(handler.tenant) is not None:
                self._tier_fault = self._tier_fault or closed_to_others(self._options.folder)
            self._tier_known = True
        if self._tier_fault is not None:
            return self._tier_fault
        found = self._interpreter(handler.lang)
        return found if isinstance(found, str) else None

    def forbidden(self, handler: Handler) -> str | None:
        """Why the operator does not allow it here; null = it is allowed."""
        if handler.options.network and not self._options.network:
            return "its handler asks for the network, which this worker does not allow"
        return None

    def _interpreter(self, lang: str) -> Interpreter | str:
        if lang not in self._interpreters:
            self._interpreters[lang] = find(lang, self._options.interpreters, as_another=os.geteuid() == 0)
        return self._interpreters[lang]

    async def unable(self) -> dict[str, str]:
        """The languages that cannot be run here, each with the reason, found out by a probe. One at a time."""
        self._interpreters.clear()
        self._tier_known = False
        self._probe = Probe(self._options)
        return await self._probe.unable()

    def monitors(self) -> list[int]:
        """The monitors and the probe that run now."""
        found = [context.process.monitor for context in self._living if context.process.monitor]
        return [*found, self._probe.pid] if self._probe is not None and self._probe.pid else found

    def warm(self) -> tuple[set[tuple[str, str]], set[tuple[str, str | None]]]:
        """Tasks and engines (`eid`) that have one waiting for them, each with its tenant."""
        keys = [key for key, _, _ in self.idle.values()]
        tasks = {(key.tenant, key.task) for key in keys if key.eid is None}
        return tasks, {(key.tenant, key.eid) for key in keys if key.eid is not None}

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
        if self._closed:
            raise NotStarted(CLOSED)
        return await self._open(key, handler)

    def _make_room(self, mine: WaitingBatch[FunctionContext], now: float) -> None:
        if not self.idle or mine.room in self._living:
            return
        idle = {one: IdleContext(key, since, one.dead) for one, (key, since, _) in self.idle.items()}
        mine.room = to_make_way(mine, self._waiting, idle, now)
        if mine.room is not None:
            self._retire(mine.room)

    async def _wait(self, longest: float) -> None:
        """Until something is free, at most so long; without bound if that time is over."""
        self._freed.clear()
        with suppress(TimeoutError):
            async with asyncio.timeout(longest if longest > 0 else None):
                await self._freed.wait()

    def put_back(self, context: FunctionContext, handler: Handler) -> None:
        """Its batch is over."""
        key = self._busy.pop(context)
        recycle = handler.options.recycle
        if context.dead or context.broken or (recycle is not None and context.jobs >= recycle):
            self._end(context)
            return
        timer = self._loop.call_later(self._options.idle, self._retire, context)
        self.idle[context] = key, self._loop.time(), timer
        self._freed.set()

    async def close(self) -> None:
        """End them all, and wait until they have ended."""
        self._closed = True
        for context in list(self.idle):
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

    def _key(self, handler: Handler) -> ContextKey:
        wanted = handler.options
        memory = self._options.memory if wanted.memory is None else min(wanted.memory, self._options.memory)
        disk = self._options.disk if wanted.disk is None else min(wanted.disk, self._options.disk)
        task = handler.task if handler.eid is None else ""
        return ContextKey(handler.tenant, handler.lang, handler.eid, task, memory, disk, wanted.network)

    def _free(self, key: ContextKey, handler: Handler) -> FunctionContext | None:
        """An idle context of this kind; those with another version of the handler are retired."""
        for context in [one for one, (kind, _, _) in self.idle.items() if kind == key]:
            if context.dead or context.broken or not context.fits(handler):
                self._retire(context)
                continue
            _, _, timer = self.idle.pop(context)
            timer.cancel()
            return context
        return None

    async def _open(self, key: ContextKey, handler: Handler) -> FunctionContext:
        interpreter = self._interpreter(handler.lang)
        if isinstance(interpreter, str):
            raise NotStarted(interpreter)
        tier, uid = self._options.tier, self._users.of(key.tenant)
        folder = self._folder(uid, interpreter)
        context = FunctionContext(self._options, tier, self._chance.token().hex(), folder=folder, uid=uid)
        self._living.add(context)
        began = self._loop.time()
        try:
            await context.process.start(
                lambda wires: plan(
                    tier,
                    PlanRequest(interpreter, folder, uid, key.memory, key.disk, key.network, wires),
                    self._options,
                    self._environment,
                )
            )
        except BaseException:
            self._keep(self._remove(context))
            raise
        if self._closed:
            self._end(context)
            raise NotStarted(CLOSED)
        self._start = self._loop.time() - began
        self._busy[context] = key
        measures = ", ".join(in_force(tier, network=key.network, uid=uid))
        log.info("context %d of %s runs %s under %s: %s", context.process.pid, key.tenant, key.lang, tier, measures)
        return context

    def _folder(self, uid: int | None, interpreter: Interpreter) -> str:
        try:
            if self._folders is None:
                self._folders = Folders(self._options.folder)
                self._keep(self._folders.sweep())
            return self._folders.make(uid, interpreter.bootstrap, interpreter.source())
        except OSError as fault:
            raise NotStarted(f"there was no room for its folder: {fault}") from None

    def _retire(self, context: FunctionContext) -> None:
        _, _, timer = self.idle.pop(context)
        timer.cancel()
        self._end(context)

    def _end(self, context: FunctionContext) -> None:
        context.end()
        self._keep(self._remove(context))

    async def _remove(self, context: FunctionContext) -> None:
        """Remove its folder when the last of its processes has ended."""
        await context.process.gone.wait()
        if not context.process.monitored and context.uid is not None:
            await asyncio.to_thread(end_leftovers, context.uid)
        self._living.discard(context)
        self._freed.set()
        if self._folders is not None:
            await self._folders.remove(context.folder)

    def _keep(self, ending: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(ending)
        self._endings.add(task)
        task.add_done_callback(self._endings.discard)
