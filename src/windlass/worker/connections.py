"""What connections this process holds: whatever is forked from it shares them, which few drivers survive."""

import os
import socket
import stat
from pathlib import Path
from urllib.parse import SplitResult, urlsplit

SQLITE = b"SQLite format 3\0"
"""How a database of SQLite begins."""


def open_connections(store: str) -> list[str]:
    """Where the connections lead that this process holds, but for those to its own queue, which mind forks.

    With a queue of several servers (Sentinel, Cluster) only databases in files: the address does not name all of them.
    """
    own = urlsplit(store)
    found: set[str] = set()
    for name in os.listdir("/proc/self/fd"):  # noqa: PTH208
        try:
            mode = os.fstat(int(name)).st_mode
            where = _peer(int(name), own) if stat.S_ISSOCK(mode) else _database(int(name), mode)
        except OSError:
            continue  # it was open only for this look, or leads nowhere
        if where and where not in (own.path, str(Path(store).absolute())):
            found.add(where)
    return sorted(found)


def _peer(descriptor: int, queue: SplitResult) -> str:
    if "+" in queue.scheme or "," in queue.netloc:
        return ""
    with socket.socket(fileno=os.dup(descriptor)) as one:
        peer = one.getpeername()
    if isinstance(peer, tuple):
        return "" if peer[1] == queue.port else f"{peer[0]}:{peer[1]}"
    return peer.decode(errors="replace") if isinstance(peer, bytes) else str(peer)  # a pair of sockets has no name


def _database(descriptor: int, mode: int) -> str:
    if not stat.S_ISREG(mode):
        return ""
    with open(f"/proc/self/fd/{descriptor}", "rb") as file:  # noqa: PTH123 - a new descriptor: its offset is not ours
        begins = file.read(len(SQLITE))
    return os.readlink(f"/proc/self/fd/{descriptor}") if begins == SQLITE else ""  # noqa: PTH115
