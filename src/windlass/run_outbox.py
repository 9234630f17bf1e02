"""The relay of an outbox in a SQLite file: a duty of workers and servers with the setting `outbox`.

Knows when to look and how the file is opened; `outbox` knows what is in it.
"""

import asyncio
import logging
import sqlite3
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

from windlass import outbox
from windlass.model.errors import WindlassError
from windlass.model.operations import Service
from windlass.model.ports import Clock

log = logging.getLogger("windlass.outbox")

LOOK_EVERY = 0.25
"""Seconds between two looks at an outbox."""

LOCKED = 5.0
"""Seconds that a relay waits for a writer of the file."""


class OutboxFile:
    """The outbox in a SQLite file, which a worker or a server relays as long as it runs."""

    def __init__(self, path: str, tenant: str) -> None:
        self._path = Path(path)
        self._tenant = tenant
        self._opened: tuple[sqlite3.Connection, int] | None = None
        """With the number of the file: another one may take its place."""
        self._lock = threading.Lock()
        """A round that is cancelled may still be at work in its thread."""

    async def relay(self, service: Service, clock: Clock) -> None:
        """Until cancelled. A round that fails is repeated: what it has sent is sent again, and is the same job."""
        logged = ""
        try:
            while True:
                more = False
                try:
                    more = await self._relay_some(service)
                    logged = ""
                except (sqlite3.Error, OSError, WindlassError) as fault:
                    if isinstance(fault, sqlite3.Error):
                        await asyncio.to_thread(self._close)
                    if str(fault) != logged:
                        log.warning("outbox %s: %s; tries again", self._path, _advice(fault))
                    logged = str(fault)
                except Exception:
                    log.exception("outbox %s: failed and will be retried", self._path)
                await clock.sleep(0 if more else LOOK_EVERY)
        finally:
            await asyncio.to_thread(self._close)

    async def _relay_some(self, service: Service) -> bool:
        """Whether there may be more."""
        if not (found := await asyncio.to_thread(self._read)):
            return False
        relayed = await outbox.send_all(found, service)
        await asyncio.to_thread(self._settle, relayed)
        return len(found) == outbox.STEP

    def _read(self) -> list[Any]:
        with self._lock:
            return outbox.read(self._open(), self._tenant)

    def _settle(self, relayed: outbox.Relayed) -> None:
        with self._lock:
            outbox.settle(self._open(), relayed)

    def _open(self) -> sqlite3.Connection:
        number = self._path.stat().st_ino
        if self._opened is not None and self._opened[1] == number:
            return self._opened[0]
        self._let_go()
        # The file is the user's: it is not made here. Without transactions of its own a reader holds no lock.
        where = f"{self._path.absolute().as_uri()}?mode=rw"
        connection = sqlite3.connect(where, uri=True, timeout=LOCKED, isolation_level=None, check_same_thread=False)
        self._opened = connection, number
        return connection

    def _close(self) -> None:
        with self._lock:
            self._let_go()

    def _let_go(self) -> None:
        if self._opened is not None:
            with suppress(sqlite3.Error):
                self._opened[0].close()
            self._opened = None


def _advice(fault: Exception) -> str:
    if "no such table" in str(fault):
        return "it has no table windlass_outbox: make it with windlass.OUTBOX_TABLE"
    return str(fault)
