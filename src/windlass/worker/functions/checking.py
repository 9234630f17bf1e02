"""Whether source can be read at all, asked of its interpreter before it is kept: nothing of it is run.

Where the interpreter is not there, or does not work, nothing is refused: workers elsewhere may have another.
"""

from collections.abc import Coroutine
from typing import Any

from windlass.model.errors import Invalid
from windlass.model.handler import NewHandler
from windlass.model.operations import A, Operation, PutHandler, Service
from windlass.worker.functions.probing import Trial, command
from windlass.worker.functions.sandbox.interpreters import Interpreter
from windlass.worker.functions.terms import FunctionOptions

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
            kept.close()  # it is never asked for
            raise
        return await kept


async def check_source(new: NewHandler, options: FunctionOptions) -> None:
    """Refuse source that its interpreter here cannot read."""
    trial = Trial(options)
    interpreter = trial.find(new.lang) if new.lang in READS else ""
    if not isinstance(interpreter, Interpreter):
        return
    sources = {"body": new.body, "before": new.before, "beforeEach": new.before_each, "afterEach": new.after_each}
    inputs = {part: _as_file(new.lang, source) for part, source in sources.items() if source}
    path = interpreter.shell or interpreter.path
    programs = {part: [path, *READS[new.lang]] for part in inputs}
    faults = await trial.tried({**programs, WORKS: command(interpreter)}, inputs)
    if faults.pop(WORKS, None) is not None:
        return
    for part, why in faults.items():
        if why is not None:
            raise Invalid(f"{new.lang} cannot read it: {_told(why)}", at=part)


def _as_file(lang: str, source: str) -> str:
    """PHP begins with a tag; workers take it without one too."""
    return f"<?php {source}" if lang == "php" and not source.lstrip().lower().startswith("<?php") else source


def _told(why: str) -> str:
    """The line that says what is wrong, without the program's own words around it."""
    lines = [line.strip() for line in why.splitlines() if line.strip()]
    named = [line for line in lines if "rror" in line or "nterminated" in line]
    return (named or lines or ["it did not say why"])[0][:300]
