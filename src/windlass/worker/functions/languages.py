"""Which languages a worker can run, and whether a piece of source can be parsed: found out by running the interpreters.

A probe is a process of its own, of bounded life: an interpreter that hangs blocks nothing, and a cancelled probe ends
with everything it has started. Source is parsed and never run. Where an interpreter is missing or does not work, no
source is refused: workers elsewhere may have another.
"""

import asyncio
import os
import shutil
import signal
import sys
from collections.abc import Coroutine, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from windlass.model.errors import Invalid
from windlass.model.handler import NewHandler
from windlass.model.operations import A, Operation, PutHandler, Service
from windlass.worker.functions import LANGUAGES, FunctionOptions
from windlass.worker.functions.sandbox.folders import Users, closed_to_others
from windlass.worker.functions.sandbox.interpreters import SEARCH_PATH, Interpreter, find
from windlass.worker.functions.sandbox.plans import available

PROBE = str(Path(__file__).parent / "sandbox" / "probe.py")

WITHIN = 10.0
"""Seconds that a trivial program may take."""
SPARE = 10.0
"""Seconds that a probe may take beyond that."""
LAST_MOMENTS = 1.0
"""Seconds to wait for a probe that was killed."""

WORD = "works"
PROGRAMS = {
    "python": ("-I", "-S", "-c", f"print('{WORD}')"),
    "node": ("-e", f"console.log('{WORD}')"),
    "php": ("-r", f"echo '{WORD}';"),
}
SCRIPT = ("-c", f"echo {WORD}")
TIER = "tier"


class Probe:
    """Finds out what can be run here."""

    def __init__(self, options: FunctionOptions) -> None:
        self._options = options
        self._uid = Users(options.uids).of("-")
        """The user it runs as, if not the worker's own."""
        self.pid = 0
        """The process of the probe, while it runs."""

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
            bwrap = shutil.which("bwrap", path=SEARCH_PATH) or "bwrap"
            programs[TIER] = [bwrap, "--unshare-all", "--ro-bind", "/", "/", "--proc", "/proc", "/bin/sh", *SCRIPT]
        faults = await self.run(programs, {})
        if (why := faults.pop(TIER, None)) is not None:
            return dict.fromkeys(LANGUAGES, f"sandbox tier 'isolated' cannot be had: {why}")
        unable |= {
            lang: f"its interpreter {programs[lang][0]} does not work: {why}" for lang, why in faults.items() if why
        }
        return unable

    def find(self, lang: str) -> Interpreter | str:
        """A language's interpreter, or why there is none."""
        return find(lang, self._options.interpreters, as_another=os.geteuid() == 0)

    async def run(self, programs: Mapping[str, list[str]], inputs: Mapping[str, str]) -> dict[str, str | None]:
        """What is wrong with each program; null = nothing. Those that get an input need not print anything."""
        request = {"programs": programs, "inputs": inputs, "uid": self._uid, "within": WITHIN, "wanted": WORD}
        try:
            async with asyncio.timeout(WITHIN + SPARE):
                answer = await self._run(msgspec.json.encode(request) + b"\n")
            return msgspec.json.decode(answer, type=dict[str, str | None])
        except (OSError, TimeoutError, msgspec.MsgspecError) as fault:
            why = f"it could not be run: {fault or type(fault).__name__}"
            return dict.fromkeys(programs, why)

    async def _run(self, request: bytes) -> bytes:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-I", "-S", PROBE, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL, start_new_session=True, cwd="/", env={"PATH": SEARCH_PATH},
        )  # fmt: skip
        self.pid = process.pid
        try:
            assert process.stdin is not None and process.stdout is not None  # noqa: PT018, S101 - they were asked for
            process.stdin.write(request)
            return await process.stdout.readline()
        finally:
            # All that it has started is in its session. What cannot even be killed is not waited for.
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
            with suppress(TimeoutError):
                async with asyncio.timeout(LAST_MOMENTS):
                    await process.wait()
            self.pid = 0


def command(interpreter: Interpreter) -> list[str]:
    """A program that prints one word."""
    if interpreter.lang == "sh":
        return [interpreter.shell, *SCRIPT]
    return [interpreter.path, *PROGRAMS[interpreter.lang]]


COMPILE = """
import sys
try:
    compile(sys.stdin.read(), "source", "exec")
except Exception as fault:
    sys.exit(f"{type(fault).__name__}: {fault}")
"""
READS = {
    "python": ("-I", "-S", "-W", "ignore", "-c", COMPILE),
    "node": ("-e", "new (require('vm').Script)(require('fs').readFileSync(0, 'utf8'), {filename: 'source'})"),
    "php": ("-d", "display_errors=stderr", "-d", "log_errors=0", "-l"),
    "sh": ("-n",),
}
WORKS = "works"


class CheckedUploads:
    """A service that keeps no source which its own interpreter cannot read."""

    def __init__(self, service: Service, options: FunctionOptions) -> None:
        self._service = service
        self._options = options

    def __call__(self, operation: Operation[A], /) -> Coroutine[Any, Any, A]:
        answer = self._service(operation)
        return self._checked(operation.handler, answer) if isinstance(operation, PutHandler) else answer

    async def _checked(self, new: NewHandler, kept: Coroutine[Any, Any, A]) -> A:
        try:
            await check_source(new, self._options)
        except BaseException:
            kept.close()  # it is never awaited
            raise
        return await kept


async def check_source(new: NewHandler, options: FunctionOptions) -> None:
    """Refuse source that its interpreter here cannot read."""
    probe = Probe(options)
    interpreter = probe.find(new.lang) if new.lang in READS else ""
    if not isinstance(interpreter, Interpreter):
        return
    sources = {"body": new.body, "before": new.before, "beforeEach": new.before_each, "afterEach": new.after_each}
    inputs = {part: _as_file(new.lang, source) for part, source in sources.items() if source}
    path = interpreter.shell or interpreter.path
    programs = {part: [path, *READS[new.lang]] for part in inputs}
    faults = await probe.run({**programs, WORKS: command(interpreter)}, inputs)
    if faults.pop(WORKS, None) is not None:
        return
    for part, why in faults.items():
        if why is not None:
            raise Invalid(f"{new.lang} cannot read it: {_reason(why)}", at=part)


def _as_file(lang: str, source: str) -> str:
    """PHP begins with a tag; workers take it without one too."""
    return f"<?php {source}" if lang == "php" and not source.lstrip().lower().startswith("<?php") else source


def _reason(why: str) -> str:
    """The line that names the error, without the output around it."""
    lines = [line.strip() for line in why.splitlines() if line.strip()]
    named = [line for line in lines if "rror" in line or "nterminated" in line]
    return (named or lines or ["the interpreter gave no reason"])[0][:300]
