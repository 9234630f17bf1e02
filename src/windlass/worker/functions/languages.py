"""The languages of functions: where each interpreter is, how it is started, whether it works, what it can parse.

An interpreter that only root can read is of no use to code that runs as another user. Whether one works is found out by
running it, within bounds of time, memory and output: one that hangs blocks nothing, and a cancelled probe ends with
everything it has started. Source is parsed and never run. Where an interpreter is missing or does not work, no source
is refused: workers elsewhere may have another.
"""

import asyncio
import os
import shutil
import signal
import stat
import subprocess
import sys
from collections.abc import Coroutine, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

from msgspec import Struct

from windlass.model.errors import Invalid
from windlass.model.handler import NewHandler
from windlass.model.operations import A, Operation, PutHandler, Service
from windlass.worker.functions import LANGUAGES, FunctionOptions
from windlass.worker.functions.sandbox.folders import Users
from windlass.worker.network import Network, check_url

SEARCH_PATH = "/usr/local/bin:/usr/bin:/bin"

BOOTSTRAPS = Path(__file__).parent / "bootstraps"

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
            case _:
                return [self.path, "-I", "-B", bootstrap, self.shell]

    @property
    def roots(self) -> list[str]:
        """Folders that it is made of, besides the system's own. Not its whole prefix: that may be a user's home."""
        prefix = Path(self.path).parent.parent
        return [] if prefix in (Path("/"), Path("/usr")) else [str(prefix / part) for part in PARTS]

    @property
    def address_space(self) -> bool:
        """Whether a bound on addresses bounds its memory: Node takes far more of them than it uses."""
        return self.lang != "node"


# Where they are


def find(lang: str, chosen: Mapping[str, str], *, as_another: bool) -> Interpreter | str:
    """A language's interpreter, or why there is none."""
    paths: dict[str, str] = {}
    for needed in ("python", "sh") if lang == "sh" else (lang,):
        if needed in chosen and (wrong := _unusable(chosen[needed], as_another=as_another)):
            return f"`[functions] {needed}` is {chosen[needed]}: {wrong}. Name another, or leave it out"
        usable = (real for real in map(os.path.realpath, _candidates(needed, chosen)) if os.access(real, os.X_OK))
        path = next((one for one in usable if not as_another or is_for_all(one)), None)
        if path is None:
            where = "that other users than root may read" if as_another else "here"
            return f"there is no interpreter of {needed} {where}: install it, or name one (`[functions] {needed}`)"
        paths[needed] = path
    if lang == "sh":
        return Interpreter(lang, paths["python"], "shell.py", paths["sh"])
    return Interpreter(lang, paths[lang], {"python": "python.py", "node": "node.cjs", "php": "php.php"}[lang])


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


def _unusable(path: str, *, as_another: bool) -> str | None:
    """Why a path that was chosen is of no use."""
    if not Path(path).exists():
        return "there is no such file"
    if not Path(path).is_file():
        return "that is no file"
    if not os.access(path, os.X_OK):
        return "that file is not executable"
    if as_another and not is_for_all(os.path.realpath(path)):
        return "no other user than root may read it, and functions run as another user"
    return None


def is_for_all(path: str) -> bool:
    """Whether every user may run a file: it, and all folders above it."""
    try:
        modes = [folder.stat().st_mode for folder in Path(path).parents]
        return all(mode & stat.S_IXOTH for mode in modes) and bool(Path(path).stat().st_mode & stat.S_IROTH)
    except OSError:
        return False


# Whether they work

WITHIN = 10.0
"""Seconds that a trivial program may take."""
LAST_MOMENTS = 1.0
"""Seconds to wait for a program that was killed."""
POLL = 0.02
MOST_TEXT = 2000
BOUNDED = '{ ulimit -d 1048576; ulimit -f 2048; ulimit -t 20; } 2>/dev/null; exec "$0" "$@"'
"""Starts a program that may take 1 GiB of memory, 1 MiB of output and 20 s of processor time."""

WORD = "works"
PRINT_WORD = {
    "python": ("-I", "-S", "-c", f"print('{WORD}')"),
    "node": ("-e", f"console.log('{WORD}')"),
    "php": ("-r", f"echo '{WORD}';"),
    "sh": ("-c", f"echo {WORD}"),
}
TIER = "tier"


async def unable(options: FunctionOptions) -> dict[str, str]:
    """The languages whose interpreters are missing or do not work, each with the reason."""
    found = {lang: find(lang, options.interpreters, as_another=os.geteuid() == 0) for lang in LANGUAGES}
    programs = {lang: _word_command(one) for lang, one in found.items() if isinstance(one, Interpreter)}
    if options.tier == "isolated":
        bwrap = shutil.which("bwrap", path=SEARCH_PATH) or "bwrap"
        command = [bwrap, "--unshare-all", "--ro-bind", "/", "/", "--proc", "/proc", "/bin/sh", *PRINT_WORD["sh"]]
        programs[TIER] = command
    faults = await _faults(programs, options)
    if (why := faults.pop(TIER, None)) is not None:
        return dict.fromkeys(LANGUAGES, f"sandbox tier 'isolated' cannot be had: {why}")
    said = {lang: f" (`[functions] {lang}`)" for lang in options.interpreters}
    broken = {
        lang: f"its interpreter {programs[lang][0]}{said.get(lang, '')} does not work: {why}"
        for lang, why in faults.items()
    }
    return {lang: one for lang, one in found.items() if isinstance(one, str)} | broken


def _word_command(interpreter: Interpreter) -> list[str]:
    """A program that prints one word."""
    return [interpreter.shell or interpreter.path, *PRINT_WORD[interpreter.lang]]


async def _faults(
    programs: Mapping[str, list[str]], options: FunctionOptions, inputs: Mapping[str, str] = {}
) -> dict[str, str]:
    """What is wrong with the programs that fail. Those without an input must print the word."""
    uid = Users(options.uids).of("-")
    async with asyncio.TaskGroup() as group:
        tasks = {name: group.create_task(_run(one, uid, inputs.get(name))) for name, one in programs.items()}
    return {name: why for name, task in tasks.items() if (why := task.result()) is not None}


async def _run(command: list[str], uid: int | None, given: str | None) -> str | None:
    """What is wrong with a program; null = nothing."""
    with TemporaryFile() as stdin, TemporaryFile() as stdout, TemporaryFile() as stderr:
        stdin.write((given or "").encode())
        stdin.seek(0)
        try:
            process = subprocess.Popen(  # noqa: S603, ASYNC220 - no event loop starts one as another user
                ["/bin/sh", "-c", BOUNDED, *command], stdin=stdin, stdout=stdout, stderr=stderr, cwd="/",
                start_new_session=True, env={"PATH": SEARCH_PATH},
                user=uid, group=uid, extra_groups=None if uid is None else [],
            )  # fmt: skip
        except (OSError, subprocess.SubprocessError) as fault:
            return f"it could not be run: {fault}"
        try:
            async with asyncio.timeout(WITHIN):
                status = await _exited(process)
        except TimeoutError:
            return f"it did not answer within {WITHIN:g} s"
        finally:
            # All that it has started is in its session. What cannot even be killed is not waited for.
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
            with suppress(TimeoutError):
                async with asyncio.timeout(LAST_MOMENTS):
                    await _exited(process)
        stdout.seek(0)
        stderr.seek(0)
        printed, complaint = stdout.read(MOST_TEXT), stderr.read(MOST_TEXT)
    if not status and (given is not None or printed.decode(errors="replace").strip() == WORD):
        return None
    words = complaint if given is None else complaint + b"\n" + printed
    answer = printed.decode(errors="replace")[:50].strip()
    return words.decode(errors="replace").strip() or f"it ended with {status} and printed {answer or 'nothing'}"


async def _exited(process: "subprocess.Popen[bytes]") -> int:
    while (status := process.poll()) is None:  # noqa: ASYNC110 - no event comes
        await asyncio.sleep(POLL)
    return status


# Whether they parse a source

COMPILE = """
import sys
try:
    compile(sys.stdin.read(), "source", "exec")
except Exception as fault:
    sys.exit(f"{type(fault).__name__}: {fault}")
"""
PARSE = {
    "python": ("-I", "-S", "-W", "ignore", "-c", COMPILE),
    "node": ("-e", "new (require('vm').Script)(require('fs').readFileSync(0, 'utf8'), {filename: 'source'})"),
    "php": ("-d", "display_errors=stderr", "-d", "log_errors=0", "-l"),
    "sh": ("-n",),
}


class CheckedUploads:
    """A service that keeps no source which its own interpreter cannot read, and no URL which jobs are not sent to."""

    def __init__(self, service: Service, options: FunctionOptions | None, network: Network) -> None:
        self._service = service
        self._options = options
        """Null = no interpreter here runs functions."""
        self._network = network

    def __call__(self, operation: Operation[A], /) -> Coroutine[Any, Any, A]:
        answer = self._service(operation)
        return self._checked(operation.handler, answer) if isinstance(operation, PutHandler) else answer

    async def _checked(self, new: NewHandler, kept: Coroutine[Any, Any, A]) -> A:
        try:
            await check_upload(new, self._options, self._network)
        except BaseException:
            kept.close()  # it is never awaited
            raise
        return await kept


async def check_upload(new: NewHandler, options: FunctionOptions | None, network: Network) -> None:
    """Refuse source that its interpreter here cannot read, or a URL that jobs are not sent to from here."""
    if new.lang == "http":
        await check_url(new.body, network, at="body")
    elif options is not None:
        await _check_source(new, options)


async def _check_source(new: NewHandler, options: FunctionOptions) -> None:
    interpreter = find(new.lang, options.interpreters, as_another=os.geteuid() == 0)
    if isinstance(interpreter, str):
        return
    sources = {"body": new.body, "before": new.before, "beforeEach": new.before_each, "afterEach": new.after_each}
    inputs = {part: _as_file(new.lang, source) for part, source in sources.items() if source}
    parse = [interpreter.shell or interpreter.path, *PARSE[new.lang]]
    faults = await _faults({WORD: _word_command(interpreter), **dict.fromkeys(inputs, parse)}, options, inputs)
    if WORD in faults:
        return
    for part, why in faults.items():
        raise Invalid(f"{new.lang} cannot read it: {_reason(why)}", at=part)


def _as_file(lang: str, source: str) -> str:
    """PHP begins with a tag; workers take it without one too."""
    return f"<?php {source}" if lang == "php" and not source.lstrip().lower().startswith("<?php") else source


def _reason(why: str) -> str:
    """The line that names the error, without the output around it."""
    lines = [line.strip() for line in why.splitlines() if line.strip()]
    named = [line for line in lines if "rror" in line or "nterminated" in line]
    return (named or lines or ["the interpreter gave no reason"])[0][:300]
