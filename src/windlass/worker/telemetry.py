"""A row for each run that has ended, in a CSV file of this worker: when, how long it took, which task, which process.

For spreadsheets and notebooks; what the queue itself knows of a job is in its record. Knows nothing of jobs.
"""

import csv
import logging
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TextIO

from windlass.model.errors import Invalid
from windlass.model.ports import Clock

log = logging.getLogger("windlass.worker")

COLUMNS = ("Timepoint", "Measurement", "Label", "PID")
"""Nanoseconds since 1970, seconds, the task, the worker's process."""

BUFFER = 1 << 20
"""Bytes that are gathered before they are written; `flush` comes earlier."""


class Telemetry:
    """One worker's file. If it cannot be written any more, the worker goes on without it."""

    def __init__(self, folder: str, clock: Clock) -> None:
        self._clock = clock
        self._pid = os.getpid()
        self._file = _opened(Path(folder) / f"windlass-{self._pid}.csv")
        self._rows = csv.writer(self._file)
        self._whole = True
        if self._file.tell() == 0:
            self._rows.writerow(COLUMNS)

    def note(self, label: str, seconds: float) -> None:
        now = self._clock.now()
        nanoseconds = int(now.timestamp()) * 1_000_000_000 + now.microsecond * 1000
        self._try(lambda: self._rows.writerow((nanoseconds, f"{seconds:.6f}", label, self._pid)))

    def flush(self) -> None:
        self._try(self._file.flush)

    def close(self) -> None:
        self.flush()
        with suppress(OSError):  # that was logged already
            self._file.close()

    def _try(self, write: Callable[[], object]) -> None:
        if not self._whole:
            return
        try:
            write()
        except OSError as fault:
            self._whole = False
            log.warning("no more rows are written to %s: %s", self._file.name, fault)


def _opened(path: Path) -> TextIO:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        return path.open("a", buffering=BUFFER, newline="", encoding="utf-8")
    except OSError as fault:
        raise Invalid(f"cannot write there: {fault}", at="telemetry") from None
