"""What clients of any kind expect of a server over HTTP: HEAD, Location, Allow, text where text is asked for, ids of
one's own.
"""

from uuid import uuid4

import msgspec
import pytest

from tests.support.engines import enqueue, register, take
from tests.support.http_servers import Web, decoded
from windlass import job_id
from windlass.engine import Engine
from windlass.model.job import JSON
from windlass.model.operations import (
    OPERATIONS,
    AddToken,
    Alive,
    Count,
    Output,
    Register,
    Renew,
    Send,
    Show,
    Tokens,
    Unregister,
    Workers,
    answer_type,
)
from windlass.model.output import NewChunk
from windlass.model.worker import NewWorker, Worker

in_process = pytest.mark.parametrize("kind", ["sqlite"], indirect=True)

EVENT_STREAM = "text/event-stream"


@in_process
@pytest.mark.parametrize("accept", ["application/problem+json", "text/html", "application/x-ndjson"])
async def test_what_answers_nothing_is_done_whatever_is_accepted(accept: str, engine: Engine, page: Web) -> None:
    issued = await engine(AddToken(scopes=["read"]))
    job, worker = await enqueue(engine, input=True), await register(engine)
    claimed = await take(engine, worker)
    path = f"/jobs/{job.id}/output?token={claimed.token}&stream=log"
    for verb, where, body in (
        ("DELETE", f"/tokens/{issued.key}", None),
        ("POST", f"/jobs/{job.id}/input", b"x"),
        ("POST", path, b"x"),
        ("DELETE", f"/workers/{worker}", None),
    ):
        response = await page.send(verb, where, body, accept=accept)
        assert (response.status_code, response.content) == (204, b""), where
    assert await engine(Tokens()) == []
    assert await engine(Workers()) == []
    silent = {kind for kind in OPERATIONS if answer_type(kind) is type(None)}
    assert {Output, Send, Unregister} <= silent


@in_process
async def test_created_things_have_a_location(page: Web) -> None:
    job = await page.send("POST", "/jobs", {"task": "a", "key": "k"})
    assert (job.status_code, job.headers["location"]) == (201, f"/v1/default/jobs/{decoded(job)['id']}")
    assert decoded(await page.client.get(job.headers["location"]))["id"] == decoded(job)["id"]
    again = await page.send("POST", "/jobs", {"task": "a", "key": "k"})
    assert (again.status_code, "location" in again.headers) == (200, False)
    worker = await page.send("POST", "/workers", {"name": "w"})
    assert worker.headers["location"] == f"/v1/default/workers/{decoded(worker)['worker']}"
    token = await page.send("POST", "/tokens", {"scopes": ["read"]})
    assert token.headers["location"] == f"/v1/default/tokens/{decoded(token)['key']}"
    for made in (worker, token):
        assert (await page.client.delete(made.headers["location"])).status_code == 204


@in_process
async def test_head_is_get_without_a_body(engine: Engine, page: Web) -> None:
    job = await enqueue(engine)
    for path in ("/jobs", f"/jobs/{job.id}", "/jobs/count", "/stats", "/workers", f"/jobs/{job.id}/output"):
        whole, head = await page.send("GET", path), await page.send("HEAD", path)
        assert (head.status_code, head.content) == (200, b"")
        assert head.headers["content-type"] == whole.headers["content-type"]
        assert head.headers["content-length"] == whole.headers["content-length"]
    for path, accept in (("/events", ""), (f"/jobs/{job.id}/events", ""), ("/jobs", "application/x-ndjson")):
        head = await page.send("HEAD", path, accept=accept)
        assert (head.status_code, head.content) == (200, b"")
        assert head.headers["content-type"].partition(";")[0] == (accept or EVENT_STREAM)
    assert (await page.send("HEAD", f"/jobs/{job.id[:-4]}0000")).status_code == 404
    assert not engine.feed._watchers


@in_process
async def test_looking_at_the_head_uses_no_result_up(engine: Engine, page: Web) -> None:
    job = await enqueue(engine)
    head = await page.send("HEAD", f"/jobs/{job.id}/result")
    assert (head.status_code, head.headers["allow"]) == (405, "GET")


@in_process
@pytest.mark.parametrize(
    ("verb", "path", "allowed"),
    [
        *(
            (verb, f"/jobs/{word}", "POST")
            for word in ("batch", "cancel", "retry")
            for verb in ("GET", "DELETE", "PUT")
        ),
        ("DELETE", "/jobs/count", "GET, HEAD"),
        ("POST", "/jobs/count", "GET, HEAD"),
    ],
)
async def test_a_word_in_the_place_of_an_id_is_no_job(verb: str, path: str, allowed: str, page: Web) -> None:
    response = await page.send(verb, path)
    assert (response.status_code, response.headers.get("allow")) == (405, allowed)
    assert (await page.send("GET", f"{path}/result")).status_code == 404


@pytest.mark.parametrize("kind", ["sqlite", "redis"], indirect=True)
async def test_output_may_be_asked_for_as_text(engine: Engine, page: Web) -> None:
    job, worker = await enqueue(engine), await register(engine)
    claimed = await take(engine, worker)
    said = [NewChunk(stream="stdout", data="one ☃\n".encode()), NewChunk(stream="stderr", data=b"two\n")]
    await engine(Renew(worker=worker, jobs=[Alive(id=job.id, token=claimed.token, output=said)]))
    text = await page.send("GET", f"/jobs/{job.id}/output", accept="text/plain")
    assert (text.status_code, text.text) == (200, "one ☃\ntwo\n")
    assert text.headers["content-type"] == "text/plain; charset=utf-8"
    assert (text.headers["windlass-next"], text.headers["windlass-ended"]) == ("2", "false")
    rest = await page.send("GET", f"/jobs/{job.id}/output?after=1", accept="text/plain, */*;q=0.1")
    assert rest.text == "two\n"
    assert len(decoded(await page.send("GET", f"/jobs/{job.id}/output", accept="*/*"))["chunks"]) == 2


@pytest.mark.parametrize("kind", ["sqlite", "redis"], indirect=True)
async def test_a_worker_is_shown_with_all_its_fields(engine: Engine, page: Web) -> None:
    await engine(Register(worker=NewWorker(name="w")))
    (shown,) = decoded(await page.send("GET", "/workers"))
    assert set(shown) == {field.encode_name for field in msgspec.structs.fields(Worker)}
    assert (shown["queues"], shown["slots"], shown["running"], shown["tasks"]) == (["default"], 1, 0, None)


@pytest.mark.parametrize("kind", ["sqlite", "redis", "cluster"], indirect=True)
@pytest.mark.parametrize("queue", ["default", "mails"])
async def test_any_uuid_can_be_made_to_fit_its_queue(queue: str, engine: Engine, page: Web) -> None:
    own = uuid4()
    fitting = job_id(own, queue)
    assert fitting[:-2] == str(own)[:-2]
    while str(own) == fitting:
        own = uuid4()
        fitting = job_id(own, queue)
    refused = await page.send("POST", "/jobs", {"task": "a", "queue": queue, "id": str(own)})
    assert refused.status_code == 400
    assert fitting in decoded(refused)["detail"]
    assert "key" in decoded(refused)["detail"]
    taken = await page.send("POST", "/jobs", {"task": "a", "queue": queue, "id": fitting})
    assert (taken.status_code, decoded(taken)["id"]) == (201, fitting)
    assert (await engine(Show(id=fitting))).queue == queue
    as_key = await page.send("POST", "/jobs", {"task": "a", "queue": queue, "key": str(own)}, form=JSON)
    assert as_key.status_code == 201
    assert (await engine(Count())).count == 2
