"""`windlass tokens`: tokens for the HTTP API."""

from collections.abc import Sequence
from datetime import datetime
from typing import Annotated

from cyclopts import Parameter

from windlass.cli import console
from windlass.cli.options import option, seconds
from windlass.cli.resources import Resource, listing, resource_app
from windlass.cli.target import HERE, Target, open_queue
from windlass.cli.terminal import Column
from windlass.model.operations import AddToken, RemoveToken, Tokens
from windlass.model.token import Scope


def _columns(_: Sequence[object], now: datetime) -> list[Column]:
    return [
        Column("token", lambda token: token.key),
        Column("tenant", lambda token: token.tenant),
        Column("scopes", lambda token: " ".join(token.scopes)),
        Column("created", lambda token: console.ago(token.created_at, now)),
        Column("expires", lambda token: "never" if token.expires_at is None else console.ago(token.expires_at, now)),
        Column("note", lambda token: token.note),
    ]


tokens = resource_app(
    Resource(
        name="tokens",
        help={
            "ls": "List tokens, without their secrets.",
            "rm": "Remove a token. It stops working within a second.",
        },
        argument=Parameter(name="TOKEN", help="Its name, as `tokens ls` shows it."),
        key="key",
        ls=listing(Tokens),
        columns=_columns,
        empty="no tokens; `windlass tokens add` creates one",
        json_lines=True,
        all_tenants=True,
        rm=RemoveToken,
    )
)


@tokens.command
async def add(
    *scopes: Annotated[Scope, Parameter(help="What it allows: enqueue, work, read, operate, admin (enqueue read).")],
    expires: Annotated[float | None, option("TIME", "How long it is valid: 90d (forever).", read=seconds)] = None,
    note: Annotated[str, option("TEXT", "What it is for.")] = "",
    target: Target = HERE,
) -> None:
    """Create a token for a tenant and print it. It is shown only this once.

    For example:
      windlass tokens add enqueue read --tenant shop --expires 90d --note "web app"
      windlass tokens add admin --tenant -
    """
    async with open_queue(target, create=True) as queue:
        issued = await queue(AddToken(scopes=list(scopes) or ["enqueue", "read"], expires=expires, note=note))
    if target.json:
        console.write_json(issued)
    else:
        console.write(issued.token)
