"""What a tier means on this machine: whether it can be had, what is in force under it, and the plan for one context.

Pure but for looking at the machine; the keeper carries plans out.
"""

import os
import shutil
import sys
from collections.abc import Mapping

from msgspec import Struct
from msgspec.structs import replace

from windlass.worker.functions.sandbox import landlock, seccomp
from windlass.worker.functions.sandbox.interpreters import PLACES, Interpreter
from windlass.worker.functions.sandbox.landlock import Rules
from windlass.worker.functions.terms import FunctionOptions, Tier

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


class Plan(Struct, frozen=True):
    """What the keeper does for one context."""

    argv: list[str]
    environment: dict[str, str]
    folder: str
    wires: list[int]
    """Descriptors of the keeper that become 3 and 4."""
    uid: int | None
    limits: dict[str, int]
    memory: int
    """Bytes that the whole family of processes may hold."""
    disk: int
    """Bytes of files that may be in the folder."""
    disk_files: int
    no_new_privs: bool = False
    landlock: Rules | None = None
    seccomp: str = ""
    """A filter to be put in force, in hex digits."""
    filter: str = ""
    """A filter that bubblewrap puts in force, in hex digits."""


class Ask(Struct, frozen=True):
    """For whom a plan is made."""

    interpreter: Interpreter
    folder: str
    uid: int | None
    memory: int
    disk: int
    network: bool
    wires: tuple[int, int]


def available(tier: Tier) -> str | None:
    """Why a tier cannot be had on this machine, as far as can be seen without trying; null = it can."""
    if sys.platform != "linux":
        return f"sandbox tier {tier!r} needs Linux"
    if tier == "limits":
        return None
    if landlock.version() == 0:
        return f"sandbox tier {tier!r} needs Landlock, which this kernel lacks or has switched off"
    if seccomp.machine() is None:
        return f"sandbox tier {tier!r} has no filter of system calls for this kind of processor"
    if tier == "isolated" and shutil.which("bwrap", path=PLACES) is None:
        return "sandbox tier 'isolated' needs bubblewrap: install it (bwrap)"
    return None


def in_force(tier: Tier, *, network: bool, uid: int | None) -> list[str]:
    """What keeps code of this tier in its place, in words."""
    found = ["limits", "own session", "own folder", "clean environment"]
    found += [] if uid is None else ["own user"]
    if tier == "limits":
        return found
    abi = landlock.version()
    found += ["no new privileges", f"system call filter{'' if network else ' without sockets'}"]
    if tier == "isolated":
        return [*found, "own processes", "read-only system", "network" if network else "no network"]
    found.append(f"Landlock {abi} (files{', signals' if abi >= landlock.SCOPES_FROM else ''})")
    return [*found, "network" if network else "no network"]


def plan(tier: Tier, ask: Ask, options: FunctionOptions, environment: Mapping[str, str]) -> Plan:
    command = ask.interpreter.command(ask.folder, ask.memory)
    made = Plan(
        argv=command,
        environment=clean(environment, options.environment, ask.folder),
        folder=ask.folder,
        wires=list(ask.wires),
        uid=ask.uid,
        limits=limits(ask, options),
        memory=ask.memory,
        disk=ask.disk,
        disk_files=options.disk_files,
    )
    if tier == "limits":
        return made
    calls = seccomp.machine()
    assert calls is not None  # noqa: S101 - else the tier is not available
    own_user = ask.uid is not None or tier == "isolated"  # there, others' files are not to be seen
    filter_ = seccomp.program(calls, network=ask.network, own_user=own_user).hex()
    if tier == "isolated":
        return replace(made, argv=[*bubblewrap(ask), *command], no_new_privs=True, filter=filter_)
    read = [*SYSTEM, *SETTINGS, *ask.interpreter.roots, *(FOR_NETWORK if ask.network else ())]
    rules = landlock.rules(landlock.version(), read, DEVICES, ask.folder, network=ask.network)
    return replace(made, no_new_privs=True, landlock=rules, seccomp=filter_)


def clean(environment: Mapping[str, str], more: list[str], folder: str) -> dict[str, str]:
    kept = {name: environment[name] for name in (*HARMLESS, *more) if name in environment}
    return {"LANG": "C.UTF-8", **kept, "PATH": PLACES, "HOME": folder, "TMPDIR": folder, "PWD": folder}


def limits(ask: Ask, options: FunctionOptions) -> dict[str, int]:
    room = ask.memory + ROOM
    processes = options.processes * options.contexts  # they are counted by user, whose contexts may be all there are
    return {
        "RLIMIT_AS" if ask.interpreter.address_space else "RLIMIT_DATA": room,
        "RLIMIT_CORE": 0,
        "RLIMIT_FSIZE": min(options.file_size, ask.disk),
        "RLIMIT_NOFILE": options.files,
        "RLIMIT_NPROC": processes if ask.uid is not None else processes + _processes_of_ours(),
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


def bubblewrap(ask: Ask) -> list[str]:
    """How the command is wrapped: own processes, own network unless it may have ours, a system to read, its folder."""
    path = shutil.which("bwrap", path=PLACES) or "bwrap"
    words = [path, "--unshare-all", "--die-with-parent", "--new-session", "--cap-drop", "ALL"]
    words += ["--share-net"] if ask.network else []
    for place in SYSTEM:
        if os.path.islink(place):  # noqa: PTH114
            words += ["--symlink", os.readlink(place), place]  # noqa: PTH115
        else:
            words += ["--ro-bind-try", place, place]
    for place in (*SETTINGS, *(FOR_NETWORK if ask.network else ())):
        words += ["--ro-bind-try", os.path.realpath(place), place]
    words += ["--proc", "/proc", "--dev", "/dev"]
    for place in ("/proc/sys", "/proc/sysrq-trigger", "/proc/irq", "/proc/bus"):
        words += ["--ro-bind-try", place, place]  # to root they belong, whatever else it may not do
    for root in ask.interpreter.roots:
        words += ["--ro-bind-try", root, root]
    words += ["--bind", ask.folder, ask.folder, "--chdir", ask.folder]
    # What could be written beside the folder would lie in memory, counted by nobody.
    return [*words, "--remount-ro", "/dev", "--remount-ro", "/", "--seccomp", "6", "--"]
