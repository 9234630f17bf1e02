"""Texts that go where others read them: content types into headers, addresses into messages."""

import pytest
from msgspec import Raw

from tests.support.engines import enqueue, register, take
from tests.support.http_servers import Web, decoded
from windlass import Windlass
from windlass.addresses import open_store
from windlass.cli import run
from windlass.client import Client
from windlass.engine import Engine
from windlass.model.errors import Invalid
from windlass.model.names import without_password
from windlass.model.new_job import NewJob
from windlass.model.operations import Count, Enqueue, Finish, Finished, Show
from windlass.model.outcome import Verdict

BROKEN = ["text/plain\r\nx: y", "text/plain\n", "a\0b", "a\x7f", "é/x", "\t"]


@pytest.mark.parametrize("kind", ["sqlite", "redis"], indirect=True)
@pytest.mark.parametrize("content_type", BROKEN)
async def test_a_content_type_has_no_line_breaks_nor_zeros(content_type: str, engine: Engine, page: Web) -> None:
    new = {"task": "a", "payload": "x", "content_type": content_type}
    for path, body, at in (
        ("/jobs", new, "job.content_type"),
        ("/jobs", {"task": "a", "then": new}, "job.then.content_type"),
        ("/jobs/batch", [{"task": "a"}, new], "jobs[1].content_type"),
    ):
        response = await page.send("POST", path, body)
        assert response.status_code == 400
        assert (decoded(response)["at"], "content type" in decoded(response)["detail"]) == (at, True)
    with pytest.raises(Invalid, match="content type"):
        await engine(Enqueue(job=NewJob(task="a", payload=Raw(b"x"), content_type=content_type)))
    assert (await engine(Count())).count == 0


@pytest.mark.parametrize("kind", ["sqlite", "redis"], indirect=True)
@pytest.mark.parametrize("content_type", BROKEN)
async def test_nor_has_that_of_a_result(content_type: str, engine: Engine, page: Web) -> None:
    job, worker = await enqueue(engine), await register(engine)
    claimed = await take(engine, worker)
    said = {"id": job.id, "token": claimed.token, "outcome": "ok", "result": "x", "content_type": content_type}
    response = await page.send("POST", f"/workers/{worker}/finish", [said])
    assert (response.status_code, "content type" in decoded(response)["detail"]) == (400, True)
    report = Finished(id=job.id, token=claimed.token, outcome=Verdict.OK, result=Raw(b"x"), content_type=content_type)
    with pytest.raises(Invalid, match="content type"):
        await engine(Finish(worker=worker, jobs=[report]))
    assert (await engine(Show(id=job.id))).state == "running"


@pytest.mark.parametrize(
    ("address", "shown"),
    [
        ("redis://:secret@host/1", "redis://:…@host/1"),
        ("redis://me:secret@host:6379", "redis://me:…@host:6379"),
        ("redis:/:secret@host", "redis:/:…@host"),
        ("me:secret@host:6379", "me:…@host:6379"),
        ("redis://:s@cr:et/@host", "redis://:…@host"),
        (
            "redis+sentinel://:a@h1,h2/main?sentinel_password=b&x=1",
            "redis+sentinel://:…@h1,h2/main?sentinel_password=…&x=1",
        ),
        ("redis://host:6379/0", "redis://host:6379/0"),
        ("/srv/me@home/jobs.db", "/srv/me@home/jobs.db"),
    ],
)
def test_an_address_is_shown_without_its_password(address: str, shown: str) -> None:
    assert without_password(address) == shown


@pytest.mark.parametrize(
    "command",
    [
        "jobs ls --server redis://:hunter2@localhost",
        "jobs ls --server redis:/:hunter2@localhost",
        "jobs ls --store mysql://me:hunter2@localhost",
        "jobs ls --store redis:/:hunter2@localhost",
        "doctor --server redis://me:hunter2@localhost",
    ],
)
def test_no_command_shows_the_password_of_an_address(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(command.split()) in (1, 2)
    said = capsys.readouterr()
    assert "hunter2" not in said.out + said.err
    assert "localhost" in said.out + said.err


async def test_nor_does_code() -> None:
    address = "redis://:hunter2@localhost"
    with pytest.raises(Invalid) as answer:
        Client(address)
    with pytest.raises(Invalid) as also:
        Windlass(server=address)
    with pytest.raises(Invalid) as again:
        await open_store("mysql://:hunter2@localhost")
    assert "hunter2" not in f"{answer.value} {also.value} {again.value} {Windlass(address)!r}"
