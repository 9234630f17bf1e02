"""The scripts, read from `lua/` once: each is the common head and its own file.

Constants (`local NAME = literal`) are put in place before a script is sent. The head defines some forty functions on
every call, and what costs time there is each local that a function captures: with the constants in place, a call
starts in half the time.
"""

import hashlib
import re
from functools import cache
from importlib.resources import files
from typing import NamedTuple

_LITERAL = r"(?:-?\d+|'[^']*')"
_CONSTANTS = re.compile(rf"^local ([A-Z_]+(?:, [A-Z_]+)*) = ({_LITERAL}(?:, {_LITERAL})*)(?: --.*)?\n", re.MULTILINE)
_COMMENT = re.compile(r"^\s*--.*\n|\s+--\s.*$", re.MULTILINE)


class Script(NamedTuple):
    """A script and the name under which a server remembers it."""

    source: str
    sha: str


@cache
def script(name: str) -> Script:
    folder = files(__package__) / "lua"
    source = inline((folder / "keys.lua").read_text() + (folder / f"{name}.lua").read_text())
    return Script(source, hashlib.sha1(source.encode(), usedforsecurity=False).hexdigest())


def inline(source: str) -> str:
    """The same script without comments, each constant replaced by what it stands for."""
    constants: dict[str, str] = {}
    for names, values in _CONSTANTS.findall(source):
        constants.update(zip(names.split(", "), re.findall(_LITERAL, values), strict=True))
    bare = _COMMENT.sub("", _CONSTANTS.sub("", source))
    return re.sub(r"\b[A-Z_]+\b", lambda word: constants.get(word[0], word[0]), bare)
