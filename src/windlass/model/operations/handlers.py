"""Operations on handlers: set, look, list, remove; and how a worker gets the code it runs."""

from typing import Annotated

from msgspec import Meta, Struct

from windlass.model.handler import Handler, HandlerEntry, HandlerVersion, NewHandler
from windlass.model.names import Name
from windlass.model.operations.table import Operation, operation


class KeptHandler(Handler, frozen=True, kw_only=True, omit_defaults=True):
    """A handler, and which versions of it there are."""

    versions: list[HandlerVersion]
    """Newest first."""


class Code(Struct, frozen=True, kw_only=True):
    """What a worker is to run."""

    digest: str
    handler: Handler | None = None
    """Null = the worker has it already."""


@operation("PUT", "/handlers/{task}", "admin", body="handler")
class PutHandler(Operation[HandlerEntry], frozen=True, kw_only=True):
    """Keep the code of a task. The newest version is the one that runs; the same again changes nothing."""

    task: Name
    handler: NewHandler


@operation("GET", "/handlers/{task}", "read")
class GetHandler(Operation[KeptHandler], frozen=True, kw_only=True):
    """The code of a task, and which versions of it there are."""

    task: Name
    version: Annotated[int, Meta(ge=1)] | None = None
    """An older one; null = the newest."""


@operation("GET", "/handlers", "read")
class Handlers(Operation[list[HandlerEntry]], frozen=True, kw_only=True):
    """The tasks that have a handler, without the code."""


@operation("DELETE", "/handlers/{task}", "admin", 204)
class RemoveHandler(Operation[None], frozen=True, kw_only=True):
    """Remove the code of a task, all versions of it. Jobs of the task wait for another."""

    task: Name


@operation("GET", "/tasks/{task}/code", "work")
class GetCode(Operation[Code], frozen=True, kw_only=True):
    """The code that a worker is to run for a task now."""

    task: Name
    known: Annotated[str, Meta(max_length=64)] | None = None
    """The digest of what it has already."""
