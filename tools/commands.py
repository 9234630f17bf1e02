"""The page on the command line: the `--help` of every command, and the settings."""

import ast
import inspect
import io
import re
from collections import Counter
from collections.abc import Iterator
from typing import get_type_hints

from cyclopts import App
from msgspec import Struct
from rich.console import Console

from windlass import config
from windlass.cli import COMMANDS, build

WIDTH = 100

HEAD = """# Command line

Generated from the code by `python -m tools.fresh`; do not edit.

| exit status | means |
|---|---|
| 0 | done |
| 1 | the job failed, or a check found a problem |
| 2 | an option, an argument or a setting is wrong |
| 3 | not found |
| 4 | conflict, or access denied |
| 75 | try again: the job has not ended, or the store does not answer |
| 130 | interrupted |
| 141 | the reader of the output closed it |

An error is one line on stderr, or problem details with `--json`.

## Shared options

The last line of each command names the groups it shares.
"""

SETTINGS = """
## Settings

One rule holds for all commands and for `Windlass()` in Python. A flag or argument has precedence over the environment,
the environment over `windlass.toml`, and the file over the default. The file is searched in the current folder and then
in each folder above it; `WINDLASS_CONFIG` names another file. A relative path in the file is relative to the file's
folder. Durations and sizes can be written `30s`, `2h`, `512MB`; `none` stands for no value.
A dotted name is a section: `worker.lease` is `lease` under `[worker]`.

| setting | variable | default | meaning |
|---|---|---|---|
"""

SHARED = 4
"""Commands with the same panel of options beyond which it is shown once for all."""

SECTIONS: dict[str, type[Struct]] = get_type_hints(config.Config)

_PANEL = re.compile(r"^╭─ (?P<title>[^─]+) ─.*?^╰─+╯\n", re.MULTILINE | re.DOTALL)


def commands() -> str:
    pages = {path: _help(path) for path in _paths()}
    panels = Counter((panel["title"], panel[0]) for text in pages.values() for panel in _PANEL.finditer(text))
    shared = {text: title for (title, text), count in panels.items() if count >= SHARED and title != "Arguments"}
    parts = [HEAD, *(f"\n{_quoted(text)}" for text in shared)]
    for path, text in pages.items():
        own = _PANEL.sub(lambda panel: "" if panel[0] in shared else panel[0], text)
        common = ", ".join(title for panel, title in shared.items() if panel in text)
        parts.append(f"\n## windlass {' '.join(path)}\n\n{_quoted(own)}\nShared: {common}.\n")
    return "".join([*parts, SETTINGS, *_settings()])


def _quoted(text: str) -> str:
    return f"```text\n{text.strip()}\n```\n"


def _paths() -> Iterator[tuple[str, ...]]:
    for name in COMMANDS:
        app = build(name)[name]
        inner = [command for command in app if not command.startswith("-")]
        if inner:
            yield from ((name, command) for command in inner)
        else:
            yield (name,)


def _help(path: tuple[str, ...]) -> str:
    console = Console(file=io.StringIO(), width=WIDTH, color_system=None)
    app: App = build(path[0])
    app.help_print(list(path), console=console)
    text: str = console.file.getvalue()  # type: ignore[attr-defined]
    return "\n".join(line.rstrip() for line in text.splitlines()) + "\n"


def _settings() -> Iterator[str]:
    for path, setting in config.SETTINGS.items():
        section, _, name = path.rpartition(".")
        about = _docs_of(SECTIONS[section] if section else config.Config)[name]
        default = ", ".join(setting.default) if isinstance(setting.default, list) else setting.default
        yield f"| `{path}` | `{config.variable(path)}` | {'none' if default in (None, '') else default} | {about} |\n"


def _docs_of(section: type[Struct]) -> dict[str, str]:
    """The sentence below each field, which only the source has."""
    (tree,) = ast.parse(inspect.getsource(section)).body
    assert isinstance(tree, ast.ClassDef)
    found: dict[str, str] = {}
    for field, below in zip(tree.body, tree.body[1:], strict=False):
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name) and isinstance(below, ast.Expr):
            assert isinstance(below.value, ast.Constant)
            found[field.target.id] = str(below.value.value)
    return found
