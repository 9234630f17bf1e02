"""What Linux offers for controlling processes, and the standard library does not."""

import ctypes
import os
import resource
import signal
import sys
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from windlass.model.output import RunUsage
from windlass.model.ports import Clock

PR_SET_PDEATHSIG = 1
PR_SET_NAME = 15
PR_SET_CHILD_SUBREAPER = 36

SHIM = "windlass-shim"
"""The name of a process that is not to be ended with its worker: no more than fifteen characters are kept of one."""

CHECKS = 3
"""Checks in a row that must find no child: the kernel's list misses some while others exit."""

BREATH = 0.002
"""Seconds in which a killed process ends."""

_libc = ctypes.CDLL(None, use_errno=True)


def _control(option: int, value: int) -> None:
    """Call `prctl`, which only Linux has."""
    if sys.platform == "linux":
        _libc.prctl(option, value, 0, 0, 0)


def die_with_parent(parent: int) -> None:
    """Be killed when the parent ends; end now if it has ended already."""
    _control(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def end_with_parent(parent: int) -> None:
    """Get TERM when the parent ends; end now if it has ended already."""
    _control(PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != parent:
        os._exit(1)


def wake_with_parents_end() -> None:
    """Go on, if stopped, when the parent ends."""
    _control(PR_SET_PDEATHSIG, signal.SIGCONT)


def name_process(name: str) -> None:
    """Give this process a name, as `ps` shows it."""
    if sys.platform == "linux":
        _libc.prctl(PR_SET_NAME, name.encode(), 0, 0, 0)


def is_shim(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip() == SHIM
    except OSError:
        return False


def boot_id() -> str:
    """Which boot of which machine this is."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def started_ticks(pid: int) -> int | None:
    """When a process started, in clock ticks since the boot; null = it has ended, though perhaps not been reaped."""
    try:
        state, *fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (OSError, ValueError):
        return None
    return None if state in "ZX" else int(fields[18])


def adopt_orphans() -> None:
    """Become the parent of every descendant whose own parent ends: also of those that left the session."""
    _control(PR_SET_CHILD_SUBREAPER, 1)


def allow_many_files() -> None:
    """Have as many descriptors as this process may have."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def children(pid: int) -> list[int]:
    """The processes that this one is the parent of; while some of them end, perhaps not all."""
    found: list[int] = []
    for thread in _threads(pid):
        try:
            found += map(int, Path(f"/proc/{pid}/task/{thread}/children").read_bytes().split())
        except (OSError, ValueError):
            continue  # it has ended meanwhile
    return found


def _threads(pid: int) -> list[str]:
    try:
        return [path.name for path in Path(f"/proc/{pid}/task").iterdir()]
    except OSError:
        return []


def descendants(pid: int) -> list[int]:
    """All descendants of a process, nearest first."""
    found = children(pid)
    for child in found:
        found += [one for one in children(child) if one not in found]
    return found


def end_children() -> None:
    """Kill and reap all descendants of this process, and orphans that come to it meanwhile; but no shims."""
    quiet = 0
    while quiet < CHECKS:
        found = children(os.getpid())
        below = [one for child in found for one in (child, *descendants(child))]
        doomed = set(below) - with_shims(below)
        for one in doomed:
            send(one, signal.SIGKILL)
        try:
            pid, _ = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return  # the only proof that there are none: the list of children misses some while others exit
        quiet = quiet + 1 if found and not doomed else 0
        if not pid:
            time.sleep(BREATH)


def end_children_but(spared: Callable[[], Collection[int]]) -> None:
    """The same, but spare some, which are reaped elsewhere. Checked until there are none several times in a row.

    Processes of our own session are spared too: we have started them and wait for them. Leftovers never are in it.
    """
    quiet = 0
    while quiet < CHECKS:
        doomed = {child for child in children(os.getpid()) if not _is_of_our_session(child)} - set(spared())
        for child in doomed:
            for one in (child, *descendants(child)):
                send(one, signal.SIGKILL)
        time.sleep(BREATH)
        for child in doomed:
            with suppress(ChildProcessError):
                os.waitpid(child, os.WNOHANG)
        quiet = 0 if doomed else quiet + 1


def end_marked(mark: str, within: float) -> None:
    """Kill whatever was started with this variable (`NAME=value`) in its environment, and reap what is ours of it.

    Shims are spared, and what is below them. It looks again until it has found none several times, or the time is over.
    """
    quiet, killed = 0, set[int]()
    for _ in range(int(within / BREATH)):
        marked = [pid for pid in _processes() if _is_marked(pid, mark.encode())]
        doomed = set(marked) - with_shims(marked)
        for pid in doomed:
            send(pid, signal.SIGKILL)
        time.sleep(BREATH)
        killed = {pid for pid in killed | doomed if not _reap(pid)}
        quiet = quiet + 1 if not killed else 0
        if quiet == CHECKS:
            return


def with_shims(pids: Sequence[int]) -> set[int]:
    """Of these processes the shims, and all that is below them."""
    shims = [pid for pid in pids if is_shim(pid)]
    return {one for shim in shims for one in (shim, *descendants(shim))}


def _reap(pid: int) -> bool:
    """Whether nothing is left of a killed process. When its parent has ended, it is a child of ours, or of init."""
    with suppress(ChildProcessError):
        os.waitpid(pid, os.WNOHANG)
    return not Path(f"/proc/{pid}").exists()


def _processes() -> list[int]:
    return [int(entry.name) for entry in os.scandir("/proc") if entry.name.isdigit()]


def _is_marked(pid: int, mark: bytes) -> bool:
    try:
        return mark in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return False  # it has ended, or is not ours: a dead one that is not reaped has no environment


def _is_of_our_session(pid: int) -> bool:
    try:
        return os.getsid(pid) == os.getsid(0)
    except ProcessLookupError:
        return False


def send(pid: int, number: int) -> None:
    """Send a signal to a process that may be gone."""
    try:
        os.kill(pid, number)
    except (ProcessLookupError, PermissionError):
        return


def describe_status(status: int) -> tuple[str, int | None]:
    """How a process ended, for people; and its exit code, negative for a signal."""
    code = os.waitstatus_to_exitcode(status)
    if code >= 0:
        return f"its process exited with {code}", code
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = f"signal {-code}"
    return f"its process was killed by {name}", code


def resident(pid: int) -> int:
    """Bytes of memory that a process holds; 0 if it is gone."""
    try:
        pages = Path(f"/proc/{pid}/statm").read_text().split()[1]
    except OSError:
        return 0
    return int(pages) * os.sysconf("SC_PAGESIZE")


def cpu_time(pid: int) -> float:
    """Seconds of CPU that a process and its ended children have used; 0 if it is gone."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")


def used_in_all(usage: resource.struct_rusage) -> tuple[int, float]:
    """By a process that has ended and those it waited for: bytes, at the peak of the largest, and seconds of CPU."""
    return usage.ru_maxrss * 1024, round(usage.ru_utime + usage.ru_stime, 3)


class OwnProcess(NamedTuple):
    """The process that a run has for itself."""

    pid: int
    since: float | None
    """When it started, by the worker's clock; null = before the run."""


class UsageMeter:
    """What this process and all processes below it use, and what runs use that have a process of their own."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._at = clock.monotonic()
        self._used = sum(one.cpu for one in _family([os.getpid()]).values())
        self._adopted: set[int] = set()
        self._runs: dict[int, tuple[float, float]] = {}
        """When each run was last measured, and the seconds of CPU that it had used by then."""

    def read(self, runs: Mapping[int, OwnProcess]) -> tuple[int, float, dict[int, RunUsage]]:
        """Bytes of memory; how many CPUs were busy since the last reading; and both of each of these runs.

        The processes of adopted runs are below no worker: they count too.
        """
        family = _family([os.getpid()])
        adopted = {one.pid for one in runs.values()} - family.keys()
        family |= _family(adopted)
        at, used = self._clock.monotonic(), sum(one.cpu for one in family.values())
        # What adopted ones had used before is not of this time.
        before = self._used + sum(_total(family, pid)[1] for pid in adopted - self._adopted)
        busy = _busy(before, used, at - self._at)
        self._at, self._used, self._adopted = at, used, adopted
        measured, earlier = {}, self._runs
        self._runs = {}
        for number, own in runs.items():
            memory, seconds = _total(family, own.pid)
            since, before = earlier.get(number) or (own.since, 0.0)
            cpu = None if since is None else _busy(before, seconds, at - since)
            measured[number] = RunUsage(memory=memory, cpu=cpu)
            self._runs[number] = (at, seconds)
        return sum(one.memory for one in family.values()), busy, measured


class _ProcessUsed(NamedTuple):
    memory: int
    cpu: float
    """Seconds so far."""
    children: list[int]


def _family(pids: Iterable[int]) -> dict[int, _ProcessUsed]:
    """What these processes and all below them have used; each is the child of one other at most."""
    waiting, found = list(pids), dict[int, _ProcessUsed]()
    seen = set(waiting)
    for pid in waiting:
        below = [one for one in children(pid) if one not in seen]
        seen.update(below)
        waiting += below
        found[pid] = _ProcessUsed(resident(pid), cpu_time(pid), below)
    return found


def _total(family: Mapping[int, _ProcessUsed], pid: int) -> tuple[int, float]:
    """Bytes of memory and seconds of CPU of one of them and all below it."""
    below = [pid]
    for one in below:
        below += family[one].children
    return sum(family[one].memory for one in below), sum(family[one].cpu for one in below)


def _busy(before: float, used: float, seconds: float) -> float:
    """How many CPUs were busy in this time; 0 where processes have ended that nothing counts any more."""
    return round(max(0.0, used - before) / max(seconds, 0.001), 3)
