"""The supervisor's side of its processes: a guardian, its zygote, and the contexts forked from that.

Starts, feeds and kills them; what is done with their news is decided elsewhere (`Hears`).
"""

import asyncio
import itertools
import logging
import os
import signal
import socket
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from typing import Any, Protocol

import msgspec

from windlass.model.job import Stream
from windlass.model.operations import Glimpse
from windlass.worker.frames import (
    Assignment,
    Broken,
    Exited,
    Fork,
    Forked,
    Frames,
    Kill,
    Killed,
    Newcomer,
    News,
    Orders,
    Passed,
    Ready,
    Report,
    Request,
    TooLong,
    Unforked,
    assign,
    frame,
)
from windlass.worker.processes import allow_many_files, descendants, end_marked, send

log = logging.getLogger("windlass.worker")

MOST_MESSAGE = 1 << 18
HEAR_OUT = 0.05
"""Seconds that the ends of a dead context may stay open: something it left behind may hold them."""

CLOSE_WITHIN = 1.0
"""Seconds that the guardian gets to end everything; then this process does it."""

STUCK_AFTER = 40
"""Looks, four a second, at a zygote that leaves a request unanswered, after which it is taken for stuck."""

MOST_NAMED = 3
"""Connections that are named."""

MARK = "_WINDLASS_POOL"
"""A variable by which whatever has come of a zygote is known, wherever it has strayed."""

_pools = itertools.count(1)

_reports: msgspec.msgpack.Decoder[Report] = msgspec.msgpack.Decoder(Report)


def shared(connections: Sequence[str]) -> tuple[str, str]:
    """Where connections lead that all processes of an app share, for people, and what to do about it."""
    more = f" and {len(connections) - MOST_NAMED} more" if len(connections) > MOST_NAMED else ""
    advice = "they were opened while it was imported, and forked processes share them; open them when a task first runs"
    return ", ".join(connections[:MOST_NAMED]) + more, advice


class AppBroken(Exception):
    """The user's app cannot be imported."""

    def __init__(self, broken: Broken) -> None:
        super().__init__(broken.message)
        self.traceback = broken.traceback


class Hears(Protocol):
    """Whoever wants to know what happens in the processes."""

    def news(self, context: "Context", news: News) -> None: ...

    def output(self, context: "Context", stream: Stream, data: bytes) -> None: ...

    def hung_up(self, context: "Context") -> None: ...

    def exited(self, context: "Context", status: int, peak_memory: int) -> None: ...

    def unforked(self, context: "Context", why: str) -> None: ...


class Context(asyncio.Protocol):
    """One child process, as its supervisor sees it."""

    def __init__(self, number: int, isolated: bool, born: float, hears: Hears, links: Sequence[socket.socket]) -> None:
        self.number = number
        self.isolated = isolated
        self.born = born
        self.pid: int | None = None
        self.held: set[int] = set()
        """Numbers of the jobs that it runs."""
        self.jobs = 0
        """How many it was given in all."""
        self.leaving = False
        """Whether it gets no more jobs."""
        self.asked_at = 0
        """How many jobs it had been given when it was last asked whether its event loop answers."""
        self.unanswered = False
        self.held_up = False
        """Whether its event loop does not answer: others get the jobs."""
        self._aside = links[1] if len(links) > 1 else None
        self.open = 1
        """Its socket and pipes that may still bring something."""
        self._exited: Exited | None = None
        """How its process has ended, until everything it said has been heard."""
        self.hears = hears
        self._link = links[0]
        self._frames = Frames(News)
        self._transport: asyncio.WriteTransport | None = None
        self._unsent: list[bytes] = []
        self._closed = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # type: ignore[assignment] # of a socket: it can be written to
        for data in self._unsent:
            self.write(data)
        self._unsent.clear()
        if self._closed:
            transport.close()

    def data_received(self, data: bytes) -> None:
        try:
            for news in self._frames.feed(data):
                self.hears.news(self, news)
        except (TooLong, msgspec.MsgspecError):
            self.close()  # it speaks nonsense: it will be found dead

    def connection_lost(self, _fault: Exception | None) -> None:
        self.hears.hung_up(self)
        self.shut()

    def shut(self) -> None:
        """One of its ends is closed."""
        self.open -= 1
        if not self.open and self._exited is not None:
            self._mourn(self._exited)

    def bury(self, exited: Exited, loop: asyncio.AbstractEventLoop) -> None:
        """Its process has ended. What it said before may still lie in its socket and pipes: that is heard first."""
        self._exited = exited
        if self.open:
            loop.call_later(HEAR_OUT, self._mourn, exited)
        else:
            self._mourn(exited)

    def _mourn(self, exited: Exited) -> None:
        if self._exited is not None:
            self._exited = None
            self.close()
            self.hears.exited(self, exited.status, exited.peak_memory)

    def give(self, assignments: Sequence[Assignment]) -> None:
        self.jobs += len(assignments)
        for data in assign(assignments):
            self.write(data)

    def give_newcomer(self, number: int, glimpse: Glimpse) -> None:
        self.jobs += 1
        self.held.add(number)
        job = Newcomer(number, glimpse.id, glimpse.names, glimpse.payload, glimpse.priority, glimpse.created_at)
        self.write(frame(Orders(newcomer=job)))

    def pass_on(self, number: int, messages: Sequence[bytes]) -> None:
        self.write(frame(Orders(input=[Passed(number, data) for data in messages])))

    def stop(self, number: int) -> None:
        self.write(frame(Orders(stop=[number])))

    def leave(self) -> None:
        """Let it end when nothing is running in it any more."""
        self.leaving = True
        self.write(frame(Orders(leave=True)))

    def write(self, data: bytes) -> None:
        if self._transport is None:
            self._unsent.append(data)
        elif not self._transport.is_closing():  # or else it will be found dead, with whatever it was given
            if not self._transport.get_write_buffer_size():
                data = data[self._send_at_once(data) :]  # a transport may keep it until the loop's round is over
            if data:
                self._transport.write(data)

    def _send_at_once(self, data: bytes) -> int:
        """How many bytes there was room for."""
        try:
            return self._link.send(data)
        except OSError:  # no room now, or nobody there: the transport finds out which
            return 0

    def ask_whether_it_answers(self) -> None:
        """If its event loop does not, it gives back what has not begun."""
        if self._aside is not None:
            self.asked_at, self.unanswered = self.jobs, True
            with suppress(OSError):  # it has been asked often enough, or is gone
                self._aside.send(b"?")

    def answers(self, well: bool) -> None:
        self.unanswered, self.held_up = False, not well

    def close(self) -> None:
        self._closed = True
        if self._aside is not None:
            self._aside.close()
            self._aside = None
        if self._transport is not None:
            self._transport.close()


class _Pipe(asyncio.Protocol):
    """What a context prints."""

    def __init__(self, context: Context, hear: Callable[[bytes], None]) -> None:
        self._context = context
        self._hear = hear

    def data_received(self, data: bytes) -> None:
        self._hear(data)

    def connection_lost(self, _fault: Exception | None) -> None:
        self._context.shut()


class Pool:
    """The zygote and its contexts."""

    def __init__(self, target: str) -> None:
        self._target = target
        self._mark = f"{os.getpid()}.{next(_pools)}"
        self.hears: Hears | None = None
        self._loop = asyncio.get_running_loop()
        self._numbers = itertools.count(1)
        self._process: subprocess.Popen[bytes] | None = None
        """The guardian."""
        self._life: int | None = None
        """A pipe: when it is closed, the guardian ends everything."""
        self._control: socket.socket | None = None
        self._unsent: deque[Kill] = deque()
        """Requests for which there was no room."""
        self._unanswered = 0
        """Requests that the zygote has not answered."""
        self._silent = 0
        """For how many looks it has answered none of them."""
        self._opening: set[asyncio.Task[object]] = set()
        self._unborn: dict[int, list[int]] = {}
        """Contexts that no zygote was asked for yet, and the descriptors that they will get."""
        self.contexts: dict[int, Context] = {}
        self.lost: asyncio.Event = asyncio.Event()
        """Set when the zygote is gone."""

    async def start(self) -> Ready:
        """Import the app in a process of its own."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        watched, self._life = os.pipe()
        passed = [theirs.fileno(), watched]
        command = [sys.executable, "-m", "windlass.worker.zygote", *map(str, passed), self._target]
        environ = {**os.environ, MARK: self._mark}
        self._process = subprocess.Popen(command, pass_fds=passed, stdin=subprocess.DEVNULL, env=environ)  # noqa: ASYNC220, S603
        theirs.close()
        os.close(watched)
        ours.setblocking(False)
        allow_many_files()  # after the zygote has started: user code keeps the limit it was given
        self._control = ours
        self._unanswered = self._silent = 0
        self._unsent.clear()
        while True:
            match await self._first_report(ours):
                case Broken() as broken:
                    raise AppBroken(broken)
                case Ready() as ready:
                    break
        self.lost.clear()
        self._loop.add_reader(ours, self._read)
        for number in list(self._unborn):
            self._bear(self.contexts[number])
        return ready

    async def _first_report(self, control: socket.socket) -> Report:
        data = await self._loop.sock_recv(control, MOST_MESSAGE)
        if not data:
            raise AppBroken(Broken(message=f"the process that imports {self._target} has died", traceback=""))
        return _reports.decode(data)

    def _read(self) -> None:
        assert self._control is not None  # noqa: S101
        while True:
            try:
                data = self._control.recv(MOST_MESSAGE)
            except BlockingIOError:
                return
            except OSError:
                data = b""
            if not data:
                self._loop.remove_reader(self._control)
                self.lost.set()
                return
            report = _reports.decode(data)
            if isinstance(report, Forked | Unforked | Killed):
                self._unanswered -= 1
                self._silent = 0
                self._catch_up()
            match report:
                case Forked() as forked if forked.context in self.contexts:
                    self.contexts[forked.context].pid = forked.pid
                case Exited() as exited if exited.context in self.contexts:
                    self._bury(exited)
                case Unforked() as unforked if (unborn := self.contexts.pop(unforked.context, None)) is not None:
                    unborn.close()
                    unborn.hears.unforked(unborn, unforked.why)

    def fork(self, *, isolated: bool, born: float) -> Context:
        """A new context. It can be given jobs at once; they wait in its socket."""
        assert self.hears is not None  # noqa: S101 - set before the first context is made
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        pairs = [] if isolated else [socket.socketpair()]
        for aside, _ in pairs:
            aside.setblocking(False)
        context = Context(next(self._numbers), isolated, born, self.hears, [ours, *(aside for aside, _ in pairs)])
        descriptors = self._unborn[context.number] = [theirs.detach(), *(other.detach() for _, other in pairs)]
        self.contexts[context.number] = context
        self._spawn(self._loop.connect_accepted_socket(lambda: context, ours))
        streams: tuple[Stream, ...] = ("stdout", "stderr") if isolated else ()
        for stream in streams:
            reader, writer = os.pipe()
            descriptors.append(writer)
            self._spawn(self._loop.connect_read_pipe(self._listener(context, stream), os.fdopen(reader, "rb", 0)))
        self._bear(context)
        return context

    def _bear(self, context: Context) -> bool:
        """Ask the zygote for it; without a zygote it waits for the next one, and its jobs wait in its socket."""
        if not self._ask(Fork(context.number, context.isolated), self._unborn[context.number]):
            return False
        self._forget_unborn(context)
        return True

    def _forget_unborn(self, context: Context) -> None:
        for descriptor in self._unborn.pop(context.number, ()):
            os.close(descriptor)

    def _listener(self, context: Context, stream: Stream) -> Callable[[], _Pipe]:
        context.open += 1
        return lambda: _Pipe(context, lambda data: context.hears.output(context, stream, data))

    def _spawn(self, opening: Coroutine[Any, Any, object]) -> None:
        task = self._loop.create_task(opening)
        self._opening.add(task)
        task.add_done_callback(self._opening.discard)

    def kill(self, context: Context, number: signal.Signals, *, tree: bool = False) -> None:
        if context.number in self._unborn:
            self._bury(Exited(context.number, number, 0))
        elif not self._ask(kill := Kill(context.number, number, tree)):
            self._unsent.append(kill)

    def _bury(self, exited: Exited) -> None:
        context = self.contexts.pop(exited.context)
        self._forget_unborn(context)
        context.bury(exited, self._loop)

    def _ask(self, request: Request, descriptors: Sequence[int] = ()) -> bool:
        """Whether there was anybody to ask, with room for the question."""
        if self._control is None or self.lost.is_set():
            return False
        try:
            socket.send_fds(self._control, [msgspec.msgpack.encode(request)], descriptors)
        except BlockingIOError:
            return False
        except OSError:
            self.lost.set()
            return False
        self._unanswered += 1
        return True

    def _catch_up(self) -> None:
        """Ask for what there was no room for before."""
        while self._unsent and self._ask(self._unsent[0]):
            self._unsent.popleft()
        for number in list(self._unborn):
            if not self._bear(self.contexts[number]):
                return

    def look(self) -> None:
        """Called four times a second: a zygote that does not answer any more is taken for dead, and so replaced."""
        self._silent = self._silent + 1 if self._unanswered else 0
        if self._silent > STUCK_AFTER and not self.lost.is_set():
            log.error("the process that forks contexts does not answer")
            self.lost.set()

    async def restart(self) -> None:
        """Put another zygote in the place of one that has died; every context has died with it, or dies now."""
        await self._part()
        for number in self.contexts.keys() - self._unborn.keys():
            self._bury(Exited(number, signal.SIGKILL, 0))
        await self.start()

    async def close(self) -> None:
        """End the zygote, and everything that has come of it."""
        for context in list(self.contexts.values()):
            context.close()
            self._forget_unborn(context)
        self.contexts.clear()
        await self._part()

    async def _part(self) -> None:
        if self._control is not None:
            self._loop.remove_reader(self._control)
            self._control.close()
            self._control = None
        self._let_die()
        if self._process is not None:
            await asyncio.to_thread(_end, self._process, f"{MARK}={self._mark}")
            self._process = None

    def _let_die(self) -> None:
        if self._life is not None:
            os.close(self._life)
            self._life = None


def _end(guardian: "subprocess.Popen[bytes]", mark: str) -> None:
    """Wait until the guardian has ended everything. If it does not, or was killed, that is done here."""
    try:
        status = guardian.wait(CLOSE_WITHIN)
    except subprocess.TimeoutExpired:
        for one in [guardian.pid, *descendants(guardian.pid)]:
            send(one, signal.SIGKILL)
        with suppress(subprocess.TimeoutExpired):
            guardian.wait(CLOSE_WITHIN)
        status = -signal.SIGKILL
    if status:
        end_marked(mark, CLOSE_WITHIN)
