"""Which queue a command speaks to, and how it answers: the options that every command has."""

import logging
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, cast

from cyclopts import Group, Parameter
from msgspec.structs import asdict, replace

from windlass import config
from windlass.addresses import file_of, is_server, open_service
from windlass.cli import DASH
from windlass.engine import Settings
from windlass.model.errors import Invalid, Missing
from windlass.model.events import Event, Teller
from windlass.model.match import Match
from windlass.model.names import DEFAULT_TENANT, EVERY_TENANT, without_password
from windlass.model.operations import A, Operation, Service

OPTIONS = Group("Options", sort_key=20)
EVERYWHERE = Group("Everywhere", sort_key=100)


@Parameter(name="*", group=EVERYWHERE)
@dataclass(frozen=True, kw_only=True)
class Place:
    """The options of every command."""

    store: Annotated[
        str | None,
        Parameter(
            metavar="STORE",
            help="Where jobs live: a file, or redis://, rediss://, unix://, redis+sentinel://, redis+cluster://. "
            f"Default: ${config.variable('store')}, else `store` in {config.FILE}, else ./{config.DEFAULT_STORE}.",
        ),
    ] = None
    server: Annotated[
        str | None,
        Parameter(metavar="URL", help="A Windlass server instead: http://, https://, http+unix://. $WINDLASS_SERVER."),
    ] = None
    tenant: Annotated[
        str | None,
        Parameter(
            metavar="NAME",
            help="Whose jobs are meant; `-` = everybody's. "
            f"Default: ${config.variable('tenant')}, else `tenant` in {config.FILE}, else `{DEFAULT_TENANT}`.",
        ),
    ] = None
    json: Annotated[bool, Parameter(help="Answer in JSON: one document, or one a line where it is a stream.")] = False

    def settle(self, flags: Mapping[str, Any] | None = None) -> config.Config:
        """The settings that hold for this command, under the flags of its own."""
        tenant = EVERY_TENANT if self.tenant == DASH else self.tenant
        if self.server and self.store:
            raise Invalid("give --store or --server, not both", at="--server")
        if self.server and not is_server(self.server):
            raise Invalid(
                f"{without_password(self.server)!r} is no server: give http://, https:// or http+unix://", at="--server"
            )
        return config.here(store=self.store, server=self.server, tenant=tenant, **(flags or {}))


HERE = Place()
"""As the environment and `windlass.toml` say."""


class Queue:
    """An opened queue, asked in the name of one tenant."""

    def __init__(self, service: Service, tenant: str, address: str) -> None:
        self.service = service
        self.tenant = tenant
        self.address = address

    async def __call__(self, operation: Operation[A]) -> A:
        return await self.service(replace(operation, tenant=self.tenant))

    def watch(self, match: Match) -> AsyncGenerator[Event, None]:
        return cast("Teller", self.service).watch(self.tenant, match)  # whatever answers tells, too


@asynccontextmanager
async def opened(place: Place, *, create: bool = False, every_tenant: bool = False) -> AsyncIterator[Queue]:
    """The queue of a place. A file that is not there is made only by whoever has something to put into it."""
    settings = place.settle()
    if not create:
        _check_file(settings.store)
    logging.basicConfig(format="windlass: %(message)s", level=logging.WARNING)
    async with open_service(settings.store, Settings(**asdict(settings.engine))) as service:
        yield Queue(service, EVERY_TENANT if every_tenant else settings.tenant, settings.store)


def _check_file(address: str) -> None:
    file = file_of(address)
    if file is not None and file != ":memory:" and not Path(file).exists():
        raise Missing(f"there is no file {file}; `windlass enqueue` makes it, --store names another", at="store")
