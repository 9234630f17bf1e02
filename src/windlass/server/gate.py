"""Who may come in: a token stands for a tenant and for what may be done in its name."""

import hmac
from typing import Protocol

from starlette.requests import HTTPConnection

from windlass.model.errors import Denied, Unauthenticated
from windlass.model.names import EVERY_TENANT, check_name
from windlass.model.token import Pass, Scope

LOCAL_HOSTS = frozenset({"localhost", "127.0.0.1", "[::1]", "::1"})


class Tokens(Protocol):
    """Knows which tokens there are."""

    async def find(self, token: str) -> Pass | None: ...


class WithLocal:
    """The tokens of the queue, and one of this machine, which may do everything."""

    def __init__(self, others: Tokens | None, local: str) -> None:
        self._others = others
        self._local = local.encode()

    async def find(self, token: str) -> Pass | None:
        if hmac.compare_digest(token.encode(), self._local):
            return Pass(EVERY_TENANT, frozenset({"admin"}))
        return None if self._others is None else await self._others.find(token)


class Gate:
    """Lets requests in, or not."""

    def __init__(self, tokens: Tokens, *, local: bool) -> None:
        self._tokens = tokens
        self._local = local

    async def admit(self, request: HTTPConnection, scope: Scope, *, token: str | None = None) -> str:
        """The tenant in whose name the request may do what it asks for. The token may have come in another way."""
        if self._local:
            self._check_host(request)
        found = await self._tokens.find(_token(request) if token is None else token)
        if found is None:
            raise Unauthenticated("this token is not known, or not any more", at="authorization")
        asked = request.path_params["tenant"]
        if asked != EVERY_TENANT:
            check_name(asked, at="tenant")
        if found.tenant not in (EVERY_TENANT, asked):
            raise Denied(f"this token is not for tenant {asked!r}", at="tenant")
        if not found.allows(scope):
            raise Denied(f"this token does not allow to {scope}", at="authorization")
        return str(asked)

    def _check_host(self, request: HTTPConnection) -> None:
        """A page in a browser may have its own name point to this machine: it must not get in that way."""
        host = request.headers.get("host", "").lower()
        name = host.rpartition(":")[0] if not host.endswith("]") and ":" in host else host
        if name not in LOCAL_HOSTS:
            raise Denied(f"this server is called localhost, not {host[:100]!r}", at="host")


def _token(request: HTTPConnection) -> str:
    kind, _, token = request.headers.get("authorization", "").partition(" ")
    if kind.lower() != "bearer" or not token.strip():
        raise Unauthenticated("send the header Authorization: Bearer TOKEN", at="authorization")
    return token.strip()
