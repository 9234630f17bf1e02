"""Stopping a process for a while, without stopping all others."""

import os
import signal
import time
from contextlib import closing

import apsw
import psutil

from tests.support.patience import PATIENCE


def freeze(pid: int, store: str) -> None:
    """Stop it while it cannot hold the lock of the store's file, which would stop all others too."""
    with closing(apsw.Connection(":memory:" if "://" in store else store)) as connection:
        connection.set_busy_timeout(int(PATIENCE * 1000))
        connection.execute("BEGIN IMMEDIATE")
        os.kill(pid, signal.SIGSTOP)
        end = time.monotonic() + PATIENCE
        while psutil.Process(pid).status() != psutil.STATUS_STOPPED:
            assert time.monotonic() < end
            time.sleep(0.001)
        connection.execute("ROLLBACK")
