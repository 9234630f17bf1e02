"""A context of Python: reads commands on descriptor 3, runs them, answers on descriptor 4.

Started with `python -I` in the context's own folder. The protocol is in docs/functions-protocol.md.
"""

import base64
import json
import math
import os
import sys
import traceback
from collections.abc import Iterable
from types import CoroutineType

TYPE_CHECKING = False
if TYPE_CHECKING:
    from asyncio import AbstractEventLoop
    from typing import Any

COMMANDS, ANSWERS, MONITOR = 3, 4, 5
RETRY, OK, FAILED, ERROR = 100, 200, 400, 500
TRY_AGAIN, FIRST_FAILED, LAST_FAILED = 75, 64, 78
ONLY_AST = 0x400
STARTS = frozenset({"os.fork", "os.forkpty", "os.posix_spawn", "os.system", "subprocess.Popen"})
"""Audit events of Python when a process is started."""
AS_TEXT = json.JSONEncoder(ensure_ascii=False).encode
AS_JSON = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode


class Retry(Exception):
    """Run me again."""

    code = RETRY

    def __init__(self, message: str = "", *, after: float | None = None) -> None:
        if after is not None and seconds(after) is None:
            raise TypeError("after is a number of seconds")
        super().__init__(message or "the function asked to be run again")
        self.after = after


class Fail(Exception):
    """I cannot succeed: do not run me again."""

    def __init__(self, message: str = "", *, code: int = FAILED) -> None:
        super().__init__(message or "the function failed")
        self.code = code


class PythonContext:
    """The scope that handlers share, and the batch that runs."""

    def __init__(self) -> None:
        self.scope: dict[str, object] = {"__name__": "__main__", "Retry": Retry, "Fail": Fail}
        self.loaded: dict[bytes, dict[str, Any]] = {}
        self.handler: dict[str, Any] = {}
        self.trouble: BaseException | None = None
        """Why no job of this batch can be run."""
        self.broken = False
        self.started = False
        """Whether a process has been started since the last check."""
        sys.addaudithook(self.notice)
        self.mark = b""
        self.loop: AbstractEventLoop | None = None
        self.answers = open(ANSWERS, "wb", buffering=0)  # noqa: SIM115 - for as long as the process lives

    def load(self, command: bytes) -> None:
        number, source = command.split(b" ", 1)
        handler = self.loaded[number] = json.loads(source)
        handler["fault"] = None
        self.mark = f"\x1e{handler['mark']}\n".encode()
        try:
            self.execute(handler, "before")
            self.scope.pop("run", None)
            name = f"<{handler['task']}:body>"
            tree = compile(handler["body"], name, "exec", ONLY_AST)
            handler["script"] = compile(tree, name, "exec")
            if defines_run(tree.body):
                exec(handler.pop("script"), self.scope)  # noqa: S102
                if not callable(self.scope.get("run")):
                    raise TypeError("its body defines no run(payload)")  # noqa: TRY301
                handler["run"] = self.scope["run"]
        except BaseException as fault:  # noqa: BLE001 - whatever it is, the jobs end with it
            handler["fault"] = fault
            self.broken = True
        self.ask_monitor(b"k")

    def execute(self, handler: "dict[str, Any]", part: str) -> None:
        if handler.get(part):
            exec(compile(handler[part], f"<{handler['task']}:{part}>", "exec"), self.scope)  # noqa: S102

    def begin(self, number: bytes) -> None:
        self.handler = self.loaded[number]
        self.scope["run"] = self.handler.get("run")
        self.trouble = self.handler["fault"]
        if self.trouble is None:
            try:
                self.execute(self.handler, "beforeEach")
            except BaseException as trouble:  # noqa: BLE001
                self.trouble = trouble
        self.ask_monitor(b"k")

    def notice(self, event: str, _: object) -> None:
        if event in STARTS:
            self.started = True

    def ask_monitor(self, what: bytes) -> None:
        """Have the monitor end what a job has started (`s`), or leave alone what there is (`k`); wait until it has."""
        if not self.started:
            return
        self.started = False
        try:
            os.write(MONITOR, what)
            os.read(MONITOR, 1)
            while what == b"s" and os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except OSError:
            pass

    def run(self, command: bytes) -> None:
        number, kind, data = command.split(b" ", 2)
        try:
            if self.trouble is not None:
                raise self.trouble  # noqa: TRY301
            answer = (self.script if "script" in self.handler else self.call)(kind, data)
        except BaseException as fault:  # noqa: BLE001 - whatever a function raises is its outcome
            answer = error_line(fault)
        self.ask_monitor(b"s")
        self.separate()
        self.send(b"done " + number + b" " + answer + b"\n")

    def call(self, kind: bytes, data: bytes) -> bytes:
        value = self.handler["run"](read(kind, data))
        return result_line(self.awaited(value) if type(value) is CoroutineType else value)

    def script(self, kind: bytes, data: bytes) -> bytes:
        """Run source that defines no `run` as a script: the payload on stdin, what it prints is the result."""
        from tempfile import TemporaryFile  # noqa: PLC0415 - few need it

        scope = dict(self.scope)
        sys.stdout.flush()
        output, stdin = os.dup(1), sys.stdin
        with TemporaryFile() as given, TemporaryFile() as printed:
            given.write(lines_of(kind, data))
            given.seek(0)
            os.dup2(given.fileno(), 0)
            os.dup2(printed.fileno(), 1)
            sys.stdin = open(0, closefd=False)  # noqa: SIM115 - it is the script's
            try:
                exec(self.handler["script"], scope)  # noqa: S102
            except SystemExit as fault:
                if fault.code not in (None, 0):
                    raise exited(fault) from None
            finally:
                sys.stdout.flush()
                sys.stdin = stdin
                os.dup2(output, 1)
                os.close(output)
                nothing = os.open(os.devnull, os.O_RDONLY)
                os.dup2(nothing, 0)
                os.close(nothing)
            printed.seek(0)
            if callable(scope.get("run")):  # it has made one after all
                self.scope.update(scope)
                self.handler["run"] = scope["run"]
                del self.handler["script"]
                sys.stdout.buffer.write(printed.read())
                return self.call(kind, data)
            return b"%d text64 " % OK + base64.b64encode(without_jobs(printed))

    def awaited(self, coroutine: "CoroutineType[object, None, object]") -> object:
        """What comes of an async function: in one loop for all jobs, so that what it keeps open stays of use."""
        if self.loop is None:
            import asyncio  # noqa: PLC0415 - few need it, and it takes longer than all the rest

            self.loop = asyncio.new_event_loop()
        return self.loop.run_until_complete(coroutine)

    def separate(self) -> None:
        """What is printed from here on is the next job's."""
        for stream, descriptor in ((sys.stdout, 1), (sys.stderr, 2)):
            # Not `suppress`, which would cost every job more than what it guards.
            try:  # noqa: SIM105
                stream.flush()
            except Exception:  # noqa: BLE001, S110 - the function may have put anything in its place
                pass
            try:  # noqa: SIM105
                os.write(descriptor, self.mark)
            except OSError:
                pass

    def end(self, _: bytes) -> None:
        if self.trouble is None:
            try:
                self.execute(self.handler, "afterEach")
            except BaseException:  # noqa: BLE001
                self.broken = True
                traceback.print_exc()
        self.separate()
        self.send(b"end broken\n" if self.broken else b"end\n")

    def send(self, answer: bytes) -> None:
        rest = memoryview(answer)
        while rest:  # a signal that the function has a handler for may come in between
            rest = rest[self.answers.write(rest) :]


def defines_run(statements: "list[Any]") -> bool:
    """Whether some of these statements bind the name `run`, or may."""
    for one in statements:
        whole = getattr(one, "name", None)  # of a function or a class
        bound = [
            whole,
            *(getattr(to, "id", None) for to in (*getattr(one, "targets", ()), getattr(one, "target", None))),
        ]
        bound += [getattr(name, "asname", None) or getattr(name, "name", None) for name in getattr(one, "names", ())]
        if "run" in bound or "*" in bound:
            return True
        inner = ("body", "orelse", "finalbody", "handlers", "cases") if whole is None or hasattr(one, "type") else ()
        if any(defines_run(getattr(one, part, [])) for part in inner):
            return True
    return False


def lines_of(kind: bytes, data: bytes) -> bytes:
    """A payload as a script reads it: text with an end to its last line."""
    if kind in (b"base64", b"text64"):
        data = base64.b64decode(data)
    return data if kind == b"base64" or not data or data.endswith(b"\n") else data + b"\n"


def without_jobs(printed: Iterable[bytes]) -> bytes:
    """What a script printed; lines that ask for new jobs go to our own output, where they are looked for."""
    kept = bytearray()
    for line in printed:
        if line.startswith((b"J: ", b"#J: ")):
            sys.stdout.buffer.write(line if line.endswith(b"\n") else line + b"\n")
        else:
            kept += line
    return bytes(kept)


def exited(fault: SystemExit) -> SystemExit:
    """How a script ended, by its exit status, as that of a shell script is read."""
    status = fault.code
    if isinstance(status, int):
        fault.args = (f"the script ended with {status}",)
        if FIRST_FAILED <= status <= LAST_FAILED:
            fault.code = RETRY if status == TRY_AGAIN else FAILED + status
    return fault


def read(kind: bytes, data: bytes) -> object:
    if kind == b"json":
        try:
            return json.loads(data.decode())
        except ValueError as fault:
            raise Fail(f"its payload is no JSON: {fault}") from None
    if kind in (b"base64", b"text64"):
        data = base64.b64decode(data)
    return data if kind == b"base64" else data.decode()


def result_line(value: object) -> bytes:
    if isinstance(value, bytes | bytearray | memoryview):
        return b"%d base64 " % OK + base64.b64encode(value)
    return b"%d json " % OK + AS_JSON(value).encode()


def seconds(value: object) -> float | None:
    return value if isinstance(value, int | float) and 0 <= value < math.inf else None


def text_of(fault: BaseException) -> str:
    try:
        return str(fault)
    except BaseException as again:  # noqa: BLE001 - a function must end, whatever it raises
        return f"it cannot be put into words: that raised {type(again).__qualname__}"


def error_line(fault: BaseException) -> bytes:
    code = getattr(fault, "code", None)
    if type(code) is not int or not (RETRY <= code < OK or FAILED <= code < ERROR + 100):
        code = ERROR
    trace = fault.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename == __file__:
        trace = trace.tb_next
    error = {
        "type": type(fault).__qualname__,
        "message": text_of(fault),
        "traceback": "".join(traceback.format_exception(type(fault), fault, trace, chain=False)),
        "after": seconds(getattr(fault, "after", None)),
    }
    return b"%d error " % code + AS_TEXT(error).encode(errors="replace")


def main() -> None:
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    for descriptor in (COMMANDS, ANSWERS, MONITOR):
        os.set_inheritable(descriptor, False)
    context = PythonContext()
    verbs = {b"job": context.run, b"load": context.load, b"batch": context.begin, b"end": context.end}
    with open(COMMANDS, "rb") as commands:
        for line in commands:
            verb, _, rest = line[:-1].partition(b" ")
            verbs[verb](rest)


if __name__ == "__main__":
    main()
