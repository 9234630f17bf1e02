"""A request on its way to an answer of ours, with as little as possible in between.

Headers are looked up in a dictionary: Starlette goes through all of them for each, and a request has eight looked up.
An endpoint is an application of its own: around a function Starlette puts another layer that handles errors.
"""

from collections.abc import Awaitable, Callable, Mapping
from functools import cached_property

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

Answer = Callable[[Request], Awaitable[Response]]


class Asked(Request):
    """A request."""

    @cached_property
    def headers(self) -> Mapping[str, str]:  # type: ignore[override]
        """By their names in lower case; of several of one name, the first."""
        said = reversed(self.scope["headers"])
        return {name.decode("latin-1"): value.decode("latin-1") for name, value in said}


class Endpoint:
    """What answers the requests of one route."""

    def __init__(self, answer: Answer) -> None:
        self._answer = answer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        response = await self._answer(Asked(scope, receive, send))
        await response(scope, receive, send)
