"""How the option of a command is declared, and how its text becomes a value.

Options that end up in one operation are a dataclass: each field has the name of a field of the operation, and `given`
passes on those that were given. Knows how people write; knows no command.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

from cyclopts import Parameter, Token

from windlass.config import size
from windlass.model import duration
from windlass.model.errors import Invalid
from windlass.model.output import OutputPolicy

ReadText = Callable[[str, str], Any]
"""From a text and the option that it was given for to a value; raises `Invalid`."""


def option(metavar: str, about: str, *names: str, read: ReadText | None = None, **more: Any) -> Parameter:
    """An option with a value. `names`: its names, if there are several; `more`: as for `Parameter`."""
    if names:
        more["name"] = names
    if read is not None:
        more["converter"] = _converter(read)
    return Parameter(metavar=metavar, help=about, **more)


def flag(about: str, **more: Any) -> Parameter:
    """An option without a value."""
    return Parameter(help=about, **more)


def _converter(read: ReadText) -> Callable[[Any, Sequence[Token]], Any]:
    return lambda _, tokens: read(tokens[0].value, str(tokens[0].keyword))


def seconds(text: str, at: str) -> float:
    return duration.seconds(text, at=at)


def seconds_or_none(text: str, at: str) -> float:
    """A duration, or `none`: infinity, which `given` passes on as null."""
    return math.inf if text == "none" else duration.seconds(text, at=at)


OUTPUT = "SIZE[:drop][:merged]"
"""How an output policy is written."""


def output_policy(text: str, at: str) -> OutputPolicy:
    """How much a job may put out, as people write it: 1MiB, none, 64kB:drop, 1MiB:merged."""
    limit, *words = text.split(":")
    if not {*words} <= {"fail", "drop", "merged"} or {"fail", "drop"} <= {*words}:
        raise Invalid(f"{text!r} is not {OUTPUT}, such as 1MiB:drop", at=at)
    return OutputPolicy(
        limit=None if limit == "none" else size(limit),
        over="drop" if "drop" in words else "fail",
        merged="merged" in words,
    )


def given(options: object) -> dict[str, Any]:
    """The options that were given, by name."""
    values = {name: value for name, value in vars(options).items() if value is not None}
    return {name: None if value == math.inf else value for name, value in values.items()}
