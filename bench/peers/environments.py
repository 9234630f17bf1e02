"""A throw-away environment for each peer, made with uv or npm and kept in the user's cache; the newest versions there
are.

Knows no registry: uv and npm find what they install by the settings of the machine, or by those of pip.
"""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

from bench.peers.systems import System

CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "windlass-bench"
TOO_LONG = 300.0


class NotInstalled(Exception):
    """A peer's packages could not be had."""


def programs_of(system: System, *, fresh: bool = False) -> Path:
    """The folder with a system's programs, installed if it is not there."""
    here = Path(sys.executable).parent
    if not system.install:
        return here
    folder = CACHE / f"{system.name}-{sys.version_info.major}.{sys.version_info.minor}"
    finished = folder / ".installed"
    wanted = "\n".join(system.install)
    if fresh or not finished.exists() or finished.read_text() != wanted:
        (_make_for_node if system.node else _make_for_python)(folder, system.install)
        finished.write_text(wanted)
    return folder / "bin"


def modules_beside(programs: Path) -> Path:
    """Where Node finds what was installed with these programs."""
    return programs.parent / "node_modules"


def version_of(system: System, programs: Path) -> str:
    """The versions of what was asked for, without what came along."""
    if system.node:
        installed = [modules_beside(programs) / name / "package.json" for name in system.install]
        return ", ".join("{name} {version}".format_map(json.loads(about.read_text())) for about in installed)
    names = [name.partition("[")[0] for name in system.install] or ["windlass"]
    code = f"from importlib.metadata import version\nfor name in {names}: print(name, version(name))"
    said = subprocess.run([programs / "python", "-c", code], capture_output=True, text=True, check=True)
    return ", ".join(said.stdout.splitlines())


def _make_for_python(folder: Path, packages: tuple[str, ...]) -> None:
    folder.parent.mkdir(parents=True, exist_ok=True)
    _uv("venv", "--clear", "--python", sys.executable, str(folder))
    _uv("pip", "install", "--python", str(folder / "bin/python"), *packages)


def _make_for_node(folder: Path, packages: tuple[str, ...]) -> None:
    node, npm = shutil.which("node"), shutil.which("npm")
    if node is None or npm is None:
        raise NotInstalled("node and npm are not there")
    shutil.rmtree(folder, ignore_errors=True)
    (folder / "bin").mkdir(parents=True)
    (folder / "bin/node").symlink_to(node)
    _do([npm, "install", "--silent", "--no-audit", "--no-fund", "--prefix", str(folder), *packages], dict(os.environ))


def _uv(*words: str) -> None:
    beside = Path(sys.executable).parent / "uv"
    _do([str(beside) if beside.exists() else "uv", *words, "--quiet"], _trusting_the_machine())


def _do(command: list[str], environment: dict[str, str]) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=TOO_LONG, check=False, env=environment)
    except (OSError, subprocess.TimeoutExpired) as fault:
        raise NotInstalled(f"{Path(command[0]).name} {command[1]}: {fault}") from fault
    if done.returncode:
        raise NotInstalled(" ".join(done.stderr.split())[-300:])


def _trusting_the_machine() -> dict[str, str]:
    """uv brings its own certificates and does not read pip's settings."""
    environment = {"UV_SYSTEM_CERTS": "1", "UV_NATIVE_TLS": "1", "UV_PYTHON_DOWNLOADS": "never"}
    if index := os.environ.get("PIP_INDEX_URL"):
        environment["UV_DEFAULT_INDEX"] = index
    return environment | os.environ
