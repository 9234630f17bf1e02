"""Files through a journal: those that a job names by their SHA-256 are looked up before it is accepted."""

import hashlib
from pathlib import Path

import pytest

from tests.support.drained_journals import down, journaled_at
from tests.support.servers import StartServer
from windlass.model.errors import FilesMissing, Unavailable
from windlass.model.job import NewJob
from windlass.model.names import DEFAULT_QUEUE
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
