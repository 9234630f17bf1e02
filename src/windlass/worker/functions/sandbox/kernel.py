"""Landlock rules and the system call filter as data: what a confined process may reach and call.

Knows the kernel's numbers, by what it can enforce and by kind of processor; applies nothing (the monitor does).
"""

import ctypes
import errno
import os
import platform
import struct
from collections.abc import Iterable
from typing import NamedTuple

from msgspec import Struct

CREATE_RULESET, VERSION = 444, 1

EXECUTE, WRITE_FILE, READ_FILE, READ_DIR = 1 << 0, 1 << 1, 1 << 2, 1 << 3
MAKE_CHAR, MAKE_BLOCK, MAKE_SYM = 1 << 6, 1 << 11, 1 << 12
REFER, TRUNCATE, IOCTL_DEV = 1 << 13, 1 << 14, 1 << 15
OF_FILES = EXECUTE | WRITE_FILE | READ_FILE | TRUNCATE | IOCTL_DEV
"""Rights that mean something for a file; the others are for folders."""

BIND_TCP, CONNECT_TCP = 1 << 0, 1 << 1
ABSTRACT_SOCKETS, SIGNALS = 1 << 0, 1 << 1

READ = EXECUTE | READ_FILE | READ_DIR
TCP_FROM, SCOPES_FROM = 4, 6
"""The first versions that know these."""


class LandlockRules(Struct, frozen=True):
    """What is forbidden except for the paths."""

    files: int
    network: int
    scopes: int
    size: int
    """Bytes of the kernel's struct at its version."""
    paths: list[tuple[str, int]]


def landlock_version() -> int:
    """The version of Landlock in this kernel; 0 = none."""
    libc = ctypes.CDLL(None, use_errno=True)
    found = libc.syscall(ctypes.c_long(CREATE_RULESET), None, ctypes.c_long(0), ctypes.c_long(VERSION))
    return max(0, int(found))


def landlock_rules(abi: int, read: Iterable[str], write: Iterable[str], folder: str, *, network: bool) -> LandlockRules:
    """Reading beneath `read`, plain files to read and write, everything but devices in `folder`."""
    known = MAKE_SYM * 2 - 1
    for right, since in ((REFER, 2), (TRUNCATE, 3), (IOCTL_DEV, 5)):
        known |= right if abi >= since else 0
    paths = [(path, _fitting(path, READ)) for path in read]
    paths += [(path, _fitting(path, READ_FILE | WRITE_FILE | TRUNCATE) & known) for path in write]
    paths.append((folder, known & ~(MAKE_CHAR | MAKE_BLOCK)))
    return LandlockRules(
        files=known,
        network=0 if network or abi < TCP_FROM else BIND_TCP | CONNECT_TCP,
        scopes=ABSTRACT_SOCKETS | SIGNALS if abi >= SCOPES_FROM else 0,
        size=24 if abi >= SCOPES_FROM else 16 if abi >= TCP_FROM else 8,
        paths=paths,
    )


def _fitting(path: str, access: int) -> int:
    return access if os.path.isdir(path) else access & OF_FILES  # noqa: PTH112 - a path that may be missing


LOAD, EQUAL, AT_LEAST, ANY_BIT, KEEP_BITS, RETURN = 0x20, 0x15, 0x35, 0x45, 0x54, 0x06
NUMBER, ARCHITECTURE = 0, 4
ALLOW, REFUSE, KILL = 0x7FFF_0000, 0x0005_0000, 0x8000_0000

NEW_NAMESPACES = 0x7E02_0000
"""Flags of `clone` that ask for a namespace: a user who is root in one reaches much more of the kernel."""
X32 = 0x4000_0000
"""The first number of a second table of the same calls."""
INTERNET = (2, 10)
"""Families of sockets that reach another machine."""


UNIX, DATAGRAM, KIND = 1, 2, 0xF
"""A family and a kind of sockets, and the bits of the kind: one of a pair of these could send to any address."""

FIRST, SECOND = 16, 24
"""Offsets of the arguments of a call."""


class Machine(NamedTuple):
    """A processor's calls."""

    architecture: int
    clone: int
    socket: int
    socketpair: int
    of_itself: dict[int, int]
    """Calls that may change another process, and the argument that names it: 0 is the caller."""
    by_kind: dict[int, int]
    """Those of them whose first argument may name all processes of a user instead, and what it is for one process."""
    by_path: tuple[int, ...]
    """Calls that change whose a file is, who may do what with it, its attributes, its times: Landlock knows none."""
    refused: dict[str, int]


EVERYWHERE = {
    "io_uring_setup": 425, "io_uring_enter": 426, "io_uring_register": 427, "open_tree": 428, "move_mount": 429,
    "fsopen": 430, "fsconfig": 431, "fsmount": 432, "fspick": 433, "pidfd_getfd": 438, "process_madvise": 440,
    "mount_setattr": 442, "quotactl_fd": 443, "memfd_secret": 447,
}  # fmt: skip
BY_PATH_EVERYWHERE = {"fchmodat2": 452, "setxattrat": 463, "removexattrat": 466, "file_setattr": 469}
CLONE3 = 435
"""Its flags are in memory, which no filter can read; libraries do without it."""

MACHINES = {
    "x86_64": Machine(0xC000_003E, 56, 41, 53, {
        # setpriority, sched_setparam, sched_setscheduler, sched_setaffinity, ioprio_set, prlimit64, sched_setattr
        141: SECOND, 142: FIRST, 144: FIRST, 203: FIRST, 251: SECOND, 302: FIRST, 314: FIRST,
    }, {141: 0, 251: 1}, (
        # chmod, fchmodat, chown, lchown, fchownat, setxattr, lsetxattr, removexattr, lremovexattr; utime, utimes,
        # futimesat, utimensat
        90, 268, 92, 94, 260, 188, 189, 197, 198, 132, 235, 261, 280,
    ), {
        "shmget": 29, "shmat": 30, "shmctl": 31, "semget": 64, "semop": 65, "semctl": 66, "msgget": 68, "msgsnd": 69,
        "msgrcv": 70, "msgctl": 71, "sethostname": 170, "setdomainname": 171, "semtimedop": 220, "mq_open": 240,
        "mq_unlink": 241, "fanotify_init": 300, "memfd_create": 319,
        "ptrace": 101, "syslog": 103, "uselib": 134, "vhangup": 153, "modify_ldt": 154, "pivot_root": 155,
        "adjtimex": 159, "chroot": 161, "acct": 163, "settimeofday": 164, "mount": 165, "umount2": 166, "swapon": 167,
        "swapoff": 168, "reboot": 169, "iopl": 172, "ioperm": 173, "init_module": 175, "delete_module": 176,
        "quotactl": 179, "lookup_dcookie": 212, "clock_settime": 227, "kexec_load": 246, "add_key": 248,
        "request_key": 249, "keyctl": 250, "migrate_pages": 256, "unshare": 272, "move_pages": 279,
        "perf_event_open": 298, "name_to_handle_at": 303, "open_by_handle_at": 304, "clock_adjtime": 305,
        "setns": 308, "process_vm_readv": 310, "process_vm_writev": 311, "kcmp": 312, "finit_module": 313,
        "kexec_file_load": 320, "bpf": 321, "userfaultfd": 323,
    }),
    "aarch64": Machine(0xC000_00B7, 220, 198, 199, {
        140: SECOND, 118: FIRST, 119: FIRST, 122: FIRST, 30: SECOND, 261: FIRST, 274: FIRST,
    }, {140: 0, 30: 1}, (53, 54, 5, 6, 14, 15, 88), {
        "sethostname": 161, "setdomainname": 162, "mq_open": 180, "mq_unlink": 181, "msgget": 186, "msgctl": 187,
        "msgrcv": 188, "msgsnd": 189, "semget": 190, "semctl": 191, "semtimedop": 192, "semop": 193, "shmget": 194,
        "shmctl": 195, "shmat": 196, "fanotify_init": 262, "memfd_create": 279,
        "lookup_dcookie": 18, "umount2": 39, "mount": 40, "pivot_root": 41, "chroot": 51, "vhangup": 58,
        "quotactl": 60, "acct": 89, "unshare": 97, "kexec_load": 104, "init_module": 105, "delete_module": 106,
        "clock_settime": 112, "syslog": 116, "ptrace": 117, "reboot": 142, "settimeofday": 170, "adjtimex": 171,
        "add_key": 217, "request_key": 218, "keyctl": 219, "swapon": 224, "swapoff": 225, "migrate_pages": 238,
        "move_pages": 239, "perf_event_open": 241, "name_to_handle_at": 264, "open_by_handle_at": 265,
        "clock_adjtime": 266, "setns": 268, "process_vm_readv": 270, "process_vm_writev": 271, "kcmp": 272,
        "finit_module": 273, "bpf": 280, "userfaultfd": 282, "kexec_file_load": 294,
    }),
}  # fmt: skip


def machine() -> Machine | None:
    """The calls of the processor here; null = not known."""
    return MACHINES.get(platform.machine())


def seccomp_program(calls: Machine, *, network: bool, own_user: bool = True) -> bytes:
    """A filter: what is refused fails with EPERM; sockets only of the Internet, and only if the network is allowed.

    Code that has no user of its own could change what the worker's files allow, so it changes that of none.
    """
    refused = {*calls.refused.values(), *EVERYWHERE.values()}
    refused |= set() if own_user else {*calls.by_path, *BY_PATH_EVERYWHERE.values()}
    steps = [
        _step(LOAD, value=ARCHITECTURE), _step(EQUAL, 1, 0, calls.architecture), _step(RETURN, value=KILL),
        _step(LOAD, value=NUMBER), _step(AT_LEAST, 0, 1, X32), _refuse(errno.EPERM),
        _step(EQUAL, 0, 1, CLONE3), _refuse(errno.ENOSYS),
    ]  # fmt: skip
    for number in sorted(refused):
        steps += [_step(EQUAL, 0, 1, number), _refuse(errno.EPERM)]
    for number, one_process in calls.by_kind.items():
        steps += [
            _step(EQUAL, 0, 4, number), _step(LOAD, value=FIRST),
            _step(EQUAL, 1, 0, one_process), _refuse(errno.EPERM), _step(LOAD, value=NUMBER),
        ]  # fmt: skip
    for number, argument in calls.of_itself.items():
        steps += [
            _step(EQUAL, 0, 4, number), _step(LOAD, value=argument),
            _step(EQUAL, 1, 0, 0), _refuse(errno.EPERM), _step(RETURN, value=ALLOW),
        ]  # fmt: skip
    steps += [
        _step(EQUAL, 0, 4, calls.clone), _step(LOAD, value=FIRST),
        _step(ANY_BIT, 0, 1, NEW_NAMESPACES), _refuse(errno.EPERM), _step(RETURN, value=ALLOW),
    ]  # fmt: skip
    steps += [
        _step(EQUAL, 0, 7, calls.socketpair), _step(LOAD, value=FIRST), _step(EQUAL, 1, 0, UNIX), _refuse(errno.EACCES),
        _step(LOAD, value=SECOND), _step(KEEP_BITS, value=KIND), _step(EQUAL, 0, 1, DATAGRAM), _refuse(errno.EACCES),
        _step(LOAD, value=NUMBER),
    ]  # fmt: skip
    steps += [_step(EQUAL, 0, 4 if network else 1, calls.socket)]
    if network:
        steps += [_step(LOAD, value=FIRST), *(_step(EQUAL, 2 - at, 0, one) for at, one in enumerate(INTERNET))]
    steps += [_refuse(errno.EACCES), _step(RETURN, value=ALLOW)]
    return b"".join(steps)


def _step(code: int, then: int = 0, otherwise: int = 0, value: int = 0) -> bytes:
    return struct.pack("=HBBI", code, then, otherwise, value)


def _refuse(number: int) -> bytes:
    return _step(RETURN, value=REFUSE | number)
