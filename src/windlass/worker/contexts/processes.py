"""The supervisor's side of its processes: a guardian, its zygote, and the contexts forked from that.

Starts, feeds and kills them; a `ProcessListener` decides what to do about what they send.
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
from functools import partial
from typing import Any, Protocol

import msgspec
from msgspec.structs import replace

from windlass.model.job import Error, Reason
from windlass.model.outcome import Verdict
from windlass.model.output import Stream
from windlass.model.stdin import Stdin
from windlass.worker.contexts.frames import (
    AppInfo,
    Assignment,
    Command,
    ContextUpdate,
    Exited,
    Fork,
    Forked,
    ForkFailed,
    FrameReader,
    FrameTooLong,
    ImportFailed,
    JobMessage,
    Kill,
    RunOutcome,
    RunUpdate,
    ShimOptions,
    ShimState,
    SignalSent,
    StepAnswer,
    ZygoteReport,
    ZygoteRequest,
    assignment_frames,
    encode_frame,
)
from windlass.worker.contexts.kept import Ending, KeptRun
from windlass.worker.contexts.stdin import ProcessInput
from windlass.worker.linux import allow_many_files, descendants, end_marked, send, with_shims

log = logging.getLogger("windlass.worker")

MOST_MESSAGE = 1 << 18
DRAIN_WITHIN = 0.05
"""Seconds that the ends of a dead context may stay open: something it left behind may hold them."""

CLOSE_WITHIN = 1.0
"""Seconds that the guardian gets to end everything; then this process does it."""

STUCK_AFTER = 40
"""Checks, four a second, after which a zygote that leaves a request unanswered counts as stuck."""

NOTHING_LEFT = "its process is gone, and has left no result"

MOST_NAMED = 3
"""Connections that are named."""

MARK = "_WINDLASS_POOL"
"""An environment variable that marks every process started by a zygote, also those that left their session."""

_managers = itertools.count(1)

_zygote_reports: msgspec.msgpack.Decoder[ZygoteReport] = msgspec.msgpack.Decoder(ZygoteReport)


def describe_shared(connections: Sequence[str]) -> tuple[str, str]:
    """Where connections lead that all processes of an app share, and what to do about it."""
    more = f" and {len(connections) - MOST_NAMED} more" if len(connections) > MOST_NAMED else ""
    advice = "they were opened while it was imported, and forked processes share them; open them when a task first runs"
    return ", ".join(connections[:MOST_NAMED]) + more, advice


class AppBroken(Exception):
    """The user's app cannot be imported."""

    def __init__(self, failed: ImportFailed) -> None:
        super().__init__(failed.message)
        self.traceback = failed.traceback


class ProcessListener(Protocol):
    """Follows what happens in contexts."""

    def forked(self, context: "ContextProcess") -> None:
        """It has a pid."""
        ...

    def updated(self, context: "ContextProcess", update: ContextUpdate) -> None: ...

    def printed(self, context: "ContextProcess", stream: Stream, data: bytes) -> None: ...

    def disconnected(self, context: "ContextProcess") -> None: ...

    def exited(self, context: "ContextProcess", status: int, peak_memory: int, cpu_time: float) -> None: ...

    def fork_failed(self, context: "ContextProcess", why: str) -> None: ...


class ContextProcess(asyncio.Protocol):
    """One child process, as its supervisor sees it."""

    def __init__(
        self, number: int, isolated: bool, started_at: float, listener: ProcessListener, links: Sequence[socket.socket]
    ) -> None:
        self.number = number
        self.isolated = isolated
        self.started_at = started_at
        self.pid: int | None = None
        self.runs: set[int] = set()
        """Numbers of the jobs that it runs."""
        self.jobs = 0
        """How many it was given in all."""
        self.stdin: ProcessInput | None = None
        """Where what is sent to its job goes, if not to its task."""
        self.leaving = False
        """Whether it gets no more jobs."""
        self.pinged_at = 0
        """How many jobs it had been given when it was last pinged."""
        self.unanswered = False
        self.blocked = False
        """Whether its event loop does not respond: others get the jobs."""
        self.opening = False
        """Whether it opens what the app wants open: it will run what it is given only then."""
        self._aside = links[1] if len(links) > 1 else None
        self.open = 1
        """Its socket and pipes that may still bring something."""
        self._exited: Exited | None = None
        """How its process ended, until everything it sent has been read."""
        self.listener = listener
        self._link = links[0]
        self._frames = FrameReader(ContextUpdate)
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
            for update in self._frames.feed(data):
                self.listener.updated(self, update)
        except (FrameTooLong, msgspec.MsgspecError):
            self.close()  # it sends garbage: closed, it exits

    def connection_lost(self, _fault: Exception | None) -> None:
        self.listener.disconnected(self)
        self.end_closed()

    def end_closed(self) -> None:
        """One of its ends is closed."""
        self.open -= 1
        if not self.open and self._exited is not None:
            self._on_exit(self._exited)

    def reap(self, exited: Exited, loop: asyncio.AbstractEventLoop) -> None:
        """Its process has ended. What it sent before may still be in its socket and pipes: that is read first."""
        self._exited = exited
        if self.open:
            loop.call_later(DRAIN_WITHIN, self._on_exit, exited)
        else:
            self._on_exit(exited)

    def _on_exit(self, exited: Exited) -> None:
        if self._exited is not None:
            self._exited = None
            self.close()
            self.listener.exited(self, exited.status, exited.peak_memory, exited.cpu_time)

    def assign(self, assignments: Sequence[Assignment]) -> None:
        self.jobs += len(assignments)
        for data in assignment_frames(assignments):
            self.write(data)

    def assign_batch(self, batch: list[Assignment]) -> None:
        """Jobs that are run by one call."""
        self.jobs += len(batch)
        self.write(encode_frame(Command(batches=[batch])))

    def send(self, number: int, messages: Sequence[bytes]) -> None:
        self.write(encode_frame(Command(messages=[JobMessage(number, data) for data in messages])))

    def answer_step(self, answer: StepAnswer) -> None:
        self.write(encode_frame(Command(steps=[answer])))

    def stop(self, number: int) -> None:
        self.write(encode_frame(Command(stop=[number])))

    def exit_when_idle(self) -> None:
        """Let it end when nothing is running in it any more."""
        self.leaving = True
        self.write(encode_frame(Command(exit_when_idle=True)))

    def write(self, data: bytes) -> None:
        if self._transport is None:
            self._unsent.append(data)
        elif not self._transport.is_closing():  # else its exit is reported soon, with everything it was given
            if not self._transport.get_write_buffer_size():
                data = data[self._send_at_once(data) :]  # a transport may keep it until the loop's round is over
            if data:
                self._transport.write(data)

    def _send_at_once(self, data: bytes) -> int:
        """How many bytes there was room for."""
        try:
            return self._link.send(data)
        except OSError:  # no room now, or it is gone: the transport finds out which
            return 0

    def ping(self) -> None:
        """Ask whether its event loop responds; if not, it sends back what has not begun."""
        if self._aside is not None:
            self.pinged_at, self.unanswered = self.jobs, True
            with suppress(OSError):  # it has been pinged often enough, or is gone
                self._aside.send(b"?")

    def answered(self, responds: bool) -> None:
        self.unanswered, self.blocked = False, not responds

    def close(self) -> None:
        self._closed = True
        if self.stdin is not None:
            self.stdin.close()
        if self._aside is not None:
            self._aside.close()
            self._aside = None
        if self._transport is not None:
            self._transport.close()


class KeptProcess(ContextProcess):
    """The context of a run that outlives its worker, behind its shim. It has one run."""

    def __init__(
        self, number: int, started_at: float, listener: ProcessListener, kept: KeptRun, link: socket.socket
    ) -> None:
        super().__init__(number, True, started_at, listener, [link])
        self.kept = kept
        self.options: ShimOptions | None = None
        """What its shim is to do; null = it has one already."""
        self.on_gone: Callable[[], object] = lambda: None
        self.state: ShimState | None = None
        """As the shim said when this worker connected to it."""
        self.named = False
        """Whether the folder says which process the shim is: a job must not begin before."""
        self.received = 0
        """The last update that came of it."""
        self.unbegun = False
        """Whether it has ended, and certainly was not given its job."""
        self._let_go = False
        self.gone = asyncio.Event()

    def data_received(self, data: bytes) -> None:
        try:
            for update in self._frames.feed(data):
                self._take(update)
        except (FrameTooLong, msgspec.MsgspecError):
            self.close()

    def _take(self, update: ContextUpdate) -> None:
        if update.shim is not None:
            self.state, self.pid = update.shim, update.shim.context
            self.announce()
        if update.n and update.n <= self.received:
            return
        self.received = update.n or self.received
        (number,) = self.runs or (0,)
        updates: list[RunUpdate] = []
        for one in update.updates:
            stream = one.printed[0] if one.printed is not None else "log"
            if one.printed is not None and stream != "log":
                self.listener.printed(self, stream, one.printed[1])
            else:
                updates.append(replace(one, number=number))
        self.listener.updated(self, ContextUpdate(update.outcomes, updates))

    def announce(self) -> None:
        """Its run may begin once both are known, its process and its shim."""
        if self.named and self.state is not None:
            self.listener.forked(self)

    def connection_lost(self, _fault: Exception | None) -> None:
        if not self._let_go:
            self.end()

    def end(self) -> None:
        """Its shim is gone: what is left of the run is in its folder."""
        self.gone.set()
        self.on_gone()
        asyncio.get_running_loop().call_later(CLOSE_WITHIN, self._reap_shim)
        is_orphan = not (self.runs or self.jobs)
        ending = self.kept.ending()
        if ending is None:
            self._kill_shim()  # if it is still there after all: a run that has crashed must not go on
            error = Error(type="Crashed", message=NOTHING_LEFT)
            ending = Ending(
                0, 0, True, [ContextUpdate([RunOutcome(0, Verdict.ERROR, error=error, reason=Reason.CRASHED)])]
            )
        self.unbegun = not ending.begun
        for update in ending.unsent:
            self._take(update)
        self.listener.exited(self, ending.status, ending.peak_memory, ending.cpu_time)
        if is_orphan:
            self.settled()

    def reap(self, exited: Exited, loop: asyncio.AbstractEventLoop) -> None:
        """Its end is seen by its connection."""

    def assign(self, assignments: Sequence[Assignment]) -> None:
        self.jobs += len(assignments)
        for one in assignments:
            self.write(encode_frame(Command([replace(one, number=0)])))

    def send(self, number: int, messages: Sequence[bytes]) -> None:
        del number
        self.write(encode_frame(Command(messages=[JobMessage(0, data) for data in messages])))

    def answer_step(self, answer: StepAnswer) -> None:
        self.write(encode_frame(Command(steps=[replace(answer, number=0)])))

    def stop(self, number: int) -> None:
        del number
        self.write(encode_frame(Command(stop=[0])))

    def signal(self, number: signal.Signals) -> None:
        """Through its shim, whose child it is: a pid that is used again is never hit."""
        self.write(encode_frame(Command(signal=number)))
        if number == signal.SIGKILL:
            asyncio.get_running_loop().call_later(CLOSE_WITHIN, self._kill_shim)

    def _kill_shim(self) -> None:
        """It does not obey; its context dies with it."""
        if self.kept.is_held:
            send(self.kept.about.shim, signal.SIGKILL)

    def _reap_shim(self) -> None:
        """It has become our child if its zygote ended before it."""
        if self.kept.about.shim:
            with suppress(ChildProcessError):
                os.waitpid(self.kept.about.shim, os.WNOHANG)

    def confirm(self, upto: int) -> None:
        """The queue has what came up to this update."""
        if not self.gone.is_set():
            self.write(encode_frame(Command(got=upto)))

    def settled(self) -> None:
        """The queue knows how the run ended."""
        self.kept.remove()

    def let_go(self) -> None:
        """Leave it to another worker."""
        self._let_go = True
        self.close()
        self.kept.let_go()


class _OutputPipe(asyncio.Protocol):
    """What a context prints."""

    def __init__(self, context: ContextProcess, on_data: Callable[[bytes], None]) -> None:
        self._context = context
        self._on_data = on_data

    def data_received(self, data: bytes) -> None:
        self._on_data(data)

    def connection_lost(self, _fault: Exception | None) -> None:
        self._context.end_closed()


class ProcessManager:
    """The zygote and its contexts."""

    def __init__(self, target: str) -> None:
        self._target = target
        self._mark = f"{os.getpid()}.{next(_managers)}"
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
        """For how many checks it has answered none of them."""
        self._opening: set[asyncio.Task[object]] = set()
        self._requested: dict[int, list[int]] = {}
        """Contexts that wait to be forked, and the descriptors that they will get."""
        self.contexts: dict[int, ContextProcess] = {}
        self.lost: asyncio.Event = asyncio.Event()
        """Set when the zygote is gone."""

    async def start(self) -> AppInfo:
        """Import the app in a process of its own."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        watched, self._life = os.pipe()
        passed = [theirs.fileno(), watched]
        command = [sys.executable, "-m", "windlass.worker.contexts.zygote", *map(str, passed), self._target]
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
                case ImportFailed() as failed:
                    raise AppBroken(failed)
                case AppInfo() as ready:
                    break
        self.lost.clear()
        self._loop.add_reader(ours, self._read)
        for number in list(self._requested):
            self._request_fork(self.contexts[number])
        return ready

    async def _first_report(self, control: socket.socket) -> ZygoteReport:
        data = await self._loop.sock_recv(control, MOST_MESSAGE)
        if not data:
            raise AppBroken(ImportFailed(message=f"the process that imports {self._target} has died", traceback=""))
        return _zygote_reports.decode(data)

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
            report = _zygote_reports.decode(data)
            if isinstance(report, Forked | ForkFailed | SignalSent):
                self._unanswered -= 1
                self._silent = 0
                self._catch_up()
            match report:
                case Forked() as forked if forked.context in self.contexts:
                    self._forked(self.contexts[forked.context], forked.pid)
                case Exited() as exited if exited.context in self.contexts:
                    if not isinstance(self.contexts[exited.context], KeptProcess):  # that has lost its connection
                        self._reap(exited)
                case ForkFailed() as failed if failed.context in self.contexts:
                    context = self.contexts.pop(failed.context)
                    context.close()
                    context.listener.fork_failed(context, failed.why)

    def _forked(self, context: ContextProcess, pid: int) -> None:
        if isinstance(context, KeptProcess):
            context.kept.note_shim(pid)
            context.named = True
            context.announce()
            return
        context.pid = pid
        if context.stdin is not None:
            context.stdin.group = pid
        context.listener.forked(context)

    def keep(
        self, listener: ProcessListener, kept: KeptRun, *, lease: float, merged: bool, started_at: float
    ) -> KeptProcess:
        """A new context for a run that outlives this worker."""
        with kept.listen() as listening:
            context = self._attach(listener, kept, started_at)
            self._requested[context.number] = [listening.detach()]
        context.options = ShimOptions(str(kept.path), lease, merged)
        self._request_fork(context)
        return context

    def adopt(self, listener: ProcessListener, kept: KeptRun, started_at: float) -> KeptProcess:
        """The context of a run that another worker has started. If it is gone, it ends as soon as it is connected."""
        context = self._attach(listener, kept, started_at)
        context.named = True
        return context

    def _attach(self, listener: ProcessListener, kept: KeptRun, started_at: float) -> KeptProcess:
        link = kept.connect()
        context = KeptProcess(next(self._numbers), started_at, listener, kept, link)
        context.on_gone = partial(self.contexts.pop, context.number, None)
        self.contexts[context.number] = context
        self._spawn(self._loop.connect_accepted_socket(lambda: context, link))
        return context

    def fork(
        self,
        listener: ProcessListener,
        *,
        isolated: bool,
        started_at: float,
        merged: bool = False,
        stdin: Stdin | None = None,
    ) -> ContextProcess:
        """A new context. It can be given jobs at once; they wait in its socket. `merged`: its stderr is its stdout."""
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        pairs = [] if isolated else [socket.socketpair()]
        for aside, _ in pairs:
            aside.setblocking(False)
        context = ContextProcess(
            next(self._numbers), isolated, started_at, listener, [ours, *(aside for aside, _ in pairs)]
        )
        descriptors = self._requested[context.number] = [theirs.detach(), *(other.detach() for _, other in pairs)]
        self.contexts[context.number] = context
        self._spawn(self._loop.connect_accepted_socket(lambda: context, ours))
        if stdin is not None:
            context.stdin = ProcessInput(stdin)
            descriptors.append(context.stdin.theirs)
        streams: tuple[Stream, ...] = () if not isolated else ("stdout",) if merged else ("stdout", "stderr")
        if context.stdin is not None and stdin == "terminal":
            self._read_pipe(context, "stdout", context.stdin.output())
            streams = ()
        for stream in streams:
            reader, writer = os.pipe()
            descriptors.append(writer)
            self._read_pipe(context, stream, reader)
        self._request_fork(context)
        return context

    def waiting(self) -> list[ContextProcess]:
        """Contexts that wait to be forked."""
        return [self.contexts[number] for number in self._requested]

    def _request_fork(self, context: ContextProcess) -> bool:
        """Ask the zygote for it; without a zygote it waits for the next one, and its jobs wait in its socket."""
        stdin = None if context.stdin is None else context.stdin.kind
        shim = context.options if isinstance(context, KeptProcess) else None
        if not self._ask(Fork(context.number, context.isolated, stdin, shim), self._requested[context.number]):
            return False
        self._close_descriptors(context)
        return True

    def _close_descriptors(self, context: ContextProcess) -> None:
        for descriptor in self._requested.pop(context.number, ()):
            os.close(descriptor)

    def _read_pipe(self, context: ContextProcess, stream: Stream, descriptor: int) -> None:
        reader = os.fdopen(descriptor, "rb", 0)
        self._spawn(self._loop.connect_read_pipe(self._reader(context, stream), reader))

    def _reader(self, context: ContextProcess, stream: Stream) -> Callable[[], _OutputPipe]:
        context.open += 1
        return lambda: _OutputPipe(context, lambda data: context.listener.printed(context, stream, data))

    def _spawn(self, opening: Coroutine[Any, Any, object]) -> None:
        task = self._loop.create_task(opening)
        self._opening.add(task)
        task.add_done_callback(self._opening.discard)

    def kill(self, context: ContextProcess, number: signal.Signals, *, tree: bool = False) -> None:
        if context.number in self._requested:
            self._reap(Exited(context.number, number, 0))
        elif isinstance(context, KeptProcess):
            context.signal(number)
        elif not self._ask(kill := Kill(context.number, number, tree)):
            self._unsent.append(kill)

    def _reap(self, exited: Exited) -> None:
        context = self.contexts.pop(exited.context)
        self._close_descriptors(context)
        context.reap(exited, self._loop)

    def _ask(self, request: ZygoteRequest, descriptors: Sequence[int] = ()) -> bool:
        """Send a request to the zygote; false = it is gone, or there is no room now."""
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
        """Send the requests for which there was no room before."""
        while self._unsent and self._ask(self._unsent[0]):
            self._unsent.popleft()
        for number in list(self._requested):
            if not self._request_fork(self.contexts[number]):
                return

    def check(self) -> None:
        """Called four times a second: a zygote that no longer answers counts as dead, and is replaced."""
        self._silent = self._silent + 1 if self._unanswered else 0
        if self._silent > STUCK_AFTER and not self.lost.is_set():
            log.error("the process that forks contexts does not answer")
            self.lost.set()

    async def restart(self) -> None:
        """Replace a zygote that has died; every context has died with it, or dies now, but for those with a shim."""
        await self._end_zygote()
        kept = {number for number, context in self.contexts.items() if isinstance(context, KeptProcess)}
        for number in self.contexts.keys() - self._requested.keys() - kept:
            self._reap(Exited(number, signal.SIGKILL, 0))
        await self.start()

    async def close(self) -> None:
        """End the zygote and all its descendants; let go of runs that outlive it."""
        await self.end_all()
        for context in list(self.contexts.values()):
            if isinstance(context, KeptProcess):
                context.let_go()
        self.contexts.clear()

    async def end_all(self) -> None:
        """End the zygote and all its descendants but those runs."""
        for context in list(self.contexts.values()):
            self._close_descriptors(context)
            if not isinstance(context, KeptProcess):
                context.close()
                del self.contexts[context.number]
        await self._end_zygote()

    async def _end_zygote(self) -> None:
        if self._control is not None:
            self._loop.remove_reader(self._control)
            self._control.close()
            self._control = None
        self._close_life()
        if self._process is not None:
            await asyncio.to_thread(_end, self._process, f"{MARK}={self._mark}")
            self._process = None

    def _close_life(self) -> None:
        if self._life is not None:
            os.close(self._life)
            self._life = None


def _end(guardian: "subprocess.Popen[bytes]", mark: str) -> None:
    """Wait until the guardian has ended everything. If it does not, or was killed, that is done here."""
    try:
        status = guardian.wait(CLOSE_WITHIN)
    except subprocess.TimeoutExpired:
        doomed = [guardian.pid, *descendants(guardian.pid)]
        for one in set(doomed) - with_shims(doomed):
            send(one, signal.SIGKILL)
        with suppress(subprocess.TimeoutExpired):
            guardian.wait(CLOSE_WITHIN)
        status = -signal.SIGKILL
    if status:
        end_marked(mark, CLOSE_WITHIN)
