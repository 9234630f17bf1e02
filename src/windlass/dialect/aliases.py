"""Aliases: routes of another queue, each a row of data that names a route and one of our operations.

Authorizes a request, finds its tenant, and asks the service. Knows no dialect.
"""

from collections.abc import Awaitable, Callable, Iterable
from typing import Any, NamedTuple, TypeVar

from msgspec import UNSET, Struct
from msgspec.structs import replace
from starlette.requests import Request
from starlette.responses import Response

from windlass.cached import CachedValue
from windlass.engine.flow.config import NO_SETTINGS, FlowConfigCache
from windlass.model.duration import DAY
from windlass.model.errors import Unavailable
from windlass.model.names import DEFAULT_TENANT, EVERY_TENANT
from windlass.model.new_job import JobOptions
from windlass.model.operations import OPERATIONS, A, Enqueue, EnqueueLines, Operation, Service
from windlass.model.ports import Clock
from windlass.server.auth import Auth
from windlass.server.openapi import RouteSpec, SpecRoute
from windlass.server.requests import EndpointFunction, RequestLimits, read_body

B = TypeVar("B")
J = TypeVar("J", bound=JobOptions)


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


def alias(route: str, name: str, kind: type[Operation[Any]], summary: str, handle: Handle, **more: Any) -> Alias:
    """A row of a dialect's table. `route`: verbs and path; `kind`: the operation whose scope a token needs."""
    *verbs, path = route.split()
    tag = f"dialect-{name[:2].lower()}"
    scope = OPERATIONS[kind].scope
    return Alias(RouteSpec(verbs=verbs, path=path, name=name, tag=tag, summary=summary, scope=scope, **more), handle)


def forward(ask: Callable[[RouteCall], Awaitable[Operation[B]]], reply: Callable[[RouteCall, B], Response]) -> Handle:
    """The usual alias: a request is one operation, and its answer the response."""

    async def handle(call: RouteCall) -> Response:
        return reply(call, await call.service(await ask(call)))

    return handle


def rename(
    kind: type[Operation[B]], **fields: Callable[[RouteCall], str]
) -> Callable[[RouteCall], Awaitable[Operation[B]]]:
    """The operation whose fields are found in the request by these functions."""

    async def ask(call: RouteCall) -> Operation[B]:
        return kind(tenant=call.tenant, **{name: find(call) for name, find in fields.items()})

    return ask


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


# Keep times


class KeepTimes(Struct, frozen=True, kw_only=True):
    """How long finished jobs of a dialect are kept, in seconds; null = forever."""

    keep_success: float | None = DAY
    keep_failure: float | None = 7 * DAY


OPTIONS_IN: dict[type[Operation[Any]], str] = {Enqueue: "job", EnqueueLines: "options"}
"""The operations of dialects that add jobs, and the field that holds their options."""

UNASKED = JobOptions()


class WithKeepTimes:
    """A service in front of another that gives jobs the keep times of their dialect.

    They count where neither the job, nor its task, nor its queue has its own. While the settings of queues cannot be
    read, those that were read last count, or none.
    """

    def __init__(
        self, service: Service, times: KeepTimes, config: FlowConfigCache, clock: Clock, patience: float | None = None
    ) -> None:
        """`patience`: seconds to wait for the store if settings were read before; null = no limit."""
        self._service = service
        self._times = times
        self._config = CachedValue(config.refreshed, clock, 0.0, patience)

    async def __call__(self, operation: Operation[A], /) -> A:
        if (name := OPTIONS_IN.get(type(operation))) is not None:
            filled = await self._filled(operation.tenant, getattr(operation, name))
            operation = replace(operation, **{name: filled})
        return await self._service(operation)

    async def _filled(self, tenant: str, asked: J) -> J:
        try:
            own = (await self._config.known()).settings(tenant, asked.queue)
        except Unavailable:
            own = NO_SETTINGS
        times = {
            name: getattr(self._times, name)
            for name in KeepTimes.__struct_fields__
            if getattr(asked, name) == getattr(UNASKED, name) and getattr(own, name) is UNSET
        }
        return replace(asked, **times)
