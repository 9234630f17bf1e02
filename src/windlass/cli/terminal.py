"""What is drawn on a terminal: consoles, tables, and the colours of states.

Knows no store and no command. Text of jobs is neither read as markup nor obeyed by the terminal.
"""

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple, NoReturn

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.text import Text

from windlass.cli.console import printable
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


class SafeConsole(Console):
    """A console that replaces control characters, and raises when a pipe is closed."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterator[Segment]:
        for text, style, control in super().render(renderable, options):
            yield Segment(text if control else printable(text), style, control)

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


class Column(NamedTuple):
    """One column of a table."""

    title: str
    cell: Callable[[Any], str | Text]
    """Its text for a row."""
    right: bool = False


LEAST_CUT = 4
"""Characters that must be left of a column that is cut off."""


class Table:
    """Rows under a header, two blanks apart. On a narrow terminal the last column is cut off, or left out.

    Numbers are never cut: half of one is another number.
    """

    def __init__(
        self, columns: Sequence[Column], rows: Iterable[Any], group: Callable[[Any], str] | None = None
    ) -> None:
        """`group`: the heading of neighbouring rows for which it is the same."""
        rows = list(rows)
        self._right = [column.right for column in columns]
        self._groups = ["", *(group(row) if group is not None else "" for row in rows)]
        cells = [[column.cell(row) for column in columns] for row in rows]
        self._rows = [[Text(column.title, style="dim") for column in columns]]
        self._rows += [[Text(cell) if isinstance(cell, str) else cell for cell in row] for row in cells]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Text]:
        widths = [max(cell.cell_len for cell in column) for column in zip(*self._rows, strict=True)]
        while True:
            left = options.max_width - sum(widths[:-1]) - 2 * (len(widths) - 1)
            least = widths[-1] if self._right[len(widths) - 1] else min(widths[-1], LEAST_CUT)
            if left >= least or len(widths) == 1:
                break
            widths.pop()
        widths[-1] = min(widths[-1], max(left, 1))
        before = ""
        for row, group in zip(self._rows, self._groups, strict=True):
            if group != before:
                yield Text(group, style="bold", no_wrap=True, overflow="ellipsis")
                before = group
            cells = [_fit(*cell) for cell in zip(row, widths, self._right, strict=False)]
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
