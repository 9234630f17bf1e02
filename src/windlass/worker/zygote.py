"""The zygote: imports the user's app once, then forks contexts from it on demand.

A single thread that waits for two things, requests and dead children. It is the parent of every context and the guardian of
whatever contexts leave behind: an orphan is killed when any context ends, and when the supervisor is gone everything is.
Started as `python -m windlass.worker.zygote DESCRIPTOR MODULE:APP`.
"""

import gc
import importlib
import os
import select
import signal
import socket
import sys
import traceback
from collections.abc import Mapping
from typing import Any, NoReturn

import msgspec

from windlass.worker import context, isolated
from windlass.worker.frames import Broken, Exited, Fork, Forked, Kill, Ready, Report, Request
from windlass.worker.processes import adopt_orphans, children, descendants, die_with_parent, outlive_parent, send

MOST_MESSAGE = 1 << 16
STDOUT, STDERR = 1, 2

_requests = msgspec.msgpack.Decoder(Request)


class Zygote:
    """Forks contexts and tells how they end."""

    def __init__(self, control: socket.socket, tasks: Mapping[str, Any]) -> None:
        self._control = control
        self._tasks = tasks
        self._contexts: dict[int, int] = {}
        """Number by pid, of those that live."""
        self._pids: dict[int, int] = {}
        """The other way round."""

    def serve(self) -> NoReturn:
        """Until the supervisor closes the connection."""
        woken, wake = os.pipe()
        os.set_blocking(woken, False)
        os.set_blocking(wake, False)
        signal.signal(signal.SIGCHLD, lambda _number, _frame: None)
        signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
        poll = select.poll()
        poll.register(self._control, select.POLLIN)
        poll.register(woken, select.POLLIN)
        while True:
            ready = dict(poll.poll())
            if woken in ready:
                os.read(woken, 4096)
            self._bury()
            if self._control.fileno() in ready:
                self._answer()

    def _answer(self) -> None:
        message, descriptors, _, _ = socket.recv_fds(self._control, MOST_MESSAGE, 3)
        if not message:
            self._end()
        match _requests.decode(message):
            case Fork() as fork:
                self._fork(fork, descriptors)
            case Kill() as kill:
                self._kill(kill)

    def _fork(self, fork: Fork, descriptors: list[int]) -> None:
        parent = os.getpid()
        pid = os.fork()
        if pid == 0:
            self._become(fork, descriptors, parent)
        for descriptor in descriptors:
            os.close(descriptor)
        self._contexts[pid] = fork.context
        self._pids[fork.context] = pid
        self._tell(Forked(fork.context, pid))

    def _become(self, fork: Fork, descriptors: list[int], parent: int) -> NoReturn:
        """The child's side: from here on this is a context."""
        status = 1
        try:
            die_with_parent(parent)
            signal.set_wakeup_fd(-1)
            for number in (signal.SIGCHLD, signal.SIGINT, signal.SIGTERM):
                signal.signal(number, signal.SIG_DFL)
            self._control.close()
            os.setsid()
            link = socket.socket(fileno=descriptors[0])
            if fork.isolated:
                adopt_orphans()
                _speak_into(*descriptors[1:])
                isolated.live(link, self._tasks)
            else:
                context.live(link, self._tasks)
            status = 0
        except BaseException:  # noqa: BLE001 - whatever it is, this process must not go on as a second zygote
            traceback.print_exc()
            sys.stderr.flush()
        finally:
            os._exit(status)

    def _kill(self, kill: Kill) -> None:
        pid = self._pids.get(kill.context)
        if pid is None:
            return
        targets = [pid, *descendants(pid)] if kill.tree else [pid]
        for target in targets:
            send(target, kill.signal)

    def _bury(self) -> None:
        """Reap the dead, tell of contexts, and end what they left behind."""
        buried = False
        while True:
            try:
                pid, status, usage = os.wait4(-1, os.WNOHANG)
            except ChildProcessError:
                break
            if pid == 0:
                break
            if (number := self._contexts.pop(pid, None)) is not None:
                del self._pids[number]
                buried = True
                self._tell(Exited(number, status, usage.ru_maxrss * 1024))
        if buried:
            self._sweep()

    def _sweep(self) -> None:
        """Kill orphans: children that are no context of ours came from one that has ended."""
        for child in children(os.getpid()):
            if child not in self._contexts:
                for one in (child, *descendants(child)):
                    send(one, signal.SIGKILL)

    def _end(self) -> NoReturn:
        """Take everything along."""
        self._contexts.clear()
        while children(os.getpid()):
            self._sweep()
            try:
                os.wait4(-1, 0)
            except ChildProcessError:
                break
        os._exit(0)

    def _tell(self, report: Report) -> None:
        tell(self._control, report)


def tell(control: socket.socket, report: Report) -> None:
    try:
        control.send(msgspec.msgpack.encode(report))
    except (BrokenPipeError, ConnectionResetError):
        return  # the supervisor is gone; the next look at the connection finds that


def _speak_into(out: int, err: int) -> None:
    """Let everything that this process and its children print go where the supervisor reads it."""
    os.dup2(out, STDOUT)
    os.dup2(err, STDERR)
    os.close(out)
    os.close(err)
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(line_buffering=True)  # type: ignore[union-attr] # both are text files


def load(target: str) -> Any:
    """The app that `module:name` stands for."""
    name, _, attribute = target.partition(":")
    found = importlib.import_module(name)
    for part in (attribute or "app").split("."):
        found = getattr(found, part)
    if not isinstance(getattr(found, "tasks", None), dict):
        raise TypeError(f"{target} is a {type(found).__name__}, not a Windlass")
    return found


def main() -> None:
    control = socket.socket(fileno=int(sys.argv[1]))
    parent = os.getppid()
    os.setsid()  # what is typed at the supervisor's terminal is the supervisor's business
    die_with_parent(parent)
    try:
        app = load(sys.argv[2])
    except BaseException as fault:  # noqa: BLE001 - told to the supervisor, which tells the user
        tell(control, Broken(f"{type(fault).__name__}: {fault}", traceback.format_exc()[-MOST_MESSAGE // 2 :]))
        os._exit(1)
    outlive_parent()
    adopt_orphans()
    gc.collect()
    gc.freeze()
    queues = dict.fromkeys(task.options.get("queue", "default") for task in app.tasks.values())
    tell(control, Ready(list(app.tasks), list(queues), app.store, app.tenant))
    Zygote(control, app.tasks).serve()


if __name__ == "__main__":
    main()
