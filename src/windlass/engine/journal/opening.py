"""Opens the journal of a process, and takes care of those that others have left.

A folder holds several journals, one for each process that writes: a process takes the first that is free. What it finds
in the others that nobody holds, left by processes that have ended, it drains too.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import cast

from windlass.engine import Engine
from windlass.engine.journal.drainer import Drainer
from windlass.engine.journal.files import Disk, Files, fleeting
from windlass.engine.journal.journal import Journal, JournalSettings
from windlass.engine.journal.service import Journaled
from windlass.model.errors import Conflict, JournalFull, Unavailable
from windlass.model.ports import Clock
from windlass.store.beside import Ledger

log = logging.getLogger("windlass.journal")

MOST_JOURNALS = 256
"""Processes that may write to one folder at once."""

TRY_LEFT_EVERY = 1.0
"""Seconds between two tries to drain what others have left."""

LAST_DRAIN = 2.0
"""Seconds in which a process that ends drains what it has accepted."""


@asynccontextmanager
async def open_journaled(
    engine: Engine, folder: Path, clock: Clock, settings: JournalSettings | None = None, files: Files | None = None
) -> AsyncIterator[Journaled]:
    """An engine with a journal in front of it, drained until the end."""
    chosen, disk = settings or JournalSettings(), files or Disk()
    ledger = cast("Ledger", engine.desk.store)

    def journal_at(path: Path) -> Journal:
        return Journal(path, disk, clock, engine.desk.chance, chosen)

    if kind := await asyncio.to_thread(fleeting, folder):
        log.warning("%s is on a %s: what is accepted does not outlast the machine or its container", folder, kind)
    own, left = await asyncio.to_thread(_taken, disk, folder, journal_at)
    drainer = Drainer(own, ledger, engine.desk, clock)
    try:
        try:
            await drainer.start()
        except Unavailable as fault:
            drainer.do_without(fault)
        tasks = [asyncio.create_task(drainer.run())]
        tasks += [
            asyncio.create_task(_drain_left(Drainer(one, ledger, engine.desk, clock), one, clock)) for one in left
        ]
        try:
            yield Journaled(engine, own, drainer, clock)
        finally:
            await drainer.reach(own.last, LAST_DRAIN)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
    finally:
        for journal in (own, *left):
            await journal.close()


def _taken(disk: Files, folder: Path, journal_at: Callable[[Path], Journal]) -> tuple[Journal, list[Journal]]:
    """The first journal of a folder that is free, and the others that are."""
    known = [name for name in _names(disk, folder) if name.isdigit()]
    free: list[Journal] = []
    fault = f"{MOST_JOURNALS} processes write there"
    for name in sorted({*known, *(str(number) for number in range(len(known) + 1))}, key=int)[:MOST_JOURNALS]:
        if free and name not in known:
            break
        journal = journal_at(folder / name)
        try:
            if journal.open():
                free.append(journal)
        except OSError as refused:
            fault = refused.strerror or str(refused)
            log.warning("%s cannot be opened, and stays as it is: %s", journal.folder, fault)
    if not free:
        raise JournalFull(f"no journal can be kept in {folder}: {fault}")
    return free[0], free[1:]


def _names(disk: Files, folder: Path) -> list[str]:
    try:
        return disk.names(folder)
    except OSError as fault:
        raise JournalFull(f"no journal can be kept in {folder}: {fault.strerror or fault}") from fault


async def drain_folder(engine: Engine, path: Path, clock: Clock, files: Files | None = None) -> int:
    """Drain one journal that nobody holds; how many jobs were not in the store yet."""
    journal = Journal(path, files or Disk(), clock, engine.desk.chance, JournalSettings())
    if not journal.open():
        raise Conflict(f"{path} is held by another process: it drains it", at="FOLDER")
    try:
        drainer = Drainer(journal, cast("Ledger", engine.desk.store), engine.desk, clock)
        await drainer.start()
        waiting = journal.last - journal.drained
        await drainer.drain()
        return waiting
    finally:
        await journal.close()


async def _drain_left(drainer: Drainer, journal: Journal, clock: Clock) -> None:
    """Drain a journal whose process has ended, and leave it to whoever comes next."""
    while True:
        try:
            await drainer.start()
            await drainer.drain()
        except Exception as fault:  # noqa: BLE001 - whatever it is, what is accepted must not be given up
            log.warning("%s cannot be drained yet: %s", journal.folder, fault)
            await clock.sleep(TRY_LEFT_EVERY)
        else:
            await journal.close()
            return
