"""The dashboard: the pages of a web browser that signs in once, and the files of those pages.

The pages have no state of their own: all that they show or change goes through the public routes. Here are only the
files, under a strict policy, and the session. A browser gets a session for a token: from a sign-in link that works
once, or by sending the token. The cookie holds the token's name and is signed, so another server on this machine, to
which the browser sends it too, learns no token; a token that is removed ends its sessions.
"""

import gzip
import hashlib
import hmac
from collections.abc import Awaitable, Callable
from functools import cache
from importlib.metadata import version
from importlib.resources import files
from typing import Any, NamedTuple

import msgspec
from msgspec import Struct
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route
from starlette.types import Message, Receive, Scope, Send

from windlass.model.errors import Missing
from windlass.model.ports import Clock, Randomness
from windlass.model.token import Pass
from windlass.server.auth import Auth, check_origin
from windlass.server.formats import NDJSON

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "frame-ancestors 'none'; base-uri 'none'; form-action 'none'"
)

TYPES = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
}

SESSION_LASTS = 12 * 3600
"""Seconds."""

LINK_LASTS = 3600
"""Seconds in which a sign-in link must be used."""

MOST_LINKS = 100

OK = 200

SAVED = (b"content-disposition", b'attachment; filename="jobs.ndjson"')

SCOPES = ("enqueue", "work", "read", "operate", "admin")


class SignedIn(Struct, frozen=True):
    """Who a browser is signed in as."""

    tenant: str
    scopes: list[str]
    token: str
    """The token's name."""
    version: str


class Sessions:
    """Signs and checks the cookies of browsers, and makes sign-in links."""

    def __init__(
        self, secret: bytes, clock: Clock, chance: Randomness, find: Callable[[str], Awaitable[Pass | None]]
    ) -> None:
        self._secret = hashlib.sha256(b"session\0" + secret).digest()
        self._clock = clock
        self._chance = chance
        self._find = find
        self._links: dict[str, tuple[str, float]] = {}
        """By code: the name of the token, and when the link ends."""

    def sign(self, key: str) -> str:
        """The cookie for a token's name."""
        until = int(self._clock.now().timestamp()) + SESSION_LASTS
        return f"{key}.{until}.{self._mac(key, until)}"

    async def find(self, cookie: str) -> Pass | None:
        """What a cookie allows; null = it is not ours, it has ended, or its token was removed."""
        key, _, rest = cookie.partition(".")
        until, _, mac = rest.partition(".")
        if not until.isascii() or not until.isdecimal() or len(until) > 12:  # noqa: PLR2004 - a time in seconds
            return None
        if not hmac.compare_digest(mac.encode(), self._mac(key, int(until)).encode()):
            return None
        return await self._find(key) if int(until) > self._clock.now().timestamp() else None

    def _mac(self, key: str, until: int) -> str:
        return hmac.new(self._secret, f"{key}.{until}".encode(), "sha256").hexdigest()

    def link(self, key: str) -> str:
        """The path that signs a browser in, once."""
        code = b"".join(self._chance.token() for _ in range(3)).hex()
        while len(self._links) >= MOST_LINKS:
            del self._links[next(iter(self._links))]
        self._links[code] = key, self._clock.monotonic() + LINK_LASTS
        return f"/sign-in/{code}"

    def use(self, code: str) -> str | None:
        """The token's name that a link stands for; the link is used up."""
        key, until = self._links.pop(code, ("", 0.0))
        return key if until > self._clock.monotonic() else None


def routes(auth: Auth, sessions: Sessions) -> list[Route]:
    """The pages, their files, and signing in and out."""

    async def shell(request: Request) -> Response:
        return _file("index.html", request)

    async def static(request: Request) -> Response:
        return _file(request.path_params["path"], request)

    async def sign_in(request: Request) -> Response:
        key = sessions.use(request.path_params["code"])
        if key is None:
            return RedirectResponse("/#/signed-out", status_code=303)
        response = RedirectResponse("/", status_code=303)
        _set_cookie(request, response, sessions.sign(key))
        return response

    async def session(request: Request) -> Response:
        check_origin(request)
        match request.method:
            case "DELETE":
                response = Response(status_code=204)
                response.delete_cookie(auth.cookie_of(request), samesite="strict", httponly=True)
                return response
            case "POST":
                found = await auth.bearer(request)
                response = _answer(found)
                _set_cookie(request, response, sessions.sign(found.key))
                return response
            case _:
                return _answer(await auth.signed_in(request))

    async def link(request: Request) -> Response:
        found = await auth.bearer(request)
        return Response(msgspec.json.encode({"path": sessions.link(found.key)}), media_type="application/json")

    def _set_cookie(request: Request, response: Response, cookie: str) -> None:
        response.set_cookie(
            auth.cookie_of(request),
            cookie,
            max_age=SESSION_LASTS,
            httponly=True,
            samesite="strict",
            secure=request.url.scheme == "https" or request.headers.get("x-forwarded-proto") == "https",
        )

    return [
        Route("/", shell, methods=["GET"]),
        Route("/dashboard/export/{tenant}/jobs.ndjson", Export(), methods=["GET"]),
        Route("/dashboard/{path:path}", static, methods=["GET"]),
        Route("/sign-in/{code}", sign_in, methods=["GET"]),
        Route("/session", session, methods=["GET", "POST", "DELETE"]),
        Route("/session/link", link, methods=["POST"]),
    ]


def _answer(found: Pass) -> Response:
    scopes = [scope for scope in SCOPES if found.allows(scope)]  # type: ignore[arg-type] # they are all there are
    who = SignedIn(found.tenant, scopes, found.key, version("windlass"))
    return Response(msgspec.json.encode(who), media_type="application/json", headers={"cache-control": "no-store"})


class Export:
    """A listing as a file that a browser saves while it comes in: a link can send no Accept header, so this does."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_as_file(message: Message) -> None:
            if message["type"] == "http.response.start" and message["status"] == OK:
                message["headers"] = [
                    *message["headers"],
                    (b"content-disposition", b'attachment; filename="jobs.ndjson"'),
                ]
            await send(message)

        headers = [(name, value) for name, value in scope["headers"] if name != b"accept"]
        listing = {
            **scope,
            "path": f"/v1/{scope['path_params']['tenant']}/jobs",
            "headers": [*headers, (b"accept", NDJSON.encode())],
        }
        await scope["app"](listing, receive, send_as_file)


class StaticFile(NamedTuple):
    """A file of the pages."""

    content: bytes
    compressed: bytes
    etag: str


def _file(path: str, request: Request) -> Response:
    file = _files().get(path)
    if file is None:
        raise Missing(f"there is no page /dashboard/{path[:100]}", at="path")
    headers = {
        "content-security-policy": POLICY,
        "x-content-type-options": "nosniff",
        "referrer-policy": "no-referrer",
        "cache-control": "no-cache",
        "etag": file.etag,
        "vary": "accept-encoding",
    }
    if request.headers.get("if-none-match") == file.etag:
        return Response(status_code=304, headers=headers)
    kind = TYPES[path[path.rindex(".") :]]
    if "gzip" not in request.headers.get("accept-encoding", ""):
        return Response(file.content, media_type=kind, headers=headers)
    return Response(file.compressed, media_type=kind, headers={**headers, "content-encoding": "gzip"})


@cache
def _files() -> dict[str, StaticFile]:
    """The files of the pages, by path: nothing else can be asked for."""
    found: dict[str, StaticFile] = {}

    def read(folder: Any, prefix: str) -> None:
        for entry in folder.iterdir():
            if entry.is_dir():
                read(entry, f"{prefix}{entry.name}/")
            elif entry.name[entry.name.rfind(".") :] in TYPES:
                content = entry.read_bytes()
                etag = f'"{hashlib.sha256(content).hexdigest()[:20]}"'
                found[prefix + entry.name] = StaticFile(content, gzip.compress(content, mtime=0), etag)

    read(files(__package__) / "static", "")
    return found
