"""Where jobs are sent, and where they are not: whatever a worker calls itself, nothing inside is reached through it."""

import asyncio
import ssl
import subprocess
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime
from ipaddress import ip_address
from pathlib import Path

import pytest
from msgspec import Raw

from tests.support.patience import PATIENCE
from tests.support.push_servers import OK, Receiver, always, receiver
from windlass.model.errors import Denied, Invalid
from windlass.model.job import Job, State
from windlass.model.operations import Claimed, Finished
from windlass.model.push import read_url
from windlass.model.worker import Worker
from windlass.server import bodies
from windlass.system import SystemClock
from windlass.worker.network import Allowed, Network, Resolve, inner, is_for_all, read_allowed, resolve
from windlass.worker.push import BodyCodec, Delivery, NotDelivered

NOW = datetime(2026, 1, 1, tzinfo=UTC)
CLAIMED = Claimed(
    job=Job(id="x", tenant="default", task="work", state=State.RUNNING, attempt=1, created_at=NOW, updated_at=NOW),
    token="0" * 16,
    payload=Raw(b"\xc0"),
)

LOOPBACK = [
    *("127.0.0.1", "127.1", "127.0.1", "127.0.0.2", "127.255.255.254", "0", "0.0", "localhost", "LocalHost"),
    *("0177.0.0.1", "0177.1", "017700000001", "127.00.00.01", "0x7f.1", "0x7f.0x0.0x0.0x1", "0x7f000001", "0X7F.1"),
    *("2130706433", "0x7f.0.1", "127.0x1", "127.0.0.1.", "localhost."),
    *("[::1]", "[::]", "[0:0:0:0:0:0:0:1]", "[::ffff:127.0.0.1]", "[::ffff:7f00:1]", "[0:0:0:0:0:ffff:127.0.0.1]"),
    *("[::127.0.0.1]", "[64:ff9b::127.0.0.1]", "[64:ff9b::7f00:1]", "[64:ff9b:1::7f00:1]", "[2002:7f00:1::]"),
    *("[2002:7f00:1::1]", "[2001:0:7f00:1::]", "[2001:0:4136:e378:8000:63bf:80ff:fffe]"),
]
INSIDE = [
    *("10.0.0.1", "172.16.0.1", "172.31.255.255", "192.168.1.1", "0300.0250.0.1", "100.64.0.1", "169.254.169.254"),
    *("0xa9fea9fe", "2852039166", "0251.0376.0251.0376", "[::ffff:169.254.169.254]", "[64:ff9b::a9fe:a9fe]"),
    *("[2002:a9fe:a9fe::]", "[fe80::1]", "[fd00:ec2::254]", "[fc00::1]", "[fec0::1]", "[::ffff:10.0.0.1]"),
    *("224.0.0.1", "239.255.255.250", "255.255.255.255", "240.0.0.1", "192.0.0.1", "192.88.99.1", "198.18.0.1"),
    *("192.0.2.1", "198.51.100.1", "203.0.113.1", "[ff02::1]", "[ff0e::1]", "[2001:db8::1]", "[100::1]", "[3fff::1]"),
]
ODD = [
    *("①②⑦.⓪.⓪.①", "１２７.０.０.１", "127。0。0。1", "127%2e0%2e0%2e1", "user@127.0.0.1", "example.org@127.0.0.1"),
    *("example.org\\@127.0.0.1", "127.0.0.1#.example.org", "127.0.0.1\t", " 127.0.0.1", "[::1%25lo]", "[::1%lo]"),
    *("127.0.0.1:80:80", "[127.0.0.1]", "[::ffff:127.0.0.1%25]", "loc\u00adalhost", "ⓛocalhost", "x..example"),
    *(f"{'x' * 64}.example", f"{'x.' * 200}example"),
]


def delivery(url: str, allowed: Allowed, find: Resolve = resolve, tls: ssl.SSLContext | None = None) -> Delivery:
    worker = Worker(id="w", name="w", tenant="default", url=url, registered_at=NOW, seen_at=NOW, format="json")
    network = Network(allowed, find, tls, answer_within=PATIENCE)
    return Delivery(worker, "secret", network, BodyCodec(bodies.encode, bodies.decode), SystemClock())


async def sent(url: str, allowed: Allowed, find: Resolve = resolve, tls: ssl.SSLContext | None = None) -> object:
    """What comes of sending a job there."""
    way = delivery(url, allowed, find, tls)
    try:
        return await way.send(CLAIMED)
    finally:
        await way.close()


def answering(*answers: Sequence[str]) -> Resolve:
    """A resolver that changes its mind: each time it is asked it says the next."""
    left = iter(answers)

    async def find(host: str, port: int) -> Sequence[str]:
        return next(left)

    return find


@asynccontextmanager
async def listeners() -> AsyncIterator[tuple[int, Callable[[], int]]]:
    """A port of this machine on which whoever connects is counted, at all of its addresses."""
    connections = 0

    def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        connections += 1
        writer.close()

    async with await asyncio.start_server(connected, "0.0.0.0", 0) as four:  # noqa: S104
        port = four.sockets[0].getsockname()[1]
        six = None
        with suppress(OSError):
            six = await asyncio.start_server(connected, "::1", port)
        yield port, lambda: connections
        if six is not None:
            six.close()


async def test_no_way_of_writing_an_address_leads_to_this_machine_or_the_network_behind_it() -> None:
    everything = [*LOOPBACK, *INSIDE, *ODD]
    assert len(everything) >= 60
    async with listeners() as (port, connections):
        for scheme in ("https", "http"):
            for host in everything:
                with pytest.raises((NotDelivered, Invalid)):
                    await sent(f"{scheme}://{host}:{port}/", Allowed())
        assert connections() == 0
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        assert await reader.read() == b""
        writer.close()
        assert connections() == 1, "whoever does connect is counted"


@pytest.mark.parametrize("host", [*LOOPBACK, *INSIDE])
async def test_it_is_the_address_that_is_judged_however_it_is_written(host: str) -> None:
    bare = host.strip("[]")
    try:
        found = await resolve(bare, 443)
    except OSError:
        return  # this machine cannot make anything of it
    with pytest.raises(Denied):
        Allowed().check(bare, 443, found, encrypted=True)


@pytest.mark.parametrize("address", ["8.8.8.8", "2606:4700:4700::1111", "::ffff:8.8.8.8", "64:ff9b::808:808"])
def test_the_open_network_is_allowed_but_not_without_encryption(address: str) -> None:
    assert is_for_all(inner(ip_address(address)))
    assert Allowed().check("x.example", 443, [address], encrypted=True)
    with pytest.raises(Denied, match="https"):
        Allowed().check("x.example", 80, [address], encrypted=False)


def test_one_bad_address_among_good_ones_spoils_them_all() -> None:
    with pytest.raises(Denied):
        Allowed().check("x.example", 443, ["8.8.8.8", "10.0.0.1"], encrypted=True)


async def test_a_name_that_changes_its_meaning_gets_nowhere() -> None:
    async with receiver(OK, host="127.0.0.2", format="json") as good, listeners() as (_, connections):
        port = read_url(good.url).port
        here = read_allowed([f"127.0.0.2/32:{port}"])
        find = answering(["127.0.0.2"], ["127.0.0.1"], ["127.0.0.2", "127.0.0.1"], ["::ffff:127.0.0.1"])
        url = f"http://rebinds.example:{port}/"
        assert isinstance(await sent(url, here, find), Finished)
        for _ in range(3):
            with pytest.raises(NotDelivered):
                await sent(url, here, find)
        assert (good.connections, connections()) == (1, 0)
        assert good.sent[0].headers["host"] == f"rebinds.example:{port}"


async def test_redirects_are_not_followed() -> None:
    async with listeners() as (port, connections):
        target = {"location": f"http://127.0.0.1:{port}/"}
        for status in (301, 302, 303, 307, 308):
            async with receiver(always(status, target), format="json") as worker:
                with pytest.raises(NotDelivered):
                    await sent(worker.url, Allowed(near=True))
        assert connections() == 0


async def test_proxies_of_the_environment_are_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    async with listeners() as (port, connections), receiver(OK, format="json") as worker:
        for name in ("http_proxy", "HTTP_PROXY", "https_proxy", "all_proxy", "ALL_PROXY"):
            monkeypatch.setenv(name, f"http://127.0.0.1:{port}")
        assert isinstance(await sent(worker.url, Allowed(near=True)), Finished)
        assert connections() == 0


@pytest.mark.parametrize("entry", ["127.0.0.0/8:{port}", "127.0.0.1:{port}", "[127.0.0.1]:{port}"])
async def test_an_operator_may_allow_more(entry: str) -> None:
    async with receiver(OK, format="json") as worker:
        allowed = read_allowed([entry.format(port=read_url(worker.url).port)])
        assert isinstance(await sent(worker.url, allowed), Finished)


@pytest.mark.parametrize(
    "entry",
    [
        *("", "10.0.0.0/99", "workers", "10.0.0.1/8", ":80", "http://x:80x"),
        *("127.0.0.1", "10.0.0.0/8", "::1", "fd00::/8", "10.0.0.1/8:80", "127.0.0.1:0", "127.0.0.1:65536", "::1/:80"),
    ],
)
def test_what_an_operator_allows_must_make_sense(entry: str) -> None:
    with pytest.raises(Invalid):
        read_allowed([entry])


@pytest.fixture
def certificate(tmp_path: Path) -> tuple[Path, Path]:
    """A certificate for workers.example, and its key."""
    found = tmp_path / "cert.pem", tmp_path / "key.pem"
    make = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    name = ["-subj", "/CN=workers.example", "-addext", "subjectAltName=DNS:workers.example", "-days", "1"]
    subprocess.run([*make, *name, "-out", found[0], "-keyout", found[1]], check=True, capture_output=True)
    return found


async def test_over_tls_the_name_stays_what_it_was_though_the_address_was_looked_up(
    certificate: tuple[Path, Path],
) -> None:
    asked: list[str | None] = []
    there = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    there.load_cert_chain(*certificate)
    there.sni_callback = lambda _socket, name, _context: asked.append(name)
    trust = ssl.create_default_context(cafile=certificate[0])
    worker = Receiver(OK, format="json")
    async with await asyncio.start_server(worker.connected, "127.0.0.1", 0, ssl=there) as listening:
        port = listening.sockets[0].getsockname()[1]
        allowed = read_allowed([f"127.0.0.0/8:{port}"])
        find = answering(["127.0.0.1"], ["127.0.0.1"])
        assert isinstance(await sent(f"https://workers.example:{port}/", allowed, find, trust), Finished)
        with pytest.raises(NotDelivered, match="certificate"):
            await sent(f"https://others.example:{port}/", allowed, find, trust)
    assert asked[0] == "workers.example"
    assert worker.sent[0].headers["host"] == f"workers.example:{port}"
