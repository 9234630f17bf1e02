"""What a context prints: whose it is, and which lines of it ask for new jobs.

Marks cut each of its two outputs into the parts of its jobs. On standard output, lines `J: task|payload` (or `#J: …`)
are new jobs. Nothing here trusts what it reads, and everything is bounded.
"""

from collections.abc import Iterator

from windlass.model.names import is_name
from windlass.model.wire import MOST_PAYLOAD

STARTS = (b"J: ", b"#J: ")

MOST_JOBS = 100
"""New jobs that one job may ask for."""
MOST_LINE = MOST_PAYLOAD + 1024
"""Bytes of one such line, with the name of its task."""

TOO_MANY = f"asked for more than {MOST_JOBS} new jobs"
TOO_LARGE = f"a new job that it printed has a payload of more than {MOST_PAYLOAD} bytes"


class Parts:
    """Cuts a stream at its marks, also where a mark comes in two pieces."""

    def __init__(self, mark: bytes) -> None:
        self._mark = mark
        self._rest = b""
        self.marks = 0
        """Those that have gone by."""

    def feed(self, data: bytes) -> Iterator[tuple[int, bytes]]:
        """Pieces, each with the number of marks before it."""
        data = self._rest + data
        bare = data.count(self._mark)
        if bare * len(self._mark) == len(data):  # as of most jobs
            self._rest = b""
            self.marks += bare
            return
        *whole, rest = data.split(self._mark)
        for piece in whole:
            yield self.marks, piece
            self.marks += 1
        keep = self._beginning(rest)
        self._rest = rest[len(rest) - keep :]
        if len(rest) > keep:
            yield self.marks, rest[: len(rest) - keep]

    def skip_to(self, marks: int) -> None:
        """Some of its marks have not come: somebody has closed the stream, or turned it elsewhere."""
        self.marks = max(self.marks, marks)

    def _beginning(self, data: bytes) -> int:
        """How many bytes at its end may be the beginning of a mark."""
        at = data.rfind(self._mark[:1], max(0, len(data) - len(self._mark) + 1))
        return len(data) - at if at >= 0 and self._mark.startswith(data[at:]) else 0


class JobLines:
    """The new jobs among the lines of one job."""

    def __init__(self) -> None:
        self.found: list[tuple[str, str]] = []
        self.excess = ""
        """How it asked for more than it may."""
        self._held = bytearray()
        self._within = False
        """Whether the line that goes on has been let through already."""

    def feed(self, data: bytes) -> bytes:
        """What is not a new job, as far as that is known by now."""
        self._held += data
        passed = bytearray()
        while (cut := self._held.find(b"\n")) >= 0:
            line = bytes(self._held[: cut + 1])
            del self._held[: cut + 1]
            passed += line if self._within or not self._is_job(line) else b""
            self._within = False
        if self._held and (self._within or not _may_become_job(self._held)):
            passed += self._held
            self._held.clear()
            self._within = True
        if len(self._held) > MOST_LINE:
            self.excess = TOO_LARGE
            self._held.clear()
        return bytes(passed)

    def finish(self) -> bytes:
        """The job has ended: so has its last line."""
        line = bytes(self._held)
        self._held.clear()
        return b"" if not line or self._is_job(line) else line

    def _is_job(self, line: bytes) -> bool:
        start = next((start for start in STARTS if line.startswith(start)), None)
        if start is None:
            return False
        task, bar, payload = line[len(start) :].rstrip(b"\r\n").decode(errors="replace").partition("|")
        if not bar or not is_name(task):
            return False
        if len(self.found) >= MOST_JOBS:
            self.excess = TOO_MANY
        elif len(payload.encode()) > MOST_PAYLOAD:
            self.excess = TOO_LARGE
        else:
            self.found.append((task, payload))
        return True


def _may_become_job(line: bytearray) -> bool:
    return any(line.startswith(start) or start.startswith(line) for start in STARTS)
