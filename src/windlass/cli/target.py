"""The target of a command: the options that every command has, and the queue that they name.

Opens a store or connects to a server; knows no command.
"""

import logging
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any, Literal, cast

from cyclopts import Group, Parameter
from msgspec.structs import asdict, replace

from windlass import config
from windlass.addresses import file_of, open_service
from windlass.cli import DASH
from windlass.cli.options import flag, option
from windlass.engine import Engine, Settings
from windlass.model.errors import Invalid, Missing
from windlass.model.events import Event, EventSource
from windlass.model.job import Job
from windlass.model.match import Match
from windlass.model.names import DEFAULT_TENANT, EVERY_TENANT
from windlass.model.operations import MOST_AT_ONCE, A, List, Operation, Service
from windlass.system import SystemClock

OPTIONS = Group("Options", sort_key=20)
COMMON = Group("Common options", sort_key=100)


@Parameter(name="*", group=COMMON)
@dataclass(frozen=True, kw_only=True)
class Target:
    """The options of every command."""

    store: Annotated[
        str | None,
        option(
            "STORE",
            "Where jobs are stored: a file, or redis://, rediss://, unix://, redis+sentinel://, redis+cluster://. "
            f"Default: ${config.variable('store')}, else `store` in {config.FILE}, else ./{config.DEFAULT_STORE}.",
        ),
    ] = None
    server: Annotated[
        str | None,
        option(
            "URL", "A Windlass server instead of a store: http://, https://, http+unix://. Default: $WINDLASS_SERVER."
        ),
    ] = None
    tenant: Annotated[
        str | None,
        option(
            "NAME",
            "The tenant; `-` = all tenants. "
            f"Default: ${config.variable('tenant')}, else `tenant` in {config.FILE}, else `{DEFAULT_TENANT}`.",
        ),
    ] = None
    json: Annotated[bool, flag("Print JSON: one document, or one per line for streams.")] = False

    def settings(self, flags: Mapping[str, Any] | None = None) -> config.Config:
        """The settings of this command; `flags` are its own options."""
        tenant = EVERY_TENANT if self.tenant == DASH else self.tenant
        if self.server and self.store:
            raise Invalid("give --store or --server, not both", at="--server")
        if self.server:
            config.check_server(self.server, at="--server", of_store="--store")
        return config.here(store=self.store, server=self.server, tenant=tenant, **(flags or {}))


HERE = Target()
"""As the environment and `windlass.toml` set it."""


class Queue:
    """An open queue, and the tenant of the command."""

    def __init__(self, service: Service, tenant: str, address: str) -> None:
        self.service = service
        self.tenant = tenant
        self.address = address

    async def __call__(self, operation: Operation[A]) -> A:
        return await self.service(replace(operation, tenant=self.tenant))

    async def now(self) -> datetime:
        """The time by which its jobs are dated: the store's, which may be ahead of this host's; of a server, ours."""
        if not isinstance(self.service, Engine):
            return SystemClock().now()
        return (await self.service.context.store.jobs.read([])).now

    async def jobs(
        self, match: Match, *, order: Literal["oldest", "newest"] = "oldest", most: int | None = None
    ) -> AsyncIterator[Job]:
        """Matching jobs, read a page at a time; all of them, or so many."""
        after, left = None, most
        while left is None or left > 0:
            size = min(left or MOST_AT_ONCE, MOST_AT_ONCE)
            page = await self(List(match=match, limit=size, after=after, order=order))
            for job in page.jobs:
                yield job
            if (after := page.next) is None:
                return
            left = None if left is None else left - len(page.jobs)

    def follow(self, id: str) -> AsyncGenerator[Event, None]:
        return cast("EventSource", self.service).follow_job(self.tenant, id)

    def watch(self, match: Match) -> AsyncGenerator[Event, None]:
        return cast("EventSource", self.service).watch(self.tenant, match)  # every service has events


@asynccontextmanager
async def open_queue(target: Target, *, create: bool = False, every_tenant: bool = False) -> AsyncIterator[Queue]:
    """The queue of a target. `create`: make a store file that does not exist, for commands that write."""
    settings = target.settings()
    if not create:
        _check_file(settings.store)
    logging.basicConfig(format="windlass: %(message)s", level=logging.WARNING)
    async with open_service(settings.store, Settings(**asdict(settings.engine))) as service:
        yield Queue(service, EVERY_TENANT if every_tenant else settings.tenant, settings.store)


def _check_file(address: str) -> None:
    file = file_of(address)
    if file is not None and file != ":memory:" and not Path(file).exists():
        raise Missing(f"there is no file {file}; `windlass enqueue` creates it, --store names another", at="store")
