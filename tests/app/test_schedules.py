"""Schedules in Python: declared with a task, and managed through `app.schedules`."""

from datetime import UTC, datetime
from pathlib import Path

import pytest

from tests.support.worker_harness import MakeHarness, until
from windlass import Invalid, Windlass
from windlass.model import wire

DECLARED = """
import os
from windlass import Windlass

app = Windlass(tenant=os.environ["HARNESS_TENANT"])

@app.every("1s", args=[20], kwargs={"more": 3})
@app.task(queue="often")
def tick(number: int, *, more: int) -> int:
    return number + more

@app.cron("0 3 * * *", tz="Europe/Rome", name="nightly")
def backup() -> None: ...
"""


@pytest.fixture
def app(tmp_path: Path) -> Windlass:
    return Windlass(str(tmp_path / "jobs.db"))


def test_a_declared_schedule_has_the_arguments_and_options_of_its_task(app: Windlass) -> None:
    @app.cron("*/5 * * * *", args=[1], overlap="queue", jitter="30s")
    @app.cron("0 0 * * *", name="midnight", args=[2], catch_up="all", start=datetime(2026, 1, 1, tzinfo=UTC))
    @app.task(queue="reports", max_retry=2)
    def report(number: int) -> int:
        return number

    often, midnight = app.declared["report"], app.declared["midnight"]
    assert report(4) == 4
    assert (often.job.task, often.job.queue, often.job.max_retry, often.exact) == ("report", "reports", 2, True)
    assert (often.overlap, often.jitter, midnight.catch_up) == ("queue", 30.0, "all")
    assert wire.decode(often.job.payload, object) != wire.decode(midnight.job.payload, object)


def test_what_cannot_be_scheduled_is_refused_where_it_is_declared(app: Windlass) -> None:
    @app.task
    def needs(number: int) -> int:
        return number

    with pytest.raises(Invalid, match="number"):
        app.every("5s")(needs)
    with pytest.raises(Invalid, match="no cron expression"):
        app.cron("every day", args=[1])(needs)
    with pytest.raises(Invalid, match="no time zone"):
        app.cron("0 3 * * *", tz="Mars/Olympus", args=[1])(needs)
    with pytest.raises(Invalid, match="not a duration"):
        app.every("soon", args=[1])(needs)
    app.every("5s", args=[1])(needs)
    with pytest.raises(Invalid, match="already a schedule 'needs'"):
        app.every("6s", args=[1])(needs)


async def test_schedules_are_managed_by_name(app: Windlass) -> None:
    @app.task
    def work(number: int) -> int:
        return number

    assert app.schedules.all() == []
    made = app.schedules.set("hourly", work, every="1h", args=[1])
    assert (made.every, len(made.next)) == (3600.0, 5)
    one = app.schedules["hourly"]
    assert one.pause("30m", why="busy").why == "busy"
    assert not one.resume().paused
    job = one.run()
    assert one.show().runs[0].job == job.id
    await app.schedules.aset("daily", work, cron="0 0 * * *", args=[2])
    assert [card.name for card in await app.schedules.aall()] == ["daily", "hourly"]
    assert (await app.schedules["daily"].apause()).paused
    assert not (await app.schedules["daily"].aresume()).paused
    assert (await app.schedules["daily"].arun()).id
    await app.schedules["daily"].aremove()
    one.remove()
    assert app.schedules.all() == []
    app.close()
    await app.aclose()


def test_workers_make_one_job_for_each_tick_of_what_their_app_declares(make_harness: MakeHarness) -> None:
    harness = make_harness(DECLARED)
    workers = [harness.start(), harness.start()]
    until(lambda: len([run for run in harness.app.schedules["tick"].show().runs if run.state == "succeeded"]) >= 3)
    for worker in workers:
        worker.stop()
    runs = harness.app.schedules["tick"].show().runs
    ticks = [run.tick for run in runs]
    assert ticks == sorted(set(ticks), reverse=True)
    assert len({run.job for run in runs if run.job}) == len([run for run in runs if run.job])
    done = next(run.job for run in runs if run.state == "succeeded")
    assert done is not None
    assert harness.app.job(done).result() == 23
    nightly = harness.app.schedules["nightly"].show()
    assert (nightly.app, nightly.next[0].minute) == ("tasks:app", 0)
