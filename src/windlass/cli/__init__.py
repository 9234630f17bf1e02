"""The command line: `windlass`, over the same operations as everything else.

Here are the names of the commands and how a run of the program ends; each command has a module of its own, imported
only when it is called, so that `windlass --help` stays quick.

Exit status: 0 done, 1 failed, 2 misused, 3 not found, 4 conflict or denied, 75 try again, 130 interrupted, 141 the
reader went away. Errors carry their own (`model.errors`).
"""

import difflib
import os
import sys
from collections.abc import Sequence

import msgspec
from cyclopts import App, CycloptsError, Group, Parameter, UnknownCommandError, UnusedCliTokensError

import windlass
from windlass.model.errors import Invalid, WindlassError

INTERRUPTED, READER_GONE = 130, 141

DASH = "\0"
"""Stands for a lone dash, which would be taken for an option without a name. No argument of a program can hold it."""

WORK = Group("Work", sort_key=1)
LOOK = Group("Look", sort_key=2)
PROGRAM = Group("Program", sort_key=3)

ABOUT = """A job queue that starts as a file and grows to Redis.

For example:
    windlass enqueue render '{"scene": 7}'   queue a job
    windlass worker app:app                  run jobs
    windlass jobs ls --state failed          look at jobs
    windlass COMMAND --help                  learn more

Without --store, jobs live in ./windlass.db (WINDLASS_STORE or windlass.toml say otherwise)."""

COMMANDS = {
    "enqueue": ("enqueue:enqueue", WORK, "Queue a job and print its id."),
    "worker": ("worker:worker", WORK, "Run jobs."),
    "serve": ("serve:serve", WORK, "Serve the queue over HTTP."),
    "jobs": ("jobs:jobs", LOOK, "Look at jobs, cancel, retry and delete them."),
    "queues": ("queues:queues", LOOK, "Look at queues, pause them, and say how they are run."),
    "tasks": ("tasks:tasks", LOOK, "Pause tasks."),
    "limits": ("limits:limits", LOOK, "Bound how many jobs run, or start in a time."),
    "handlers": ("handlers:handlers", LOOK, "Keep the code of tasks in the queue."),
    "workers": ("workers:workers", LOOK, "Look at workers."),
    "tokens": ("tokens:tokens", LOOK, "Say who may use the queue over HTTP."),
    "journal": ("journal:journal", LOOK, "Look at what a server has accepted."),
    "top": ("top:top", LOOK, "Watch queues, workers and failures."),
    "doctor": ("doctor:doctor", LOOK, "Look for what is wrong with a store and its workers."),
    "openapi": ("openapi:openapi", LOOK, "Print the OpenAPI document of the server."),
    "bench": ("bench:bench", LOOK, "Measure how fast a store is."),
}
"""Each command: where its code is, its group, and what it does."""


def build(called: str = "") -> App:
    """The program. The command that is called tells of itself; of the others only what stands in the table is known."""
    app = App(
        name="windlass",
        help=ABOUT,
        help_format="plaintext",
        version=lambda: windlass.__version__,  # looked up only where it is asked for
        group_parameters=Group("Options", sort_key=20),
        default_parameter=Parameter(negative=(), show_default=False),
        suppress_keyboard_interrupt=False,
    )
    app["--help"].group = (PROGRAM,)
    app["--version"].group = (PROGRAM,)
    for name, (code, group, about) in COMMANDS.items():
        app.command(f"windlass.cli.{code}", name=name, group=group, help=None if name == called else about)
    return app


def main() -> int:
    """The program `windlass`."""
    return run(sys.argv[1:])


def run(argv: Sequence[str]) -> int:
    """Run one command; the exit status."""
    app = build(argv[0] if argv else "")
    try:
        status = app(_tokens(argv), result_action="return_value", print_error=False, exit_on_error=False, verbose=False)
        sys.stdout.flush()
    except WindlassError as error:
        return _refuse(error, argv)
    except CycloptsError as fault:
        return _refuse(Invalid(_misuse(fault, app)), argv)
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        _forget_stdout()
        return READER_GONE
    return status if isinstance(status, int) else 0


def _tokens(argv: Sequence[str]) -> list[str]:
    return [DASH if word == "-" else word for word in argv]


def _misuse(fault: CycloptsError, app: App) -> str:
    command = " ".join(fault.command_chain or ())
    wrong = (fault.unused_tokens or ["?"])[0]
    match fault:
        case UnknownCommandError():  # its own message would import every command there is
            commands = [name for name in fault.app or app if not name.startswith("-")]
            near = difflib.get_close_matches(wrong, commands, n=1)
            said = f"there is no command {wrong!r}" + (f"; did you mean {near[0]}?" if near else "")
            if wrong.startswith("-"):
                said = f"options stand after the command, and {wrong} stands before it"
        case UnusedCliTokensError():
            said = f"{command} has no use for {wrong!r}"
            if command == "serve" and ":" in wrong:
                said += f"; did you mean --app {wrong}?"
        case _:
            said = str(fault).strip().rstrip(".")
    return f"{said} (see {' '.join(['windlass', *command.split(), '--help'])})"


def _refuse(error: WindlassError, argv: Sequence[str]) -> int:
    """Say what went wrong in one line, or as problem details."""
    said = msgspec.json.encode(error.problem()).decode() if "--json" in argv else f"windlass: {error}"
    sys.stderr.write(f"{said}\n")
    return error.exit_status


def _forget_stdout() -> None:
    """Whoever read has gone: what is left in the buffer must not be written at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
