"""Jobs followed live: server-sent events, and a WebSocket."""

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from pathlib import Path
from typing import Any

import httpx2
import pytest
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from tests.support.engines import packed
from tests.support.http_servers import LOCAL, process
from tests.support.patience import PATIENCE
from tests.support.push_servers import Station, lines
from windlass.model import events, stdin
from windlass.model.events import Event, EventCursor
from windlass.model.job import Job
from windlass.model.operations import (
    AddToken,
    Alive,
    Claim,
    Claimed,
    Delete,
    Finish,
    Finished,
    GetResult,
    Register,
    Renew,
)
from windlass.model.outcome import Verdict
from windlass.model.output import NewChunk, Progress
from windlass.model.worker import NewWorker
from windlass.server import live
from windlass.server.openapi import document
from windlass.server.streams import MOST_BUFFERED

NO_SUCH_ID = "00000000-0000-7000-8000-0000000000df"


class Hand:
    """A worker that runs one job step by step."""

    def __init__(self, hub: Station) -> None:
        self.hub = hub
        self.worker = ""
        self.claimed: Claimed | None = None

    @property
    def held(self) -> dict[str, Any]:
        assert self.claimed is not None
        return {"id": self.claimed.job.id, "token": self.claimed.token}

    async def take(self) -> None:
        if not self.worker:
            self.worker = (await self.hub.client(Register(worker=NewWorker(name="hand")))).worker
        (self.claimed,) = await self.hub.client(Claim(worker=self.worker, wait=5))

    async def say(self, *texts: bytes, progress: Progress | None = None) -> None:
        chunks = [NewChunk(stream="stdout", data=text) for text in texts]
        await self.hub.client(Renew(worker=self.worker, jobs=[Alive(**self.held, progress=progress, output=chunks)]))

    async def finish(self, outcome: Verdict = Verdict.OK, **more: Any) -> None:
        report = Finished(**self.held, outcome=outcome, **more)
        assert (await self.hub.client(Finish(worker=self.worker, jobs=[report]))).applied


@pytest.fixture
def hand(hub: Station) -> Hand:
    return Hand(hub)


class Followed:
    """A stream of events, read one by one. When they come, estimates are passed by: see `test_live_flow`."""

    def __init__(self, stream: AsyncIterator[Event]) -> None:
        self._stream = (event async for event in stream if event.name != "estimate")

    async def next(self) -> Event:
        async with asyncio.timeout(PATIENCE):
            return await anext(self._stream)

    async def is_over(self) -> bool:
        async with asyncio.timeout(PATIENCE):
            return await anext(self._stream, None) is None


def path(job: Job) -> str:
    return f"/v1/default/jobs/{job.id}/events"


def follow(hub: Station, job: Job, since: str = "") -> "aclosing[AsyncGenerator[Event, None]]":
    headers = {"last-event-id": since} if since else {}
    return aclosing(events.read(lines(hub.address, path(job), **headers)))


async def test_the_events_of_a_job_are_sent_as_they_happen(hub: Station, hand: Hand) -> None:
    job = await hub.enqueue(max_retry=1, retry={"base": 0.1})
    async with follow(hub, job) as stream:
        seen = Followed(stream)
        assert (first := await seen.next()).name == "queued"
        assert first.job is not None
        assert first.job.id == job.id
        await hand.take()
        assert (await seen.next()).name == "started"
        await hand.say(b"hello\n", progress=Progress(done=1, total=4))
        output, progress = await seen.next(), await seen.next()
        assert output.chunk is not None
        assert (output.name, output.chunk.text, output.chunk.stream) == ("output", "hello\n", "stdout")
        assert progress.job is not None
        assert (progress.name, progress.job.progress) == ("progress", Progress(done=1, total=4))
        await hand.finish(Verdict.ERROR, delay=0.6)
        assert (await seen.next()).name == "retrying"
        await hand.take()
        started = await seen.next()
        assert started.job is not None
        assert (started.name, started.job.attempt) == ("started", 2)
        await hand.say(b"\xff\x00")
        await hand.finish(result=packed(7))
        binary, last = await seen.next(), await seen.next()
        assert binary.chunk is not None
        assert (binary.chunk.text, binary.chunk.data, binary.chunk.attempt) == (None, b"\xff\x00", 2)
        assert last.job is not None
        assert (last.name, last.job.attempt) == ("succeeded", 2)
        assert await seen.is_over()


@pytest.mark.parametrize(("outcome", "name"), [(Verdict.OK, "succeeded"), (Verdict.FAILED, "failed")])
async def test_the_end_is_sent_within_a_moment_and_a_change_within_a_second(
    hub: Station, hand: Hand, outcome: Verdict, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = await hub.enqueue()
    async with follow(hub, job) as stream:
        seen = Followed(stream)
        await seen.next()
        await hand.take()
        assert (await seen.next()).name == "started"
        async with asyncio.timeout(PATIENCE):
            await hub.engine.feed.ready.wait()
        monkeypatch.setattr("windlass.engine.events.follow.POLL_RUNNING", 10 * PATIENCE)
        await asyncio.sleep(0.4)  # now it looks for the last time, and listens
        await hand.finish(outcome)
        async with asyncio.timeout(PATIENCE):  # heard, not found by looking
            assert (await seen.next()).name == name


async def test_a_client_that_reconnects_gets_what_it_missed_and_nothing_twice(hub: Station, hand: Hand) -> None:
    job = await hub.enqueue()
    await hand.take()
    await hand.say(b"one")
    await hand.say(b"two")
    async with follow(hub, job) as stream:
        seen = Followed(stream)
        assert [(await seen.next()).name, (await seen.next()).name] == ["started", "output"]
        last = await seen.next()
        assert last.chunk is not None
        assert last.chunk.text == "two"
    await hand.say(b"three")
    async with follow(hub, job, last.id) as stream:
        seen = Followed(stream)
        missed = await seen.next()
        assert missed.chunk is not None
        assert (missed.name, missed.chunk.text) == ("output", "three")
        await hand.say(b"four")
        await hand.finish()
        output, end = await seen.next(), await seen.next()
        assert [output.name, end.name] == ["output", "succeeded"]
        assert await seen.is_over()
    async with httpx2.AsyncClient(base_url=hub.address, trust_env=False) as client:
        headers = {"authorization": f"Bearer {LOCAL}", "last-event-id": end.id}
        assert (await client.get(path(job), headers=headers)).status_code == 204


@pytest.mark.parametrize("since", ["", "nonsense", "-", "1-", "x-queued-0", "-1-queued-0", "٣-queued-٠", "1" * 99])
def test_a_place_that_is_none_is_the_beginning(since: str) -> None:
    assert events.cursor(since) == events.EventCursor()


def test_the_id_of_an_event_is_a_place_to_continue_from() -> None:
    place = events.EventCursor(17, "started", 2)
    assert events.cursor(str(place)) == place


async def test_following_does_not_take_a_result_that_is_handed_out_once(hub: Station, hand: Hand) -> None:
    job = await hub.enqueue(keep_result="once")
    async with follow(hub, job) as stream:
        seen = Followed(stream)
        await seen.next()
        await hand.take()
        await hand.finish(result=packed(7))
        while (await seen.next()).name != "succeeded":
            pass
    assert bytes((await hub.client(GetResult(id=job.id))).result) == b"\x07"  # type: ignore[arg-type]


async def test_a_stream_ends_when_its_job_is_deleted_and_when_the_server_stops(hub: Station) -> None:
    first, second = await hub.enqueue(), await hub.enqueue()
    async with follow(hub, first) as one, follow(hub, second) as two:
        gone, stopped = Followed(one), Followed(two)
        await gone.next()
        await stopped.next()
        await hub.client(Delete(ids=[first.id]))
        assert await gone.is_over()
        hub.stopping.set()
        assert await stopped.is_over()


async def test_a_stream_is_refused_like_any_other_request(hub: Station) -> None:
    token = (await hub.client(AddToken(tenant="shop", scopes=["enqueue"]))).token
    other = (await hub.client(AddToken(tenant="other", scopes=["read"]))).token
    job = await hub.enqueue()
    async with httpx2.AsyncClient(base_url=hub.address, trust_env=False) as client:

        async def status(path: str, token: str = LOCAL) -> int:
            return (await client.get(path, headers={"authorization": f"Bearer {token}"})).status_code

        assert await status(f"/v1/default/jobs/{NO_SUCH_ID}/events") == 404
        assert await status("/v1/default/jobs/x/events") == 400
        assert await status(path(job), "wrong") == 401
        assert await status(path(job), other) == 403
        assert await status(f"/v1/shop/jobs/{NO_SUCH_ID}/events", token) == 403
        assert await status(f"/v1/other/jobs/{job.id}/events", other) == 404


async def test_only_so_many_jobs_are_followed_at_once(hub: Station, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "MOST_STREAMS", 1)
    job = await hub.enqueue()
    async with httpx2.AsyncClient(base_url=hub.address, trust_env=False) as client:
        headers = {"authorization": f"Bearer {LOCAL}"}
        async with follow(hub, job) as stream:
            await Followed(stream).next()
            assert (await client.get(path(job), headers=headers)).status_code == 429
        async with asyncio.timeout(PATIENCE):
            while True:
                async with client.stream("GET", path(job), headers=headers) as response:
                    if response.status_code == 200:
                        break


def test_a_stopping_server_does_not_wait_for_followers(tmp_path: Path) -> None:
    with process(tmp_path, "--no-worker") as served:
        headers = {"authorization": f"Bearer {served.token}"}
        with httpx2.Client(base_url=served.address, headers=headers, trust_env=False, timeout=PATIENCE) as client:
            job = client.post("/v1/default/jobs", json={"task": "work"}).json()
            with client.stream("GET", f"/v1/default/jobs/{job['id']}/events") as response:
                lines = response.iter_lines()
                while not next(lines).startswith("event: queued"):
                    pass
                assert served.child is not None
                served.child.terminate()
                served.child.wait(PATIENCE)
                assert [*lines][-1] == ""


def test_both_ways_to_follow_a_job_are_described() -> None:
    paths = document("test")["paths"]
    stream = paths[live.EVENTS]["get"]
    assert live.EVENT_STREAM in stream["responses"]["200"]["content"]
    assert all(f"`{name}`" in stream["description"] for name in events.NAMES)
    assert "101" in paths[live.LIVE]["get"]["responses"]


# WebSocket


def socket(hub: Station, id: str, *, token: str = LOCAL, **more: Any) -> connect:
    headers = {"authorization": f"Bearer {token}"} if token else {}
    url = f"{hub.address.replace('http', 'ws')}/v1/default/jobs/{id}/live"
    return connect(url, additional_headers={**headers, **more.pop("headers", {})}, proxy=None, **more)


async def heard(line: ClientConnection) -> Any:
    """The next message that is no estimate."""
    async with asyncio.timeout(PATIENCE):
        while True:
            said = await line.recv()
            found = json.loads(said) if isinstance(said, str) else said
            if isinstance(found, bytes) or found["event"] != "estimate":
                return found


async def test_a_websocket_has_the_same_events_and_output_as_bytes(hub: Station, hand: Hand) -> None:
    job = await hub.enqueue()
    async with socket(hub, job.id) as line:
        assert (await heard(line))["event"] == "queued"
        await hand.take()
        assert (await heard(line))["data"]["state"] == "running"
        await hand.say(b"\xffbytes")
        said = await heard(line)
        assert (said["event"], said["data"]["size"], said["data"]["stream"]) == ("output", 6, "stdout")
        assert await heard(line) == b"\xffbytes"
        await hand.finish()
        assert (await heard(line))["event"] == "succeeded"
        with pytest.raises(ConnectionClosed):
            await heard(line)
        assert line.close_code == 1000
        assert not line.protocol.extensions, "nothing is compressed"


async def test_a_websocket_may_send_its_token_in_the_first_message(hub: Station, hand: Hand) -> None:
    job = await hub.enqueue()
    await hand.take()
    await hand.say(b"one")
    async with socket(hub, job.id, token="") as line:
        await line.send(json.dumps({"token": LOCAL}))
        assert (await heard(line))["event"] == "started"
        place = (await heard(line))["id"]
    async with socket(hub, job.id, token="") as line:
        await line.send(json.dumps({"token": LOCAL, "since": place}))
        await hand.say(b"two")
        assert (await heard(line))["data"]["n"] == 2


@pytest.mark.parametrize(
    "first", ['{"token": "wrong"}', "{}", "[]", '{"token": 1}', "token", b'{"token": "x"}', '{"token": "x", "y": 1}']
)
async def test_a_websocket_with_a_wrong_first_message_is_closed(hub: Station, first: str | bytes) -> None:
    job = await hub.enqueue()
    async with socket(hub, job.id, token="") as line:
        await line.send(first)
        with pytest.raises(ConnectionClosed):
            await heard(line)
    assert line.close_code == 1008


async def test_a_websocket_without_a_token_is_closed(hub: Station, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "TOKEN_WITHIN", 0.2)
    job = await hub.enqueue()
    async with socket(hub, job.id, token="") as line:
        with pytest.raises(ConnectionClosed):
            await heard(line)
    assert line.close_code == 1008


async def test_a_token_in_the_address_is_not_looked_at(hub: Station) -> None:
    job = await hub.enqueue()
    url = f"{hub.address.replace('http', 'ws')}/v1/default/jobs/{job.id}/live?token={LOCAL}"
    async with connect(url, proxy=None) as line:
        await line.send("{}")
        with pytest.raises(ConnectionClosed):
            await heard(line)
    assert line.close_code == 1008


async def test_a_page_of_another_site_may_not_open_a_websocket(hub: Station) -> None:
    job = await hub.enqueue()
    for origin in ("https://evil.example", "null", f"{hub.address}.evil.example", "http://127.0.0.1:1"):
        with pytest.raises(InvalidStatus) as refused:
            async with socket(hub, job.id, headers={"origin": origin}):
                pass
        assert refused.value.response.status_code == 403
        assert json.loads(refused.value.response.body)["at"] == "origin"
    async with socket(hub, job.id, headers={"origin": hub.address}) as line:
        assert (await heard(line))["event"] == "queued"


@pytest.mark.parametrize(
    ("id", "token", "status"), [(NO_SUCH_ID, LOCAL, 404), (NO_SUCH_ID, "wrong", 401), ("x", LOCAL, 400)]
)
async def test_a_websocket_is_refused_before_it_is_open(hub: Station, id: str, token: str, status: int) -> None:
    with pytest.raises(InvalidStatus) as refused:
        async with socket(hub, id, token=token):
            pass
    assert refused.value.response.status_code == status


async def drained(line: ClientConnection) -> None:
    while True:
        await heard(line)


async def test_a_reader_that_is_too_slow_is_dropped(hub: Station, hand: Hand, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("windlass.engine.events.follow.POLL_RUNNING", 0.01)
    dropped = asyncio.Event()
    run = live._Session.run

    async def held(session: live._Session, place: EventCursor) -> None:
        await run(session, place)
        dropped.set()

    monkeypatch.setattr(live._Session, "run", held)
    job = await hub.enqueue()
    await hand.take()
    async with socket(hub, job.id) as line:
        await heard(line)
        line.transport.pause_reading()
        said = 0
        async with asyncio.timeout(PATIENCE):
            while not dropped.is_set():
                await hand.say(b"x" * (1 << 16), b"y" * (1 << 16))
                said += 1 << 17
        assert said > MOST_BUFFERED
        line.transport.resume_reading()
        with pytest.raises(ConnectionClosed):
            await drained(line)
    assert line.close_code in (1006, 1013)


async def test_a_websocket_ends_when_the_server_stops(hub: Station) -> None:
    job = await hub.enqueue()
    async with socket(hub, job.id) as line:
        await heard(line)
        hub.stopping.set()
        with pytest.raises(ConnectionClosed):
            await heard(line)
    assert line.close_code == 1001


async def test_a_websocket_to_a_job_at_a_terminal_types_resizes_and_signals(hub: Station, hand: Hand) -> None:
    job = await hub.enqueue(stdin="terminal", most_input=40)
    await hand.take()
    async with socket(hub, job.id) as line:
        assert (await heard(line))["event"] == "started"
        await line.send(b"\xffls\n")
        for control in ({"resize": [33, 99]}, {"signal": "INT"}, {"input": "more"}, {}):
            await line.send(json.dumps(control))
        for wrong in ("plain", '{"resize": [0, 1]}', '{"signal": "LOUD"}', '{"colour": 1}', "x" * 100):
            await line.send(wrong)
            assert (await heard(line))["data"]["problem"]["code"] == "invalid"
        await line.send(b"x" * 40)
        assert (await heard(line))["data"]["problem"]["code"] == "too_large"
    renewed = await hub.client(Renew(worker=hand.worker, jobs=[Alive(**hand.held, heard=0)], wait=5.0))
    assert [stdin.decode(message.data) for message in renewed.messages] == [
        stdin.Typed(b"\xffls\n"),
        stdin.Resized(33, 99),
        stdin.Signalled("INT"),
        stdin.Typed(b"more"),
        stdin.Typed(b""),
    ]
