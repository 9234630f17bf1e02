"""Limits of requests: larger, slower, deeper or malformed ones are refused, and other clients are not affected."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from urllib.parse import quote

import httpx2
import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.support.http_servers import LOCAL, Process, Web, decoded, make_auth, named, process, served, web
from tests.support.patience import PATIENCE
from tests.support.sample_requests import NOTHING, UNKNOWN_ID, asked
from tests.support.stores import SeededChance, VirtualClock
from windlass.engine import Engine
from windlass.model.job import JSON, MSGPACK
from windlass.model.operations import Count
from windlass.model.shapes import SHAPES, Shape
from windlass.server import http_server
from windlass.server.application import application
from windlass.server.requests import RequestLimits
from windlass.store.sqlite import SqliteStore

MIB = 1 << 20

in_process = pytest.mark.parametrize("kind", ["sqlite"], indirect=True)


@pytest.fixture
async def small(engine: Engine, clock: VirtualClock) -> AsyncIterator[Web]:
    """A server that takes little."""
    async with (
        served(engine, clock, limits=RequestLimits(most_body=1000, most_result=500)) as site,
        web(site) as client,
    ):
        yield Web(client)


@pytest.fixture
async def hasty(engine: Engine, clock: VirtualClock) -> AsyncIterator[Web]:
    """One that does not wait long for it: not for tests of anything else, on a machine that may be busy."""
    async with served(engine, clock, limits=RequestLimits(body_within=0.15)) as site, web(site) as client:
        yield Web(client)


WITH_BODY = [shape for shape in SHAPES if asked(shape, NOTHING).body is not None]


def media_of(shape: Shape) -> str:
    return asked(shape, NOTHING).media or JSON


async def pieces(*some: bytes, pause: float = 0.0) -> AsyncIterator[bytes]:
    for one in some:
        yield one
        await asyncio.sleep(pause)


# Bodies


@in_process
@pytest.mark.parametrize("shape", WITH_BODY, ids=named)
async def test_a_body_that_is_too_long_is_refused(shape: Shape, small: Web) -> None:
    path, verb = f"/v1/default{shape.path.format(**NOTHING)}", shape.route.verb
    headers = {"content-type": media_of(shape)}
    declared = await small.client.request(verb, path, content=b" " * 1001, headers=headers)
    chunked = await small.client.request(verb, path, content=pieces(*[b" " * 100] * 11), headers=headers)
    for response in (declared, chunked):
        assert (response.status_code, decoded(response)["code"]) == (413, "too_large")


@in_process
@pytest.mark.parametrize("shape", WITH_BODY, ids=named)
async def test_a_body_that_comes_too_slowly_is_refused(shape: Shape, hasty: Web) -> None:
    path, verb = f"/v1/default{shape.path.format(**NOTHING)}", shape.route.verb
    slow = pieces(b" ", b" ", pause=0.1)
    response = await hasty.client.request(verb, path, content=slow, headers={"content-type": media_of(shape)})
    assert (response.status_code, decoded(response)["code"]) == (408, "slow")


@in_process
@pytest.mark.parametrize("shape", WITH_BODY, ids=named)
async def test_a_compressed_body_is_refused(shape: Shape, small: Web) -> None:
    for coding in ("gzip", "deflate", "br", "gzip, identity"):
        headers = {"content-encoding": coding}
        response = await small.send(
            shape.route.verb, shape.path.format(**NOTHING), b"\x1f\x8b", form=media_of(shape), headers=headers
        )
        assert (response.status_code, decoded(response)["at"]) == (400, "content-encoding")


BOMBS = {
    "deep-json": (JSON, b'{"task": "a", "payload": ' + b"[" * 100_000 + b"]" * 100_000 + b"}"),
    "deep-json-fields": (JSON, b'{"task": "a", "then": ' * 50_000),
    "deep-msgpack": (MSGPACK, b"\x82\xa4task\xa1a\xa7payload" + b"\x91" * 100_000 + b"\xc0"),
    "deep-chain": (JSON, b'{"task": "a", "then": ' * 800 + b'{"task": "a"}' + b"}" * 800),
    "array-of-2^32": (MSGPACK, b"\x82\xa4task\xa1a\xa7payload\xdd\xff\xff\xff\xff"),
    "map-of-2^32": (MSGPACK, b"\x82\xa4task\xa1a\xa7payload\xdf\xff\xff\xff\xff"),
    "text-of-2^32": (MSGPACK, b"\x82\xa4task\xdb\xff\xff\xff\xff"),
    "bytes-of-2^32": (MSGPACK, b"\x82\xa4task\xa1a\xa7payload\xc6\xff\xff\xff\xff"),
    "ext-of-2^32": (MSGPACK, b"\x82\xa4task\xa1a\xa7payload\xc9\xff\xff\xff\xff\x05"),
    "fields-of-2^32": (MSGPACK, b"\xdf\xff\xff\xff\xff"),
    "tags-of-2^32": (MSGPACK, b"\x82\xa4task\xa1a\xa4tags\xdd\xff\xff\xff\xff"),
    "no-array-nor-map": (JSON, b"5"),
    "zero-bytes": (JSON, b"\0" * 1000),
    "not-utf-8": (JSON, b'{"task": "\xff"}'),
    "surrogate": (JSON, b'{"task": "\\ud800"}'),
    "two-values": (MSGPACK, b"\x81\xa4task\xa1a\xc0"),
    "twice-the-field": (JSON, b'{"task": "a", "id": "x", "id": "y"}'),
}


@in_process
@pytest.mark.parametrize("bomb", BOMBS)
@pytest.mark.parametrize("path", ["/jobs", "/jobs/batch"])
async def test_a_bomb_is_refused(bomb: str, path: str, engine: Engine, page: Web) -> None:
    form, body = BOMBS[bomb]
    if path == "/jobs/batch":
        body = (b"[" + body + b"]") if form == JSON else b"\x91" + body
    response = await page.send("POST", path, body, form=form)
    assert (response.status_code, decoded(response)["code"]) == (400, "invalid")
    assert (await engine(Count())).count == 0


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Process]:
    with process(tmp_path_factory.mktemp("serve")) as found:
        yield found


HUGE = {
    "empty-maps-as-payload": (MSGPACK, b"\x82\xa4task\xa1a\xa7payload\xdd\x00\xff\xff\xc0" + b"\x80" * 0xFFFFC0, 413),
    "empty-maps-as-text": (
        MSGPACK,
        b"\x83\xa4task\xa1a\xaccontent_type\xaatext/plain\xa7payload\xdd\x00\xff\xff\xa0" + b"\x80" * 0xFFFFA0,
        400,
    ),
    "a-million-jobs": (JSON, b"[" + b",".join([b'{"task":"a"}'] * (16 * MIB // 13)) + b"]", 400),
    "a-million-packed-jobs": (
        MSGPACK,
        b"\xdd" + (16 * MIB // 8 - 100).to_bytes(4) + b"\x81\xa4task\xa1a" * (16 * MIB // 8 - 100),
        400,
    ),
    "a-million-lines": ("application/x-ndjson", b'{"task":"a"}\n' * (16 * MIB // 13), 413),
}


@pytest.mark.parametrize("bomb", HUGE)
async def test_sixteen_megabytes_of_small_things_cost_little(bomb: str, running: Process) -> None:
    form, body, status = HUGE[bomb]
    path = "/v1/default/jobs" if body.startswith((b"\x82", b"\x83")) else "/v1/default/jobs/batch"
    before = running.memory()
    async with web(running.address, running.token) as client:
        for _ in range(3):
            response = await client.post(path, content=body, headers={"content-type": form})
            assert response.status_code == status, response.text
    assert running.memory() - before < 120 * MIB


async def test_a_gigabyte_is_not_read(running: Process) -> None:
    """It is refused by what it says of itself, or when it has said too much."""
    before = running.memory()
    async with web(running.address, running.token) as client:
        headers = {"content-type": JSON, "content-length": str(1 << 30)}
        reader, writer = await asyncio.open_connection("127.0.0.1", running.port)
        lines = [f"{name}: {value}" for name, value in {**client.headers, **headers}.items()]
        writer.write("\r\n".join(["POST /v1/default/jobs HTTP/1.1", "Host: localhost", *lines, "", ""]).encode())
        assert b" 413 " in await asyncio.wait_for(reader.readline(), PATIENCE)
        writer.close()
    assert running.memory() - before < 20 * MIB


# Heads


async def say(port: int, head: bytes) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(head)
        return await asyncio.wait_for(reader.readline(), PATIENCE)
    finally:
        writer.close()


@in_process
async def test_a_head_that_is_too_long_is_refused(site: str) -> None:
    port = int(site.rpartition(":")[2])
    for head in (
        b"GET /v1/default/jobs?task=" + b"a" * 17_000 + b" HTTP/1.1\r\nhost: localhost\r\n\r\n",
        b"GET /healthz HTTP/1.1\r\nhost: localhost\r\nx: " + b"a" * 17_000 + b"\r\n\r\n",
        b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n" + b"x: a\r\n" * 4000 + b"\r\n",
        b"GET /healthz HTTP/1.1\r\nhost: localhost\r\nx: " + b"a" * 40_000,
        b"GET /" + b"a" * 40_000,
        b"POST /jobs HTTP/1.1\r\nhost: localhost\r\nx: " + b"a" * 17_000 + b"\r\ncontent-length: 3\r\n\r\nabc",
    ):
        assert b" 431 " in await say(port, head)
    assert b" 200 " in await say(port, b"GET /healthz HTTP/1.1\r\nhost: localhost\r\nx: " + b"a" * 15_000 + b"\r\n\r\n")


@in_process
async def test_a_head_that_comes_too_slowly_is_not_waited_for(site: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_server, "HEAD_WITHIN", 0.2)
    port = int(site.rpartition(":")[2])
    for begun in (b"", b"GET ", b"GET /healthz HTTP/1.1\r\nhost: lo"):
        assert b" 408 " in await say(port, begun)
    # A connection that was used well gets no more time for its second request than for its first.
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\nGET /hea")
    answer = await asyncio.wait_for(reader.read(), PATIENCE)
    assert (answer.count(b" 200 "), answer.count(b" 408 ")) == (1, 1)
    writer.close()


@in_process
async def test_two_hundred_slow_senders_do_not_block_other_requests(site: str, page: Web) -> None:
    port = int(site.rpartition(":")[2])
    async with asyncio.TaskGroup() as group:
        opened = [group.create_task(asyncio.open_connection("127.0.0.1", port)) for _ in range(200)]
    writers = [task.result()[1] for task in opened]
    try:
        for place, writer in enumerate(writers):
            writer.write(b"POST /v1/default/jobs HTTP/1.1\r\nhost: localhost\r\n")
            if place % 2:
                writer.write(f"authorization: Bearer {LOCAL}\r\ncontent-type: {JSON}\r\n".encode())
                writer.write(b"content-length: 1000\r\n\r\n{")
        for n in range(100):
            for writer in writers[n % 20 :: 20]:
                writer.write(b"x")
            response = await page.send("POST", "/jobs", {"task": "a"})
            assert response.status_code == 201
    finally:
        for writer in writers:
            writer.close()


# Paths and queries

BAD_QUERIES = [
    ("GET", "/jobs?limit=0", "limit"),
    ("GET", "/jobs?limit=1001", "limit"),
    ("GET", "/jobs?limit=99999999999999999999999999", "limit"),
    ("GET", f"/jobs?limit={'9' * 5000}", "limit"),
    ("GET", "/jobs?limit=x", "limit"),
    ("GET", "/jobs?limit=", "limit"),
    ("GET", "/jobs?limit=1&limit=2", "limit"),
    ("GET", "/jobs?limt=1", "limt"),
    ("GET", "/jobs?state=done", "state[0]"),
    ("GET", "/jobs?" + "state=queued&" * 17, "state"),
    ("GET", "/jobs?created_after=yesterday", "created_after"),
    ("GET", "/jobs?created_after=2026-01-01T00:00:00", "created_after"),
    ("GET", "/jobs?payload=1", "payload"),
    ("GET", "/jobs?task=a%20b", "task"),
    ("GET", "/jobs?reason=none", "reason"),
    ("GET", "/jobs?" + "&".join(f"payload.f{n}=1" for n in range(17)), "payload"),
    ("GET", "/jobs?after=%00", "after"),
    ("GET", f"/jobs/{UNKNOWN_ID}/result?wait=61", "wait"),
    ("GET", f"/jobs/{UNKNOWN_ID}/result?wait=-1", "wait"),
    ("GET", f"/jobs/{UNKNOWN_ID}/result?wait=nan", "wait"),
    ("GET", f"/jobs/{UNKNOWN_ID}/result?wait=inf", "wait"),
    ("GET", f"/jobs/{UNKNOWN_ID}/output?after=-1", "after"),
    ("GET", f"/jobs/{UNKNOWN_ID}/output?after={2**54}", "after"),
    ("GET", f"/jobs/{UNKNOWN_ID}/output?limit=1001", "limit"),
    ("GET", f"/jobs/{UNKNOWN_ID}?payload=maybe", "payload"),
    ("GET", "/jobs/x", "id"),
    ("GET", "/jobs/%00", "id"),
    ("GET", f"/jobs/{UNKNOWN_ID.upper()}", "id"),
    ("GET", "/stats?x=1", "x"),
    ("DELETE", "/jobs", "ids"),
    ("DELETE", "/jobs?ids=x", "ids[0]"),
    ("POST", "/tasks/a/jobs?priority=2147483648", "priority"),
    ("POST", "/tasks/a/jobs?delay=-1", "delay"),
    ("POST", "/tasks/a/jobs?retry.factor=0", "retry.factor"),
    ("POST", "/tasks/a/jobs?retry=1", "retry"),
    ("POST", "/tasks/a/jobs?headers.a=1&headers.a=2", "headers.a"),
    ("POST", "/tasks/a%20b/jobs", "task"),
    ("POST", "/workers/w/renew?wait=1e9", "wait"),
]


@in_process
@pytest.mark.parametrize(("verb", "path", "at"), BAD_QUERIES, ids=[path[:60] for _, path, _ in BAD_QUERIES])
async def test_what_is_wrong_in_a_path_or_query_is_named(verb: str, path: str, at: str, page: Web) -> None:
    body = None if verb != "POST" else (b"x" if "/tasks/" in path else b"[]")
    response = await page.send(verb, path, body, form="text/plain" if "/tasks/" in path else JSON)
    assert (response.status_code, decoded(response)["at"]) == (400, at)


@in_process
async def test_unknown_routes_answer_404_and_405(page: Web) -> None:
    for path in ("/nothing", "/jobs/", "//jobs", f"/jobs/{UNKNOWN_ID}/", f"/jobs/{UNKNOWN_ID}/x", "/..%2fjobs"):
        response = await page.send("GET", path)
        assert (response.status_code, decoded(response)["code"]) == (404, "no_route"), path
    for verb, path, allowed in (
        ("PATCH", "/jobs", "DELETE, GET, HEAD, POST"),
        ("HEAD", f"/jobs/{UNKNOWN_ID}/result", "GET"),
        ("PUT", f"/jobs/{UNKNOWN_ID}", "DELETE, GET, HEAD, PATCH"),
        ("DELETE", "/stats", "GET, HEAD"),
    ):
        response = await page.send(verb, path)
        assert (response.status_code, response.headers["allow"]) == (405, allowed)


# Anything at all

anything = st.one_of(
    st.binary(max_size=200),
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
        lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
        max_leaves=8,
    ).map(msgspec.json.encode),
    st.dictionaries(
        st.sampled_from(["task", "payload", "id", "ids", "state", "slots", "scopes", "token", "name", "after"]),
        st.none() | st.integers(-5, 5) | st.text(max_size=3) | st.lists(st.text(max_size=3), max_size=2),
        max_size=5,
    ).map(msgspec.msgpack.encode),
)
types = st.sampled_from([JSON, MSGPACK, "application/x-ndjson", "text/plain", "", "\u00e9/x"])
texts = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="/?#%"), min_size=1, max_size=12)


@pytest.mark.parametrize("shape", SHAPES, ids=named)
def test_no_bytes_make_the_server_fail(shape: Shape) -> None:
    """In process, on one loop for all examples: a fault of ours would be raised here, or answered as 5xx."""
    with asyncio.Runner() as runner:
        clock = VirtualClock()
        store = SqliteStore.open(":memory:", clock)
        engine = Engine(store, SeededChance())
        transport = httpx2.ASGITransport(app=application(engine, engine, make_auth(engine, clock)))
        client = httpx2.AsyncClient(transport=transport, base_url="http://localhost", verify=False)

        @settings(max_examples=25, deadline=None, database=None, suppress_health_check=list(HealthCheck))
        @given(body=anything, form=types, accept=types, step=texts, query=st.dictionaries(texts, texts, max_size=3))
        def ask(body: bytes, form: str, accept: str, step: str, query: dict[str, str]) -> None:
            known = dict.fromkeys(("limit", "wait", "after", "state", "token", "stream"), step)
            names = {**NOTHING, **(dict.fromkeys(shape.names, step) if len(step) % 2 else {})}
            some = {name: text for name, text in known.items() if (len(body) + len(name)) % 3 == 0}
            headers = [
                (b"content-type", form.encode()),
                (b"accept", accept.encode()),
                (b"authorization", f"Bearer {LOCAL}".encode()),
            ]
            request = client.build_request(
                shape.route.verb,
                f"/v1/default{shape.path.format(**{name: quote(text) for name, text in names.items()})}",
                params={**query, **some},
                content=body,
                headers=headers,
            )
            response = runner.run(client.send(request))
            assert response.status_code < 500

        try:
            ask()
        finally:
            runner.run(client.aclose())
            runner.run(store.close())
