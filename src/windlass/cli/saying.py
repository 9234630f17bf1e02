"""How things are said to people: numbers, times, sizes, colours; and the two papers they are written on.

Knows terminals; knows nothing of stores or of any one command. Text that comes from jobs is neither read as markup nor
obeyed by the terminal.
"""

import logging
import re
import sys
from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import NoReturn

import msgspec
from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.text import Text

from windlass.model.job import State

WIDE = 10_000
"""Columns where nobody looks: what goes into a pipe is not cut off."""

STYLES = {
    State.BLOCKED: "magenta",
    State.SCHEDULED: "cyan",
    State.QUEUED: "blue",
    State.RUNNING: "yellow",
    State.SUCCEEDED: "green",
    State.FAILED: "red",
    State.CANCELLED: "bright_black",
}


_COMMAND = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


class Paper(Console):
    """A console on which the text of jobs cannot command the terminal, and that leaves closed pipes to us."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterator[Segment]:
        for text, style, control in super().render(renderable, options):
            yield Segment(text if control else _COMMAND.sub("�", text), style, control)

    def on_broken_pipe(self) -> NoReturn:
        raise BrokenPipeError


def paper(*, stderr: bool = False) -> Console:
    """What people read. Made when it is written on, for whatever the stream is then."""
    stream = sys.stderr if stderr else sys.stdout
    width = None if stream.isatty() else WIDE
    return Paper(stderr=stderr, highlight=False, markup=False, emoji=False, width=width)


def write(text: str) -> None:
    """A line on stdout, as it is."""
    sys.stdout.write(f"{text}\n")


def write_json(value: object) -> None:
    """One JSON document on a line of its own."""
    write(in_json(value))


def in_json(value: object) -> str:
    return msgspec.json.encode(value).decode()


def log(level: int) -> None:
    """Let the program's own parts tell what they do on stderr; of libraries only what is wrong."""
    logging.basicConfig(format="%(asctime)s %(name)s: %(message)s", datefmt="%H:%M:%S", level=logging.WARNING)
    logging.getLogger("windlass").setLevel(level)
    if level > logging.DEBUG:
        logging.getLogger("windlass.job").addFilter(Sparing())


class Sparing(logging.Filter):
    """Lets so many lines a second through: thousands of jobs may fail at once, and somebody has to read it."""

    def __init__(self, most: int = 20) -> None:
        super().__init__()
        self._most = most
        self._second = 0
        self._lines = 0

    def filter(self, record: logging.LogRecord) -> bool:
        if int(record.created) != self._second:
            unsaid = self._lines - self._most
            self._second, self._lines = int(record.created), 0
            if unsaid > 0:
                record.msg, record.args = f"{record.getMessage()} (and {plural(unsaid, 'line')} unsaid before it)", ()
        self._lines += 1
        return self._lines <= self._most


def remark(text: str) -> None:
    """A line on stderr: about the answer, not part of it."""
    paper(stderr=True).print(Text(text), soft_wrap=True)


class Table:
    """Rows under their names, two blanks apart; where the paper is narrow, the last column gives way."""

    def __init__(self, *columns: str, right: Sequence[str] = ()) -> None:
        self._right = [name in right for name in columns]
        self._rows = [[Text(name, style="dim") for name in columns]]

    def add(self, *cells: str | Text) -> None:
        self._rows.append([Text(cell) if isinstance(cell, str) else cell for cell in cells])

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
    """A length of time, as exactly as anybody wants to know it: `350 ms`, `3.2 s`, `4 min 10 s`, `2 h 5 min`."""
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 9.95:  # noqa: PLR2004 - up to here a tenth of a second can be told
        return f"{seconds:.1f} s"
    whole = round(seconds)
    for unit, name, below, lower in ((DAY, "d", HOUR, "h"), (HOUR, "h", MINUTE, "min"), (MINUTE, "min", 1, "s")):
        if whole >= unit:
            rest = whole % unit // below
            return f"{whole // unit} {name}" + (f" {rest} {lower}" if rest else "")
    return f"{whole} s"


def ago(moment: datetime, now: datetime) -> str:
    """How far a time is from now: `3.2 s ago`, `in 2 h`."""
    seconds = (now - moment).total_seconds()
    if abs(seconds) < 0.05:  # noqa: PLR2004 - nearer than two clocks agree
        return "just now"
    return f"{span(seconds)} ago" if seconds > 0 else f"in {span(-seconds)}"


def exactly(moment: datetime) -> str:
    """A time by the clock on the wall here."""
    return moment.astimezone().strftime("%Y-%m-%d %H:%M:%S %Z")


def size(count: int) -> str:
    if count < 1000:  # noqa: PLR2004
        return plural(count, "byte")
    return f"{count / 1000:,.1f} kB"


def first_line(text: str) -> str:
    return text.strip().partition("\n")[0]
