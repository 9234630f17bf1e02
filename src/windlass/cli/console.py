"""Output for people and programs: lines, JSON, numbers, times, sizes, and the log format.

Knows no store and no command. Text of jobs is not obeyed by the terminal. Tables and colours are in `terminal`, which
takes long to import: a command that prints a line does without.
"""

import logging
import re
import sys
from datetime import datetime

import msgspec

_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


def printable(text: str) -> str:
    """The text with its control characters replaced."""
    return _CONTROL.sub("�", text)


def write(text: str) -> None:
    """A line on stdout, unformatted."""
    sys.stdout.write(f"{text}\n")


def write_bytes(data: bytes, *, error: bool = False) -> None:
    """Bytes on stdout or stderr, as they are, at once."""
    stream = (sys.stderr if error else sys.stdout).buffer
    stream.write(data)
    stream.flush()


def write_json(value: object) -> None:
    """One JSON document on a line of its own."""
    write(to_json(value))


def to_json(value: object) -> str:
    return msgspec.json.encode(value).decode()


def log(level: int) -> None:
    """Log to stderr: our own loggers at this level, those of libraries only warnings."""
    logging.basicConfig(format="%(asctime)s %(name)s: %(message)s", datefmt="%H:%M:%S", level=logging.WARNING)
    logging.getLogger("windlass").setLevel(level)
    if level > logging.DEBUG:
        logging.getLogger("windlass.job").addFilter(LineLimit())


class LineLimit(logging.Filter):
    """Passes a number of lines per second: thousands of jobs may fail at once, and people read this log."""

    def __init__(self, most: int = 20) -> None:
        super().__init__()
        self._most = most
        self._second = 0
        self._lines = 0

    def filter(self, record: logging.LogRecord) -> bool:
        if int(record.created) != self._second:
            dropped = self._lines - self._most
            self._second, self._lines = int(record.created), 0
            if dropped > 0:
                record.msg, record.args = f"{record.getMessage()} ({plural(dropped, 'line')} before it dropped)", ()
        self._lines += 1
        return self._lines <= self._most


def note(text: str) -> None:
    """A line on stderr: about the output, not part of it."""
    sys.stderr.write(f"{printable(text)}\n")


def plural(count: int, noun: str, many: str = "") -> str:
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {many or noun + 's'}"


MINUTE, HOUR, DAY = 60, 3600, 86400


def span(seconds: float) -> str:
    """A duration with two units at most: `350 ms`, `3.2 s`, `4 min 10 s`, `2 h 5 min`."""
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 9.95:  # noqa: PLR2004 - below this a tenth of a second matters
        return f"{seconds:.1f} s"
    whole = round(seconds)
    for unit, name, below, lower in ((DAY, "d", HOUR, "h"), (HOUR, "h", MINUTE, "min"), (MINUTE, "min", 1, "s")):
        if whole >= unit:
            rest = whole % unit // below
            return f"{whole // unit} {name}" + (f" {rest} {lower}" if rest else "")
    return f"{whole} s"


def ago(moment: datetime, now: datetime) -> str:
    """A time relative to now: `3.2 s ago`, `in 2 h`."""
    seconds = (now - moment).total_seconds()
    if abs(seconds) < 0.05:  # noqa: PLR2004 - nearer than two clocks agree
        return "just now"
    return f"{span(seconds)} ago" if seconds > 0 else f"in {span(-seconds)}"


def local_time(moment: datetime) -> str:
    """A time in the local zone."""
    return moment.astimezone().strftime("%Y-%m-%d %H:%M:%S %Z")


def size(count: int) -> str:
    if count < 1000:  # noqa: PLR2004
        return plural(count, "byte")
    for unit, factor in (("kB", 1e3), ("MB", 1e6)):
        if count < 1000 * factor:
            return f"{count / factor:,.1f} {unit}"
    return f"{count / 1e9:,.1f} GB"


def first_line(text: str) -> str:
    return text.strip().partition("\n")[0]
