"""Starts one process of uploaded code, confined, and watches over it and all its descendants.

A program of its own (`python -I -S monitor.py`), so that nothing has to be done between a fork and an exec of the
worker. Its standard input is a socket to the worker: first a plan comes, later perhaps a command to end; when the
worker is gone, it ends everything. It decides nothing: the plan says what is enforced. See `SandboxPlan` in `plans.py`.
"""

import ctypes
import errno
import fcntl
import itertools
import json
import os
import resource
import select
import signal
import socket
import stat
import struct
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

CONTROL = 0
CHECK_EVERY = 0.25
"""Seconds between two checks of the memory in use."""
LOOKING = 0.05
"""The share of its time that checks of the folder may take: a slow check comes less often."""
DEEPEST = 100
"""Levels of folders that are checked."""
HIDDEN = 2.0
"""What a folder counts that cannot be read: code that hides what it writes has written too much."""
BREATH = 0.002
"""Seconds in which a killed process ends."""
SWEPT_WITHIN = 2.0
"""Seconds that processes a job has left behind get to end; what has not is waited for no longer."""
KEEP = b"k"
"""Asks that what there is now is left alone; anything else asks that the rest is ended."""
CREDENTIALS = struct.Struct("3i")
MOST_PLAN = 1 << 20
TICKS = os.sysconf("SC_CLK_TCK")

PR_SET_PDEATHSIG, PR_SET_SECCOMP, PR_SET_CHILD_SUBREAPER, PR_SET_NO_NEW_PRIVS = 1, 22, 36, 38
SECCOMP_MODE_FILTER = 2
LANDLOCK_CREATE_RULESET, LANDLOCK_ADD_RULE, LANDLOCK_RESTRICT_SELF = 444, 445, 446
LANDLOCK_RULE_PATH_BENEATH = 1

libc = ctypes.CDLL(None, use_errno=True)


# The child: it becomes the foreign code


def become(plan: dict[str, Any], parent: int, asks: int, failed: int) -> NoReturn:
    """Put everything in force, then run the interpreter. What fails is reported, and nothing is run."""
    try:
        os.setsid()
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGCHLD, signal.SIGPIPE, signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_DFL)
        failed = arrange_descriptors(plan, asks, failed)
        os.chdir(plan["folder"])
        os.umask(0o077)
        ruleset = make_ruleset(plan["landlock"]) if plan["landlock"] else None
        for name, most in plan["limits"].items():
            limit(getattr(resource, name), most)
        if plan["uid"] is not None:
            os.setgroups([])
            os.setresgid(plan["uid"], plan["uid"], plan["uid"])
            os.setresuid(plan["uid"], plan["uid"], plan["uid"])
        control(PR_SET_PDEATHSIG, signal.SIGKILL)  # a change of user undoes it
        if os.getppid() != parent:
            os._exit(1)
        if plan["no_new_privs"]:
            control(PR_SET_NO_NEW_PRIVS, 1)
        if ruleset is not None:
            call(LANDLOCK_RESTRICT_SELF, ruleset, 0)
            os.close(ruleset)
        if plan["seccomp"]:
            install(bytes.fromhex(plan["seccomp"]))
        os.execve(plan["argv"][0], plan["argv"], plan["environment"])  # noqa: S606
    except BaseException as fault:  # noqa: BLE001 - whatever it is, this process must not go on
        with suppress(OSError):
            os.write(failed, f"{type(fault).__name__}: {fault}".encode()[:4000])
    finally:
        os._exit(1)


def arrange_descriptors(plan: dict[str, Any], asks: int, failed: int) -> int:
    """No input; commands on 3, answers on 4, a socket to us on 5; for bubblewrap, a filter to install on 6."""
    wires = [fcntl.fcntl(wire, fcntl.F_DUPFD, 20) for wire in (*plan["wires"], asks)]
    if plan["filter"]:
        wires.append(filled(bytes.fromhex(plan["filter"])))
    failed = fcntl.fcntl(failed, fcntl.F_DUPFD_CLOEXEC, 40)
    nothing = os.open(os.devnull, os.O_RDWR)
    os.dup2(nothing, 0)
    for number, wire in enumerate(wires, start=3):
        os.dup2(wire, number)
    os.closerange(3 + len(wires), failed)
    os.closerange(failed + 1, 1 << 20)
    return failed


def filled(data: bytes) -> int:
    """A descriptor to read these bytes from."""
    file = os.memfd_create("filter")
    os.write(file, data)
    os.lseek(file, 0, os.SEEK_SET)
    return fcntl.fcntl(file, fcntl.F_DUPFD, 20)


def limit(which: int, most: int) -> None:
    _, hard = resource.getrlimit(which)
    least = most if hard == resource.RLIM_INFINITY else min(most, hard)
    resource.setrlimit(which, (least, least))


def make_ruleset(rules: dict[str, Any]) -> int:
    attribute = struct.pack("=QQQ", rules["files"], rules["network"], rules["scopes"])[: rules["size"]]
    ruleset = call(LANDLOCK_CREATE_RULESET, attribute, len(attribute), 0)
    for path, access in rules["paths"]:
        try:
            beneath = os.open(path, os.O_PATH | os.O_CLOEXEC)
        except FileNotFoundError:
            continue  # what is not there needs no rule
        call(LANDLOCK_ADD_RULE, ruleset, LANDLOCK_RULE_PATH_BENEATH, struct.pack("=Qi", access, beneath), 0)
        os.close(beneath)
    return ruleset


def install(program: bytes) -> None:
    code = ctypes.create_string_buffer(program, len(program))
    length = len(program) // 8
    control(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, struct.pack("@HP", length, ctypes.addressof(code)))


def control(option: int, *values: Any) -> None:
    given = [value if isinstance(value, bytes) else ctypes.c_ulong(value) for value in (*values, 0, 0, 0, 0)[:4]]
    if libc.prctl(option, *given):
        error = ctypes.get_errno()
        raise OSError(error, f"prctl {option}: {os.strerror(error)}")


def call(number: int, *values: Any) -> int:
    given = [value if isinstance(value, bytes) else ctypes.c_long(value) for value in values]
    found = int(libc.syscall(ctypes.c_long(number), *given))
    if found < 0:
        error = ctypes.get_errno()
        raise OSError(error, f"system call {number}: {os.strerror(error)}")
    return found


# The parent: it keeps watch


def start(plan: dict[str, Any], asks: socket.socket) -> tuple[int, str]:
    """The new process, or why it was not started. `asks`: its end of the socket to us."""
    reported, failed = os.pipe2(os.O_CLOEXEC)
    parent = os.getpid()
    pid = os.fork()
    if pid == 0:
        become(plan, parent, asks.fileno(), failed)
    os.close(failed)
    asks.close()
    for wire in plan["wires"]:
        os.close(wire)
    nothing = os.open(os.devnull, os.O_RDWR)
    for output in (1, 2):  # or its reader would never see the end
        os.dup2(nothing, output)
    with os.fdopen(reported, "rb") as reader:
        return pid, reader.read().decode(errors="replace")


class ProcessUsage(NamedTuple):
    """What a process uses: bytes of memory, seconds of processor time."""

    memory: int
    own: float
    waited: float
    """That of its children that have ended and that it waited for."""
    dead: bool = False
    """Whether it has ended, though its parent has not asked how."""


class CpuTime:
    """The processor time of a process and its descendants, including those that have ended."""

    def __init__(self) -> None:
        self.seen: dict[int, ProcessUsage] = {}
        self.reaped = 0.0
        """Of those that we reaped."""
        self.lost = 0.0
        """Of those that no parent waited for, as last seen: a parent may ignore the end of its children."""
        self.settled = 0.0
        """`reaped` at the last check."""

    def so_far(self, found: dict[int, ProcessUsage]) -> float:
        ended = sum(one.own + one.waited for pid, one in self.seen.items() if pid not in found)
        waited = sum(found[pid].waited - self.seen[pid].waited for pid in found.keys() & self.seen.keys())
        self.lost += max(0.0, ended - waited - (self.reaped - self.settled))
        self.seen, self.settled = found, self.reaped
        return self.reaped + self.lost + sum(one.own + one.waited for one in found.values())


def part_taken(folder: str, pids: Iterable[int], disk: int, files: int) -> float:
    """The share in use of what a folder may hold; deleted files that are still open count too."""
    found, size, seen = 0, 0, set[tuple[int, int]]()
    try:
        for one in itertools.chain(deleted(pids), within(folder)):
            found += 1
            if (one.st_dev, one.st_ino) not in seen:  # a file may have several names
                seen.add((one.st_dev, one.st_ino))
                size += one.st_blocks * 512
            if found > files or size > disk:
                break
    except OSError:
        return HIDDEN
    return max(found / files, size / disk)


def within(folder: str, above: int | None = None, depth: int = 0) -> Iterator[os.stat_result]:
    """Everything in a folder, whatever is done to it meanwhile; no link is followed."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=above)
    try:
        if depth > DEEPEST:
            raise OSError(errno.ENAMETOOLONG, "too deep")
        with os.scandir(descriptor) as entries:
            for entry in entries:
                with suppress(FileNotFoundError, NotADirectoryError):  # it is gone, or was replaced
                    yield (found := entry.stat(follow_symlinks=False))
                    if stat.S_ISDIR(found.st_mode):
                        yield from within(entry.name, descriptor, depth + 1)
    finally:
        os.close(descriptor)


def deleted(pids: Iterable[int]) -> Iterator[os.stat_result]:
    """Files that are deleted but still open."""
    for pid in pids:
        opened: list[str] = []
        with suppress(OSError):
            opened = os.listdir(f"/proc/{pid}/fd")  # noqa: PTH208
        for number in opened:
            with suppress(OSError):
                found = os.stat(f"/proc/{pid}/fd/{number}")  # noqa: PTH116
                if stat.S_ISREG(found.st_mode) and not found.st_nlink:
                    yield found


class Monitor:
    """Watches over one process and all its descendants."""

    def __init__(self, worker: socket.socket, asked: socket.socket, pid: int, plan: dict[str, Any]) -> None:
        self.worker = worker
        self.asked: socket.socket | None = asked
        """Where the process asks for what its jobs have left behind to be ended."""
        self.own: set[int] = set()
        """Processes that are not of one job, but of the context."""
        self.swept_at = 0.0
        self.pid = pid
        self.plan = plan
        self.next_check = 0.0
        self.half = False
        self.cpu_time = CpuTime()
        self.reported = 0.0
        self.why: str | None = None
        self.kill_at: float | None = None
        self.woken, wake = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(wake, warn_on_full_buffer=False)

    def watch(self) -> None:
        while True:
            pause = CHECK_EVERY if self.kill_at is None else max(0.0, min(CHECK_EVERY, self.kill_at - now()))
            asked = [] if self.asked is None else [self.asked.fileno()]
            readable, _, _ = select.select([self.worker.fileno(), self.woken, *asked], [], [], pause)
            if self.woken in readable:
                os.read(self.woken, 4096)
            if (ended := self.reap_all()) is not None:
                end_all()
                self.send({"exited": ended[0], "peak": ended[1], "why": self.why})
                return
            if self.worker.fileno() in readable and not self.receive():
                break
            if self.asked is not None and self.asked.fileno() in readable:
                self.answer(self.asked)
            if self.kill_at is not None and now() >= self.kill_at:
                send_all(family(), signal.SIGKILL)
                self.kill_at = now() + CHECK_EVERY
            self.check_usage()
            if now() >= self.next_check:
                self.check_folder()
        end_all()

    def receive(self) -> bool:
        """Whether the worker is still there."""
        data = self.worker.recv(4096)
        if data and self.kill_at is None:
            self.kill_at = now() + json.loads(data.splitlines()[0])["end"]
            send_all(family(), signal.SIGTERM)
        return bool(data)

    def answer(self, asked: socket.socket) -> None:
        """End what a job has left behind; or note what there is besides jobs, once a context has been loaded."""
        try:
            data, credentials, _, _ = asked.recvmsg(16, socket.CMSG_SPACE(CREDENTIALS.size))
        except OSError:
            data, credentials = b"", []
        if not data:
            asked.close()
            self.asked = None
            return
        time.sleep(max(0.0, self.swept_at + BREATH / 2 - now()))  # the code must not keep us busy
        whose = CREDENTIALS.unpack(credentials[0][2])[0] if credentials else self.pid
        if data.endswith(KEEP):
            self.own = set(family())
        else:
            self.sweep(whose)
        self.swept_at = now()
        with suppress(OSError):
            asked.send(b".", socket.MSG_DONTWAIT)

    def sweep(self, whose: int) -> None:
        """Kill all but a process, its ancestors, and the context's own processes with their descendants."""
        until = now() + SWEPT_WITHIN
        while now() < until:
            parents = {child: parent for parent in (os.getpid(), *family()) for child in children(parent)}
            kept = set(ancestry(whose, parents))
            stay = (self.own & parents.keys()) - kept
            others = [pid for pid in parents if pid not in kept and stay.isdisjoint(ancestry(pid, parents))]
            doomed = [pid for pid in others if (usage := usage_of(pid)) is not None and not usage.dead]
            if not doomed:
                return
            send_all(doomed, signal.SIGKILL)
            time.sleep(BREATH)
            for pid in children(os.getpid()):
                if pid != self.pid:  # that one is waited for elsewhere
                    self.reap(pid)

    def reap(self, which: int) -> tuple[int, int, int]:
        """A process that has ended, its status and its peak memory; 0 = none of these has."""
        try:
            pid, status, usage = os.wait4(which, os.WNOHANG)
        except ChildProcessError:
            return 0, 0, 0
        self.cpu_time.reaped += usage.ru_utime + usage.ru_stime
        return pid, status, usage.ru_maxrss * 1024

    def reap_all(self) -> tuple[int, int] | None:
        """The status of our process and its peak memory, once it has ended; orphans are only reaped."""
        pid = -1
        while pid:
            pid, status, peak = self.reap(-1)
            if pid == self.pid:
                return status, peak
        return None

    def check_usage(self) -> None:
        found = {pid: usage for pid in family() if (usage := usage_of(pid)) is not None}
        if self.why is None and sum(one.memory for one in found.values()) > self.plan["memory"]:
            self.why = "memory"
            send_all(family(), signal.SIGKILL)
        cpu = self.cpu_time.so_far(found)
        if cpu > self.reported:
            self.reported = cpu
            self.send({"cpu": cpu}, socket.MSG_DONTWAIT)

    def check_folder(self) -> None:
        began = now()
        part = part_taken(self.plan["folder"], self.cpu_time.seen, self.plan["disk"], self.plan["disk_files"])
        self.next_check = began + max(CHECK_EVERY, (now() - began) / LOOKING)
        if part > 1 and self.why is None:
            self.why = "disk"
            send_all(family(), signal.SIGKILL)
        elif part > 1 / 2 and not self.half:
            self.half = True
            self.send({"half": True}, socket.MSG_DONTWAIT)

    def send(self, line: dict[str, object], flags: int = 0) -> None:
        with suppress(OSError):
            self.worker.sendall(json.dumps(line).encode() + b"\n", flags)


def send_all(pids: Iterable[int], number: int) -> None:
    for pid in pids:
        with suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)


def ancestry(pid: int, parents: dict[int, int]) -> Iterator[int]:
    """A process and those above it, as far as they are ours."""
    while pid in parents:
        yield pid
        pid = parents[pid]


def now() -> float:
    return time.clock_gettime(time.CLOCK_MONOTONIC)


def family() -> list[int]:
    """All descendants of this process, nearest first."""
    found, seen = children(os.getpid()), set[int]()
    for pid in found:
        seen.add(pid)
        found += [one for one in children(pid) if one not in seen]
    return found


def children(pid: int) -> list[int]:
    found: list[int] = []
    with suppress(OSError, ValueError):
        for thread in Path(f"/proc/{pid}/task").iterdir():
            found += map(int, (thread / "children").read_bytes().split())
    return found


def usage_of(pid: int) -> ProcessUsage | None:
    with suppress(OSError, ValueError, IndexError):
        data = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
        own, waited = int(data[11]) + int(data[12]), int(data[13]) + int(data[14])
        memory = int(data[21]) * resource.getpagesize()
        return ProcessUsage(memory, own / TICKS, waited / TICKS, data[0] in (b"Z", b"X"))
    return None


def end_all() -> None:
    """Kill and reap all descendants, and orphans that come to us meanwhile."""
    while True:
        send_all(family(), signal.SIGKILL)
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return
        time.sleep(BREATH)


def read_plan(worker: socket.socket) -> dict[str, Any]:
    data = b""
    while not data.endswith(b"\n"):
        piece = worker.recv(MOST_PLAN)
        if not piece:
            sys.exit(0)
        data += piece
    plan: dict[str, Any] = json.loads(data)
    return plan


def main() -> None:
    os.setsid()
    worker = socket.socket(fileno=os.dup(CONTROL))
    control(PR_SET_CHILD_SUBREAPER, 1)
    control(PR_SET_PDEATHSIG, signal.SIGCONT)  # if it was stopped: it goes on, and finds that its worker is gone
    signal.signal(signal.SIGCHLD, lambda *_: None)
    plan = read_plan(worker)
    asked, asks = socket.socketpair()
    asked.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
    try:
        pid, refused = start(plan, asks)
    except OSError as fault:
        pid, refused = 0, str(fault)
    monitor = Monitor(worker, asked, pid, plan)
    if refused:
        monitor.send({"refused": refused})
        return
    monitor.send({"started": pid})
    monitor.watch()


if __name__ == "__main__":
    main()
