"""The zygote: imports the user's app once, then forks contexts from it on demand. And the guardian, its parent.

The zygote is a single thread that waits for two things, requests and dead children. It is the parent of every context
and of whatever contexts leave behind: an orphan is killed when any context ends. The guardian ends everything when the
supervisor or the zygote is gone. It runs no user code, so nothing can make it hang: it is forked before the app is
imported. Started as `python -m windlass.worker.contexts.zygote CONTROL LIFE MODULE:APP`, with two descriptors.
"""

import fcntl
import gc
import importlib
import os
import select
import signal
import socket
import stat
import sys
import termios
import traceback
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, NoReturn

import msgspec

from windlass.call.hooks import Hooks, TaskCode
from windlass.model.new_job import JobOptions
from windlass.model.stdin import Stdin
from windlass.worker.contexts import folders, offspring, prints
from windlass.worker.contexts.frames import (
    AppInfo,
    Command,
    Exited,
    Fork,
    Forked,
    ForkFailed,
    FrameReader,
    ImportFailed,
    Kill,
    SignalSent,
    ZygoteReport,
    ZygoteRequest,
)
from windlass.worker.contexts.main import run_isolated, run_shared
from windlass.worker.contexts.shim import become_shim
from windlass.worker.linux import (
    adopt_orphans,
    children,
    descendants,
    die_with_parent,
    end_children,
    send,
    used_in_all,
    wake_with_parents_end,
)

MOST_MESSAGE = 1 << 16
STDIN, STDOUT, STDERR = 0, 1, 2
SWEEPS, SWEEP_AGAIN = 3, 50
"""How often to look for what an ended context has left behind, and the milliseconds between."""

_requests = msgspec.msgpack.Decoder(ZygoteRequest)


class Zygote:
    """Forks contexts and reports how they end."""

    def __init__(self, control: socket.socket, tasks: Mapping[str, TaskCode], hooks: Hooks) -> None:
        self._control = control
        self._tasks = tasks
        self._hooks = hooks
        self._frames = FrameReader(Command)
        """For the context that a child becomes: made once, because that takes longer than many a job."""
        self._contexts: dict[int, int] = {}
        """Number by pid, of those that live."""
        self._pids: dict[int, int] = {}
        """Pid by number."""
        self._killed: set[int] = set()
        """Orphans that were killed and have not been reaped yet."""
        self._sweeps = 0
        """How often to look for orphans again: the list of children is not complete while some of them exit."""
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
            self._reap()
            if self._control.fileno() in ready:
                self._handle_request()

    def _handle_request(self) -> None:
        try:
            message, descriptors, _, _ = socket.recv_fds(self._control, MOST_MESSAGE, 4, socket.MSG_CMSG_CLOEXEC)
        except ConnectionResetError:  # it was killed before it had read everything
            message, descriptors = b"", []
        if not message:
            os._exit(0)  # the guardian ends whatever is left
        match _requests.decode(message):
            case Fork() as fork:
                self._fork(fork, descriptors)
            case Kill() as kill:
                self._kill(kill)
                self._report(SignalSent(kill.context))

    def _fork(self, fork: Fork, descriptors: list[int]) -> None:
        parent = os.getpid()
        try:
            for hook in self._hooks.before_fork:
                hook()
            pid = os.fork()
        except Exception as fault:  # noqa: BLE001 - a hook may raise anything
            why = str(fault) if isinstance(fault, OSError) else f"before_fork: {type(fault).__name__}: {fault}"
            self._report(ForkFailed(fork.context, why))
            return
        finally:
            if os.getpid() == parent:
                for descriptor in descriptors:
                    os.close(descriptor)
        if pid == 0:
            self._become_context(fork, descriptors, parent)
        self._contexts[pid] = fork.context
        self._pids[fork.context] = pid
        self._report(Forked(fork.context, pid))

    def _become_context(self, fork: Fork, descriptors: list[int], parent: int) -> NoReturn:
        """The child's side: from here on this is a context."""
        status = 1
        try:
            if fork.shim is None:
                die_with_parent(parent)
            signal.set_wakeup_fd(-1)
            for number in (signal.SIGCHLD, signal.SIGINT, signal.SIGTERM):
                signal.signal(number, signal.SIG_DFL)
            self._control.close()
            os.close(self._woken)
            os.close(self._wake)
            os.setsid()
            link = socket.socket(fileno=descriptors[0])
            if fork.shim is not None:
                link, descriptors[1:] = become_shim(fork.shim, listening=link)
            if fork.isolated:
                adopt_orphans()
                _redirect(fork.stdin, descriptors[1:])
                run_isolated(link, self._tasks, self._frames, self._hooks)
            else:
                prints.send_to_jobs(yes=True)
                offspring.end_with_jobs(yes=True)
                run_shared(link, self._tasks, self._hooks, aside=socket.socket(fileno=descriptors[1]))
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

    def _reap(self) -> None:
        """Reap dead children, report contexts among them, and end what they left behind."""
        orphans_likely = False
        while (dead := _reaped()) is not None:
            pid, status, peak_memory, cpu_time = dead
            orphans_likely |= pid in self._contexts or pid in self._killed
            self._killed.discard(pid)
            if (number := self._contexts.pop(pid, None)) is not None:
                del self._pids[number]
                folders.remove_of(pid)
                self._report(Exited(number, status, peak_memory, cpu_time))
        if orphans_likely:
            self._sweeps = SWEEPS
        if self._sweeps:
            self._sweeps -= 1
            self._sweep()

    def _sweep(self) -> None:
        """Kill orphans: children that are no context of ours came from one that has ended."""
        for child in children(os.getpid()):
            if child not in self._contexts:
                self._killed.add(child)
                for one in (child, *descendants(child)):
                    send(one, signal.SIGKILL)

    def _report(self, report: ZygoteReport) -> None:
        report_to(self._control, report)


def report_to(control: socket.socket, report: ZygoteReport) -> None:
    try:
        control.send(msgspec.msgpack.encode(report))
    except (BrokenPipeError, ConnectionResetError):
        return  # the supervisor is gone; the next read of the connection finds that


def _reaped() -> tuple[int, int, int, float] | None:
    """A child that has ended: its pid, its status, what it has used."""
    try:
        pid, status, usage = os.wait4(-1, os.WNOHANG)
    except ChildProcessError:
        return None
    return (pid, status, *used_in_all(usage)) if pid else None


def _redirect(stdin: Stdin | None, descriptors: list[int]) -> None:
    """Give this process its standard input, if it is to have one, and its outputs."""
    if stdin is None:
        _redirect_output(*descriptors)
        return
    source, *outputs = descriptors
    if stdin == "terminal":
        fcntl.ioctl(source, termios.TIOCSCTTY, 0)
        outputs = [os.dup(source)]
    os.dup2(source, STDIN)
    os.close(source)
    _redirect_output(*outputs)
    sys.stdin = open(STDIN, closefd=False)  # noqa: SIM115 - for as long as the process lives
    signal.signal(signal.SIGINT, signal.default_int_handler)  # as in a program that was started from a shell


def _redirect_output(out: int, *err: int) -> None:
    """Send everything that this process and its children print to the supervisor, apart or, without `err`, together."""
    os.dup2(out, STDOUT)
    os.dup2(err[0] if err else out, STDERR)
    for descriptor in (out, *err):
        os.close(descriptor)


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        with suppress(Exception):
            stream.flush()


def load_app(target: str) -> Any:
    """Import the app named by `module:name`."""
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


def import_failed(fault: BaseException) -> ImportFailed:
    """What is wrong with the user's module, from its own first line on."""
    trace = fault.__traceback__
    while trace is not None and _is_ours(trace.tb_frame.f_code.co_filename):
        trace = trace.tb_next
    lines = "" if trace is None else "".join(traceback.format_exception(type(fault), fault, trace))
    return ImportFailed(f"{type(fault).__name__}: {fault}", lines[-MOST_MESSAGE // 2 :])


def _is_ours(file: str) -> bool:
    return file == __file__ or "importlib" in file


def _options(tasks: Mapping[str, Any]) -> dict[str, JobOptions]:
    """What tasks were declared with, as fields of a job."""
    templates = {name: task.template for name, task in tasks.items()}
    options = {
        name: JobOptions(**{field: getattr(new, field) for field in JobOptions.__struct_fields__ if field != "key"})
        for name, new in templates.items()
    }
    return {name: chosen for name, chosen in options.items() if chosen != JobOptions()}


def become_zygote(life: int, control: int) -> None:
    """Fork: the child returns from here as the zygote, the parent stays behind as its guardian.

    `life`: a pipe that the supervisor holds open for as long as it lives. `control`: the zygote's alone.
    """
    os.setsid()  # what is typed at the supervisor's terminal is the supervisor's business
    guardian = os.getpid()
    if os.fork() == 0:
        die_with_parent(guardian)
        os.close(life)
        os.setsid()
        return
    os.close(control)
    _guard(life)


def _guard(life: int) -> NoReturn:
    woken, wake = os.pipe()
    os.set_blocking(wake, False)
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda _number, _frame: None)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
        signal.signal(number, signal.SIG_IGN)  # those who signal a whole group mean the supervisor
    adopt_orphans()
    wake_with_parents_end()
    poll = select.poll()
    poll.register(life, select.POLLIN)
    poll.register(woken, select.POLLIN)
    while not _zygote_is_gone() and life not in dict(poll.poll()):
        os.read(woken, 1 << 10)
    end_children()
    os._exit(0)


def _zygote_is_gone() -> bool:
    """Its only child until then. One that is stopped is not gone."""
    try:
        pid, _ = os.waitpid(-1, os.WNOHANG)
    except ChildProcessError:
        return True
    return pid != 0


SQLITE = b"SQLite format 3\0"
"""How a database of SQLite begins."""


def open_connections() -> list[str]:
    """Where the connections lead that this process holds. Those of the app itself are closed by now."""
    found: set[str] = set()
    for name in os.listdir("/proc/self/fd"):  # noqa: PTH208
        try:
            mode = os.fstat(int(name)).st_mode
            where = _peer(int(name)) if stat.S_ISSOCK(mode) else _database(int(name), mode)
        except OSError:
            continue  # it was open only for this listing, or leads nowhere
        if where:
            found.add(where)
    return sorted(found)


def _peer(descriptor: int) -> str:
    with socket.socket(fileno=os.dup(descriptor)) as one:
        peer = one.getpeername()
    if isinstance(peer, tuple):
        return f"{peer[0]}:{peer[1]}"
    return peer.decode(errors="replace") if isinstance(peer, bytes) else str(peer)  # a pair of sockets has no name


def _database(descriptor: int, mode: int) -> str:
    if not stat.S_ISREG(mode):
        return ""
    with open(f"/proc/self/fd/{descriptor}", "rb") as file:  # noqa: PTH123 - a new descriptor: its offset is not ours
        begins = file.read(len(SQLITE))
    return os.readlink(f"/proc/self/fd/{descriptor}") if begins == SQLITE else ""  # noqa: PTH115


def main() -> None:
    become_zygote(int(sys.argv[2]), int(sys.argv[1]))
    control = socket.socket(fileno=int(sys.argv[1]))
    prints.install()
    offspring.install()
    try:
        app = load_app(sys.argv[3])
        tasks = {name: app.hooks.wrap(task) for name, task in app.tasks.items()}
    except BaseException as fault:  # noqa: BLE001 - reported to the supervisor, which shows it to the user
        report_to(control, import_failed(fault))
        _flush()
        os._exit(1)
    _flush()
    adopt_orphans()
    folders.sweep()
    for task in app.tasks.values():
        task.plan.prepare()
    gc.collect()
    gc.freeze()
    queues = dict.fromkeys(task.options.get("queue", "default") for task in app.tasks.values())
    app.close()  # what it has opened during the import; it opens that again where it is needed
    options, shared = _options(app.tasks), open_connections()
    report_to(
        control,
        AppInfo(
            *(list(app.tasks), list(queues), app.store, app.tenant, app.token, options, app.declared, shared),
            slots={name: task.slots for name, task in app.tasks.items() if task.slots > 1},
            needs={name: list(task.needs) for name, task in app.tasks.items() if task.needs},
            opens=app.hooks.concern_processes,
            batches={name: task.batch for name, task in app.tasks.items() if task.batch is not None},
        ),
    )
    try:
        Zygote(control, tasks, app.hooks).serve()
    except BaseException:  # noqa: BLE001 - whatever it is, threads of the app must not keep this process alive
        traceback.print_exc()
        os._exit(1)


if __name__ == "__main__":
    main()
