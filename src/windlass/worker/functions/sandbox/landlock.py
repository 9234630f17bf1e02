"""Landlock as data: which files, ports and signals a process may reach, by what this kernel can enforce.

Knows the kernel's numbers; puts nothing in force (the keeper does).
"""

import ctypes
import os
from collections.abc import Iterable

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


class Rules(Struct, frozen=True):
    """What is forbidden but for the paths."""

    files: int
    network: int
    scopes: int
    size: int
    """Bytes of the kernel's struct at its version."""
    paths: list[tuple[str, int]]


def version() -> int:
    """What this kernel has; 0 = nothing."""
    libc = ctypes.CDLL(None, use_errno=True)
    found = libc.syscall(ctypes.c_long(CREATE_RULESET), None, ctypes.c_long(0), ctypes.c_long(VERSION))
    return max(0, int(found))


def rules(abi: int, read: Iterable[str], write: Iterable[str], folder: str, *, network: bool) -> Rules:
    """Reading beneath `read`, plain files to read and write, everything but devices in `folder`."""
    known = MAKE_SYM * 2 - 1
    for right, since in ((REFER, 2), (TRUNCATE, 3), (IOCTL_DEV, 5)):
        known |= right if abi >= since else 0
    paths = [(path, _fitting(path, READ)) for path in read]
    paths += [(path, _fitting(path, READ_FILE | WRITE_FILE | TRUNCATE) & known) for path in write]
    paths.append((folder, known & ~(MAKE_CHAR | MAKE_BLOCK)))
    return Rules(
        files=known,
        network=0 if network or abi < TCP_FROM else BIND_TCP | CONNECT_TCP,
        scopes=ABSTRACT_SOCKETS | SIGNALS if abi >= SCOPES_FROM else 0,
        size=24 if abi >= SCOPES_FROM else 16 if abi >= TCP_FROM else 8,
        paths=paths,
    )


def _fitting(path: str, access: int) -> int:
    return access if os.path.isdir(path) else access & OF_FILES  # noqa: PTH112 - a path that may be missing
