"""A context of the shell: reads commands on descriptor 3, runs `sh` once for each job, answers on descriptor 4.

Started with `python -I` in the context's own folder; its one argument is the shell. The protocol is in
docs/functions-protocol.md.
"""

import base64
import json
import os
import subprocess
import sys
from collections.abc import Iterable
from contextlib import suppress
from tempfile import TemporaryFile
from typing import Any

COMMANDS, ANSWERS, MONITOR = 3, 4, 5
OK, FAILED, ERROR = 200, 400, 500
TRY_AGAIN, FIRST_FAILED, LAST_FAILED = 75, 64, 78

EXPORTING = 'set -a\neval "$1"\nstatus=$?\nset +a\nenv -0 >&9\nexit "$status"\n'
"""Runs a piece of source and writes the variables it leaves to descriptor 9: the jobs after it see them."""


class ShellContext:
    """The variables that scripts see, and the batch that runs."""

    def __init__(self, shell: str) -> None:
        self.shell = shell
        self.loaded: dict[bytes, dict[str, Any]] = {}
        self.handler: dict[str, Any] = {}
        self.environment = dict(os.environ)
        self.trouble = ""
        """Why no job of this batch can be run."""
        self.broken = False
        self.mark = b""
        self.answers = open(ANSWERS, "wb", buffering=0)  # noqa: SIM115 - for as long as the process lives

    def load(self, command: bytes) -> None:
        number, source = command.split(b" ", 1)
        handler = self.loaded[number] = json.loads(source)
        self.mark = f"\x1e{handler['mark']}\n".encode()
        handler["fault"] = self.prepare(handler, "before")
        ask_monitor(b"k")  # what has been started stays
        self.broken = self.broken or bool(handler["fault"])

    def prepare(self, handler: dict[str, Any], part: str) -> str:
        """Run a piece of source whose variables stay; what is wrong with it, if anything."""
        if not handler.get(part):
            return ""
        with TemporaryFile() as variables:
            os.dup2(variables.fileno(), 9)
            done = subprocess.run(  # noqa: S603
                [self.shell, "-c", EXPORTING, "sh", handler[part]],
                stdin=subprocess.DEVNULL, env=self.environment, pass_fds=(9,), check=False,
            )  # fmt: skip
            os.close(9)
            variables.seek(0)
            pairs = [pair.partition(b"=") for pair in variables.read().split(b"\0") if pair]
        if done.returncode:
            return f"{part} ended with {done.returncode}"
        if pairs:  # none if it ended by itself
            self.environment = {os.fsdecode(name): os.fsdecode(value) for name, _, value in pairs}
        return ""

    def begin(self, number: bytes) -> None:
        self.handler = self.loaded[number]
        self.trouble = self.handler["fault"] or self.prepare(self.handler, "beforeEach")
        if self.handler.get("beforeEach"):
            ask_monitor(b"k")

    def run(self, command: bytes) -> None:
        number, kind, data = command.split(b" ", 2)
        answer = error_line(ERROR, self.trouble) if self.trouble else self.script(given(kind, data))
        ask_monitor(b"s")  # what the job has left behind ends with it
        self.separate()
        self.answers.write(b"done " + number + b" " + answer + b"\n")

    def script(self, payload: bytes) -> bytes:
        # Files, not pipes: a script may leave its input unread, and a process behind that never ends.
        with TemporaryFile() as stdin, TemporaryFile() as printed:
            stdin.write(payload)
            stdin.seek(0)
            command = [self.shell, "-c", self.handler["body"], self.handler["task"]]
            status = subprocess.run(command, stdin=stdin, stdout=printed, env=self.environment, check=False).returncode  # noqa: S603
            printed.seek(0)
            result = without_jobs(printed)
        if status == 0:
            return b"%d text64 " % OK + base64.b64encode(result)
        how = f"the script ended with {status}" if status > 0 else f"the script was killed by signal {-status}"
        if status == TRY_AGAIN:
            return error_line(OK - 100, how)
        return error_line(FAILED + status if FIRST_FAILED <= status <= LAST_FAILED else ERROR, how)

    def separate(self) -> None:
        """What is printed from here on is the next job's."""
        sys.stdout.flush()
        for descriptor in (1, 2):
            with suppress(OSError):
                os.write(descriptor, self.mark)

    def end(self, _: bytes) -> None:
        if not self.trouble and (fault := self.prepare(self.handler, "afterEach")):
            self.broken = True
            os.write(2, fault.encode() + b"\n")
        self.separate()
        self.answers.write(b"end broken\n" if self.broken else b"end\n")


def ask_monitor(what: bytes) -> None:
    """Have the monitor do something, and wait until it is done."""
    with suppress(OSError):
        os.write(MONITOR, what)
        os.read(MONITOR, 1)


def given(kind: bytes, data: bytes) -> bytes:
    """A payload as a script reads it: text with an end to its last line, or `while read` would miss it."""
    if kind in (b"base64", b"text64"):
        data = base64.b64decode(data)
    return data if kind == b"base64" or not data or data.endswith(b"\n") else data + b"\n"


def without_jobs(printed: Iterable[bytes]) -> bytes:
    """What a script printed; lines that ask for new jobs go to our own output, where the worker finds them."""
    kept = bytearray()  # not the lines themselves: short ones take twenty times their bytes
    for line in printed:
        if line.startswith((b"J: ", b"#J: ")):
            sys.stdout.buffer.write(line if line.endswith(b"\n") else line + b"\n")
        else:
            kept += line
    return bytes(kept)


def error_line(code: int, message: str) -> bytes:
    return b"%d error " % code + json.dumps({"type": "Exit", "message": message}).encode()


def main() -> None:
    for descriptor in (COMMANDS, ANSWERS, MONITOR):
        os.set_inheritable(descriptor, False)
    context = ShellContext(sys.argv[1])
    verbs = {b"job": context.run, b"load": context.load, b"batch": context.begin, b"end": context.end}
    with open(COMMANDS, "rb") as commands:
        for line in commands:
            verb, _, rest = line[:-1].partition(b" ")
            verbs[verb](rest)


if __name__ == "__main__":
    main()
