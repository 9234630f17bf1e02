"""The contexts of one worker: reused for the same tenant and handler (or `eid`), never for another tenant.

Knows when one is made, which gets the next batch, when one is too old. How one works is its own business.
"""

import asyncio
import logging
import os
from collections.abc import Coroutine, Mapping
from contextlib import suppress
from typing import Any

from windlass.model.handler import Handler
from windlass.model.ports import Chance
from windlass.worker.functions.context import Context
from windlass.worker.functions.probing import Trial
from windlass.worker.functions.process import Refused
from windlass.worker.functions.sandbox.folders import Folders, closed_to_others
from windlass.worker.functions.sandbox.interpreters import Interpreter, find
from windlass.worker.functions.sandbox.plans import Ask, available, in_force, plan
from windlass.worker.functions.sandbox.strays import end_strays
from windlass.worker.functions.sandbox.users import Users
from windlass.worker.functions.terms import FunctionOptions
from windlass.worker.functions.warmth import Key, Rest, Waiting, lead, may_go_on, may_open, to_make_way

CLOSED = "its worker stopped"

log = logging.getLogger("windlass.functions")


class Contexts:
    """Those that live. To be closed."""

    def __init__(self, options: FunctionOptions, chance: Chance, environment: Mapping[str, str]) -> None:
        self._options = options
        self._chance = chance
        self._environment = environment
        self._users = Users(options.uids)
        if options.tier == "limits" and os.geteuid() != 0:
            log.warning(
                "under the tier limits, code that is sent in can do all that this worker can, which is not root: "
                "choose --sandbox confined"
            )
        self._folders: Folders | None = None
        self._loop = asyncio.get_running_loop()
        self._idle: dict[Context, tuple[Key, float, asyncio.TimerHandle]] = {}
        """Those without work, and since when: the one that has been so for longest first."""
        self._waiting: dict[Waiting[Context], None] = {}
        """Batches without a context, in the order in which they came."""
        self._start = 0.0
        """Seconds that the last start took."""
        self._busy: dict[Context, Key] = {}
        self._closed = False
        self._living: set[Context] = set()
        self._freed = asyncio.Event()
        self._endings: set[asyncio.Task[None]] = set()
        self._interpreters: dict[str, Interpreter | str] = {}
        self._trial: Trial | None = None
        self._tier_fault: str | None = None
        self._tier_known = False

    # Who may run at all

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
        """Why the operator does not want it to run here; null = that is not so."""
        if handler.options.network and not self._options.network:
            return "its handler asks for the network, which this worker does not allow"
        return None

    def _interpreter(self, lang: str) -> Interpreter | str:
        if lang not in self._interpreters:
            self._interpreters[lang] = find(lang, self._options.interpreters, as_another=os.geteuid() == 0)
        return self._interpreters[lang]

    async def unable(self) -> dict[str, str]:
        """The languages that cannot be run here, each with the reason, found out by trying. One asks at a time."""
        self._interpreters.clear()
        self._tier_known = False
        self._trial = Trial(self._options)
        return await self._trial.unable()

    def keepers(self) -> list[int]:
        """The processes of ours that are at work here."""
        found = [context.process.keeper for context in self._living if context.process.keeper]
        return [*found, self._trial.pid] if self._trial is not None and self._trial.pid else found

    def warm(self) -> tuple[set[tuple[str, str]], set[tuple[str, str | None]]]:
        """Tasks and engines (`eid`) that have one waiting for them, each with its tenant."""
        keys = [key for key, _, _ in self._idle.values()]
        tasks = {(key.tenant, key.task) for key in keys if key.eid is None}
        return tasks, {(key.tenant, key.eid) for key in keys if key.eid is not None}

    # They come and go

    async def take(self, handler: Handler) -> Context:
        """A context for a batch of this handler, sooner or later; `Refused` if there can be none."""
        key = self._key(handler)
        mine: Waiting[Context] = Waiting(key, self._loop.time() + lead(self._start))
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
            self._freed.set()  # whoever let this one go first
        if self._closed:
            raise Refused(CLOSED)
        return await self._open(key, handler)

    def _make_room(self, mine: Waiting[Context], now: float) -> None:
        if not self._idle or mine.room in self._living:
            return
        idle = {one: Rest(key, since, one.dead) for one, (key, since, _) in self._idle.items()}
        mine.room = to_make_way(mine, self._waiting, idle, now)
        if mine.room is not None:
            self._dismiss(mine.room)

    async def _wait(self, longest: float) -> None:
        """Until something is free, or so long; for ever if that time is over."""
        self._freed.clear()
        with suppress(TimeoutError):
            async with asyncio.timeout(longest if longest > 0 else None):
                await self._freed.wait()

    def give_back(self, context: Context, handler: Handler) -> None:
        """Its batch is over."""
        key = self._busy.pop(context)
        recycle = handler.options.recycle
        if context.dead or context.broken or (recycle is not None and context.jobs >= recycle):
            self._end(context)
            return
        timer = self._loop.call_later(self._options.idle, self._dismiss, context)
        self._idle[context] = key, self._loop.time(), timer
        self._freed.set()

    async def close(self) -> None:
        """End them all, and be sure that they have."""
        self._closed = True
        for context in list(self._idle):
            self._dismiss(context)
        for context in list(self._busy):
            context.end(None, CLOSED)
        while self._living:
            self._freed.set()  # whoever waits for a context waits in vain
            self._freed.clear()
            await self._freed.wait()
        self._freed.set()
        await asyncio.gather(*self._endings)
        if self._folders is not None:
            await self._folders.close()

    def _key(self, handler: Handler) -> Key:
        wanted = handler.options
        memory = self._options.memory if wanted.memory is None else min(wanted.memory, self._options.memory)
        disk = self._options.disk if wanted.disk is None else min(wanted.disk, self._options.disk)
        task = handler.task if handler.eid is None else ""
        return Key(handler.tenant, handler.lang, handler.eid, task, memory, disk, wanted.network)

    def _free(self, key: Key, handler: Handler) -> Context | None:
        """One that waits for work of this kind; those that hold another version of it have outlived their time."""
        for context in [one for one, (kind, _, _) in self._idle.items() if kind == key]:
            if context.dead or context.broken or not context.fits(handler):
                self._dismiss(context)
                continue
            _, _, timer = self._idle.pop(context)
            timer.cancel()
            return context
        return None

    async def _open(self, key: Key, handler: Handler) -> Context:
        interpreter = self._interpreter(handler.lang)
        if isinstance(interpreter, str):
            raise Refused(interpreter)
        tier, uid = self._options.tier, self._users.of(key.tenant)
        folder = self._folder(uid, interpreter)
        context = Context(self._options, tier, self._chance.token().hex())
        context.folder, context.uid = folder, uid
        self._living.add(context)
        began = self._loop.time()
        try:
            await context.process.start(
                lambda wires: plan(
                    tier,
                    Ask(interpreter, folder, uid, key.memory, key.disk, key.network, wires),
                    self._options,
                    self._environment,
                )
            )
        except BaseException:
            self._keep(self._bury(context))
            raise
        if self._closed:
            self._end(context)
            raise Refused(CLOSED)
        self._start = self._loop.time() - began
        self._busy[context] = key
        words = ", ".join(in_force(tier, network=key.network, uid=uid))
        log.info("context %d of %s runs %s under %s: %s", context.process.pid, key.tenant, key.lang, tier, words)
        return context

    def _folder(self, uid: int | None, interpreter: Interpreter) -> str:
        try:
            if self._folders is None:
                self._folders = Folders(self._options.folder)
                self._keep(self._folders.sweep())
            return self._folders.make(uid, interpreter.bootstrap, interpreter.source())
        except OSError as fault:
            raise Refused(f"there was no room for its folder: {fault}") from None

    def _dismiss(self, context: Context) -> None:
        _, _, timer = self._idle.pop(context)
        timer.cancel()
        self._end(context)

    def _end(self, context: Context) -> None:
        context.end()
        self._keep(self._bury(context))

    async def _bury(self, context: Context) -> None:
        """Its folder goes when the last of its processes has."""
        await context.process.gone.wait()
        if not context.process.kept and context.uid is not None:
            await asyncio.to_thread(end_strays, context.uid)
        self._living.discard(context)
        self._freed.set()
        if self._folders is not None:
            await self._folders.remove(context.folder)

    def _keep(self, ending: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(ending)
        self._endings.add(task)
        task.add_done_callback(self._endings.discard)
