"""The scripts, read from `lua/` once: each is what it needs of the common head, and its own file.

A server runs the head on every call, and what costs time there is each function that is made and each local that it
captures. So functions that a script does not use are left out, short ones are written out where they are called, and
constants (`local NAME = literal`) are put in place: a call starts in a fraction of the time. `include('add')` in a
script stands for all of another one.
"""

import hashlib
import re
from functools import cache
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import NamedTuple

from windlass.store.redis.unfolding import unfold

_LITERAL = r"(?:-?\d+|'[^']*')"
_CONSTANTS = re.compile(rf"^local ([A-Z_]+(?:, [A-Z_]+)*) = ({_LITERAL}(?:, {_LITERAL})*)(?: --.*)?\n", re.MULTILINE)
_FUNCTION = re.compile(r"^local function (?P<name>\w+)\((?:[^\n]* end\n|.*?^end\n)", re.MULTILINE | re.DOTALL)
_TABLES = re.compile(r"^local (?P<names>\w+(?:, \w+)*) = \{\}(?:, \{\})*\n", re.MULTILINE)
_INCLUDE = re.compile(r"include\('(\w+)'\)")
_TEXT = re.compile(r"'[^'\n]*'")
_COMMENT = re.compile(r"^\s*--.*\n|\s+--\s.*$", re.MULTILINE)


HEAD = ("keys", "flow", "moves")
"""The files that a script begins with, in this order."""
PLAIN = ("keys", "plain", "moves")
"""The same for scripts that are for plain jobs alone."""
PARTS = {
    "add_one": (*PLAIN, "add_one"),
    "claim": (*PLAIN, "wishes", "claiming", "claim"),
    "claim_bounded": (*HEAD, "claiming", "claim_bounded"),
    "succeed": (*PLAIN, "firsts", "succeed"),
    "succeed_bounded": (*HEAD, "reruns", "succeed"),
}
"""What is not just the head and a file of its own name."""


class Script(NamedTuple):
    """A script and the name under which a server remembers it."""

    source: str
    sha: str


@cache
def script(name: str) -> Script:
    folder = files(__package__) / "lua"
    *head, body = [(folder / f"{part}.lua").read_text() for part in PARTS.get(name, (*HEAD, name))]
    body = _INCLUDE.sub(lambda found: _called(folder / f"{found[1]}.lua"), body)
    source = unfold(inline(shake("\n".join(head), body)))
    return Script(source, hashlib.sha1(source.encode(), usedforsecurity=False).hexdigest())


def _called(file: Traversable) -> str:
    """Another script as a part of one: what it returns is the value."""
    return f"(function()\n{file.read_text()}end)()"


def shake(head: str, body: str) -> str:
    """Head and body together, without the functions and empty tables of the head that neither uses."""
    functions = {found["name"]: found[0] for found in _FUNCTION.finditer(head)}
    used: set[str] = set()
    fresh = _words(_FUNCTION.sub("", head) + body) & functions.keys()
    while fresh:
        used |= fresh
        fresh = {name for one in fresh for name in _words(functions[one])} & functions.keys() - used
    bare = _FUNCTION.sub(lambda found: found[0] if found["name"] in used else "", head)
    words = _words(_TABLES.sub("", bare) + body)
    return _TABLES.sub(lambda found: found[0] if words & set(found["names"].split(", ")) else "", bare) + body


def _words(source: str) -> set[str]:
    return set(re.findall(r"\w+", _TEXT.sub("", _COMMENT.sub("", source))))


def inline(source: str) -> str:
    """The same script without comments, each constant replaced by what it stands for."""
    constants: dict[str, str] = {}
    for names, values in _CONSTANTS.findall(source):
        constants.update(zip(names.split(", "), re.findall(_LITERAL, values), strict=True))
    bare = _COMMENT.sub("", _CONSTANTS.sub("", source))
    return re.sub(r"\b[A-Z_]+\b", lambda word: constants.get(word[0], word[0]), bare)
