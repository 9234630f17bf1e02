"""Authentication: a bearer token stands for a tenant and for scopes; local servers also check Host and Origin.

Streams and long polls check their token again while they last, and end when it is removed or has expired.
"""

import asyncio
import hmac
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple, Protocol, TypeVar
from urllib.parse import urlsplit

from starlette.requests import HTTPConnection, Request, cookie_parser

from windlass.model.audit import Caller, caller
from windlass.model.errors import Denied, Unauthenticated, Unavailable, WindlassError
from windlass.model.names import EVERY_TENANT, check_name
from windlass.model.token import Pass, Scope
from windlass.server.requests import disconnected

T = TypeVar("T")

SAME_SITE = ("same-origin", "none")
"""Values of Sec-Fetch-Site for requests of our own pages, and for those that no page has caused."""

TOKEN_TENANT = "windlass.token_tenant"  # noqa: S105
"""The scope key that holds the tenant of an authorized request's token."""

LOCAL_HOSTS = frozenset({"localhost", "127.0.0.1", "[::1]", "::1"})

CHECK_EVERY = 0.4
"""Seconds between two checks of open tokens; plus the time for which a lookup is cached, less than a second."""

YIELD_AFTER = 100
"""Tokens after which other work of the event loop gets a turn."""


LOCAL_KEY = "local"
"""The name of the machine's own token."""

COOKIE = "windlass"
"""What the cookie of a browser's session is called, before the server's port: browsers send it to every port."""


class TokenStore(Protocol):
    """Finds tokens."""

    async def find(self, token: str) -> Pass | None: ...

    async def find_key(self, key: str) -> Pass | None:
        """By the token's name, for a session that was made with it."""


class SessionStore(Protocol):
    """Finds the sessions of browsers."""

    async def find(self, cookie: str) -> Pass | None: ...


class TokensAndLocal:
    """The tokens of the queue, and the machine's own token, which allows everything."""

    def __init__(self, others: TokenStore | None, local: str) -> None:
        self._others = others
        self._local = local.encode()
        self._pass = Pass(EVERY_TENANT, frozenset({"admin"}), LOCAL_KEY)

    async def find(self, token: str) -> Pass | None:
        if hmac.compare_digest(token.encode(), self._local):
            return self._pass
        return None if self._others is None else await self._others.find(token)

    async def find_key(self, key: str) -> Pass | None:
        if key == self._pass.key:
            return self._pass
        return None if self._others is None else await self._others.find_key(key)


class Auth:
    """Authorizes requests."""

    def __init__(self, tokens: TokenStore, *, local: bool) -> None:
        self.tokens = tokens
        self._local = local
        self.sessions: SessionStore | None = None
        """Of browsers; null = there is no dashboard."""

    async def authorize(self, request: HTTPConnection, scope: Scope, *, token: str | None = None) -> str:
        """The tenant in the path, if the token may use this scope there. `token`: one that did not come in a header."""
        found = await self._find(request, token)
        tenant = request.path_params["tenant"]
        if tenant != EVERY_TENANT:
            check_name(tenant, at="tenant")
        if found.tenant not in (EVERY_TENANT, tenant):
            raise Denied(f"this token is not valid for tenant {tenant!r}", at="tenant")
        _check_scope(found, scope)
        return str(tenant)

    async def still_authorized(self, request: HTTPConnection, scope: Scope, *, token: str | None = None) -> bool:
        """Whether a request that was authorized still would be. True while the tokens cannot be read."""
        try:
            await self.authorize(request, scope, token=token)
        except (Unauthenticated, Denied):
            return False
        except WindlassError:
            pass
        return True

    async def tenant_of_token(self, request: HTTPConnection, scope: Scope, *, token: str | None = None) -> str:
        """For paths that name no tenant: the tenant of the token."""
        found = await self._find(request, token)
        _check_scope(found, scope)
        return found.tenant

    def check_host(self, request: HTTPConnection) -> None:
        """For paths that need no token: only what a local server refuses of everybody."""
        if self._local:
            _check_host(request)

    async def _find(self, request: HTTPConnection, token: str | None) -> Pass:
        if self._local:
            _check_host(request)
            check_origin(request)
        cookie = None if token is not None else self._cookie(request)
        if cookie is not None and self.sessions is not None:
            check_origin(request)
            found = await self.sessions.find(cookie)
        else:
            found = await self.tokens.find(_bearer(request) if token is None else token)
        if found is None:
            raise Unauthenticated("this token is unknown or has expired", at="authorization")
        request.scope[TOKEN_TENANT] = found.tenant
        caller.set(Caller(f"token {found.key}", found.note))
        return found

    def cookie_of(self, request: HTTPConnection) -> str:
        """What the cookie of a session with this server is called."""
        return f"{COOKIE}_{request.url.port or 0}"

    def _cookie(self, request: HTTPConnection) -> str | None:
        """The session of a browser, if the request comes with one and with no token."""
        if "authorization" in request.headers or "cookie" not in request.headers:
            return None
        return cookie_parser(request.headers["cookie"]).get(self.cookie_of(request))

    async def bearer(self, request: HTTPConnection) -> Pass:
        """What the token in the header allows."""
        return await self._find(request, _bearer(request))

    async def signed_in(self, request: HTTPConnection) -> Pass:
        """What the token or the session of a request allows."""
        return await self._find(request, None)


def is_of_all_tenants(request: HTTPConnection) -> bool:
    """Whether the token of an authorized request is valid for every tenant."""
    return bool(request.scope.get(TOKEN_TENANT) == EVERY_TENANT)


def _check_scope(found: Pass, scope: Scope) -> None:
    if not found.allows(scope):
        raise Denied(f"this token does not have the scope {scope!r}", at="authorization")


def _check_host(request: HTTPConnection) -> None:
    """Against DNS rebinding: a web page may point its own name at this machine."""
    host = request.headers.get("host", "").lower()
    name = host.rpartition(":")[0] if not host.endswith("]") and ":" in host else host
    if name not in LOCAL_HOSTS:
        raise Denied(f"a local server answers to localhost, not to host {host[:100]!r}", at="host")


def check_origin(request: HTTPConnection) -> None:
    """Against cross-site requests. Only browsers send these headers."""
    origin = request.headers.get("origin")
    elsewhere = origin is not None and urlsplit(origin).netloc.lower() != request.headers.get("host", "").lower()
    if elsewhere or request.headers.get("sec-fetch-site", "none") not in SAME_SITE:
        raise Denied("cross-site requests are not allowed", at="origin")


def _bearer(request: HTTPConnection) -> str:
    kind, _, token = request.headers.get("authorization", "").partition(" ")
    if kind.lower() != "bearer" or not token.strip():
        raise Unauthenticated("send the header Authorization: Bearer TOKEN", at="authorization")
    return token.strip()


# Streams and long polls


class Grant(NamedTuple):
    """What an open stream or long poll was authorized for."""

    authorization: str
    tenant: str
    scope: Scope


class TokenWatch:
    """Checks the tokens of open streams and long polls."""

    def __init__(self, auth: Auth) -> None:
        self._auth = auth
        self._open: dict[Grant, set[asyncio.Future[None]]] = {}
        self._connections: dict[Grant, tuple[HTTPConnection, str | None]] = {}
        self._checking: asyncio.Task[None] | None = None
        self._undoing: set[asyncio.Task[Any]] = set()

    @contextmanager
    def watch(
        self, connection: HTTPConnection, scope: Scope, token: str | None = None
    ) -> "Iterator[asyncio.Future[None]]":
        """A future that is done when the token stops being valid."""
        headers = connection.headers
        authorization = headers.get("authorization") or headers.get("cookie", "") if token is None else token
        grant = Grant(authorization, connection.path_params["tenant"], scope)
        revoked = asyncio.get_running_loop().create_future()
        self._open.setdefault(grant, set()).add(revoked)
        self._connections.setdefault(grant, (connection, token))
        if self._checking is None:
            self._checking = asyncio.create_task(self._check(), name="windlass-token-watch")
        try:
            yield revoked
        finally:
            self._open[grant].discard(revoked)
            if not self._open[grant]:
                del self._open[grant], self._connections[grant]
            if not self._open:
                self._checking.cancel()
                self._checking = None

    async def long_poll(
        self,
        request: Request,
        scope: Scope,
        work: Coroutine[Any, Any, T],
        undo: Callable[[T], Awaitable[object]] | None,
    ) -> T:
        """The answer, if the token is valid and the client connected until it comes.

        `undo`: gets an answer that comes too late; null = cancel the work.
        """
        task, gone = asyncio.create_task(work), asyncio.create_task(disconnected(request.receive))
        try:
            with self.watch(request, scope) as revoked:
                either: set[asyncio.Future[Any]] = {task, revoked, gone}
                await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
                if task.done() and not revoked.done():
                    return task.result()
                left = gone.done()
        except asyncio.CancelledError:
            task.cancel()
            raise
        finally:
            gone.cancel()
        if undo is None:
            task.cancel()
        else:  # cancelling could lose jobs that the store has just leased
            undoing = asyncio.create_task(_undo(task, undo))
            self._undoing.add(undoing)
            undoing.add_done_callback(self._undoing.discard)
        if left:
            raise Unavailable("the client has disconnected")  # nothing is sent any more
        raise Unauthenticated("this token was removed or has expired", at="authorization")

    async def _check(self) -> None:
        while True:
            await asyncio.sleep(CHECK_EVERY)
            for number, grant in enumerate(list(self._open), start=1):
                if number % YIELD_AFTER == 0:
                    await asyncio.sleep(0)
                known = self._connections.get(grant)
                if known is None or await self._auth.still_authorized(known[0], grant.scope, token=known[1]):
                    continue
                for revoked in self._open.get(grant, ()):
                    if not revoked.done():
                        revoked.set_result(None)


async def _undo(task: "asyncio.Task[T]", undo: Callable[[T], Awaitable[object]]) -> None:
    with suppress(WindlassError):
        await undo(await task)
