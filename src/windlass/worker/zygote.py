"""The zygote: imports the user's app once, then forks contexts from it on demand.

A single thread that waits for two things, requests and dead children. It is the parent of every context and of
whatever contexts leave behind: an orphan is killed when any context ends. What it leaves behind itself is ended by its
own parent, the guardian, which does so too when the supervisor is gone.
Started as `python -m windlass.worker.zygote CONTROL LIFE MODULE:APP`, with the numbers of two descriptors.
"""

import gc
import importlib
import io
import os
import select
import signal
import socket
import sys
import traceback
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, NoReturn

import msgspec

from windlass.model.job import Wishes
from windlass.worker import context, isolated
from windlass.worker.connections import open_connections
from windlass.worker.frames import (
    Broken,
    Exited,
    Fork,
    Forked,
    Frames,
    Kill,
    Killed,
    Orders,
    Ready,
    Report,
    Request,
    Unforked,
)
from windlass.worker.guardian import become_zygote
from windlass.worker.processes import adopt_orphans, children, descendants, die_with_parent, send

MOST_MESSAGE = 1 << 16
STDOUT, STDERR = 1, 2
SWEEPS, SWEEP_AGAIN = 3, 50
"""How often to look for what an ended context has left behind, and the milliseconds between."""

_requests = msgspec.msgpack.Decoder(Request)


class Zygote:
    """Forks contexts and tells how they end."""

    def __init__(self, control: socket.socket, tasks: Mapping[str, Any]) -> None:
        self._control = control
        self._tasks = tasks
        self._frames = Frames(Orders)
        """For the one context that a child becomes: made once, for that takes longer than many a job."""
        self._contexts: dict[int, int] = {}
        """Number by pid, of those that live."""
        self._pids: dict[int, int] = {}
        """The other way round."""
        self._doomed: set[int] = set()
        """Orphans that were killed and have not been reaped yet."""
        self._sweeps = 0
        """How often to look for orphans still: the list of children is not complete while some of them end."""
        self._woken, self._wake = os.pipe()
        os.set_blocking(self._woken, False)
        os.set_blocking(self._wake, False)

    def serve(self) -> NoReturn:
        """Until the supervisor closes the connection."""
        signal.signal(signal.SIGCHLD, lambda _number, _frame: None)
        signal.set_wakeup_fd(self._wake, warn_on_full_buffer=False)
        poll = select.poll()
        poll.register(self._control, select.POLLIN)
        poll.register(self._woken, select.POLLIN)
        while True:
            ready = dict(poll.poll(SWEEP_AGAIN if self._sweeps else None))
            if self._woken in ready:
                os.read(self._woken, MOST_MESSAGE)
            self._bury()
            if self._control.fileno() in ready:
                self._answer()

    def _answer(self) -> None:
        try:
            message, descriptors, _, _ = socket.recv_fds(self._control, MOST_MESSAGE, 3, socket.MSG_CMSG_CLOEXEC)
        except ConnectionResetError:  # it was killed before it had read everything
            message, descriptors = b"", []
        if not message:
            os._exit(0)  # the guardian ends whatever is left
        match _requests.decode(message):
            case Fork() as fork:
                self._fork(fork, descriptors)
            case Kill() as kill:
                self._kill(kill)
                self._tell(Killed(kill.context))

    def _fork(self, fork: Fork, descriptors: list[int]) -> None:
        parent = os.getpid()
        try:
            pid = os.fork()
        except OSError as fault:
            self._tell(Unforked(fork.context, str(fault)))
            return
        finally:
            if os.getpid() == parent:
                for descriptor in descriptors:
                    os.close(descriptor)
        if pid == 0:
            self._become(fork, descriptors, parent)
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
            os.close(self._woken)
            os.close(self._wake)
            os.setsid()
            link = socket.socket(fileno=descriptors[0])
            if fork.isolated:
                adopt_orphans()
                _speak_into(*descriptors[1:])
                isolated.live(link, self._tasks, self._frames)
            else:
                context.live(link, self._tasks, aside=socket.socket(fileno=descriptors[1]))
            status = 0
        except BaseException:  # noqa: BLE001 - whatever it is, this process must not go on as a second zygote
            traceback.print_exc()
        finally:
            _flush()
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
        orphans_likely = False
        while (dead := _reaped()) is not None:
            pid, status, peak_memory = dead
            orphans_likely |= pid in self._contexts or pid in self._doomed
            self._doomed.discard(pid)
            if (number := self._contexts.pop(pid, None)) is not None:
                del self._pids[number]
                self._tell(Exited(number, status, peak_memory))
        if orphans_likely:
            self._sweeps = SWEEPS
        if self._sweeps:
            self._sweeps -= 1
            self._sweep()

    def _sweep(self) -> None:
        """Kill orphans: children that are no context of ours came from one that has ended."""
        for child in children(os.getpid()):
            if child not in self._contexts:
                self._doomed.add(child)
                for one in (child, *descendants(child)):
                    send(one, signal.SIGKILL)

    def _tell(self, report: Report) -> None:
        tell(self._control, report)


def tell(control: socket.socket, report: Report) -> None:
    try:
        control.send(msgspec.msgpack.encode(report))
    except (BrokenPipeError, ConnectionResetError):
        return  # the supervisor is gone; the next look at the connection finds that


def _reaped() -> tuple[int, int, int] | None:
    """A child that has ended: its pid, its status, its peak memory in bytes."""
    try:
        pid, status, usage = os.wait4(-1, os.WNOHANG)
    except ChildProcessError:
        return None
    return (pid, status, usage.ru_maxrss * 1024) if pid else None


def _speak_into(out: int, err: int) -> None:
    """Let everything that this process and its children print go where the supervisor reads it."""
    os.dup2(out, STDOUT)
    os.dup2(err, STDERR)
    os.close(out)
    os.close(err)


def _speak_by_lines() -> None:
    """What waited in a buffer would be lost with a process that dies, and printed twice by two that share it."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(line_buffering=True)


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        with suppress(Exception):
            stream.flush()


def load(target: str) -> Any:
    """The app that `module:name` stands for."""
    name, _, attribute = target.partition(":")
    if name.endswith(".py") or "/" in name:
        module = name.removesuffix(".py").strip("./").replace("/", ".")
        raise ImportError(f"name the module, not its file: {module}:{attribute or 'app'}")
    found = importlib.import_module(name)
    for part in (attribute or "app").split("."):
        found = getattr(found, part)
    if not isinstance(getattr(found, "tasks", None), dict):
        raise TypeError(f"{target} is a {type(found).__name__}, not a Windlass")
    if not found.tasks:
        raise LookupError("it has no tasks; perhaps the modules that define them are not imported")
    return found


def broken(fault: BaseException) -> Broken:
    """What is wrong with the user's module, from its own first line on."""
    trace = fault.__traceback__
    while trace is not None and _is_ours(trace.tb_frame.f_code.co_filename):
        trace = trace.tb_next
    lines = "" if trace is None else "".join(traceback.format_exception(type(fault), fault, trace))
    return Broken(f"{type(fault).__name__}: {fault}", lines[-MOST_MESSAGE // 2 :])


def _is_ours(file: str) -> bool:
    return file == __file__ or "importlib" in file


def _options(tasks: Mapping[str, Any]) -> dict[str, Wishes]:
    """What tasks were declared with, as fields of a job."""
    templates = {name: task.template for name, task in tasks.items()}
    said = {
        name: Wishes(**{field: getattr(new, field) for field in Wishes.__struct_fields__ if field != "key"})
        for name, new in templates.items()
    }
    return {name: options for name, options in said.items() if options != Wishes()}


def main() -> None:
    become_zygote(int(sys.argv[2]), int(sys.argv[1]))
    control = socket.socket(fileno=int(sys.argv[1]))
    _speak_by_lines()
    try:
        app = load(sys.argv[3])
    except BaseException as fault:  # noqa: BLE001 - told to the supervisor, which tells the user
        tell(control, broken(fault))
        _flush()
        os._exit(1)
    _flush()
    adopt_orphans()
    for task in app.tasks.values():
        task.plan.prepare()
    gc.collect()
    gc.freeze()
    queues = dict.fromkeys(task.options.get("queue", "default") for task in app.tasks.values())
    options, shared = _options(app.tasks), open_connections(app.store)
    tell(control, Ready(list(app.tasks), list(queues), app.store, app.tenant, app.token, options, shared))
    try:
        Zygote(control, app.tasks).serve()
    except BaseException:  # noqa: BLE001 - whatever it is, threads of the app must not keep this process alive
        traceback.print_exc()
        os._exit(1)


if __name__ == "__main__":
    main()
