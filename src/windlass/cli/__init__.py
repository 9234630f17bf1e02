"""The command line: `windlass`, over the same operations as everything else.

Lists the commands and turns errors into exit statuses. The module of a command is imported only when the command is
called, so that `windlass --help` stays quick.

Exit status: 0 done, 1 failed, 2 usage error, 3 not found, 4 conflict or denied, 75 try again, 130 interrupted, 141
output closed. Errors carry their own (`model.errors`).
"""

import difflib
import os
import sys
from collections.abc import Sequence

import msgspec
from cyclopts import (
    App,
    CycloptsError,
    Group,
    MissingArgumentError,
    Parameter,
    UnknownCommandError,
    UnusedCliTokensError,
)

import windlass
from windlass.model.errors import Invalid, WindlassError

INTERRUPTED, OUTPUT_CLOSED = 130, 141

DASH = "\0"
"""Replaces a lone dash, which cyclopts would take for an option. No program argument can hold this character."""

RUN = Group("Run", sort_key=1)
MANAGE = Group("Inspect and manage", sort_key=2)
PROGRAM = Group("Program", sort_key=3)

ABOUT = """A job queue that starts as a file and grows to Redis.

For example:
    windlass enqueue render '{"scene": 7}'   queue a job
    windlass worker app:app                  run jobs
    windlass jobs ls --state failed          list jobs
    windlass COMMAND --help                  show the options of a command

Jobs are stored in ./windlass.db, unless --store, WINDLASS_STORE or windlass.toml names another store."""

COMMANDS = {
    "enqueue": ("enqueue:enqueue", RUN, "Queue a job and print its id."),
    "shell": ("shell:shell", RUN, "Run a job and talk to it from this terminal."),
    "worker": ("worker:worker", RUN, "Run jobs."),
    "serve": ("serve:serve", RUN, "Serve the queue over HTTP."),
    "bridge": ("bridge:bridge", RUN, "Serve the clients of another queue."),
    "jobs": ("jobs:jobs", MANAGE, "List, show, cancel, retry and delete jobs."),
    "failures": ("failures:failures", MANAGE, "List, retry and delete failed jobs by what they have in common."),
    "queues": ("queues:queues", MANAGE, "List, show, pause and configure queues."),
    "tasks": ("limits:tasks", MANAGE, "Pause tasks."),
    "limits": ("limits:limits", MANAGE, "Limit how many jobs run at once or start per time."),
    "schedules": ("schedules:schedules", MANAGE, "Make jobs at certain times."),
    "handlers": ("handlers:handlers", MANAGE, "Store the code of tasks in the queue."),
    "workers": ("queues:workers", MANAGE, "List workers."),
    "tokens": ("tokens:tokens", MANAGE, "Add and remove tokens for the HTTP API."),
    "audit": ("audit:audit", MANAGE, "Show who changed what by hand."),
    "journal": ("journal:journal", MANAGE, "Inspect and drain the journal of a server."),
    "top": ("top:top", MANAGE, "Watch queues, workers and failures."),
    "doctor": ("doctor:doctor", MANAGE, "Check a store and its workers for problems."),
    "openapi": ("serve:openapi", MANAGE, "Print the OpenAPI document of the server."),
    "bench": ("bench:bench", MANAGE, "Measure the speed of a store."),
}
"""Each command: module and function, group, summary."""


def build(called: str = "") -> App:
    """The program. Only the called command is imported; the help of the others comes from the table."""
    app = App(
        name="windlass",
        help=ABOUT,
        help_format="plaintext",
        version=lambda: windlass.__version__,  # looked up only for --version
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
        return _print_error(error, argv)
    except CycloptsError as fault:
        return _print_error(Invalid(_usage_error(fault, app)), argv)
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        _discard_stdout()
        return OUTPUT_CLOSED
    except SystemExit as end:  # rich prints the help, and ends the program if the pipe is closed
        if not isinstance(end.__context__, BrokenPipeError):
            raise
        return OUTPUT_CLOSED
    return status if isinstance(status, int) else 0


def _tokens(argv: Sequence[str]) -> list[str]:
    return [DASH if word == "-" else word for word in argv]


def _usage_error(fault: CycloptsError, app: App) -> str:
    command = " ".join(fault.command_chain or ())
    wrong = (fault.unused_tokens or ["?"])[0]
    match fault:
        case UnknownCommandError():  # its own message would import every command
            commands = [name for name in fault.app or app if not name.startswith("-")]
            near = difflib.get_close_matches(wrong, commands, n=1)
            text = f"there is no command {wrong!r}" + (f"; did you mean {near[0]}?" if near else "")
            if wrong.startswith("-"):
                text = f"options go after the command, and {wrong} is before it"
        case UnusedCliTokensError():
            text = f"unexpected argument {wrong!r}"
            if command == "serve" and ":" in wrong:
                text += f"; did you mean --app {wrong}?"
        case MissingArgumentError(argument=argument, keyword=keyword) if argument is not None:
            text = f"{keyword} needs a value" if keyword else f"{argument.name} is missing"
        case _:
            text = str(fault).strip().rstrip(".")
    return f"{text} (see {' '.join(['windlass', *command.split(), '--help'])})"


def _print_error(error: WindlassError, argv: Sequence[str]) -> int:
    """Print an error as one line, or as problem details with --json; its exit status."""
    text = msgspec.json.encode(error.problem()).decode() if "--json" in argv else f"windlass: {error}"
    sys.stderr.write(f"{text}\n")
    return error.exit_status


def _discard_stdout() -> None:
    """The reader has closed the pipe: the buffer must not be written at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
