"""A server over TLS: the whole life of a job, notices too, and one clear error where a certificate does not do."""

import asyncio
import subprocess
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from msgspec import Raw

from tests.support.engines import enqueue, finish, packed, register, take
from tests.support.patience import PATIENCE
from tests.support.ports import free_port
from tests.support.servers import NewPrefix, Server
from windlass import Windlass
from windlass.connection import run_sync
from windlass.engine import Engine
from windlass.model.errors import Invalid, Unavailable
from windlass.model.new_job import NewJob
from windlass.model.operations import Claim, EnqueueMany, GetResult
from windlass.store.redis import RedisStore
from windlass.system import SystemRandomness

NAMES = "subjectAltName=IP:127.0.0.1"
CURVE = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")


class Certificate:
    """A certificate that vouches for itself, and its key."""

    def __init__(self, folder: Path, name: str, *more: str) -> None:
        self.file, self.key = folder / f"{name}.pem", folder / f"{name}.key"
        names = ("-subj", f"/CN={name}", "-days", "2", *more)
        files = ("-keyout", str(self.key), "-out", str(self.file))
        subprocess.run(["openssl", "req", "-x509", *CURVE, *names, *files], check=True, capture_output=True)


class TlsServer(Server):
    """Also answers over TLS, on a port of its own. The plain one is for the test to ask."""

    def __init__(self, folder: Path, certificate: Certificate, trusted: Certificate | None) -> None:
        super().__init__("redis", folder)
        self.tls_port = free_port()
        self._certificate = certificate
        self._trusted = trusted

    @property
    def address(self) -> str:
        return f"rediss://127.0.0.1:{self.tls_port}/0"

    def _settings(self) -> str:
        authority = (self._trusted or self._certificate).file
        lines = [
            f"tls-port {self.tls_port}",
            f'tls-cert-file "{self._certificate.file}"',
            f'tls-key-file "{self._certificate.key}"',
            f'tls-ca-cert-file "{authority}"',
            f"tls-auth-clients {'yes' if self._trusted else 'no'}",
        ]
        return super()._settings() + "\n".join(lines) + "\n"

    def connections(self) -> int:
        (line,) = [line for line in self.ask("INFO", "stats").splitlines() if line.startswith("total_connections_rec")]
        return int(line.partition(":")[2])


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("tls")


@pytest.fixture(scope="module")
def ours(folder: Path) -> Certificate:
    return Certificate(folder, "ours", "-addext", NAMES)


@pytest.fixture(scope="module")
def another(folder: Path) -> Certificate:
    return Certificate(folder, "another", "-addext", NAMES)


@pytest.fixture(scope="module")
def tls_server(folder: Path, ours: Certificate) -> Iterator[TlsServer]:
    with TlsServer(folder, ours, trusted=None) as server:
        yield server


@asynccontextmanager
async def engine_at(address: str, prefix: str) -> AsyncIterator[Engine]:
    store = await RedisStore.open(address, prefix=prefix)
    try:
        yield Engine(store, SystemRandomness())
    finally:
        await store.close()


async def test_a_job_lives_its_whole_life_over_tls(
    tls_server: TlsServer, ours: Certificate, new_prefix: NewPrefix
) -> None:
    address, prefix = f"{tls_server.address}?ssl_ca_certs={ours.file}", new_prefix()
    async with engine_at(address, prefix) as submitter, engine_at(address, prefix) as other:
        worker = await register(other)
        claiming = asyncio.create_task(other(Claim(worker=worker, wait=20)))
        async with other.context.store.events.listen(["work/default"]) as listener:
            job = await enqueue(submitter, payload=packed(b"x" * 100_000))
            assert await listener.wait(PATIENCE), "no notice came"
        (taken,) = await claiming
        assert (taken.job.id, len(bytes(taken.payload)) > 100_000) == (job.id, True)
        waiting = asyncio.create_task(submitter(GetResult(id=job.id, wait=20)))
        await finish(other, worker, taken, result=packed("done"))
        found = (await waiting).result
        assert isinstance(found, Raw)
        assert bytes(found) == bytes(packed("done"))


async def test_the_address_of_a_certificate_that_the_system_trusts_needs_no_option(
    tls_server: TlsServer, ours: Certificate, new_prefix: NewPrefix, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(ours.file))
    async with engine_at(tls_server.address, new_prefix()) as engine:
        await enqueue(engine)
        await take(engine, await register(engine))


def test_callers_without_a_loop_use_one_connection_over_tls(
    tls_server: TlsServer, ours: Certificate, new_prefix: NewPrefix
) -> None:
    address = f"{tls_server.address}?ssl_ca_certs={ours.file}"
    store = run_sync(RedisStore.open(address, prefix=new_prefix(), blocking=True))
    engine = Engine(store, SystemRandomness())
    before = tls_server.connections()
    for _ in range(20):
        run_sync(engine(EnqueueMany(jobs=[NewJob(task="work")])))
    assert tls_server.connections() - before == 1, "only that of this question"
    run_sync(store.close())


def test_an_app_queues_jobs_over_tls(tls_server: TlsServer, ours: Certificate) -> None:
    app = Windlass(f"{tls_server.address}?ssl_ca_certs={ours.file}", tenant="tls")

    @app.task
    def double(n: int) -> int:
        return 2 * n

    assert double.enqueue(1).refresh().task == "double"
    app.close()


@pytest.mark.parametrize("blocking", [False, True])
@pytest.mark.parametrize("vouched_by", ["another", None])
async def test_a_certificate_of_an_untrusted_authority_is_one_clear_error(
    tls_server: TlsServer, another: Certificate, new_prefix: NewPrefix, vouched_by: str | None, blocking: bool
) -> None:
    option = f"?ssl_ca_certs={another.file}" if vouched_by else ""
    with pytest.raises(Unavailable) as fault:
        await RedisStore.open(f"{tls_server.address}{option}", prefix=new_prefix(), blocking=blocking)
    assert "the store's certificate is not trusted: self-signed certificate" in fault.value.detail
    assert "ssl_ca_certs" in fault.value.detail


async def test_a_certificate_for_another_name_is_refused(tls_server: TlsServer, ours: Certificate) -> None:
    address = f"rediss://localhost:{tls_server.tls_port}/0?ssl_ca_certs={ours.file}"
    with pytest.raises(Unavailable, match="is not trusted: Hostname mismatch"):
        await RedisStore.open(address)


async def test_plain_talk_to_a_port_with_tls_is_an_error_and_no_silence(tls_server: TlsServer) -> None:
    with pytest.raises(Unavailable):
        await RedisStore.open(f"redis://127.0.0.1:{tls_server.tls_port}/0")


async def test_a_server_that_wants_to_know_us_is_shown_our_certificate(
    tmp_path: Path, ours: Certificate, another: Certificate, new_prefix: NewPrefix
) -> None:
    with TlsServer(tmp_path, ours, trusted=another) as server:
        address = f"{server.address}?ssl_ca_certs={ours.file}"
        own = f"&ssl_certfile={another.file}&ssl_keyfile={another.key}"
        async with engine_at(address + own, new_prefix()) as engine:
            await enqueue(engine)
        with pytest.raises(Unavailable):
            await RedisStore.open(address, prefix=new_prefix())


@pytest.mark.parametrize(
    ("option", "says"),
    [
        ("ssl_ca_certs=/nowhere/ca.pem", "ssl_ca_certs=/nowhere/ca.pem: "),
        ("ssl_certfile=/nowhere/me.pem", "ssl_certfile=/nowhere/me.pem: "),
        ("ssl_cert_reqs=none", "ssl_ca_certs, ssl_certfile, ssl_keyfile are known here"),
    ],
)
@pytest.mark.parametrize("scheme", ["rediss://127.0.0.1:1/0", "rediss+sentinel://127.0.0.1:1/main"])
async def test_an_option_that_cannot_be_meant_is_refused(scheme: str, option: str, says: str) -> None:
    with pytest.raises(Invalid) as fault:
        await RedisStore.open(f"{scheme}?{option}")
    assert says in fault.value.detail
    assert fault.value.at == "store"
