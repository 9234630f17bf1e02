"""Queues, limits and jobs managed from Python, with and without an event loop."""

import json
import os
from pathlib import Path

import pytest

from tests.support.servers import Server
from windlass import Invalid, Windlass, current
from windlass.model.job import State
from windlass.model.operations import Alive, Claim, Register, Renew
from windlass.model.output import Progress
from windlass.model.worker import NewWorker


@pytest.fixture(params=["file", "redis"])
def app(request: pytest.FixtureRequest, tmp_path: Path) -> Windlass:
    if request.param == "file":
        return Windlass(str(tmp_path / "jobs.db"))
    server = request.getfixturevalue("redis_server")
    assert isinstance(server, Server)
    return Windlass(server.url, tenant=f"m{os.getpid()}x{os.urandom(3).hex()}")


def test_queues_are_paused_changed_and_shown(app: Windlass) -> None:
    mail = app.queues["mail"]
    paused = mail.pause("30m", why="the server is down")
    assert (paused.paused, paused.why) == (True, "the server is down")
    assert paused.until is not None
    assert not mail.resume().paused
    changed = mail.set(timeout="2m", on_lost="fail", most_payload=1000)
    assert (changed.timeout, changed.on_lost, changed.most_payload) == (120.0, "fail", 1000)
    assert mail.set(timeout=None).timeout is None
    assert [card.queue for card in app.queues.all()] == ["mail"]
    with pytest.raises(Invalid, match="there is no such option"):
        mail.set(speed=5)  # type: ignore[call-arg]
    app.close()


def test_limits_are_set_paused_and_removed(app: Windlass) -> None:
    card = app.limits.set("api", task="call", rate="100/1m", key="payload.customer")
    assert card.rate is not None
    assert (card.rate.count, card.rate.per, card.key, card.match.task) == (100, 60.0, "payload.customer", "call")
    assert app.limits["api"].pause("1h", why="tired").paused
    assert not app.limits["api"].resume().paused
    assert [limit.name for limit in app.limits.all()] == ["api"]
    with pytest.raises(Invalid, match="not N/TIME"):
        app.limits.set("api", rate="often")
    app.limits["api"].remove()
    assert app.limits.all() == []
    app.close()


def test_jobs_are_found_counted_and_acted_on(app: Windlass) -> None:
    @app.task
    def add(a: int, b: int) -> int:
        return a + b

    jobs = add.map([(number, 1) for number in range(1200)])
    add.using(queue="other", tags=["vip"]).enqueue(1, 1)
    found = app.jobs(queue="default", task="add")
    assert found.count() == 1200
    assert [job.id for job in found] == [job.id for job in jobs]
    assert app.jobs(tag="vip", state=["queued", "running"]).cancel() == 1
    assert [job.state for job in app.jobs(state="cancelled")] == [State.CANCELLED]
    assert app.jobs(state="cancelled").retry() == 1
    assert app.jobs(tag=["vip"]).delete() == 1
    assert app.jobs().count() == 1200
    handle = add.job(jobs[0].id)
    assert handle.refresh().task == "add"
    app.close()


async def test_progress_is_plain(app: Windlass) -> None:
    @app.task
    def draw() -> None: ...

    job = draw.enqueue()
    assert (job.progress, await job.aprogress(), await job.astate()) == (None, None, "queued")
    worker = app.ask(Register(worker=NewWorker(name="w"))).worker
    (claimed,) = app.ask(Claim(worker=worker))
    half = Progress(done=1, total=2, note="half")
    app.ask(Renew(worker=worker, jobs=[Alive(id=job.id, token=claimed.token, progress=half)]))
    assert json.loads(json.dumps(job.progress)) == {"done": 1, "total": 2, "note": "half"}
    assert await job.aprogress() == job.progress
    await app.aclose()
    app.close()


async def test_failures_are_grouped(app: Windlass) -> None:
    @app.task
    def draw() -> None: ...

    jobs = [draw.enqueue() for _ in range(3)]
    worker = app.ask(Register(worker=NewWorker(name="w"))).worker
    app.ask(Claim(worker=worker, slots=3))
    for place, job in enumerate(jobs):
        job.fail(f"tape {place} is broken")
    (group,) = app.failures(task="draw")
    assert (group.count, group.task, group.type, group.sample) == (3, "draw", "by_hand", jobs[-1].id)
    assert app.failures(tag="none") == []
    alike = app.jobs(state="failed", fingerprint=group.fingerprint)
    assert alike.count() == 3
    assert alike.retry() == 3
    assert app.failures() == []
    app.close()


async def test_the_same_in_asynchronous_code(app: Windlass) -> None:
    @app.task
    async def work() -> None: ...

    assert await app.afailures() == []
    await work.aenqueue()
    assert [job.task async for job in app.jobs(task="work")] == ["work"]
    assert await app.jobs(task="work").acount() == 1
    assert (await app.queues["q"].apause()).paused
    assert (await app.queues["q"].ashow()).paused
    assert not (await app.queues["q"].aresume()).paused
    assert (await app.queues["q"].aset(isolate=True)).isolate
    assert {card.queue for card in await app.queues.aall()} == {"default", "q"}
    assert (await app.limits.aset("l", running=3)).running == 3
    assert (await app.limits["l"].apause()).paused
    assert not (await app.limits["l"].aresume()).paused
    assert (await app.limits["l"].ashow()).name == "l"
    assert len(await app.limits.aall()) == 1
    await app.limits["l"].aremove()
    assert await app.jobs(state="queued").acancel() == 1
    assert await app.jobs(state="cancelled").aretry() == 1
    assert await app.jobs().adelete() == 1
    await app.aclose()


@pytest.mark.parametrize("app", ["file"], indirect=True)
def test_after_takes_one_job_and_a_plain_call_reports_nothing(app: Windlass, tmp_path: Path) -> None:
    @app.task
    def step(path: Path) -> str:
        current.progress(1, 2, "half")
        current.log("on the way")
        current.attach(path)
        assert current.spawn(step, path) == ""
        return f"{path.name} {current.cancelled} {current.files}"

    first = step.enqueue(tmp_path)
    second = step.using(after=first).enqueue(tmp_path)
    third = step.using(after=[first, second.id]).enqueue(tmp_path)
    assert second.refresh().after == [first.id]
    assert third.refresh().after == [first.id, second.id]
    assert step(tmp_path / "a.txt") == "a.txt False {}"
    with pytest.raises(RuntimeError, match="only inside a task"):
        _ = current.job
    app.close()
