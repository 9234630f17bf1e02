"""The app of the dialect `asy`: `windlass worker windlass.asy_app` runs its tasks.

Each task is a command line from the settings (`[asy] program` and `shell`), run in the folder of the job with the files
of the job. What it leaves in `out` is the result. Knows how to start a program; its input, output, limits and end are
those of the job that it is.
"""

import shlex
import subprocess
from collections.abc import Sequence

from windlass import Fail, Windlass, config, current

QUEUE = TASK = "asy"

RESULT = "out/result"
"""Where the program puts its result; it may add the ending of its format."""

app = Windlass()


@app.task(name=TASK, queue=QUEUE, isolate=True, on_lost="fail")
def run(
    main: str,
    format: str = "svg",  # noqa: A002 - as clients call it
    verbosity: int = 0,
    interactive: bool = False,
) -> None:
    """One batch task, or one shell."""
    settings = config.here().asy
    folder = current.folder
    line = settings.shell if interactive else settings.program
    command = arguments(line, main, format, verbosity)
    try:
        process = subprocess.Popen(  # noqa: S603 - the operator chose it; files of clients are its arguments
            command,
            cwd=folder,
            stdin=None if interactive else subprocess.DEVNULL,
        )
    except OSError as fault:
        raise Fail(f"execution failed: {command[0]}: {fault.strerror}") from None
    if (status := process.wait()) != 0:
        raise Fail(f"execution failed: exit status {status}")
    if not interactive and not any((folder / "out").iterdir()):
        raise Fail("no image output")


def arguments(line: str, main: str, form: str, verbosity: int) -> Sequence[str]:
    """A command line with its placeholders filled in, each within its word: no file name can add a word or an option.

    `{verbose}` as a word of its own becomes as many `-v` as the task asks for.
    """
    known = {"main": f"./{main}", "format": form, "out": RESULT, "verbosity": str(verbosity)}
    found: list[str] = []
    for word in shlex.split(line):
        found += ["-v"] * verbosity if word == "{verbose}" else [word.format_map(known)]
    return found
