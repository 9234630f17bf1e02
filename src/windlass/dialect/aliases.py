"""Aliases: routes of another queue, each turned into our operations by one function.

Authorizes the request, finds its tenant, and hands it on. Knows no dialect.
"""

from collections.abc import Awaitable, Callable, Iterable
from typing import NamedTuple, TypeVar

from starlette.requests import Request
from starlette.responses import Response

from windlass.model.names import DEFAULT_TENANT, EVERY_TENANT
from windlass.model.operations import Operation, Service
from windlass.server.auth import Auth
from windlass.server.requests import EndpointFunction, RequestLimits, read_body
from windlass.server.route_specs import RouteSpec, SpecRoute

B = TypeVar("B")


class RouteCall(NamedTuple):
    """One authorized request."""

    request: Request
    tenant: str
    """Of the path; else of the token, or `default` for a token of all tenants."""
    service: Service
    limits: RequestLimits

    async def body(self) -> bytes:
        return await read_body(self.request, self.limits)

    def header(self, name: str) -> str:
        return self.request.headers.get(name, "")


Handle = Callable[[RouteCall], Awaitable[Response]]


class Alias(NamedTuple):
    """One route of another queue."""

    spec: RouteSpec
    handle: Handle


def forward(ask: Callable[[RouteCall], Awaitable[Operation[B]]], reply: Callable[[RouteCall, B], Response]) -> Handle:
    """The usual alias: a request is one operation, and its answer the response."""

    async def handle(call: RouteCall) -> Response:
        return reply(call, await call.service(await ask(call)))

    return handle


def no_content(_: RouteCall, __: object) -> Response:
    return Response(status_code=204)


def alias_routes(aliases: Iterable[Alias], service: Service, auth: Auth, limits: RequestLimits) -> list[SpecRoute]:
    """The routes of a dialect."""
    return [SpecRoute(alias.spec, _respond(alias, service, auth, limits)) for alias in aliases]


def _respond(alias: Alias, service: Service, auth: Auth, limits: RequestLimits) -> EndpointFunction:
    scope = alias.spec.scope
    assert scope is not None  # noqa: S101 - only callbacks, which others answer, have none

    async def respond(request: Request) -> Response:
        if "tenant" in request.path_params:
            tenant = await auth.authorize(request, scope)
        else:
            tenant = await auth.tenant_of_token(request, scope)
            tenant = DEFAULT_TENANT if tenant == EVERY_TENANT else tenant
        return await alias.handle(RouteCall(request, tenant, service, limits))

    return respond
