"""Handlers: a task's code, kept in the queue, in one of several languages or behind a URL."""

import hashlib
from datetime import datetime
from typing import Annotated, Literal, NamedTuple

import msgspec
from msgspec import Meta, Struct, field

from windlass.model.duration import Seconds
from windlass.model.names import Name

Language = Literal["python", "node", "php", "sh", "http"]

MOST_SOURCE = 256 * 2**10
"""Characters of one piece of source."""

MOST_SCRIPT = 2**17 - 1
"""Bytes of one piece of source of `sh`: the system gives no program a longer argument."""

MOST_VERSIONS = 20
"""Versions of one handler that are kept."""

MOST_HANDLERS = 1000
"""Handlers of one tenant."""

Source = Annotated[str, Meta(max_length=MOST_SOURCE)]


class HandlerOptions(Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """How a handler is run."""

    batch: Annotated[int, Meta(ge=1, le=1000)] = 10
    """Jobs given to a context at a time, at most."""
    recycle: Annotated[int, Meta(ge=1)] | None = 1000
    """Jobs after which a context makes way for a fresh one; null = never."""
    timeout: Seconds | None = None
    """Seconds one job may run, unless the job itself says; null = the job's own limit alone."""
    cpu: Seconds | None = None
    """Seconds of processor time that one job may take, to half a second; null = what the worker allows."""
    memory: Annotated[int, Meta(ge=16 * 2**20)] | None = None
    """Bytes of memory that a context may take; null = what the worker allows."""
    disk: Annotated[int, Meta(ge=2**20)] | None = None
    """Bytes of files that a context may have in its folder; null = what the worker allows."""
    network: bool = False
    """Whether the code may reach the network; the worker's operator must allow it too."""
    whole_batch: bool = False
    """Of `http`: whether one call carries a batch, one payload and one answer per line."""
    files: bool = False
    """Whether its jobs may leave files: then a context gets one at a time, as it does where files come with a job."""
    needs: Annotated[list[Name], Meta(max_length=64)] = []
    """What a worker must offer to run it, as labels like `gpu`."""


class NewHandler(Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """A task's code as it is sent in."""

    lang: Language
    body: Annotated[str, Meta(min_length=1, max_length=MOST_SOURCE)]
    """Source that defines `run(payload)`; of `sh` a script; of `http` the URL."""
    before: Source = ""
    """Source that runs once in each context, in the same scope."""
    before_each: Source = field(default="", name="beforeEach")
    """Source that runs before each batch."""
    after_each: Source = field(default="", name="afterEach")
    """Source that runs after each batch."""
    eid: Name | None = None
    """Handlers of one tenant and language that say the same may share contexts; null = the handler's own."""
    options: HandlerOptions = HandlerOptions()


class HandlerVersion(Struct, frozen=True, kw_only=True):
    """One version of a handler, without its code."""

    version: int
    """Counts from 1; the newest is the one that runs."""
    digest: str
    """Of all that was sent in: two that are alike run alike."""
    lang: Language
    created_at: datetime


class HandlerEntry(HandlerVersion, frozen=True, kw_only=True):
    """A handler in a list: its newest version."""

    tenant: str
    task: Name
    needs: list[Name] = []
    """What a worker must offer to run it."""


class Handler(NewHandler, frozen=True, kw_only=True, omit_defaults=True):
    """A task's code as the queue keeps it."""

    tenant: str
    task: Name
    version: int
    """Counts from 1; the newest is the one that runs."""
    digest: str
    """Of all that was sent in: two that are alike run alike."""
    created_at: datetime


class HandlerRun(NamedTuple):
    """What runs a job, where that is a handler's code: the tier of its sandbox if it is in one, and the version."""

    sandbox: str | None = None
    handler_version: int | None = None


NO_HANDLER = HandlerRun()


def digest_of(new: NewHandler) -> str:
    """The same whether or not what is as usual was sent along."""
    return hashlib.sha256(msgspec.msgpack.encode(msgspec.structs.astuple(new))).hexdigest()[:16]
