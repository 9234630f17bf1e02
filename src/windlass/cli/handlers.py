"""`windlass handlers ls|set|show|rm`: code that is kept in the queue."""

from pathlib import Path
from typing import Annotated

from cyclopts import App, Parameter
from msgspec.structs import replace

from windlass import config
from windlass.cli import saying
from windlass.cli.place import HERE, OPTIONS, Place, opened
from windlass.cli.worker import options_of
from windlass.engine import Engine
from windlass.model import duration
from windlass.model.errors import Invalid, Missing
from windlass.model.handler import HandlerOptions, Language, NewHandler
from windlass.model.operations import GetHandler, Handlers, KeptHandler, PutHandler, RemoveHandler
from windlass.system import SystemClock
from windlass.worker.functions import FunctionOptions
from windlass.worker.functions.checking import check_source

SUFFIXES: dict[str, Language] = {
    ".py": "python",
    ".js": "node",
    ".cjs": "node",
    ".mjs": "node",
    ".php": "php",
    ".sh": "sh",
    ".bash": "sh",
}

handlers = App(name="handlers", help="Keep the code of tasks in the queue.", group_parameters=OPTIONS)


@handlers.command
async def ls(*, place: Place = HERE) -> None:
    """List the tasks that have a handler."""
    async with opened(place) as queue:
        found = await queue(Handlers())
    if place.json:
        saying.write_json(found)
        return
    if not found:
        saying.remark("no handlers; `windlass handlers set` keeps one")
        return
    now = SystemClock().now()
    table = saying.Table("task", "tenant", "language", "version", "set", right=("version",))
    for one in found:
        table.add(one.task, one.tenant, one.lang, str(one.version), saying.ago(one.created_at, now))
    saying.paper().print(table)


@handlers.command(name="set")
async def put(
    task: Annotated[str, Parameter(name="TASK", help="The task whose jobs it runs.")],
    code: Annotated[str, Parameter(name="FILE", help="The file with the code, or a URL.")],
    /,
    *,
    lang: Annotated[
        Language | None, Parameter(metavar="LANG", help="python, node, php, sh or http (by the file's suffix).")
    ] = None,
    before: Annotated[Path | None, Parameter(metavar="FILE", help="Runs once in each context.")] = None,
    before_each: Annotated[Path | None, Parameter(metavar="FILE", help="Runs before each batch.")] = None,
    after_each: Annotated[Path | None, Parameter(metavar="FILE", help="Runs after each batch.")] = None,
    eid: Annotated[str | None, Parameter(metavar="NAME", help="Share contexts with those that say the same.")] = None,
    batch: Annotated[int | None, Parameter(metavar="N", help="Jobs given to a context at a time (10).")] = None,
    recycle: Annotated[int | None, Parameter(metavar="N", help="Jobs that one context runs (1000).")] = None,
    limit: Annotated[
        str | None, Parameter(name="--timeout", metavar="TIME", help="What one job may take: 30s, 2m.")
    ] = None,
    cpu: Annotated[str | None, Parameter(metavar="TIME", help="Processor time of one job: 10s.")] = None,
    memory: Annotated[str | None, Parameter(metavar="SIZE", help="What a context may take: 256MiB.")] = None,
    disk: Annotated[str | None, Parameter(metavar="SIZE", help="What a context may write: 100MiB.")] = None,
    network: Annotated[bool, Parameter(help="Ask for the network.")] = False,
    whole_batch: Annotated[bool, Parameter(help="Of http: one call a batch, a line a job.")] = False,
    place: Place = HERE,
) -> None:
    """Keep the code of a task; workers run the newest.

    For example:
      windlass handlers set resize resize.py
      windlass handlers set resize resize.js --timeout 30s --memory 256MiB
      windlass handlers set notify https://example.com/hook
    """
    spoken = lang or _language(code)
    options = HandlerOptions(network=network, whole_batch=whole_batch)
    said = {
        "batch": batch,
        "recycle": recycle,
        "timeout": None if limit is None else duration.seconds(limit, at="--timeout"),
        "cpu": None if cpu is None else duration.seconds(cpu, at="--cpu"),
        "memory": None if memory is None else config.size(memory),
        "disk": None if disk is None else config.size(disk),
    }
    handler = NewHandler(
        lang=spoken,
        body=code if spoken == "http" else _source(Path(code)),
        before=_source(before),
        before_each=_source(before_each),
        after_each=_source(after_each),
        eid=eid,
        options=replace(options, **{name: value for name, value in said.items() if value is not None}),
    )
    async with opened(place, create=True) as queue:
        if isinstance(queue.service, Engine):  # a server looks itself
            await check_source(handler, options_of(place.settle({})).functions or FunctionOptions())
        kept = await queue(PutHandler(task=task, handler=handler))
    if place.json:
        saying.write_json(kept)
    else:
        saying.remark(f"{kept.task} runs version {kept.version} from now on")


def _language(code: str) -> Language:
    if code.startswith(("http://", "https://")):
        return "http"
    if (known := SUFFIXES.get(Path(code).suffix)) is None:
        raise Invalid(f"which language is {code}? Say --lang python, node, php, sh or http", at="--lang")
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
    task: Annotated[str, Parameter(name="TASK", help="Its task.")],
    /,
    *,
    version: Annotated[int | None, Parameter(metavar="N", help="An older one.")] = None,
    place: Place = HERE,
) -> None:
    """Show the code of a task, and which versions of it there are."""
    async with opened(place) as queue:
        found = await queue(GetHandler(task=task, version=version))
    if place.json:
        saying.write_json(found)
        return
    for title, source in _parts(found):
        saying.remark(f"# {title}")
        saying.write(source.rstrip("\n"))
    now = SystemClock().now()
    for one in found.versions:
        saying.remark(f"# version {one.version}, {one.lang}, {saying.ago(one.created_at, now)}")


def _parts(found: KeptHandler) -> list[tuple[str, str]]:
    """Its pieces of code, those that there are."""
    pieces = [("before", found.before), ("beforeEach", found.before_each), ("body", found.body)]
    return [piece for piece in [*pieces, ("afterEach", found.after_each)] if piece[1]]


@handlers.command
async def rm(task: Annotated[str, Parameter(name="TASK", help="Its task.")], /, *, place: Place = HERE) -> None:
    """Remove the code of a task, all versions of it. Its jobs wait for another."""
    async with opened(place) as queue:
        await queue(RemoveHandler(task=task))
