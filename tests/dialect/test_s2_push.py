"""Workers of an older queue, which have their jobs sent to them: each test names the promises it keeps."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests.support.http_servers import decoded, encoded, process, web
from tests.support.patience import PATIENCE
from tests.support.push_servers import Receiver, Sent, Station, always, receiver, station, until
from windlass.dialect import s2
from windlass.model import wire
from windlass.model.operations import Workers
from windlass.store.protocol import Store

PACKED = "application/msgpack"


class Master:
    """A server, as pushers and workers of that queue speak to it."""

    def __init__(self, client: httpx2.AsyncClient, form: str = PACKED) -> None:
        self.client = client
        self.form = form

    async def ask(self, verb: str, path: str, body: Any = None, status: int = 200, worker: str = "") -> Any:
        headers = {"content-type": self.form, "accept": self.form, **({"worker-id": worker} if worker else {})}
        content = None if body is None else encoded(body, self.form)
        response = await self.client.request(verb, path, content=content, headers=headers)
        assert response.status_code == status, (response.status_code, response.content)
        return decoded(response) if response.content else None

    async def push(self, name: str = "work", argument: Any = None, **more: Any) -> str:
        return str((await self.ask("POST", "/job", {"name": name, "argument": argument, **more}, 201))["job_id"])

    async def register(self, worker: Receiver, max_jobs: int = 1) -> str:
        new = {"name": "w", "max_jobs": max_jobs, "url": worker.url}
        return str((await self.ask("POST", "/worker", new, 201))["worker_id"])

    async def done(self, worker: str, sent: s2.DeliveredJob, **said: Any) -> None:
        body = {"job_id": sent.id, "type": "success", "result": None, **said}
        await self.ask("POST", "/done", body, 204, worker)

    async def ended(self, id: str) -> Any:
        return await self.ask("GET", f"/job/{id}/polling?timeout=60")

    async def is_(self, id: str, status: str) -> bool:
        return bool((await self.ask("GET", f"/job/{id}"))["status"] == status)


def read(sent: Sent, form: Any = "msgpack") -> s2.DeliveredJob:
    return wire.decode(sent.body, s2.DeliveredJob, form)


@pytest.fixture
async def master(hub: Station) -> AsyncIterator[Master]:
    async with web(hub.address) as client:
        yield Master(client)


async def test_a_worker_gets_its_job_and_reports_it(master: Master) -> None:
    """S2 19, 21 and 25: 202 means that it runs."""
    async with receiver(always(202), reads=dict) as worker:
        id = await master.register(worker)
        job = await master.push("resize", {"width": 7}, timeout=12, keep_result=True)
        sent = (await worker.has(1))[0]
        asked = read(sent)
        assert (sent.target, sent.headers["content-type"]) == ("/jobs/worker-job", PACKED)
        assert (asked.name, wire.decode(asked.argument, dict), asked.timeout) == ("resize", {"width": 7}, 12)
        assert s2.job_id(asked.id) == job
        await until(lambda: master.is_(job, "running"))
        assert (await master.ask("GET", f"/job/{job}"))["worker_id"] == id
        await master.done(id, asked, result={"bytes": b"\x00"})
        answer = await master.ended(job)
    assert (answer["status"], answer["result"], answer["worker_id"]) == ("done", {"bytes": b"\x00"}, id)


async def test_a_worker_registered_in_json_gets_json(hub: Station) -> None:
    """S2 34."""
    async with web(hub.address) as client, receiver(always(202), format="json", reads=dict) as worker:
        master = Master(client, "application/json")
        id = await master.register(worker)
        job = await master.push(argument={"é": [1]})
        asked = read((await worker.has(1))[0], "json")
        assert wire.decode(asked.argument, dict, "json") == {"é": [1]}
        await master.done(id, asked)
        assert (await master.ended(job))["status"] == "done"


async def test_a_worker_never_has_more_than_it_asked_for(master: Master) -> None:
    """S2 24."""
    async with receiver(always(202), reads=dict) as worker:
        id = await master.register(worker, max_jobs=2)
        jobs = [await master.push() for _ in range(6)]
        for done in range(len(jobs)):
            sent = (await worker.has(done + 1))[done]
            assert len(worker.sent) - done <= 2
            assert len([job for job in jobs if await master.is_(job, "running")]) <= 2
            await master.done(id, read(sent))
        for job in jobs:
            assert (await master.ended(job))["retry_count"] == 0


@pytest.mark.parametrize("status", [400, 404, 500])
async def test_a_job_that_a_worker_does_not_take_goes_to_another_and_has_not_run(master: Master, status: int) -> None:
    """S2 25."""
    async with receiver(always(status), reads=dict) as unable, receiver(always(202), reads=dict) as able:
        await master.register(unable)
        job = await master.push(max_retry=0)
        await unable.has(1)
        id = await master.register(able)
        await master.done(id, read((await able.has(1))[0]))
        told = await master.ended(job)
    assert (told["status"], told["retry_count"], told["worker_id"]) == ("done", 0, id)


async def test_a_job_that_takes_too_long_has_failed_whatever_its_worker_reports_later(master: Master) -> None:
    """S2 16."""
    async with receiver(always(202), reads=dict) as worker:
        id = await master.register(worker)
        job = await master.push(timeout=0.5, max_retry=0)
        asked = read((await worker.has(1))[0])
        answer = await master.ended(job)
        assert (answer["status"], answer["error"]) == ("error", "Timeout")
        await master.done(id, asked, result="late")
        assert (await master.ended(job)) == answer


async def test_a_worker_without_heartbeats_is_dropped(master: Master) -> None:
    """S2 27: the one does not hide the other; its job goes to a live worker."""
    async with receiver(always(202), reads=dict) as silent, receiver(always(202), reads=dict) as living:
        gone = await master.register(silent)
        job = await master.push()
        first = read((await silent.has(1))[0])
        kept = await master.register(living)
        async with asyncio.timeout(PATIENCE):
            while not living.sent:
                await master.ask("PUT", "/worker", status=204, worker=kept)
                await asyncio.sleep(0.2)
        await master.ask("PUT", "/worker", status=404, worker=gone)
        second = read(living.sent[0])
        assert s2.job_id(first.id) == s2.job_id(second.id) == job
        await master.ask("POST", "/done", {"job_id": first.id, "type": "success", "result": 1}, 404, gone)
        await master.done(kept, second)
        assert (await master.ended(job))["worker_id"] == kept


@pytest.mark.parametrize(("lease", "told"), [(3600.0, 10.0), (3.0, 3.0)])
async def test_a_worker_may_be_silent_for_ten_seconds(real_store: Store, lease: float, told: float) -> None:
    """S2 27."""
    async with station(real_store, lease=lease) as hub, web(hub.address) as client:
        new = {"name": "w", "max_jobs": 1, "url": "http://127.0.0.1:1"}
        joined = await Master(client).ask("POST", "/worker", new, 201)
        assert joined["lease"] == told
        (worker,) = await hub.client(Workers())
        assert worker.lease == 10.0


async def test_a_worker_may_push_jobs(master: Master) -> None:
    """S2 31."""
    async with receiver(always(202), reads=dict) as worker:
        id = await master.register(worker)
        await master.push("parent")
        parent = read((await worker.has(1))[0])
        child = await master.push("child")
        await master.done(id, parent)
        await master.done(id, read((await worker.has(2))[1]))
        assert (await master.ended(child))["status"] == "done"


async def test_a_served_process_has_the_dialect_too(tmp_path: Path) -> None:
    """S2 12 and 25."""
    with process(tmp_path) as running:
        async with web(running.address, running.token) as client, receiver(always(202), reads=dict) as worker:
            master = Master(client)
            id = await master.register(worker)
            job = await master.push(argument=[1], keep_result=True)
            await master.done(id, read((await worker.has(1))[0]), result="done")
            assert (await master.ended(job))["result"] == "done"
