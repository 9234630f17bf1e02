"""The way of every request in and out: it is given to its route and counted, and what goes wrong is told.

Starlette has a layer around its routes for each of these. A request passes one here; a WebSocket goes Starlette's way.
"""

from collections.abc import Sequence

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Match
from starlette.types import Message, Receive, Scope, Send

from windlass.model.errors import WindlassError
from windlass.server import problems
from windlass.server.heads import WHOLE
from windlass.server.metrics import Requests
from windlass.server.streams import ABORT

NO_METHOD = 405

CLOSE = (b"connection", b"close")

CODES = {404: ("no_route", "Not found"), 405: ("no_method", "Method not allowed")}


class Front(Starlette):
    """All routes."""

    def __init__(self, routes: Sequence[BaseRoute], requests: Requests) -> None:
        super().__init__(routes=routes, exception_handlers={WindlassError: problems.on_error})
        self.router.redirect_slashes = False  # a path is what it is
        self._requests = requests
        requests.know(routes)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await super().__call__(scope, receive, send)
            return
        scope["app"] = self
        came_at, answered = self._requests.now(), False

        async def noted(message: Message) -> None:
            nonlocal answered
            if not answered:
                answered = True
                if WHOLE not in scope and ABORT in scope.get("extensions", {}):
                    message["headers"] = [*message.get("headers", ()), CLOSE]  # nobody will read the rest of its body
                self._requests.note(scope, message["status"], came_at)
            await send(message)

        try:
            await self.router(scope, receive, noted)
        except (WindlassError, HTTPException) as fault:
            if answered:
                raise
            response = _told(Request(scope), fault)
            await response(scope, receive, noted)
        except Exception as fault:
            response = problems.of_bug(Request(scope), fault)
            if not answered:
                await response(scope, receive, noted)
            raise  # whoever runs us closes the connection


def _told(request: Request, fault: WindlassError | HTTPException) -> Response:
    if isinstance(fault, WindlassError):
        return problems.told(request, fault)
    status = fault.status_code
    code, title = CODES.get(status, ("error", "Error"))
    path = request.scope["path"][:200]
    detail = f"there is no {request.method} {path}; /reference lists what there is"
    problem = problems.of_status(status, title, detail, code)
    return problems.response(problem, problems.form_for(request), _allowed(request) if status == NO_METHOD else None)


def _allowed(request: Request) -> dict[str, str]:
    """What may be done at this path, by all of its routes."""
    routes = (route for route in request.app.routes if route.matches(request.scope)[0] is not Match.NONE)
    return {"allow": ", ".join(sorted({verb for route in routes for verb in route.methods or ()}))}
