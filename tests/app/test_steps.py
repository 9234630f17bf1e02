"""`step` without a worker: in a plain call, and under `app.testing`, which follows it."""

import asyncio
import functools
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from windlass import Fail, Windlass, step
from windlass.model.job import Error, Job, State


@dataclass
class Charge:
    id: str
    cents: int


@pytest.fixture
def app(tmp_path: Path) -> Windlass:
    """Its store must never be touched: there is no such folder."""
    return Windlass(str(tmp_path / "nowhere" / "jobs.db"))


@pytest.fixture
def calls() -> list[str]:
    return []


def error_of(job: Job) -> Error:
    assert job.error is not None
    return job.error


def test_a_run_gets_what_earlier_ones_have_finished(app: Windlass, calls: list[str]) -> None:
    def charge(order: str, cents: int = 5) -> Charge:
        calls.append(order)
        return Charge(order, cents)

    async def mail(charge: Charge) -> tuple[int, ...]:
        calls.append(f"mail {charge.id}")
        if len(calls) < 3:
            raise ValueError("the mail server is away")
        return (1, 2)

    @app.task(max_retry=3)
    async def order(number: str) -> str:
        charged = await step("charge", charge, number, cents=7)
        sent = await step("mail", mail, charged)
        return f"{charged} {sent}"

    with app.testing.inline():
        assert order.enqueue("o1").result() == f"{Charge('o1', 7)} (1, 2)"
    assert calls == ["o1", "mail o1", "mail o1"]


def test_a_step_returns_the_same_the_first_time_as_in_later_runs(app: Windlass) -> None:
    def untyped() -> Any:
        return (1, Path("/a"))

    @app.task(max_retry=1)
    def twice() -> str:
        found = str(step.sync("untyped", untyped)) + str(step.sync("partial", functools.partial(max, 1), 2))
        if not step.sync("nothing", lambda: None) and len(seen) < 1:
            seen.append(found)
            raise ValueError("again")
        return found

    seen: list[str] = []
    with app.testing.inline():
        assert [twice.enqueue().result()] == seen == ["[1, '/a']2"]


def test_time_passes_between_the_parts_of_a_job_that_sleeps(app: Windlass, calls: list[str]) -> None:
    @app.task
    def remind(user: str) -> str:
        step.sync("welcome", calls.append, "welcome")
        step.sync.sleep("3d")
        step.sync("remind", calls.append, "remind")
        step.sync.sleep(timedelta(days=1), name="one day more")
        return user

    with app.testing.manual() as jobs:
        job = remind.enqueue("ada")
        jobs.drain()
        assert (calls, job.state) == (["welcome"], State.SCHEDULED)
        due = job.refresh().run_at
        assert due is not None
        assert due - job.refresh().created_at == timedelta(days=3)
        jobs.advance("2d")
        assert jobs.drain() == []
        jobs.advance("1d")
        jobs.drain()
        assert calls == ["welcome", "remind"]
        jobs.drain(within="1d")
        assert job.result() == "ada"
        record = job.refresh()
        assert (record.attempt, record.errors) == (1, [])
        assert [one.name for one in job.steps()] == ["welcome", "sleep 1", "remind", "one day more"]


async def test_steps_in_a_coroutine_of_a_test_with_a_loop(app: Windlass, calls: list[str]) -> None:
    async def work(name: str) -> str:
        await asyncio.sleep(0)
        calls.append(name)
        return name

    @app.task(max_retry=1)
    async def both() -> tuple[str, str]:
        found = await asyncio.gather(step("a", work, "a"), step("b", work, "b"))
        await step.sleep("1h")
        if len(calls) < 3:
            calls.append("fails")
            raise ValueError("once")
        return found

    with app.testing.inline():
        assert await (await both.aenqueue()).aresult() == ("a", "b")
    assert calls == ["a", "b", "fails"]


@pytest.mark.parametrize("name", ["", "x" * 129, "two\nlines", 5])
def test_a_name_that_no_step_can_have_is_refused(app: Windlass, name: str) -> None:
    @app.task
    def named() -> None:
        step.sync(name, dict)

    with app.testing.inline():
        job = named.enqueue().refresh()
    assert job.state is State.FAILED
    assert "the name of a step is a text of up to 128 characters" in error_of(job).message


def test_a_name_that_is_used_twice_is_refused(app: Windlass, calls: list[str]) -> None:
    @app.task
    async def loops() -> None:
        for _ in range(2):
            await step("page", calls.append, "page")

    with app.testing.inline():
        job = loops.enqueue().refresh()
    assert calls == ["page"]
    assert "step 'page' was run already" in error_of(job).message
    assert "let the name say which round it is" in error_of(job).message


def test_the_synchronous_form_is_refused_where_it_would_block_the_loop(app: Windlass, calls: list[str]) -> None:
    @app.task
    async def blocks() -> None:
        step.sync("a", calls.append, "a")

    @app.task
    async def in_a_thread() -> None:
        await asyncio.to_thread(step.sync, "a", calls.append, "a")

    with app.testing.inline():
        assert "write `await step(…)`" in error_of(blocks.enqueue().refresh()).message
        assert calls == []
        in_a_thread.enqueue().result()
    assert calls == ["a"]


def test_a_result_that_cannot_be_kept_fails_the_job_without_another_run(app: Windlass, calls: list[str]) -> None:
    def wrong() -> int:
        calls.append("wrong")
        return "five"  # type: ignore[return-value]

    @app.task(max_retry=5)
    def unkept(what: str) -> None:
        step.sync(what, {"object": object, "wrong": wrong}[what])

    with app.testing.inline():
        for what in ("object", "wrong"):
            job = unkept.enqueue(what).refresh()
            assert (job.state, job.attempt) == (State.FAILED, 1)
            assert f"step '{what}'" in error_of(job).message
    assert calls == ["wrong"]


def test_a_step_that_raises_runs_again_with_its_job(app: Windlass, calls: list[str]) -> None:
    def flaky() -> None:
        calls.append("flaky")
        raise Fail("never") if len(calls) == 2 else ValueError("once")

    @app.task(max_retry=5)
    def tries() -> None:
        step.sync("flaky", flaky)

    with app.testing.inline():
        assert tries.enqueue().state is State.FAILED
    assert calls == ["flaky", "flaky"]


def test_a_sleep_is_not_caught_by_what_catches_exceptions(app: Windlass) -> None:
    @app.task
    def careful() -> str:
        try:
            step.sync.sleep("1h")
        except Exception:  # noqa: BLE001
            return "caught"
        return "slept"

    with app.testing.inline():
        assert careful.enqueue().result() == "slept"


async def test_without_a_job_a_step_is_a_call_and_a_sleep_is_nothing() -> None:
    async def double(n: int) -> int:
        return 2 * n

    assert await step("a", double, 2) == 4
    assert await step("a", max, 1, 2) == 2
    assert step.sync("a", max, 1, 2) == 2
    await step.sleep("3d")
    step.sync.sleep("3d")
