"""Where `sys.stdout` and `sys.stderr` of a context lead: what code prints goes to the job that it runs for.

Threads and coroutines share their process with other jobs, so the run is found by `call.current.running`. What belongs
to no job, and what a program or a C library writes to the descriptors, goes where it went before.
"""

import io
import os
import sys
from typing import Any

from windlass.call.current import running
from windlass.model.output import Stream


class _Prints(io.BufferedIOBase):
    """The bytes of `sys.stdout` or of `sys.stderr`."""

    to_jobs = False
    """Whether they go to jobs; false where the descriptors themselves lead to one, and in processes that jobs fork."""

    def __init__(self, stream: Stream, beneath: Any) -> None:
        self._stream = stream
        self._beneath = beneath

    def write(self, data: Any, /) -> int:
        run = running.get(None) if self.to_jobs else None
        if run is not None:
            run.print(self._stream, bytes(data))
        else:
            self._beneath.write(data)
            if b"\n" in bytes(data):  # what waits in a buffer is lost when the process dies, and doubled by a fork
                self._beneath.flush()
        return len(memoryview(data))

    def flush(self) -> None:
        self._beneath.flush()

    def fileno(self) -> int:
        return int(self._beneath.fileno())

    def isatty(self) -> bool:
        return bool(self._beneath.isatty())

    def writable(self) -> bool:
        return True

    @property
    def name(self) -> Any:
        return self._beneath.name


def install() -> None:
    """Replace `sys.stdout` and `sys.stderr`; before the app is imported, because loggers keep what they find then."""
    streams: tuple[Stream, ...] = ("stdout", "stderr")
    for stream in streams:
        before = getattr(sys, stream)
        if isinstance(before, io.TextIOWrapper):
            after = io.TextIOWrapper(_Prints(stream, before.buffer), before.encoding, before.errors, write_through=True)
            setattr(sys, stream, after)
    os.register_at_fork(after_in_child=lambda: send_to_jobs(yes=False))


def send_to_jobs(*, yes: bool) -> None:
    """Whether what is printed in this process goes to the jobs that its threads and coroutines run."""
    _Prints.to_jobs = yes
