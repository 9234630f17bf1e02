"""Where a language's interpreter is, and how it is started.

Knows languages and paths. An interpreter that only root can read is of no use to code that runs as another user.
"""

import os
import shutil
import stat
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from msgspec import Struct

SEARCH_PATH = "/usr/local/bin:/usr/bin:/bin"

BOOTSTRAPS = Path(__file__).parent.parent / "bootstraps"

PROGRAMS = {"python": ("python3",), "node": ("node", "nodejs"), "php": ("php",), "sh": ("sh",)}

PARTS = ("bin", "lib", "lib64", "share")
"""Of a prefix, what an interpreter reads."""

MIB = 1 << 20


class Interpreter(Struct, frozen=True):
    """One language on this machine."""

    lang: str
    path: str
    """The file itself, no link."""
    bootstrap: str
    """The name of the program that it runs."""
    shell: str = ""
    """Of `sh`, whose bootstrap is in Python: the shell."""

    def source(self) -> bytes:
        return (BOOTSTRAPS / self.bootstrap).read_bytes()

    def command(self, folder: str, memory: int) -> list[str]:
        """What is run, in a folder that has the bootstrap in it."""
        bootstrap = f"{folder}/{self.bootstrap}"
        match self.lang:
            case "node":
                return [self.path, f"--max-old-space-size={max(16, memory * 3 // 4 // MIB)}", bootstrap]
            case "php":
                errors_to_stderr = ["-d", "display_errors=stderr", "-d", "log_errors=0"]
                return [self.path, *errors_to_stderr, "-d", f"memory_limit={memory}", bootstrap]
            case "sh":
                return [self.path, "-I", "-B", bootstrap, self.shell]
            case _:
                return [self.path, "-I", "-B", bootstrap]

    @property
    def roots(self) -> list[str]:
        """Folders that it is made of, besides the system's own. Not its whole prefix: that may be a user's home."""
        prefix = Path(self.path).parent.parent
        return [] if prefix in (Path("/"), Path("/usr")) else [str(prefix / part) for part in PARTS]

    @property
    def address_space(self) -> bool:
        """Whether a bound on addresses bounds its memory: Node takes far more of them than it uses."""
        return self.lang != "node"


def find(lang: str, chosen: Mapping[str, str], *, as_another: bool) -> Interpreter | str:
    """A language's interpreter, or why there is none."""
    python = _first("python", chosen, as_another=as_another)
    if lang == "sh":
        shell = _first("sh", chosen, as_another=as_another)
        if not shell or not python:
            return _lacking("sh" if python else "python", as_another=as_another)
        return Interpreter(lang, python, "shell.py", shell)
    path = _first(lang, chosen, as_another=as_another)
    if not path:
        return _lacking(lang, as_another=as_another)
    return Interpreter(lang, path, {"python": "python.py", "node": "node.cjs", "php": "php.php"}[lang])


def _lacking(lang: str, *, as_another: bool) -> str:
    where = "that other users than root may read" if as_another else "here"
    return f"there is no interpreter of {lang} {where}: install it, or name one (`[functions] {lang}`)"


def _first(lang: str, chosen: Mapping[str, str], *, as_another: bool) -> str:
    for path in _candidates(lang, chosen):
        real = os.path.realpath(path)
        if os.access(real, os.X_OK) and (not as_another or is_for_all(real)):
            return real
    return ""


def _candidates(lang: str, chosen: Mapping[str, str]) -> Iterator[str]:
    if lang in chosen:
        yield chosen[lang]
        return
    if lang == "python":
        yield getattr(sys, "_base_executable", sys.executable)
    for program in PROGRAMS[lang]:
        for places in (SEARCH_PATH, None):
            if path := shutil.which(program, path=places):
                yield path


def is_for_all(path: str) -> bool:
    """Whether every user may run a file: it, and all folders above it."""
    try:
        modes = [folder.stat().st_mode for folder in Path(path).parents]
        return all(mode & stat.S_IXOTH for mode in modes) and bool(Path(path).stat().st_mode & stat.S_IROTH)
    except OSError:
        return False
