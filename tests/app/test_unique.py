"""Unique jobs, as people ask for them: in Python, over HTTP, on the command line, through a journal."""

import asyncio
import json
import os
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec
import pytest

from tests.support.http_servers import LOCAL, Web
from tests.support.patience import PATIENCE
from tests.support.servers import NewPrefix
from windlass import Conflict, Invalid, Windlass, chain, cli, current
from windlass.addresses import open_engine
from windlass.app import Task
from windlass.model.job import Job as Record
from windlass.model.job import State
from windlass.model.new_job import JobOptions
from windlass.model.operations import EnqueueMany, Register, Show
from windlass.model.worker import NewWorker

Mail = Task[..., int, int]

CALLERS = 8


def _send(number: int, to: str = "all") -> int:
    return number


@pytest.fixture(params=["file", "redis", "journal"])
def mail(request: pytest.FixtureRequest, tmp_path: Path, new_prefix: NewPrefix) -> Iterator[Mail]:
    store, journal = str(tmp_path / "jobs.db"), None
    if request.param != "file":
        store = request.getfixturevalue("redis_server").url
        journal = str(tmp_path / "journal") if request.param == "journal" else None
    app = Windlass(store, tenant=f"{new_prefix()}-{os.getpid()}", journal=journal)
    yield app.task(name="mail", unique="pending")(_send)
    app.close()


def shown(mail: Mail, id: str) -> Record:
    return mail.app.ask(Show(id=id, payload=True))


# In Python


def test_a_handle_says_whether_its_job_is_new(mail: Mail) -> None:
    first, second = mail.enqueue(1), mail.enqueue(1)
    assert (first.created, second.created, second == first) == (True, False, True)
    other = mail.enqueue(2)
    assert (other.created, other == first) == (True, False)
    assert mail.enqueue(number=1, to="all") not in (first, other), "other arguments"
    assert mail.enqueue(number=1) == first, "named arguments are the same arguments"
    assert mail.using(unique=None).enqueue(1).created is True
    assert len(list(mail.app.jobs())) == 4
    assert first.cancel()
    again = mail.enqueue(1)
    assert (again.created, again == first) == (True, False)


def test_each_job_of_a_batch_says_whether_it_is_new(mail: Mail) -> None:
    first = mail.enqueue(1)
    jobs = mail.map([1, 2, 2, 3, 1])
    assert [job.created for job in jobs] == [False, True, False, True, False]
    assert jobs[0] == jobs[4] == first
    assert jobs[1] == jobs[2]
    assert mail.app.jobs(state="queued").count() == 3

    async def main() -> None:
        again = await mail.amap([3, 4, 4])
        assert [job.created for job in again] == [False, True, False]
        assert (await mail.aenqueue(4)) == again[1]
        await mail.app.aclose()

    asyncio.run(main())


def test_replacing_gives_a_job_that_waits_the_newest_arguments(mail: Mail) -> None:
    index = mail.using(unique="queued", unique_key="doc-7", on_duplicate="replace", delay="1h")
    first = index.enqueue(1)
    due = shown(mail, first.id).run_at
    for number in (2, 3):
        job = index.enqueue(number)
        assert (job.created, job == first) == (False, True)
    now = index.using(delay="2h").enqueue(4)
    found = shown(mail, now.id)
    assert mail.plan.unpack(bytes(found.payload)) == ((), {"number": 4})  # type: ignore[arg-type]
    assert found.state is State.SCHEDULED
    assert found.run_at is not None
    assert due is not None
    assert (found.run_at - due).total_seconds() > 3500
    assert index.using(unique_key="doc-8").enqueue(1).created is True


def test_a_second_one_may_be_refused(mail: Mail) -> None:
    strict = mail.using(on_duplicate="reject")
    first = strict.enqueue(1)
    with pytest.raises(Conflict, match=f"job {first.id} of task 'mail' is the same and is queued"):
        strict.enqueue(1)
    with pytest.raises(Conflict, match=first.id):
        strict.map([5, 6, 1])
    assert mail.app.jobs().count() == 1, "a refused request keeps nothing"

    async def main() -> None:
        outcomes = await asyncio.gather(*(strict.aenqueue(n) for n in (7, 1, 8, 7)), return_exceptions=True)
        assert [type(one).__name__ for one in outcomes].count("Conflict") == 2
        await mail.app.aclose()

    asyncio.run(main())
    assert mail.app.jobs().count() == 3


def test_a_key_is_another_thing(mail: Mail) -> None:
    """A key names one job as long as its record is kept; unique jobs come again when the last one has ended."""
    keyed = mail.using(key="k", unique="pending")
    first = keyed.enqueue(1)
    assert keyed.enqueue(2) == first
    joined = keyed.using(key="l").enqueue(1)
    assert (joined == first, joined.created) == (True, False)
    assert first.cancel()
    assert keyed.enqueue(1) == first
    assert keyed.enqueue(1).created is False
    assert keyed.using(key="l").enqueue(1).created is True


def test_a_unique_job_may_have_another_id_than_the_one_it_was_sent_with(mail: Mail) -> None:
    """So nothing that would rely on that id can be made of it."""
    with pytest.raises(Invalid, match="unique: mail is unique"):
        chain(mail.s(1), mail.using(unique=None).s()).enqueue()
    with pytest.raises(Invalid, match="unique: only the queue can say"):
        mail.enqueue_in(sqlite3.connect(":memory:"), 1)
    news = [mail.new_job((number,), {}) for number in (1, 2)]
    news[1] = msgspec.structs.replace(news[1], after=[news[0].id or ""])
    with pytest.raises(Invalid, match=r"jobs\[1\]\.after: it waits for a unique job of the same request"):
        mail.app.ask(EnqueueMany(jobs=news))
    first = mail.enqueue(1)
    behind = mail.using(unique=None, after=mail.enqueue(1)).enqueue(2)
    assert shown(mail, behind.id).after == [first.id]


def test_for_a_time_there_is_one_whatever_becomes_of_it(mail: Mail) -> None:
    digest = mail.using(unique="10m")
    first = digest.enqueue(1)
    assert digest.enqueue(1) == first
    assert shown(mail, first.id).unique == 600.0
    assert first.cancel()
    assert digest.enqueue(1).created is True


def test_in_a_test_time_passes_and_jobs_run() -> None:
    app = Windlass(":memory:")
    ran: list[int] = []

    @app.task(unique="10m", keep_success="1h")
    def digest(number: int) -> int:
        ran.append(number)
        return number

    @app.task(unique="queued", unique_key="all", on_duplicate="replace")
    def index(number: int) -> int:
        ran.append(number)
        return number

    with app.testing.manual() as manual:
        first = digest.enqueue(1)
        manual.drain()
        assert digest.enqueue(1) == first
        assert first.result() == 1
        manual.advance("10m")
        assert digest.enqueue(1).created is True
        manual.drain()
        handles = [index.using(delay="10s").enqueue(number) for number in (2, 3, 4)]
        manual.drain(within="9s")
        assert ran == [1, 1]
        manual.drain(within="2s")
        assert ran == [1, 1, 4]
        assert [job.result() for job in handles] == [4, 4, 4], "the earlier callers get the newest result"


def test_a_job_that_another_one_makes_is_left_out_if_there_is_one_already() -> None:
    app = Windlass(":memory:")

    @app.task(unique="pending", on_duplicate="reject")
    def once() -> None: ...

    @app.task
    def parent() -> None:
        current.spawn(once)

    with app.testing.manual() as manual:
        first = once.using(delay="1h").enqueue()
        job = parent.enqueue()
        manual.drain()
        assert job.state is State.SUCCEEDED
        assert [job.id for job in manual.jobs if job.task == "once"] == [first.id]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"unique": "always"}, "unique: 'always' is not a duration"),
        ({"unique": 0}, "unique: "),
        ({"unique_key": "k"}, "unique_key: say also for how long"),
        ({"unique": "pending", "on_duplicate": "ignore"}, "on_duplicate: "),
        ({"unique": "pending", "yielding": True}, "unique: a yielding job"),
        ({"unique": "7d"}, "unique: a success is known for 86400 s: keep_success must be at least as long"),
    ],
)
def test_what_cannot_be_is_refused(mail: Mail, options: dict[str, object], expected: str) -> None:
    with pytest.raises(Invalid, match=expected):
        mail.using(unique=None).using(**options).enqueue(1)  # type: ignore[arg-type]
    mail.using(unique="7d", keep_success="7d").enqueue(1)


# At once


def test_of_many_callers_exactly_one_makes_the_job(mail: Mail) -> None:
    apps = [mail.app, Windlass(mail.app.store, tenant=mail.app.tenant)]
    tasks = [mail, apps[1].task(name="mail", unique="pending")(_send)]
    start = threading.Barrier(CALLERS)

    def call(place: int) -> list[bool | None]:
        found = []
        for number in range(20):
            start.wait(PATIENCE)
            found.append(tasks[place % 2].enqueue(number).created)
        return found

    with ThreadPoolExecutor(CALLERS) as pool:
        answers = list(pool.map(call, range(CALLERS)))
    assert [list(made).count(True) for made in zip(*answers, strict=True)] == [1] * 20
    assert mail.app.jobs().count() == 20
    apps[1].close()


CALLER = """
import sys
from windlass import Windlass
app = Windlass(sys.argv[1], tenant=sys.argv[2])
@app.task(name="mail", unique="pending")
def mail(number: int, to: str = "all") -> int: ...
sys.stdin.readline()
print(sum(bool(mail.enqueue(number).created) for number in range(50)), flush=True)
"""


@pytest.mark.parametrize("mail", ["file", "redis"], indirect=True)
def test_of_many_processes_exactly_one_makes_the_job(mail: Mail) -> None:
    started = [
        subprocess.Popen(
            [sys.executable, "-c", CALLER, mail.app.store, mail.app.tenant],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(3)
    ]
    for one in started:
        assert one.stdin is not None
        one.stdin.write("go\n")
        one.stdin.flush()
    made = [int(one.communicate(timeout=PATIENCE)[0]) for one in started]
    assert sum(made) == 50
    assert mail.app.jobs().count() == 50


# Over HTTP


async def test_over_http(page: Web) -> None:
    terms = {"task": "t", "payload": {"a": 1, "b": 2}, "unique": "pending"}
    first = await page.send("POST", "/jobs", terms)
    second = await page.send("POST", "/jobs", {**terms, "payload": {"b": 2, "a": 1}})
    assert (first.status_code, second.status_code) == (201, 200)
    assert second.json()["id"] == first.json()["id"]
    assert (first.json()["created"], second.json()["created"]) == (True, False)
    assert (first.json()["unique"], first.json()["on_duplicate"]) == ("pending", "join")

    refused = await page.send("POST", "/jobs", {**terms, "on_duplicate": "reject"})
    assert refused.status_code == 409
    problem = refused.json()
    assert (problem["code"], problem["at"]) == ("conflict", "unique")
    assert first.json()["id"] in problem["detail"]

    newest = {**terms, "payload": {"a": 3}, "unique_key": "k", "on_duplicate": "replace"}
    made = (await page.send("POST", "/jobs", {**newest, "payload": {"a": 2}, "delay": 60})).json()
    replaced = await page.send("POST", "/jobs", {**newest, "delay": 90})
    assert (replaced.status_code, replaced.json()["id"]) == (200, made["id"])
    assert (await page.send("GET", f"/jobs/{made['id']}?payload=true")).json()["payload"] == {"a": 3}

    batch = [terms, {**terms, "payload": 5}, {**terms, "payload": 5}, {"task": "t"}]
    several = (await page.send("POST", "/jobs/batch", batch)).json()
    assert several["ids"][0] == first.json()["id"]
    assert several["ids"][1] == several["ids"][2]
    assert (several["created"], several["existing"]) == (2, [first.json()["id"]])
    refused_batch = [{**terms, "payload": 6}, {**terms, "on_duplicate": "reject"}]
    assert (await page.send("POST", "/jobs/batch", refused_batch)).status_code == 409
    assert (await page.send("GET", "/jobs/count")).json() == {"count": 4}


async def test_lines_over_http(page: Web) -> None:
    made = await page.client.post("/v1/default/tasks/t/jobs?unique=pending", content="a\nb\na\n", headers=TEXT)
    assert made.status_code == 201, made.text
    assert made.json()["ids"][0] == made.json()["ids"][2]
    assert made.json()["created"] == 2
    timed = await page.client.post("/v1/default/tasks/u/jobs?unique=600", content="a\na\n", headers=TEXT)
    assert (timed.status_code, timed.json()["created"]) == (201, 1), timed.text
    keyed = await page.client.post("/v1/default/tasks/t/jobs?unique=pending&unique_key=k", content="a", headers=TEXT)
    assert keyed.status_code == 400


TEXT = {"content-type": "text/plain"}


async def test_callers_of_a_server_at_once(site: str) -> None:
    app = Windlass(server=site, token=LOCAL)
    mail = app.task(name="mail", unique="pending")(_send)
    jobs = await asyncio.gather(*(mail.aenqueue(place % 5) for place in range(60)))
    assert [job.created for job in jobs].count(True) == 5
    assert len({job.id for job in jobs}) == 5
    assert [job.created for job in await mail.amap([0, 9, 9])] == [False, True, False]
    await app.aclose()


# On the command line


@pytest.mark.parametrize("store", ["file", "redis"])
def test_on_the_command_line(
    store: str,
    request: pytest.FixtureRequest,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    address = str(tmp_path / "jobs.db") if store == "file" else request.getfixturevalue("redis_server").url
    monkeypatch.setenv("WINDLASS_STORE", address)
    tenant = f"t{os.getpid()}-{store}"
    monkeypatch.setenv("WINDLASS_TENANT", tenant)

    def enqueue(*words: str, status: int = 0) -> tuple[str, str]:
        capfd.readouterr()
        assert cli.run(["enqueue", "t", *words]) == status
        return capfd.readouterr()

    first = enqueue("1", "--unique", "pending")
    assert enqueue("1", "--unique", "queued") == (first[0], "windlass: the job exists already: queued\n")
    assert enqueue("1", "--unique", "10m")[0] == first[0]
    assert enqueue("2", "--unique", "pending")[0] != first[0]
    refused = enqueue("1", "--unique", "pending", "--on-duplicate", "reject", status=4)
    assert f"job {first[0].strip()} of task 't' is the same and is queued" in refused[1]
    keyed = ("--unique", "queued", "--unique-key", "k", "--on-duplicate", "replace")
    made = json.loads(enqueue("3", *keyed, "--json")[0])
    assert json.loads(enqueue("4", *keyed, "--json")[0])["id"] == made["id"]
    capfd.readouterr()
    assert cli.run(["jobs", "show", made["id"]]) == 0
    found = capfd.readouterr().out
    assert "unique" in found
    assert "queued" in found
    assert "always" in enqueue("1", "--unique", "always", status=2)[1]

    async def declare() -> None:
        options = {"once": JobOptions(unique="pending", unique_key="all")}
        worker = NewWorker(name="w", queues=["default"], slots=1, tasks=["once"], options=options)
        async with open_engine(address) as engine:
            await engine(Register(tenant=tenant, worker=worker))

    asyncio.run(declare())

    def once(*words: str) -> str:
        capfd.readouterr()
        assert cli.run(["enqueue", "once", *words]) == 0
        return str(capfd.readouterr().out)

    only = once("1")
    assert once("2") == only, "a job by name is unique if its task says so"
    assert once("2", "--exact") != only
