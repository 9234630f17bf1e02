"""Ports for the servers that tests start, stop and start again on the same one.

A port is not given out twice while another test may still come back to it: each process of a test run goes round a
share of its own.
"""

import itertools
import os
import random
import socket
from collections.abc import Iterator

# Below the range the system takes for outgoing connections: a client that keeps calling a killed server's port
# could otherwise be given that very port, and connect to itself.
PORTS = range(20000, 32000)
SHARES = 8


def share_of(worker: str) -> range:
    """The ports of a process of the run, which pytest-xdist names gw0, gw1 and so on."""
    size = len(PORTS) // SHARES
    first = PORTS.start + int(worker.removeprefix("gw") or 0) % SHARES * size
    return range(first, first + size)


def _round(ports: range) -> Iterator[int]:
    # Another run on this machine has the same shares: it begins elsewhere in them.
    start = random.randrange(len(ports))
    return itertools.cycle([*ports[start:], *ports[:start]])


_mine = _round(share_of(os.environ.get("PYTEST_XDIST_WORKER", "")))


def free_port() -> int:
    for port in _mine:
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise AssertionError("a round has no end")
