"""The shim: the parent of a context whose run outlives its worker, and all that stays of a worker that has ended.

It passes commands from the worker that has connected to the context, and back what the context says and prints, which
it keeps until the worker confirms it. When the context has ended it leaves an `ending` in the run's folder and exits.
Without a worker it waits for as long as the lease of the run lasts: then it kills the context, for the queue has given
the job up. It runs no user code.
"""

import os
import select
import signal
import socket
import time
from collections import deque
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple, NoReturn

import msgspec
from msgspec.structs import replace

from windlass.model.job import Error
from windlass.model.outcome import Verdict
from windlass.model.output import Stream
from windlass.worker.contexts import folders
from windlass.worker.contexts.frames import (
    Command,
    ContextUpdate,
    FrameReader,
    FrameTooLong,
    RunOutcome,
    RunUpdate,
    ShimOptions,
    ShimState,
    encode_frame,
)
from windlass.worker.contexts.kept import ENDING, Ending, write_whole
from windlass.worker.linux import (
    SHIM,
    adopt_orphans,
    descendants,
    die_with_parent,
    end_children,
    name_process,
    send,
    used_in_all,
)

READ_AT_ONCE = 1 << 16
MOST_KEPT = 1 << 20
"""Bytes of output that wait for a worker; of what waits too long only the newest part stays."""

MOST_PENDING = 2000
"""Updates that wait for one."""

STDIO = (0, 1, 2)


def become_shim(options: ShimOptions, listening: socket.socket) -> tuple[socket.socket, list[int]]:
    """Fork: the child returns from here, to become the context; the parent is its shim and does not return.

    Answers what the context has of its shim: the socket for commands, and where its output goes.
    """
    name_process(SHIM)
    link, theirs = socket.socketpair()
    streams: tuple[Stream, ...] = ("stdout",) if options.merged else ("stdout", "stderr")
    pipes = [os.pipe() for _ in streams]
    shim = os.getpid()
    context = os.fork()
    if context:
        theirs.close()
        for _, end in pipes:
            os.close(end)
        nowhere = os.open(os.devnull, os.O_RDWR)
        for number in STDIO:
            os.dup2(nowhere, number)  # the worker's own output must end with the worker
        read = {pipe: stream for (pipe, _), stream in zip(pipes, streams, strict=True)}
        Shim(ShimmedContext(context, link, read), options, listening).serve()
    die_with_parent(shim)
    name_process("windlass")
    link.close()
    listening.close()
    for pipe, _ in pipes:
        os.close(pipe)
    os.setsid()
    return theirs, [end for _, end in pipes]


class ShimmedContext(NamedTuple):
    """What a shim has of its context."""

    pid: int
    link: socket.socket
    pipes: dict[int, Stream]


class Shim:
    """Between one context and the worker that has its run now."""

    def __init__(self, context: ShimmedContext, options: ShimOptions, listening: socket.socket) -> None:
        self._context, self._link, self._pipes = context
        self._folder = Path(options.folder)
        self._lease = options.lease
        self._listening = listening
        self._worker: socket.socket | None = None
        self._alone_since = _now()
        self._commands = FrameReader(Command)
        self._said = FrameReader(ContextUpdate)
        self._to_context, self._to_worker = bytearray(), bytearray()
        self._pending: deque[ContextUpdate] = deque()
        """Numbered, until the worker confirms them."""
        self._asked: dict[int, ContextUpdate] = {}
        """What the run has asked about its steps, by its calls, until it is answered."""
        self._outcomes: list[RunOutcome] = []
        self._number = self._sent = 0
        self._state = ShimState(context.pid)
        self._status: tuple[int, int, float] | None = None
        """Of the context: how it ended, and what it has used."""
        self._woken, wake = os.pipe()
        os.set_blocking(self._woken, False)
        os.set_blocking(wake, False)
        signal.signal(signal.SIGCHLD, lambda _number, _frame: None)
        signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
            signal.signal(number, signal.SIG_IGN)  # those who signal a whole group mean the worker

    def serve(self) -> NoReturn:
        adopt_orphans()
        self._link.setblocking(False)
        self._listening.setblocking(False)
        for pipe in self._pipes:
            os.set_blocking(pipe, False)
        self._reap()
        while self._status is None:
            self._turn()
        with suppress(BaseException):
            self._end()
        os._exit(0)

    def _turn(self) -> None:
        ready = dict(self._poll().poll(1000))
        if self._woken in ready:
            os.read(self._woken, READ_AT_ONCE)
        if self._listening.fileno() in ready:
            self._accept()
        elif self._worker is not None and ready.get(self._worker.fileno(), 0) & ~select.POLLOUT:
            self._obey()
        self._listen_to_context()
        self._send()
        self._reap()
        if self._worker is None and _now() - self._alone_since > self._lease:
            self._kill()  # the lease has run out

    def _poll(self) -> select.poll:
        poll = select.poll()
        poll.register(self._woken, select.POLLIN)
        poll.register(self._listening, select.POLLIN)
        for pipe in self._pipes:
            poll.register(pipe, select.POLLIN)
        if self._link.fileno() >= 0:
            poll.register(self._link, select.POLLIN | (select.POLLOUT if self._to_context else 0))
        if self._worker is not None:
            poll.register(self._worker, select.POLLIN | (select.POLLOUT if self._to_worker else 0))
        return poll

    # The worker

    def _accept(self) -> None:
        """Another worker has the run now, or the first one."""
        self._leave()
        with suppress(OSError):
            self._worker, _ = self._listening.accept()
            self._worker.setblocking(False)
            self._commands = FrameReader(Command)
            self._to_worker = bytearray(encode_frame(ContextUpdate(shim=self._state)))
            for update in self._asked.values():
                self._to_worker += encode_frame(update)
            self._sent = 0

    def _leave(self) -> None:
        if self._worker is not None:
            self._worker.close()
            self._worker = None
            self._alone_since = _now()

    def _obey(self) -> None:
        assert self._worker is not None  # noqa: S101
        try:
            data = self._worker.recv(READ_AT_ONCE)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        try:
            for command in self._commands.feed(data):
                self._pass_on(command)
        except (FrameTooLong, msgspec.MsgspecError):
            data = b""
        if not data:
            self._leave()
            if not self._state.begun:
                self._kill()  # it waits for a job that will not come

    def _pass_on(self, command: Command) -> None:
        if command.signal == signal.SIGKILL:
            self._kill()
        elif command.signal:
            send(self._context, command.signal)
        while self._pending and self._pending[0].n <= command.got:
            self._drop_first()
        for answer in command.steps:
            self._asked.pop(answer.call, None)
        if command.start or command.stop or command.messages or command.steps:
            state = self._state
            given = state.given + len(command.messages)
            self._state = replace(state, begun=state.begun or bool(command.start), given=given)
            self._to_context += encode_frame(command)

    # The context

    def _listen_to_context(self) -> None:
        updates: list[RunUpdate] = []
        for pipe, stream in list(self._pipes.items()):
            if data := self._printed(pipe):
                updates.append(RunUpdate(0, printed=(stream, data)))
        for update in self._updates():
            self._outcomes += update.outcomes
            for one in update.updates:
                if one.step is not None:
                    self._asked[one.step.call] = ContextUpdate(updates=[one])
                elif one.taken is not None:
                    self._state = replace(self._state, taken=one.taken)
                else:
                    updates.append(one)
                    continue
                self._to_worker += encode_frame(ContextUpdate(updates=[one])) if self._worker is not None else b""
        if updates:
            self._number += 1
            self._pending.append(ContextUpdate(updates=updates, n=self._number))
            self._forget_oldest()

    def _printed(self, pipe: int) -> bytes:
        try:
            data = os.read(pipe, READ_AT_ONCE)
        except BlockingIOError:
            return b""
        if not data:
            os.close(pipe)
            del self._pipes[pipe]
        return data

    def _updates(self) -> list[ContextUpdate]:
        if self._link.fileno() < 0:
            return []
        try:
            data = self._link.recv(READ_AT_ONCE)
        except BlockingIOError:
            return []
        except OSError:
            data = b""
        try:
            if data:
                return list(self._said.feed(data))
        except (FrameTooLong, msgspec.MsgspecError):
            self._kill()  # it sends garbage
        self._link.close()
        return []

    def _forget_oldest(self) -> None:
        size = sum(_size(update) for update in self._pending)
        while (size > MOST_KEPT or len(self._pending) > MOST_PENDING) and len(self._pending) > 1:
            size -= self._drop_first()

    def _drop_first(self) -> int:
        """The first of the updates that wait; how large it was."""
        size = _size(self._pending.popleft())
        self._state = replace(self._state, printed=self._state.printed + size)
        return size

    def _send(self) -> None:
        if self._worker is not None and not self._to_worker:
            for update in self._pending:
                if update.n > self._sent:
                    self._to_worker += encode_frame(update)
                    self._sent = update.n
        self._to_worker = _sent(self._worker, self._to_worker)
        self._to_context = _sent(self._link if self._link.fileno() >= 0 else None, self._to_context)

    def _kill(self) -> None:
        for pid in (self._context, *descendants(self._context)):
            send(pid, signal.SIGKILL)

    def _reap(self) -> None:
        with suppress(ChildProcessError):
            pid, status, usage = os.wait4(self._context, os.WNOHANG)
            if pid:
                self._status = status, *used_in_all(usage)

    def _end(self) -> None:
        """The context has ended: so does what it has started, and then all it said is here."""
        end_children()
        before = -1
        while before != (before := self._number + len(self._outcomes)) or self._link.fileno() >= 0:
            self._listen_to_context()
        folders.remove_of(self._context)
        if self._worker is None and _now() - self._alone_since > self._lease:
            self._remove_folder()
            return
        status, peak_memory, cpu_time = self._status or (0, 0, 0.0)
        last = ContextUpdate(self._outcomes, n=self._number + 1)
        ending = Ending(status, peak_memory, self._state.begun, [*self._pending, last], cpu_time)
        try:
            write_whole(self._folder, ENDING, msgspec.msgpack.encode(ending))
        except OSError as fault:
            error = Error(type="Lost", message=f"its result could not be kept for its worker: {fault.strerror}")
            lost = ContextUpdate([RunOutcome(0, Verdict.FAILED, error=error)], n=self._number + 1)
            write_whole(self._folder, ENDING, msgspec.msgpack.encode(replace(ending, unsent=[lost])))

    def _remove_folder(self) -> None:
        """No worker comes for it any more."""
        for name in os.listdir(self._folder):  # noqa: PTH208
            with suppress(OSError):
                (self._folder / name).unlink()
        self._folder.rmdir()


def _now() -> float:
    return time.monotonic()  # noqa: TID251 - a process of its own: nothing passes it a clock


def _size(update: ContextUpdate) -> int:
    return sum(len(one.printed[1]) if one.printed is not None else 0 for one in update.updates)


def _sent(to: socket.socket | None, data: bytearray) -> bytearray:
    """What is left to send. A closed connection is noticed when it is read."""
    if to is None:
        return bytearray()
    with suppress(OSError):
        while data:
            del data[: to.send(data)]
    return data
