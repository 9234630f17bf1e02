"""`windlass tokens add|ls|rm`: who may use the queue over HTTP."""

from typing import Annotated

from cyclopts import App, Parameter

from windlass.cli import saying
from windlass.cli.place import HERE, OPTIONS, Place, opened
from windlass.model import duration
from windlass.model.operations import AddToken, RemoveToken, Tokens
from windlass.model.token import Scope
from windlass.system import SystemClock

tokens = App(name="tokens", help="Say who may use the queue over HTTP.", group_parameters=OPTIONS)


@tokens.command
async def add(
    *scopes: Annotated[Scope, Parameter(help="What it allows: enqueue, work, read, operate, admin (enqueue read).")],
    expires: Annotated[str | None, Parameter(metavar="TIME", help="How long it is good: 90d (for ever).")] = None,
    note: Annotated[str, Parameter(metavar="TEXT", help="What it is for.")] = "",
    place: Place = HERE,
) -> None:
    """Make a token for a tenant and print it. It is shown this once.

    For example:
      windlass tokens add enqueue read --tenant shop --expires 90d --note "web app"
      windlass tokens add admin --tenant -
    """
    good = None if expires is None else duration.seconds(expires, at="--expires")
    async with opened(place, create=True) as queue:
        issued = await queue(AddToken(scopes=list(scopes) or ["enqueue", "read"], expires=good, note=note))
    if place.json:
        saying.write_json(issued)
    else:
        saying.write(issued.token)


@tokens.command
async def ls(*, place: Place = HERE) -> None:
    """List tokens, without their secrets."""
    async with opened(place, every_tenant=place.tenant is None) as queue:
        found = await queue(Tokens())
    if place.json:
        for token in found:
            saying.write_json(token)
        return
    now = SystemClock().now()
    table = saying.Table("token", "tenant", "scopes", "made", "good until", "note")
    for token in found:
        until = "for ever" if token.expires_at is None else saying.ago(token.expires_at, now)
        table.add(token.key, token.tenant, " ".join(token.scopes), saying.ago(token.created_at, now), until, token.note)
    saying.paper().print(table)


@tokens.command
async def rm(
    key: Annotated[str, Parameter(name="TOKEN", help="Its name, as `tokens ls` shows it.")], /, *, place: Place = HERE
) -> None:
    """Make a token good for nothing, within a second."""
    async with opened(place, every_tenant=place.tenant is None) as queue:
        await queue(RemoveToken(key=key))
