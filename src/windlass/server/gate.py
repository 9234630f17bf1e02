"""Who may come in: a token stands for a tenant and for what may be done in its name."""

import hmac
from typing import Protocol
from urllib.parse import urlsplit

from starlette.requests import HTTPConnection

from windlass.model.errors import Denied, Unauthenticated, WindlassError
from windlass.model.names import EVERY_TENANT, check_name
from windlass.model.token import Pass, Scope

OUR_SITES = ("same-origin", "none")
"""What a browser says of a request that comes from our own page, or from nobody's."""

TOKEN_TENANT = "windlass.token_tenant"  # noqa: S105
"""Where an admitted request has the tenant of its token."""

LOCAL_HOSTS = frozenset({"localhost", "127.0.0.1", "[::1]", "::1"})


class Tokens(Protocol):
    """Knows which tokens there are."""

    async def find(self, token: str) -> Pass | None: ...


class WithLocal:
    """The tokens of the queue, and one of this machine, which may do everything."""

    def __init__(self, others: Tokens | None, local: str) -> None:
        self._others = others
        self._local = local.encode()
        self._pass = Pass(EVERY_TENANT, frozenset({"admin"}))

    async def find(self, token: str) -> Pass | None:
        if hmac.compare_digest(token.encode(), self._local):
            return self._pass
        return None if self._others is None else await self._others.find(token)


class Gate:
    """Lets requests in, or not."""

    def __init__(self, tokens: Tokens, *, local: bool) -> None:
        self._tokens = tokens
        self._local = local

    async def admit(self, request: HTTPConnection, scope: Scope, *, token: str | None = None) -> str:
        """The tenant in whose name the request may do what it asks for. The token may have come in another way."""
        found = await self._known(request, token)
        asked = request.path_params["tenant"]
        if asked != EVERY_TENANT:
            check_name(asked, at="tenant")
        if found.tenant not in (EVERY_TENANT, asked):
            raise Denied(f"this token is not for tenant {asked!r}", at="tenant")
        _check_scope(found, scope)
        return str(asked)

    async def still_admits(self, request: HTTPConnection, scope: Scope, *, token: str | None = None) -> bool:
        """Whether a request that was let in would be let in now; while nobody can say, it would."""
        try:
            await self.admit(request, scope, token=token)
        except (Unauthenticated, Denied):
            return False
        except WindlassError:
            pass
        return True

    async def identify(self, request: HTTPConnection, scope: Scope) -> str:
        """The same where the path names no tenant: the one of the token."""
        found = await self._known(request, None)
        _check_scope(found, scope)
        return found.tenant

    async def _known(self, request: HTTPConnection, token: str | None) -> Pass:
        if self._local:
            _check_host(request)
            check_origin(request)
        found = await self._tokens.find(_token(request) if token is None else token)
        if found is None:
            raise Unauthenticated("this token is not known, or not any more", at="authorization")
        request.scope[TOKEN_TENANT] = found.tenant
        return found


def is_of_all_tenants(request: HTTPConnection) -> bool:
    """Whether the token of an admitted request is for everybody."""
    return bool(request.scope.get(TOKEN_TENANT) == EVERY_TENANT)


def _check_scope(found: Pass, scope: Scope) -> None:
    if not found.allows(scope):
        raise Denied(f"this token does not allow to {scope}", at="authorization")


def _check_host(request: HTTPConnection) -> None:
    """A page in a browser may have its own name point to this machine: it must not get in that way."""
    host = request.headers.get("host", "").lower()
    name = host.rpartition(":")[0] if not host.endswith("]") and ":" in host else host
    if name not in LOCAL_HOSTS:
        raise Denied(f"this server is called localhost, not {host[:100]!r}", at="host")


def check_origin(request: HTTPConnection) -> None:
    """A page of another site must not speak in the name of whoever looks at it. Only browsers say where they are."""
    origin = request.headers.get("origin")
    elsewhere = origin is not None and urlsplit(origin).netloc.lower() != request.headers.get("host", "").lower()
    if elsewhere or request.headers.get("sec-fetch-site", "none") not in OUR_SITES:
        raise Denied("a page of another site may not ask for this", at="origin")


def _token(request: HTTPConnection) -> str:
    kind, _, token = request.headers.get("authorization", "").partition(" ")
    if kind.lower() != "bearer" or not token.strip():
        raise Unauthenticated("send the header Authorization: Bearer TOKEN", at="authorization")
    return token.strip()
