"""Whether a job is new or was there already under its key or id: `created`, wherever a job is queued."""

import asyncio
import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.engines import enqueue as enqueue_in
from tests.support.engines import finish, register, take
from tests.support.http_servers import LOCAL, Web
from tests.support.servers import NewPrefix
from windlass import Windlass, cli
from windlass.addresses import open_engine
from windlass.app import Task
from windlass.engine import Engine
from windlass.model.new_job import NewJob
from windlass.model.operations import EnqueueMany

Mail = Task[..., None, None]


@pytest.fixture(params=["file", "redis", "journal"])
def mail(request: pytest.FixtureRequest, tmp_path: Path, new_prefix: NewPrefix) -> Iterator[Mail]:
    store, journal = str(tmp_path / "jobs.db"), None
    if request.param != "file":
        store = request.getfixturevalue("redis_server").url
        journal = str(tmp_path / "journal") if request.param == "journal" else None
    app = Windlass(store, tenant=f"{new_prefix()}-{os.getpid()}", journal=journal)
    yield app.task(name="mail")(_nothing)
    app.close()


def _nothing(number: int) -> None: ...


def test_a_handle_says_whether_its_job_is_new(mail: Mail) -> None:
    assert [mail.enqueue(1).created, mail.enqueue(1).created] == [True, True]
    keyed = mail.using(key="k")
    first, second = keyed.enqueue(1), keyed.enqueue(2)
    assert (first.created, second.created, first == second) == (True, False, True)
    own = first.id[:-6] + "0000" + first.id[-2:]
    assert [mail.using(id=own).enqueue(1).created for _ in range(2)] == [True, False]
    assert [job.created for job in mail.map([1, 2])] == [True, True]
    assert [job.created for job in keyed.map([1])] == [False]
    assert mail.app.job(first.id).created is None, "nobody knows any more"


def test_a_handle_gives_the_events_of_its_job(mail: Mail) -> None:
    job = mail.enqueue(1)
    assert job.cancel()
    assert [event.name for event in job.events()] == ["cancelled"]

    async def main() -> None:
        assert [event.name async for event in job.aevents()] == ["cancelled"]
        await mail.app.aclose()

    asyncio.run(main())


async def many(mail: Mail) -> list[bool | None]:
    tasks = [mail.using(key=key) for key in ("a", "b", "a", "c")] + [mail]
    return [job.created for job in await asyncio.gather(*(task.aenqueue(1) for task in tasks))]


def test_each_job_of_one_call_knows_whether_it_is_new(mail: Mail) -> None:
    async def main() -> None:
        assert (await mail.using(key="b").aenqueue(1)).created is True
        assert await many(mail) == [True, False, False, True, True]
        assert [job.created for job in await mail.using(key="b").amap([1])] == [False]
        await mail.app.aclose()

    asyncio.run(main())


async def test_over_http_too(site: str, page: Web) -> None:
    app = Windlass(server=site, token=LOCAL)
    mail = app.task(name="mail")(_nothing)
    await mail.using(key="b").aenqueue(1)
    assert await many(mail) == [True, False, False, True, True]
    await app.aclose()
    sent = [{"task": "t", "key": key} for key in ("x", "y")]
    batch = (await page.send("POST", "/jobs/batch", sent)).json()
    assert (batch["created"], batch["existing"]) == (2, [])
    again = (await page.send("POST", "/jobs/batch", [*sent, {"task": "t"}])).json()
    assert (again["created"], again["existing"]) == (1, batch["ids"])


async def test_many_large_calls_are_more_than_one_request(site: str) -> None:
    app = Windlass(server=site, token=LOCAL)

    @app.task
    def measure(data: bytes) -> int:
        return len(data)

    jobs = await measure.amap([b"x" * 1_000_000] * 20)
    assert [job.created for job in jobs] == [True] * 20
    await app.aclose()


async def test_a_batch_names_those_that_were_there(engine: Engine) -> None:
    first = await enqueue_in(engine, key="a")
    made = await engine(EnqueueMany(jobs=[NewJob(task="t", key=key) for key in ("b", "a", "b")]))
    assert (made.created, made.existing) == (1, [first.id])


@pytest.mark.parametrize("store", ["file", "redis"])
def test_the_command_says_that_a_job_was_there_and_how_it_ended(
    store: str,
    request: pytest.FixtureRequest,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    address = str(tmp_path / "jobs.db") if store == "file" else request.getfixturevalue("redis_server").url
    monkeypatch.setenv("WINDLASS_STORE", address)
    key, queue = f"k{tmp_path}", f"q{os.getpid()}"

    def enqueue(*words: str) -> tuple[str, str]:
        capfd.readouterr()
        assert cli.run(["enqueue", "t", "--key", key, "-q", queue, *words]) == 0
        return capfd.readouterr()

    async def end() -> None:
        async with open_engine(address) as engine:
            worker = await register(engine, queue)
            await finish(engine, worker, await take(engine, worker))

    first = enqueue()
    assert "exists already" not in first[1]
    second = enqueue()
    assert second[0] == first[0]
    assert second[1] == "windlass: the job exists already: queued\n"
    asyncio.run(end())
    ended = enqueue()
    assert ended[0] == first[0]
    assert re.fullmatch(
        r"windlass: the job exists already: succeeded (\d.* ago|just now); "
        rf"its key is taken until its record is deleted: `windlass jobs rm {first[0].strip()}`\n",
        ended[1],
    )
    assert '"created":false' in enqueue("--json")[0]
