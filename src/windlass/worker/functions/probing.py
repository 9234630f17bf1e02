"""Which languages a worker can run, found out by trying: each interpreter runs a trivial program, as functions would.

The trial is a process of its own, of bounded life: an interpreter that hangs holds up nothing, and a
cancelled trial ends with all it has started.
"""

import asyncio
import os
import shutil
import signal
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import msgspec

from windlass.worker.functions.sandbox.folders import closed_to_others
from windlass.worker.functions.sandbox.interpreters import PLACES, Interpreter, find
from windlass.worker.functions.sandbox.plans import available
from windlass.worker.functions.sandbox.users import Users
from windlass.worker.functions.terms import LANGUAGES, FunctionOptions

PROBE = str(Path(__file__).parent / "sandbox" / "probe.py")

WITHIN = 10.0
"""Seconds that a trivial program may take."""
SPARE = 10.0
"""Seconds that a trial may take beyond that."""
LAST_MOMENTS = 1.0
"""Seconds that a trial which was killed is waited for."""

SAYS = "works"
PROGRAMS = {
    "python": ("-I", "-S", "-c", f"print('{SAYS}')"),
    "node": ("-e", f"console.log('{SAYS}')"),
    "php": ("-r", f"echo '{SAYS}';"),
}
SCRIPT = ("-c", f"echo {SAYS}")
TIER = "tier"


class Trial:
    """One look at what can be run here."""

    def __init__(self, options: FunctionOptions) -> None:
        self._options = options
        self._uid = Users(options.uids).of("-")
        """Who tries, if not the worker's own user."""
        self.pid = 0
        """That of the process that tries, while it does."""

    async def unable(self) -> dict[str, str]:
        """The languages that cannot be run, each with the reason."""
        options = self._options
        fault = available(options.tier)
        if fault is None and self._uid is not None:
            fault = closed_to_others(options.folder)
        if fault is not None:
            return dict.fromkeys(LANGUAGES, fault)
        found = {lang: self.find(lang) for lang in LANGUAGES}
        unable = {lang: one for lang, one in found.items() if isinstance(one, str)}
        programs = {lang: command(one) for lang, one in found.items() if isinstance(one, Interpreter)}
        if options.tier == "isolated":
            bwrap = shutil.which("bwrap", path=PLACES) or "bwrap"
            programs[TIER] = [bwrap, "--unshare-all", "--ro-bind", "/", "/", "--proc", "/proc", "/bin/sh", *SCRIPT]
        faults = await self.tried(programs, {})
        if (why := faults.pop(TIER, None)) is not None:
            return dict.fromkeys(LANGUAGES, f"sandbox tier 'isolated' cannot be had: {why}")
        unable |= {
            lang: f"its interpreter {programs[lang][0]} does not work: {why}" for lang, why in faults.items() if why
        }
        return unable

    def find(self, lang: str) -> Interpreter | str:
        """A language's interpreter, or why there is none."""
        return find(lang, self._options.interpreters, as_another=os.geteuid() == 0)

    async def tried(self, programs: Mapping[str, list[str]], inputs: Mapping[str, str]) -> dict[str, str | None]:
        """What is wrong with each program; null = nothing. Those that get an input need not say anything."""
        order = {"programs": programs, "inputs": inputs, "uid": self._uid, "within": WITHIN, "wanted": SAYS}
        try:
            async with asyncio.timeout(WITHIN + SPARE):
                said = await self._run(msgspec.json.encode(order) + b"\n")
            return msgspec.json.decode(said, type=dict[str, str | None])
        except (OSError, TimeoutError, msgspec.MsgspecError) as fault:
            why = f"it could not be tried: {fault or type(fault).__name__}"
            return dict.fromkeys(programs, why)

    async def _run(self, order: bytes) -> bytes:
        trial = await asyncio.create_subprocess_exec(
            sys.executable, "-I", "-S", PROBE, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL, start_new_session=True, cwd="/", env={"PATH": PLACES},
        )  # fmt: skip
        self.pid = trial.pid
        try:
            assert trial.stdin is not None and trial.stdout is not None  # noqa: PT018, S101 - they were asked for
            trial.stdin.write(order)
            return await trial.stdout.readline()
        finally:
            # All that it has started is of its session. Nobody waits for what cannot even be killed.
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(trial.pid, signal.SIGKILL)
            with suppress(TimeoutError):
                async with asyncio.timeout(LAST_MOMENTS):
                    await trial.wait()
            self.pid = 0


def command(interpreter: Interpreter) -> list[str]:
    """A program that says one word."""
    if interpreter.lang == "sh":
        return [interpreter.shell, *SCRIPT]
    return [interpreter.path, *PROGRAMS[interpreter.lang]]
