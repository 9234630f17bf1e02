"""Runs programs: whether each succeeds, in time, and prints what it should. See `languages.py`.

A program of its own (`python -I -S probe.py`), so that whatever hangs hangs here: it ends by itself after a while, with
its parent, and everything it has started with it (all of it is one session, which can be killed at once).
"""

import ctypes
import json
import os
import resource
import signal
import subprocess
import sys
import time
from contextlib import suppress
from typing import Any

PR_SET_PDEATHSIG = 1
SPARE = 5
"""Seconds after the last moment of a program in which this one must have ended."""
MOST_TEXT = 2000
MEMORY = 1 << 30


def start(command: list[str], uid: int | None, reads: bool) -> "subprocess.Popen[bytes] | str":
    """A started program, or why it did not start; as another user if need be."""
    groups: list[int] | None = None if uid is None else []
    try:
        return subprocess.Popen(  # noqa: S603
            command, user=uid, group=uid, extra_groups=groups, cwd="/", env=dict(os.environ),
            stdin=subprocess.PIPE if reads else subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip
    except (OSError, ValueError, subprocess.SubprocessError) as fault:
        return str(fault)


def judge(
    tried: "subprocess.Popen[bytes] | str", given: str | None, wanted: str, until: float, within: float
) -> str | None:
    """What is wrong with it; null = nothing."""
    if isinstance(tried, str):
        return tried
    try:
        said, complaint = tried.communicate(None if given is None else given.encode(), timeout=max(0.0, until - now()))
    except subprocess.TimeoutExpired:
        tried.kill()
        return f"it did not answer within {within:g} s"
    if tried.returncode or (given is None and said.decode(errors="replace").strip() != wanted):
        words = (
            (complaint + b"\n" + said if given is not None else complaint).decode(errors="replace").strip()[:MOST_TEXT]
        )
        return words or f"it ended with {tried.returncode} and said {said[:50]!r}"
    return None


def now() -> float:
    return time.clock_gettime(time.CLOCK_MONOTONIC)


def main() -> None:
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    request: dict[str, Any] = json.loads(sys.stdin.readline() or "{}")
    if not request:
        return
    signal.alarm(int(request["within"]) + SPARE)
    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY, MEMORY))
    until = now() + request["within"]
    inputs: dict[str, str] = request["inputs"]
    running = {name: start(command, request["uid"], name in inputs) for name, command in request["programs"].items()}
    found = {
        name: judge(one, inputs.get(name), request["wanted"], until, request["within"]) for name, one in running.items()
    }
    sys.stdout.write(json.dumps(found) + "\n")
    sys.stdout.flush()
    with suppress(OSError):
        os.killpg(0, signal.SIGKILL)  # whatever is left, and ourselves


if __name__ == "__main__":
    main()
