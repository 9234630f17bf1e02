"""Commands derived from operations: `ls`, `show`, `rm`, `pause` and `resume` of a resource.

A resource names its operations, the field that names one of its things, and the columns of its table; the commands
follow from that. Knows the shape of these commands; knows no resource.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import datetime, timedelta
from functools import partial
from typing import Annotated, Any

from cyclopts import App, Parameter
from msgspec import Struct

from windlass.cli import COMMANDS, console, terminal
from windlass.cli.options import option, seconds
from windlass.cli.target import HERE, OPTIONS, Queue, Target, open_queue
from windlass.cli.terminal import Column
from windlass.model.limit import Limit, Pause
from windlass.model.operations import Operation
from windlass.model.schedule import Schedule

For = Annotated[float | None, option("TIME", "How long: 10m, 2h (until it is resumed).", "--for", read=seconds)]
Why = Annotated[str, option("TEXT", "The reason, shown in listings.")]

WriteLine = Callable[[str], None]

Print = Callable[[str, Any, datetime, WriteLine], None]
"""Prints one thing, given its name and the store's time. Its first line goes to stdout for `show`, else to stderr."""


class Resource(Struct, frozen=True, kw_only=True, eq=False):
    """A kind of thing that operations list, show, change and remove."""

    name: str
    """The command: `limits`."""
    help: Mapping[str, str]
    """The help of each command."""
    argument: Parameter = Parameter(name="NAME", help="Its name.")
    key: str = "name"
    """The field of the operations that names one thing."""
    ls: Callable[[Queue], Awaitable[list[Any]]] | None = None
    columns: Callable[[Sequence[Any], datetime], Sequence[Column]] = lambda _found, _now: ()
    empty: str = ""
    """The note in the place of an empty table."""
    notes: Callable[[Queue, list[Any]], Awaitable[list[str]]] | None = None
    """Lines below the table."""
    json_lines: bool = False
    """Whether `ls --json` prints one document per line."""
    all_tenants: bool = False
    """Whether `ls` and `rm` mean all tenants unless --tenant is given."""
    show: type[Operation[Any]] | None = None
    rm: type[Operation[None]] | None = None
    pause: Callable[[str, Pause], Operation[Any]] | None = None
    readable: Callable[[Any], Any] = lambda found: found
    """One thing as JSON can show it."""
    print_one: Print = lambda _name, _found, _now, _to: None
    pausing_creates: bool = True
    """Whether a thing can be paused in a store that does not exist yet."""


def resource_app(resource: Resource) -> App:
    """The commands of a resource, as far as it has operations for them."""
    app = App(name=resource.name, help=COMMANDS[resource.name][2], group_parameters=OPTIONS)
    if resource.ls is not None:
        app.command(_ls(resource, resource.ls), name="ls", help=resource.help["ls"])
    if resource.show is not None:
        app.command(_show(resource, resource.show), name="show", help=resource.help["show"])
    if resource.rm is not None:
        app.command(_rm(resource, resource.rm), name="rm", help=resource.help["rm"])
    if resource.pause is not None:
        pause, resume = _pause(resource, resource.pause)
        app.command(pause, name="pause", help=resource.help["pause"])
        app.command(resume, name="resume", help=resource.help["resume"])
    return app


def listing(operation: type[Operation[list[Any]]]) -> Callable[[Queue], Awaitable[list[Any]]]:
    """The rows of `ls`, from one operation."""

    async def ls(queue: Queue) -> list[Any]:
        return await queue(operation())

    return ls


def _ls(resource: Resource, read: Callable[[Queue], Awaitable[list[Any]]]) -> Callable[..., Awaitable[None]]:
    async def ls(*, target: Target = HERE) -> None:
        async with open_queue(target, every_tenant=_all_tenants(resource, target)) as queue:
            found = await read(queue)
            now = await queue.now()
            notes = [] if resource.notes is None or target.json else await resource.notes(queue, found)
        if target.json:
            rows = [resource.readable(one) for one in found]
            for document in rows if resource.json_lines else [rows]:
                console.write_json(document)
            return
        if found:
            terminal.stdout().print(terminal.Table(resource.columns(found, now), found))
        else:
            console.note(resource.empty)
        for line in notes:
            console.note(line)

    return ls


def _show(resource: Resource, operation: type[Operation[Any]]) -> Callable[..., Awaitable[None]]:
    async def show(name: Annotated[str, resource.argument], /, *, target: Target = HERE) -> None:
        asked = operation(**{resource.key: name})
        await run(asked, target, partial(resource.print_one, name), readable=resource.readable, to=console.write)

    return show


def _rm(resource: Resource, operation: type[Operation[None]]) -> Callable[..., Awaitable[None]]:
    async def rm(name: Annotated[str, resource.argument], /, *, target: Target = HERE) -> None:
        async with open_queue(target, every_tenant=_all_tenants(resource, target)) as queue:
            await queue(operation(**{resource.key: name}))

    return rm


def _pause(
    resource: Resource, operation: Callable[[str, Pause], Operation[Any]]
) -> tuple[Callable[..., Awaitable[None]], Callable[..., Awaitable[None]]]:
    create = resource.pausing_creates

    async def pause(
        name: Annotated[str, resource.argument], /, *, how_long: For = None, why: Why = "", target: Target = HERE
    ) -> None:
        async with open_queue(target, create=create) as queue:
            until = None if how_long is None else await queue.now() + timedelta(seconds=how_long)
            found = await queue(operation(name, Pause(paused=True, until=until, why=why)))
            now = await queue.now()
        _print_found(found, now, target, partial(resource.print_one, name), readable=resource.readable, to=console.note)

    async def resume(name: Annotated[str, resource.argument], /, *, target: Target = HERE) -> None:
        change = operation(name, Pause())
        await run(change, target, partial(resource.print_one, name), readable=resource.readable, create=create)

    return pause, resume


def _all_tenants(resource: Resource, target: Target) -> bool:
    return resource.all_tenants and target.tenant is None


async def run(
    operation: Operation[Any],
    target: Target,
    print_one: Callable[[Any, datetime, WriteLine], None],
    *,
    readable: Callable[[Any], Any] = lambda found: found,
    create: bool = False,
    to: WriteLine = console.note,
) -> None:
    """Run an operation on one thing and print its answer."""
    async with open_queue(target, create=create) as queue:
        found = await queue(operation)
        now = await queue.now()
    _print_found(found, now, target, print_one, readable=readable, to=to)


def _print_found(
    found: Any,
    now: datetime,
    target: Target,
    print_one: Callable[[Any, datetime, WriteLine], None],
    *,
    readable: Callable[[Any], Any],
    to: WriteLine,
) -> None:
    if target.json:
        console.write_json(readable(found))
    else:
        print_one(found, now, to)


def pause_text(pause: Pause | Limit | Schedule) -> str:
    """A pause in words; empty = it is not paused."""
    if not pause.paused:
        return ""
    end = f" until {pause.until.astimezone():%Y-%m-%d %H:%M:%S}" if pause.until else ""
    since = f" (since {pause.since.astimezone():%Y-%m-%d %H:%M:%S})" if pause.since else ""
    return f"paused{end}{': ' if pause.why else ''}{pause.why}{since}"
