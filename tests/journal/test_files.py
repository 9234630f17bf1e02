"""Files through a journal: those that a job names by their SHA-256 are looked up before it is accepted."""

import hashlib
from pathlib import Path

import pytest

from tests.support.asy_client import RESTORE, asy
from tests.support.drained_journals import CLOCK, down, engine_at, journaled_at
from tests.support.http_servers import served
from tests.support.servers import StartServer
from windlass.engine.journal import open_journaled
from windlass.model.errors import FilesMissing, Unavailable
from windlass.model.names import DEFAULT_QUEUE
from windlass.model.new_job import NewJob
from windlass.model.operations import (
    Claim,
    Enqueue,
    EnqueueMany,
    Finish,
    Finished,
    GetFile,
    GetFiles,
    PutFile,
    Register,
)
from windlass.model.outcome import Verdict
from windlass.model.worker import NewWorker

SENT = hashlib.sha256(b"sent").hexdigest()


async def test_jobs_get_files_that_were_sent_before_and_leave_others(tmp_path: Path, start_server: StartServer) -> None:
    server = start_server("redis", fsync="always")
    async with journaled_at(server.url, tmp_path / "journal") as service:
        with pytest.raises(FilesMissing):
            await service(Enqueue(job=NewJob(task="a", hashes={"f": SENT})))
        await service(PutFile(hash=SENT, data=b"sent"))
        job = await service(Enqueue(job=NewJob(task="a", hashes={"f": SENT}, files={"g": b"own"})))
        await service(EnqueueMany(jobs=[NewJob(task="a", hashes={"h": SENT})]))
        assert await service(GetFiles(id=job.id)) == []
        worker = (await service(Register(worker=NewWorker(name="w", queues=[DEFAULT_QUEUE])))).worker
        one, two = await service(Claim(worker=worker, slots=2))
        assert (one.files, two.files) == ({"f": b"sent", "g": b"own"}, {"h": b"sent"})
        report = Finished(id=job.id, token=one.token, outcome=Verdict.OK, files={"out": b"left"})
        await service(Finish(worker=worker, jobs=[report]))
        assert await service(GetFile(id=job.id, name="out")) == b"left"
        server.kill()
        await down(service)
        await service(Enqueue(job=NewJob(task="a", files={"g": b"own"})))
        with pytest.raises(Unavailable):
            await service(Enqueue(job=NewJob(task="a", hashes={"f": SENT})))


async def test_a_drawing_goes_through_a_journal(tmp_path: Path, start_server: StartServer) -> None:
    server = start_server("redis", fsync="always")
    async with engine_at(server.url) as engine, open_journaled(engine, tmp_path / "journal", CLOCK) as service:
        worker = (await service(Register(worker=NewWorker(name="w", queues=["asy"])))).worker
        async with served(engine, CLOCK, service=service) as site, asy(site, RESTORE) as client:
            await client.say("add", {"filename": "main.asy", "hash": SENT, "restore": True})
            await client.say("start", {"main": "main.asy"})
            await client.until("missing")
            await client.add("main.asy", b"sent", hash=SENT)
            await client.say("start", {"main": "main.asy"})
            (claimed,) = await service(Claim(worker=worker, wait=30.0))
            assert claimed.files == {"main.asy": b"sent"}
            report = Finished(
                id=claimed.job.id, token=claimed.token, outcome=Verdict.OK, files={"result.svg": b"<svg/>"}
            )
            await service(Finish(worker=worker, jobs=[report]))
            heard = await client.rest()
    assert [frame.data for frame in heard if frame.verb == "result"] == [b"<svg/>"]
    assert heard[-1].value == {}
