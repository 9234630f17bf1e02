"""Output for people and programs: the console, tables, numbers, times, sizes, colours, and the log format.

Knows terminals; knows no store and no command. Text of jobs is neither read as markup nor obeyed by the terminal.
"""

import logging
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import datetime
from typing import Any, NamedTuple, NoReturn

import msgspec
from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.text import Text

from windlass.model.job import State

WIDE = 10_000
"""The width of output that is not a terminal: text in a pipe is not cut off."""

STYLES = {
    State.BLOCKED: "magenta",
    State.SCHEDULED: "cyan",
    State.QUEUED: "blue",
    State.RUNNING: "yellow",
    State.SUCCEEDED: "green",
    State.FAILED: "red",
    State.CANCELLED: "bright_black",
}


_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


class SafeConsole(Console):
    """A console that replaces control characters, and raises when a pipe is closed."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterator[Segment]:
        for text, style, control in super().render(renderable, options):
            yield Segment(text if control else _CONTROL.sub("�", text), style, control)

    def on_broken_pipe(self) -> NoReturn:
        raise BrokenPipeError


def stdout() -> Console:
    """Made for each use, for the stream of that moment."""
    return _console(stderr=False)


def stderr() -> Console:
    return _console(stderr=True)


def _console(*, stderr: bool) -> Console:
    stream = sys.stderr if stderr else sys.stdout
    width = None if stream.isatty() else WIDE
    return SafeConsole(stderr=stderr, highlight=False, markup=False, emoji=False, width=width)


def write(text: str) -> None:
    """A line on stdout, unformatted."""
    sys.stdout.write(f"{text}\n")


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
    stderr().print(Text(text), soft_wrap=True)


class Column(NamedTuple):
    """One column of a table."""

    title: str
    cell: Callable[[Any], str | Text]
    """Its text for a row."""
    right: bool = False


class Table:
    """Rows under a header, two blanks apart. On a narrow terminal the last column is cut off."""

    def __init__(self, columns: Sequence[Column], rows: Iterable[Any]) -> None:
        self._right = [column.right for column in columns]
        cells = [[column.cell(row) for column in columns] for row in rows]
        self._rows = [[Text(column.title, style="dim") for column in columns]]
        self._rows += [[Text(cell) if isinstance(cell, str) else cell for cell in row] for row in cells]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Text]:
        widths = [max(cell.cell_len for cell in column) for column in zip(*self._rows, strict=True)]
        left = options.max_width - sum(widths[:-1]) - 2 * (len(widths) - 1)
        widths[-1] = min(widths[-1], max(left, 1))
        for row in self._rows:
            cells = [_fit(*cell) for cell in zip(row, widths, self._right, strict=True)]
            line = Text("  ", no_wrap=True, overflow="ellipsis", end="\n").join(cells)
            line.rstrip()
            yield line


def _fit(cell: Text, width: int, right: bool) -> Text:
    fitted = cell.copy()
    fitted.truncate(width, overflow="ellipsis")
    fitted.align("right" if right else "left", width)
    return fitted


def state(of: State) -> Text:
    return Text(of, style=STYLES[of])


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
    return f"{count / 1000:,.1f} kB"


def first_line(text: str) -> str:
    return text.strip().partition("\n")[0]
