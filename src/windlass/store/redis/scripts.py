"""The scripts, read from `lua/` once: each is the common head and its own file."""

import hashlib
from functools import cache
from importlib.resources import files
from typing import NamedTuple


class Script(NamedTuple):
    """A script and the name under which a server remembers it."""

    source: str
    sha: str


@cache
def script(name: str) -> Script:
    folder = files(__package__) / "lua"
    source = (folder / "keys.lua").read_text() + (folder / f"{name}.lua").read_text()
    return Script(source, hashlib.sha1(source.encode(), usedforsecurity=False).hexdigest())
