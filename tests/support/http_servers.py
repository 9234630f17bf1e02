"""Servers to ask over HTTP: one in the test's own event loop on a real socket, or one in a process of its own."""

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import httpx2
import msgspec
import psutil
import pytest

from tests.support.ports import free_port
from tests.support.stores import VirtualClock
from windlass.dialect import asy, s2, s3, s4
from windlass.dialect.aliases import WithKeepTimes
from windlass.engine import Engine
from windlass.engine.records import Keyring
from windlass.local_token import known_token
from windlass.model.job import JSON
from windlass.model.operations import Operation, Service
from windlass.model.ports import Clock
from windlass.model.shapes import SHAPES, Shape
from windlass.server import dashboard
from windlass.server.application import application
from windlass.server.auth import Auth, TokensAndLocal
from windlass.server.dashboard import Sessions
from windlass.server.http_server import ListenAddress, Server, server
from windlass.server.requests import RequestLimits

LOCAL = "wl_local_of-the-tests"
"""The token that allows everything."""

START_WITHIN = 60.0


def make_auth(engine: Engine, clock: Clock, *, local: bool = True) -> Auth:
    return Auth(TokensAndLocal(Keyring(engine.context, clock), LOCAL), local=local)


@asynccontextmanager
async def served(
    engine: Engine,
    clock: Clock,
    *,
    local: bool = True,
    limits: RequestLimits | None = None,
    notifications: s4.NotificationOptions | None = None,
    client_jobs: s3.ClientJobOptions | None = None,
    drawing: asy.AsyOptions | None = None,
    asking: Service | None = None,
    service: Service | None = None,
) -> AsyncIterator[str]:
    """The URL of a server over this engine, or over a service before it: for all routes, or those of other dialects."""
    service = service or engine
    auth, others, bounds = make_auth(engine, clock, local=local), asking or service, limits or RequestLimits()
    client_jobs, notifications = client_jobs or s3.ClientJobOptions(), notifications or s4.NotificationOptions()
    config = engine.context.flow_config
    also = [
        *s2.routes(others, auth, bounds),
        *s3.routes(WithKeepTimes(others, client_jobs, config, clock), auth, bounds, client_jobs),
        *s4.routes(WithKeepTimes(others, notifications, config, clock), auth, bounds, notifications),
    ]
    check_ready = engine.check_ready if service is engine else None
    sockets = asy.Asy(others, engine, auth, clock, drawing or asy.AsyOptions()).all()
    auth.sessions = sessions = Sessions(b"of the tests", clock, engine.context.chance, auth.tokens.find_key)
    pages = dashboard.routes(auth, sessions)
    app = application(service, engine, auth, limits, also=also, also_routes=[*sockets, *pages], check_ready=check_ready)
    http = server(app, ListenAddress(port=0))
    await start(http)
    try:
        yield f"http://127.0.0.1:{http.servers[0].sockets[0].getsockname()[1]}"
    finally:
        await close(http)


async def start(http: Server) -> None:
    http.config.load()
    http.lifespan = http.config.lifespan_class(http.config)
    await http.startup()


async def close(http: Server) -> None:
    """What its own shutdown does, which waits for a tenth of a second in any case."""
    for listening in http.servers:
        listening.close()
    for connection in list(http.server_state.connections):
        connection.shutdown()
    for _ in range(100):
        if not http.server_state.connections and not http.server_state.tasks:
            break
        await asyncio.sleep(0.001)
    for listening in http.servers:
        await listening.wait_closed()


class Web:
    """A plain HTTP client: what it sends is what the test says."""

    def __init__(self, client: httpx2.AsyncClient) -> None:
        self.client = client

    async def send(
        self, verb: str, path: str, body: Any = None, *, form: str = JSON, accept: str = "", **more: Any
    ) -> httpx2.Response:
        """A request under `/v1/default`, its body encoded as `form` says if it is not bytes."""
        headers = {"accept": accept, **({"content-type": form} if body is not None else {}), **more.pop("headers", {})}
        content = body if isinstance(body, bytes) or body is None else encoded(body, form)
        return await self.client.request(verb, f"/v1/default{path}", content=content, headers=headers, **more)


def encoded(value: Any, form: str) -> bytes:
    return msgspec.msgpack.encode(value) if "msgpack" in form else msgspec.json.encode(value)


def decoded(response: httpx2.Response) -> Any:
    if "msgpack" in response.headers["content-type"]:
        return msgspec.msgpack.decode(response.content)
    return msgspec.json.decode(response.content)


@asynccontextmanager
async def web(address: str, token: str = LOCAL, **more: Any) -> AsyncIterator[httpx2.AsyncClient]:
    headers = {"authorization": f"Bearer {token}"} if token else {}
    common: dict[str, Any] = {"base_url": address, "trust_env": False, "verify": False, "timeout": 30}
    async with httpx2.AsyncClient(headers=headers, **common, **more) as client:
        yield client


@pytest.fixture
async def site(engine: Engine, clock: VirtualClock) -> AsyncIterator[str]:
    """The address of a server over the engine of the test."""
    async with served(engine, clock) as found:
        yield found


@pytest.fixture
async def page(site: str) -> AsyncIterator[Web]:
    async with web(site) as client:
        yield Web(client)


SAMPLES: dict[str, Any] = {
    "id": "00000000-0000-7000-8000-0000000000df",
    "worker": "nobody",
    "key": "nokey",
    "queue": "noqueue",
    "name": "nolimit",
    "task": "work",
}
"""What stands in a path where nothing else is said."""


def path_of(shape: Shape, **names: str) -> str:
    return shape.path.format(**{**SAMPLES, **names})


def named(shape: Shape) -> str:
    return f"{shape.kind.__name__}-{shape.route.verb}-{shape.path}"


def shape_of(kind: type[Operation[Any]]) -> Shape:
    return next(shape for shape in SHAPES if shape.kind is kind)


# A process of its own


class Process:
    """`windlass serve` over a file or another store, to be asked, measured and killed."""

    def __init__(self, folder: Path, *flags: str, store: str | None = None, **settings: str) -> None:
        self.folder = folder
        self.store = store or str(folder / "jobs.db")
        self.port = free_port()
        self.flags = flags
        self.settings = settings
        """More of its environment."""
        self.child: subprocess.Popen[bytes] | None = None

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def token(self) -> str:
        return known_token(self.folder / "data") or ""

    def start(self, path: str = "/readyz") -> None:
        """Start it, and wait until it says there that all is well."""
        command = [sys.executable, "-m", "windlass", "serve", "--store", self.store]
        place = ["--data", str(self.folder / "data"), "--port", str(self.port), *self.flags]
        with (self.folder / "log").open("ab") as log:
            self.child = subprocess.Popen(
                [*command, *place], stdout=log, stderr=log, env=_environment() | self.settings
            )
        with httpx2.Client(base_url=self.address, trust_env=False, verify=False) as client:
            for _ in range(int(START_WITHIN / 0.02)):
                assert self.child.poll() is None, (self.folder / "log").read_text()
                try:
                    if client.get(path).status_code == 200:
                        return
                except httpx2.TransportError:
                    pass
                time.sleep(0.02)
        raise AssertionError(f"the server did not start: {(self.folder / 'log').read_text()}")

    def kill(self) -> None:
        assert self.child is not None
        self.child.kill()
        self.child.wait()

    def memory(self) -> int:
        """Bytes that it has in memory."""
        assert self.child is not None
        return int(psutil.Process(self.child.pid).memory_info().rss)

    def descriptors(self) -> int:
        """Files and connections that it has open."""
        assert self.child is not None
        return int(psutil.Process(self.child.pid).num_fds())

    def cpu(self) -> float:
        """Seconds that it has computed."""
        assert self.child is not None
        times = psutil.Process(self.child.pid).cpu_times()
        return float(times.user + times.system)


def _environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith("WINDLASS_")}


@contextmanager
def process(folder: Path, *flags: str, store: str | None = None, **settings: str) -> Iterator[Process]:
    found = Process(folder, *flags, store=store, **settings)
    found.start()
    try:
        yield found
    finally:
        found.kill()
