"""`windlass handlers`: code of tasks that is stored in the queue.

`set` reads files and options; `ls` and `rm` are derived from the operations.
"""

from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter
from msgspec.structs import replace

from windlass import config
from windlass.cli import console
from windlass.cli.resources import Resource, listing, resource_app
from windlass.cli.target import HERE, Target, open_queue
from windlass.cli.terminal import Column
from windlass.cli.worker import worker_options
from windlass.engine import Engine
from windlass.model import duration
from windlass.model.errors import Invalid, Missing
from windlass.model.handler import HandlerOptions, Language, NewHandler
from windlass.model.names import check_name
from windlass.model.operations import GetHandler, Handlers, KeptHandler, PutHandler, RemoveHandler
from windlass.worker.functions import FunctionOptions
from windlass.worker.functions.languages import check_upload
from windlass.worker.network import Network, read_allowed

SUFFIXES: dict[str, Language] = {
    ".py": "python",
    ".js": "node",
    ".cjs": "node",
    ".mjs": "node",
    ".php": "php",
    ".sh": "sh",
    ".bash": "sh",
}

TASK = Parameter(name="TASK", help="The name of the task.")


def _columns(_: Sequence[object], now: datetime) -> list[Column]:
    return [
        Column("task", lambda entry: entry.task),
        Column("tenant", lambda entry: entry.tenant),
        Column("language", lambda entry: entry.lang),
        Column("version", lambda entry: str(entry.version), right=True),
        Column("set", lambda entry: console.ago(entry.created_at, now)),
    ]


handlers = resource_app(
    Resource(
        name="handlers",
        help={
            "handlers": "Store the code of tasks in the queue.",
            "ls": "List the tasks that have a handler.",
            "rm": "Remove all versions of a task's code. Its jobs wait for new code.",
        },
        argument=TASK,
        key="task",
        ls=listing(Handlers),
        columns=_columns,
        empty="no handlers; `windlass handlers set` stores one",
        rm=RemoveHandler,
    )
)


@handlers.command(name="set")
async def put(
    task: Annotated[str, TASK],
    code: Annotated[str, Parameter(name="FILE", help="The file with the code, or a URL.")],
    /,
    *,
    lang: Annotated[
        Language | None, Parameter(metavar="LANG", help="python, node, php, sh or http (from the suffix of the file).")
    ] = None,
    before: Annotated[Path | None, Parameter(metavar="FILE", help="Code that runs once in each context.")] = None,
    before_each: Annotated[Path | None, Parameter(metavar="FILE", help="Code that runs before each batch.")] = None,
    after_each: Annotated[Path | None, Parameter(metavar="FILE", help="Code that runs after each batch.")] = None,
    eid: Annotated[str | None, Parameter(metavar="NAME", help="Share contexts with handlers of the same name.")] = None,
    batch: Annotated[int | None, Parameter(metavar="N", help="Jobs per batch (10).")] = None,
    recycle: Annotated[
        int | None, Parameter(metavar="N", help="Jobs after which a context is replaced (1000).")
    ] = None,
    limit: Annotated[
        str | None, Parameter(name="--timeout", metavar="TIME", help="The timeout of one job: 30s, 2m.")
    ] = None,
    cpu: Annotated[str | None, Parameter(metavar="TIME", help="The CPU time of one job: 10s.")] = None,
    memory: Annotated[str | None, Parameter(metavar="SIZE", help="The memory of a context: 256MiB.")] = None,
    disk: Annotated[str | None, Parameter(metavar="SIZE", help="The disk space of a context: 100MiB.")] = None,
    network: Annotated[bool, Parameter(help="The code needs the network.")] = False,
    whole_batch: Annotated[bool, Parameter(help="For http: one call per batch, one line per job.")] = False,
    files: Annotated[bool, Parameter(help="The jobs leave files in their folder `out`.")] = False,
    needs: Annotated[
        str | None, Parameter(metavar="LABELS", help="What a worker must offer to run it: gpu,big.")
    ] = None,
    target: Target = HERE,
) -> None:
    """Store the code of a task; workers run the newest version.

    For example:
      windlass handlers set resize resize.py
      windlass handlers set resize resize.js --timeout 30s --memory 256MiB
      windlass handlers set notify https://example.com/hook
    """
    language = lang or _language(code)
    options = HandlerOptions(network=network, whole_batch=whole_batch, files=files)
    given = {
        "batch": batch,
        "recycle": recycle,
        "timeout": None if limit is None else duration.seconds(limit, at="--timeout"),
        "cpu": None if cpu is None else duration.seconds(cpu, at="--cpu"),
        "memory": None if memory is None else config.size(memory),
        "disk": None if disk is None else config.size(disk),
        "needs": None if needs is None else [check_name(label.strip(), at="--needs") for label in needs.split(",")],
    }
    handler = NewHandler(
        lang=language,
        body=code if language == "http" else _source(Path(code)),
        before=_source(before),
        before_each=_source(before_each),
        after_each=_source(after_each),
        eid=eid,
        options=replace(options, **{name: value for name, value in given.items() if value is not None}),
    )
    async with open_queue(target, create=True) as queue:
        if isinstance(queue.service, Engine):  # a server checks it itself
            here = worker_options(target.settings({}))
            await check_upload(handler, here.functions or FunctionOptions(), Network(read_allowed(here.reach)))
        stored = await queue(PutHandler(task=task, handler=handler))
    if target.json:
        console.write_json(stored)
    else:
        console.note(f"version {stored.version} of {stored.task} is stored; workers run it from now on")


def _language(code: str) -> Language:
    if code.startswith(("http://", "https://")):
        return "http"
    if (known := SUFFIXES.get(Path(code).suffix)) is None:
        raise Invalid(f"the suffix of {code} names no language: give --lang python, node, php, sh or http", at="--lang")
    return known


def _source(file: Path | None) -> str:
    if file is None:
        return ""
    try:
        return file.read_text("utf-8")
    except FileNotFoundError:
        raise Missing(f"there is no file {file}", at="FILE") from None
    except (OSError, UnicodeDecodeError) as fault:
        raise Invalid(f"{file} cannot be read: {fault}", at="FILE") from None


@handlers.command
async def show(
    task: Annotated[str, TASK],
    /,
    *,
    version: Annotated[int | None, Parameter(metavar="N", help="Show this version (the newest).")] = None,
    target: Target = HERE,
) -> None:
    """Show the code of a task, and list its versions."""
    async with open_queue(target) as queue:
        found = await queue(GetHandler(task=task, version=version))
        now = await queue.now()
    if target.json:
        console.write_json(found)
        return
    for title, source in _parts(found):
        console.note(f"# {title}")
        console.write(source.rstrip("\n"))
    for one in found.versions:
        console.note(f"# version {one.version}, {one.lang}, {console.ago(one.created_at, now)}")


def _parts(found: KeptHandler) -> list[tuple[str, str]]:
    """Its pieces of code that are not empty."""
    pieces = [("before", found.before), ("beforeEach", found.before_each), ("body", found.body)]
    return [piece for piece in [*pieces, ("afterEach", found.after_each)] if piece[1]]
