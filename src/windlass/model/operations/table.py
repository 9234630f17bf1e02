"""The table of operations: what an operation is, how it is spelled outside, and who answers it."""

from collections.abc import Callable
from functools import cache
from typing import Any, Generic, Literal, NamedTuple, Protocol, TypeVar, get_args, get_origin

from msgspec import Struct

from windlass.model.names import DEFAULT_TENANT
from windlass.model.token import Scope

A_co = TypeVar("A_co", covariant=True)
A = TypeVar("A")

MOST_AT_ONCE = 1000
"""Jobs in one request, rows in one page."""


class Operation(Struct, Generic[A_co], frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A question to the queue; `A_co` is the type of its answer."""

    tenant: str = DEFAULT_TENANT
    """Whose jobs are meant; `-` = everybody's."""


class Service(Protocol):
    """Whatever answers operations: the engine in process, the client over HTTP."""

    async def __call__(self, operation: Operation[A], /) -> A: ...


class Route(NamedTuple):
    """How an operation is spelled outside."""

    verb: Literal["GET", "POST", "PUT", "PATCH", "DELETE"]
    path: str
    status: int
    scope: Scope
    body: str | None = None
    """The field that is the whole body of a request; null = its fields are the body's, or stand in the query."""
    one: str | None = None
    """The path of the same action on a single job."""


OPERATIONS: dict[type[Operation[Any]], Route] = {}

O = TypeVar("O", bound=type[Operation[Any]])  # noqa: E741


def operation(
    verb: Literal["GET", "POST", "PUT", "PATCH", "DELETE"],
    path: str,
    scope: Scope,
    status: int = 200,
    *,
    body: str | None = None,
    one: str | None = None,
) -> Callable[[O], O]:
    """Enter an operation into the table."""

    def enter(kind: O) -> O:
        OPERATIONS[kind] = Route(verb, path, status, scope, body, one)
        return kind

    return enter


@cache
def answer_type(kind: type[Operation[Any]]) -> Any:
    """What an operation is answered with, as its class says."""
    for one in kind.__mro__:
        for parent in getattr(one, "__orig_bases__", ()):
            if get_origin(parent) is Operation:
                return get_args(parent)[0]
    raise TypeError(f"{kind.__name__} does not say what it is answered with")
