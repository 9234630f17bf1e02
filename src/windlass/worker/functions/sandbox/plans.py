"""What a tier means on this machine: whether it is available, what it enforces, and the plan for one context.

Reads the state of the machine and changes nothing; the monitor executes plans.
"""

import os
import shutil
import sys
from collections.abc import Mapping

from msgspec import Struct
from msgspec.structs import replace

from windlass.worker.functions import FunctionOptions, Tier
from windlass.worker.functions.languages import SEARCH_PATH, Interpreter
from windlass.worker.functions.sandbox import kernel

SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64")
SETTINGS = (
    "/etc/alternatives", "/etc/ld.so.cache", "/etc/localtime", "/etc/timezone", "/etc/mime.types", "/etc/passwd",
    "/etc/group", "/etc/nsswitch.conf", "/etc/php", "/etc/ssl/openssl.cnf", "/etc/ssl/certs", "/etc/ca-certificates",
    "/etc/pki/tls/certs",
)  # fmt: skip
FOR_NETWORK = ("/etc/resolv.conf", "/etc/hosts", "/etc/host.conf", "/etc/services", "/etc/gai.conf")
DEVICES = ("/dev/null", "/dev/zero", "/dev/random", "/dev/urandom", "/dev/full")

HARMLESS = ("LANG", "LC_ALL", "LC_CTYPE", "TZ")

ROOM = 128 << 20
"""Bytes of addresses that an interpreter takes before it does anything."""


class SandboxPlan(Struct, frozen=True):
    """What the monitor does for one context."""

    argv: list[str]
    environment: dict[str, str]
    folder: str
    uid: int | None
    limits: dict[str, int]
    memory: int
    """Bytes that the whole family of processes may hold."""
    disk: int
    """Bytes of files that may be in the folder."""
    disk_files: int
    wires: list[int] = []
    """Descriptors of the monitor that become 3 and 4."""
    no_new_privs: bool = False
    landlock: kernel.LandlockRules | None = None
    seccomp: str = ""
    """A filter to be put in force, in hex digits."""
    filter: str = ""
    """A filter that bubblewrap puts in force, in hex digits."""


class PlanRequest(Struct, frozen=True):
    """What a plan is made for."""

    interpreter: Interpreter
    folder: str
    uid: int | None
    memory: int
    disk: int
    network: bool


def available(tier: Tier) -> str | None:
    """Why a tier is not available on this machine, as far as can be seen without trying; null = it is."""
    if sys.platform != "linux":
        return f"sandbox tier {tier!r} needs Linux"
    if tier == "limits":
        return None
    if kernel.landlock_version() == 0:
        return f"sandbox tier {tier!r} needs Landlock, which this kernel lacks or has switched off"
    if kernel.machine() is None:
        return f"sandbox tier {tier!r} has no filter of system calls for this kind of processor"
    if tier == "isolated" and shutil.which("bwrap", path=SEARCH_PATH) is None:
        return "sandbox tier 'isolated' needs bubblewrap: install it (bwrap)"
    return None


def in_force(tier: Tier, *, network: bool, uid: int | None) -> list[str]:
    """What confines code of this tier, as text."""
    found = ["limits", "own session", "own folder", "clean environment"]
    found += [] if uid is None else ["own user"]
    if tier == "limits":
        return found
    abi = kernel.landlock_version()
    found += ["no new privileges", f"system call filter{'' if network else ' without sockets'}"]
    if tier == "isolated":
        return [*found, "own processes", "read-only system", "network" if network else "no network"]
    found.append(f"Landlock {abi} (files{', signals' if abi >= kernel.SCOPES_FROM else ''})")
    return [*found, "network" if network else "no network"]


def plan(request: PlanRequest, options: FunctionOptions, environment: Mapping[str, str]) -> SandboxPlan:
    tier, uid, network = options.tier, request.uid, request.network
    command = request.interpreter.command(request.folder, request.memory)
    made = SandboxPlan(
        argv=command,
        environment=clean(environment, options.environment, request.folder),
        folder=request.folder,
        uid=uid,
        limits=limits(request, options),
        memory=request.memory,
        disk=request.disk,
        disk_files=options.disk_files,
    )
    if tier == "limits":
        return made
    calls = kernel.machine()
    assert calls is not None  # noqa: S101 - else the tier is not available
    own_user = uid is not None or tier == "isolated"  # there, others' files are not to be seen
    filter_ = kernel.seccomp_program(calls, network=network, own_user=own_user).hex()
    if tier == "isolated":
        return replace(made, argv=[*bubblewrap(request), *command], no_new_privs=True, filter=filter_)
    read = [*SYSTEM, *SETTINGS, *request.interpreter.roots, *(FOR_NETWORK if network else ())]
    rules = kernel.landlock_rules(kernel.landlock_version(), read, DEVICES, request.folder, network=network)
    return replace(made, no_new_privs=True, landlock=rules, seccomp=filter_)


def clean(environment: Mapping[str, str], more: list[str], folder: str) -> dict[str, str]:
    kept = {name: environment[name] for name in (*HARMLESS, *more) if name in environment}
    return {"LANG": "C.UTF-8", **kept, "PATH": SEARCH_PATH, "HOME": folder, "TMPDIR": folder, "PWD": folder}


def limits(request: PlanRequest, options: FunctionOptions) -> dict[str, int]:
    room = request.memory + ROOM
    processes = options.processes * options.contexts  # they are counted by user, whose contexts may be all there are
    return {
        "RLIMIT_AS" if request.interpreter.address_space else "RLIMIT_DATA": room,
        "RLIMIT_CORE": 0,
        "RLIMIT_FSIZE": min(options.file_size, request.disk),
        "RLIMIT_NOFILE": options.files,
        "RLIMIT_NPROC": processes if request.uid is not None else processes + _processes_of_ours(),
    }


def _processes_of_ours() -> int:
    """How many threads this user has: without a user of its own, code is counted together with them."""
    mine, total = os.getuid(), 0
    for name in os.listdir("/proc"):  # noqa: PTH208
        try:
            if name.isdecimal() and os.stat(f"/proc/{name}").st_uid == mine:  # noqa: PTH116
                total += len(os.listdir(f"/proc/{name}/task"))  # noqa: PTH208
        except OSError:
            continue  # it has ended meanwhile
    return total


def bubblewrap(request: PlanRequest) -> list[str]:
    """How the command is wrapped: own processes, own network unless it may have ours, a system to read, its folder."""
    path = shutil.which("bwrap", path=SEARCH_PATH) or "bwrap"
    words = [path, "--unshare-all", "--die-with-parent", "--new-session", "--cap-drop", "ALL"]
    words += ["--share-net"] if request.network else []
    for place in SYSTEM:
        if os.path.islink(place):  # noqa: PTH114
            words += ["--symlink", os.readlink(place), place]  # noqa: PTH115
        else:
            words += ["--ro-bind-try", place, place]
    for place in (*SETTINGS, *(FOR_NETWORK if request.network else ())):
        words += ["--ro-bind-try", os.path.realpath(place), place]
    words += ["--proc", "/proc", "--dev", "/dev"]
    for place in ("/proc/sys", "/proc/sysrq-trigger", "/proc/irq", "/proc/bus"):
        words += ["--ro-bind-try", place, place]  # they belong to root, whatever else it may not do
    for root in request.interpreter.roots:
        words += ["--ro-bind-try", root, root]
    words += ["--bind", request.folder, request.folder, "--chdir", request.folder]
    # What could be written outside the folder would be in memory, and not counted.
    return [*words, "--remount-ro", "/dev", "--remount-ro", "/", "--seccomp", "6", "--"]
