"""Functions behind a URL: one call for each job, or one for a batch."""

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import msgspec
import pytest

from tests.support.function_harness import Bench, Heard, bench, handler, jobs
from tests.support.patience import PATIENCE
from windlass.model.job import JSON, MSGPACK, TEXT, Reason
from windlass.worker.network import Allowed, Network

Answer = tuple[int, bytes, str]


@dataclass
class Site:
    """Somebody's web server."""

    answer: Callable[[bytes], Answer | None]
    """Null = none ever comes."""
    url: str = ""
    bodies: list[bytes] = field(default_factory=list)
    heads: list[bytes] = field(default_factory=list)
    calls: set[asyncio.Task[None]] = field(default_factory=set)
    at_once: int = 0
    most_at_once: int = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self.calls.add(task)
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                length = int(head.lower().partition(b"content-length:")[2].split()[0])
                await self._answer(head, await reader.readexactly(length), writer)
        except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            pass  # whoever called has hung up, or the test is over
        finally:
            writer.close()
            self.calls.discard(task)

    async def _answer(self, head: bytes, body: bytes, writer: asyncio.StreamWriter) -> None:
        self.heads.append(head)
        self.bodies.append(body)
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        try:
            if (answer := self.answer(body)) is None:
                await asyncio.sleep(60)
                return
            await asyncio.sleep(0.02)
            status, text, kind = answer
            head = b"HTTP/1.1 %d X\r\ncontent-type: %b\r\ncontent-length: %d\r\n\r\n"
            writer.write(head % (status, kind.encode(), len(text)) + text)
            await writer.drain()
        finally:
            self.at_once -= 1


@asynccontextmanager
async def site(answer: Callable[[bytes], Answer | None]) -> AsyncIterator[Site]:
    found = Site(answer)
    server = await asyncio.start_server(found.serve, "127.0.0.1", 0)
    found.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/do?a=1"
    try:
        yield found
    finally:
        server.close()
        for call in list(found.calls):
            call.cancel()
        await asyncio.gather(*found.calls)


@pytest.fixture
async def shop() -> AsyncIterator[Bench]:
    async with bench() as found:
        yield found


# One call for each job


@pytest.mark.parametrize(
    ("status", "code"), [(200, 200), (204, 204), (301, 100), (404, 404), (429, 429), (500, 500), (503, 503)]
)
async def test_the_status_of_a_call_is_the_code_of_its_job(shop: Bench, status: int, code: int) -> None:
    """[31]"""
    async with site(lambda _: (status, b"" if status == 204 else b"said", TEXT)) as there:
        heard = await shop.run(handler("http", there.url), b"a", b"b")
    assert heard.codes == [code, code]
    assert sorted(there.bodies) == [b"a", b"b"]
    assert heard.pids == {"0000": None, "0001": None}
    if code == 200:
        assert {one.result for one in heard.outcomes.values()} == {b"said"}
    elif code != 204:
        assert {one.message for one in heard.outcomes.values()} == {f"answered {status}: said"}


async def test_what_is_answered_is_the_result_and_believed_only_if_it_is_what_it_says(shop: Bench) -> None:
    for text, kind, known in [
        (b'{"a": 1}', "application/json; charset=utf-8", JSON),
        (b"{no json", JSON, "application/octet-stream"),
        (b"\xff\x00", TEXT, "application/octet-stream"),
        (b"words", "text/html", TEXT),
    ]:
        answer = (200, text, kind)
        async with site(lambda _, answer=answer: answer) as there:  # type: ignore[misc]
            outcome = (await shop.run(handler("http", there.url), b"")).one
        assert (outcome.result, outcome.content_type) == (text, known)


async def test_a_payload_is_sent_as_it_is_and_messagepack_as_json(shop: Bench) -> None:
    async with site(lambda _: (200, b"", TEXT)) as there:
        await shop.run(handler("http", there.url), b"two\nlines", content_type="text/csv")
        await shop.run(handler("http", there.url), msgspec.msgpack.encode({"a": [1]}), content_type=MSGPACK)
    assert there.bodies[0] == b"two\nlines"
    assert json.loads(there.bodies[1]) == {"a": [1]}
    assert b"content-type: text/csv" in there.heads[0]
    assert b"content-type: application/json" in there.heads[1]
    assert there.heads[0].startswith(b"POST /do?a=1 HTTP/1.1\r\nhost: 127.0.0.1:")


async def test_there_are_ten_calls_at_once_at_most(shop: Bench) -> None:
    async with site(lambda _: (200, b"", TEXT)) as there:
        work = handler("http", there.url)
        found = await asyncio.gather(*(shop.run(work, *[b""] * 10) for _ in range(4)))
    assert [heard.codes for heard in found] == [[200] * 10] * 4
    assert there.most_at_once == 10


# One call for a batch


@pytest.mark.parametrize(
    ("answer", "codes", "kinds"),
    [
        (b"200 one\n404 two\n100\n503 four\n", [200, 404, 100, 503], ["", "Answered", "Answered", "Answered"]),
        (b"# a comment\n200\n#another\n\n200\n200\n200", [200] * 4, [""] * 4),
        (b"200\n200\n", [200, 200, 500, 500], ["", "", "NO_RESPONSE", "NO_RESPONSE"]),
        (b"", [500] * 4, ["NO_RESPONSE"] * 4),
        (b"200\noops\n200\n200\n", [200, 500, 500, 500], ["", *["INVALID_RESPONSE"] * 3]),
        (b"200\n2000\n200\n200\n", [200, 500, 500, 500], ["", *["INVALID_RESPONSE"] * 3]),
        (b"200\r\n200\r\n200\r\n200\r\n200\r\n", [200] * 4, [""] * 4),
    ],
)
async def test_a_batch_has_one_line_for_each_job(
    shop: Bench, answer: bytes, codes: list[int], kinds: list[str]
) -> None:
    """[32]"""
    async with site(lambda _: (200, answer, TEXT)) as there:
        heard = await shop.run(handler("http", there.url, whole_batch=True), b"a", b'{"b": 1}', b"c\nd", b"")
    assert there.bodies == [b'a\n{"b": 1}\nc d\n\n']
    assert heard.codes == codes
    assert [one.type for one in heard.outcomes.values()] == kinds


async def test_the_rest_of_a_line_is_the_jobs_result(shop: Bench) -> None:
    async with site(lambda _: (200, b"200 first\n200\n400 no good\n", TEXT)) as there:
        heard = await shop.run(handler("http", there.url, whole_batch=True), b"a", b"b", b"c")
    first, second, third = heard.outcomes.values()
    assert (first.result, second.result, third.message) == (b"first", None, "answered 400: no good")


async def test_a_batch_that_is_not_taken_ends_every_job_so(shop: Bench) -> None:
    async with site(lambda _: (503, b"200\n200\n", TEXT)) as there:
        heard = await shop.run(handler("http", there.url, whole_batch=True), b"a", b"b")
    assert heard.codes == [503, 503]
    assert {one.message for one in heard.outcomes.values()} == {"answered 503: 200\n200"}


async def test_one_job_of_a_batch_can_be_stopped_and_the_others_have_their_answers(shop: Bench) -> None:
    def answer(_: bytes) -> Answer:
        shop.functions.stop("0001", "acme", "enough")
        return 200, b"200 a\n200 b\n200 c\n", TEXT

    async with site(answer) as there:
        heard = await shop.run(handler("http", there.url, whole_batch=True), b"a", b"b", b"c")
    assert len(there.bodies) == 1
    assert heard.codes == [200, 500, 200]
    assert [heard.outcomes[id].result for id in ("0000", "0002")] == [b"a", b"c"]
    assert (heard.outcomes["0001"].type, heard.outcomes["0001"].message) == ("Stopped", "enough")


async def test_a_batch_of_which_nothing_is_wanted_any_more_is_given_up(shop: Bench) -> None:
    async with site(lambda _: None) as there:
        work, heard = handler("http", there.url, whole_batch=True), Heard()
        running = asyncio.create_task(shop.functions.run(work, jobs(b"", b""), heard))
        async with asyncio.timeout(PATIENCE):
            while there.at_once < 1:  # noqa: ASYNC110 - nobody gives a sign
                await asyncio.sleep(0.01)
        for id in ("0000", "0001"):
            shop.functions.stop(id, "acme", "enough")
        await asyncio.wait_for(running, PATIENCE)
    assert heard.codes == [500, 500]


async def test_a_job_with_little_time_takes_none_from_others_of_its_batch(shop: Bench) -> None:
    heard = Heard()
    mixed = [*jobs(b"slow", timeout=2.0), *jobs(b"b", b"c", start=1)]
    async with site(lambda body: None if b"slow" in body else (200, b"200\n200\n", TEXT)) as there:
        await shop.functions.run(handler("http", there.url, whole_batch=True), mixed, heard)
    assert sorted(there.bodies) == [b"b\nc\n", b"slow\n"]
    assert heard.codes == [500, 200, 200]


# No answer


@pytest.mark.parametrize("batch", [False, True])
async def test_a_call_that_is_refused_is_an_error_with_its_code(shop: Bench, batch: bool) -> None:
    """[33]"""
    async with site(lambda _: (200, b"", TEXT)) as there:
        url = there.url
    heard = await shop.run(handler("http", url, whole_batch=batch), b"a", b"b")
    assert heard.codes == [500, 500]
    assert {one.type for one in heard.outcomes.values()} == {"ECONNREFUSED"}
    assert all(one.message.startswith("ECONNREFUSED: ") for one in heard.outcomes.values())


async def test_a_call_without_an_answer_is_given_up(shop: Bench) -> None:
    async with site(lambda _: None) as there:
        outcome = (await shop.run(handler("http", there.url), b"", timeout=0.2)).one
    assert (outcome.code, outcome.type, outcome.reason) == (500, "ETIMEDOUT", Reason.TIMEOUT)
    assert outcome.message == "ETIMEDOUT: no answer within 0.2 s"


async def test_an_answer_without_end_is_given_up(shop: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("windlass.worker.functions.http.MOST_ANSWER", 100)
    async with site(lambda _: (200, b"x" * 101, TEXT)) as there:
        outcome = (await shop.run(handler("http", there.url), b"")).one
    assert (outcome.code, outcome.type) == (500, "EMSGSIZE")


async def test_a_call_can_be_stopped(shop: Bench) -> None:
    async with site(lambda _: None) as there:
        heard = Heard()
        running = asyncio.create_task(shop.functions.run(handler("http", there.url), jobs(b"", b""), heard))
        async with asyncio.timeout(PATIENCE):
            while there.at_once < 2:  # noqa: ASYNC110 - nobody gives a sign
                await asyncio.sleep(0.01)
        for id in ("0000", "0001"):
            shop.functions.stop(id, "acme", f"enough of {id}")
        await asyncio.wait_for(running, PATIENCE)
    assert [one.message for _, one in sorted(heard.outcomes.items())] == ["enough of 0000", "enough of 0001"]


@pytest.mark.parametrize(
    "url",
    [
        "http://127.0.0.1:{port}/", "http://localhost:{port}/", "http://0177.0.0.1:{port}/", "http://[::1]:{port}/",
        "http://[::ffff:127.0.0.1]:{port}/", "http://169.254.169.254/latest/meta-data", "https://10.0.0.1/",
        "http://2130706433:{port}/",
    ],
)  # fmt: skip
async def test_a_url_does_not_lead_to_where_only_this_machine_can_reach(url: str) -> None:
    async with site(lambda _: (200, b"", TEXT)) as there, bench(reach=Network(Allowed())) as shop:
        port = there.url.split(":")[2].partition("/")[0]
        outcome = (await shop.run(handler("http", url.format(port=port)), b"", timeout=5.0)).one
    assert (outcome.code, outcome.type) == (500, "EACCES")
    assert there.bodies == []


async def test_an_unknown_host_name_is_named_in_the_error() -> None:
    async def unknown(host: str, port: int) -> list[str]:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    async with bench(reach=Network(Allowed(), resolve=unknown)) as shop:
        outcome = (await shop.run(handler("http", "https://nobody.example/"), b"", timeout=5.0)).one
    assert (outcome.code, outcome.type) == (500, "ENOTFOUND")


@pytest.mark.parametrize("url", ["ftp://x/", "file:///etc/passwd", "http://user@host/", "nonsense", "http://h\r\nx/"])
async def test_what_is_no_url_fails_for_good(shop: Bench, url: str) -> None:
    outcome = (await shop.run(handler("http", url), b"")).one
    assert (outcome.code, outcome.type) == (400, "Invalid")


async def test_redirects_are_not_followed(shop: Bench) -> None:
    async with site(lambda _: (302, b"", TEXT)) as there:
        outcome = (await shop.run(handler("http", there.url), b"")).one
    assert outcome.code == 100
    assert len(there.bodies) == 1
