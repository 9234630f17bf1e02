"""Values that a task emits while it runs: read as they come and afterwards, typed, from each run of the job."""

import json
from contextlib import aclosing
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import httpx2
import pytest

from tests.support.engines import enqueue, register, take
from tests.support.http_servers import process
from tests.support.worker_harness import STORES, MakeHarness, StoreKind, WorkerHarness
from windlass import JobFailed, Windlass
from windlass.engine import Engine
from windlass.model.errors import Invalid, TooLarge
from windlass.model.operations import GetOutput, Output
from windlass.model.output import MOST_CHUNK, MOST_OUTPUT, MOST_VALUE, OutputPolicy
from windlass.worker.runs import ActiveRun, _chunks

TASKS = """
import asyncio
import os
from dataclasses import dataclass
from datetime import datetime, timezone
from windlass import Windlass, current
app = Windlass(tenant=os.environ["HARNESS_TENANT"])

@dataclass
class Move:
    piece: str
    at: datetime

def moves(count):
    for number in range(count):
        current.emit(Move(f"p{number}", datetime(2026, 1, 1 + number, tzinfo=timezone.utc)))

@app.task
def function(count: int) -> str:
    moves(count)
    return "done"

@app.task
async def coroutine(count: int) -> str:
    moves(count)
    return "done"

@app.task(isolate=True)
def alone(count: int) -> str:
    print("printed")
    moves(count)
    return "done"

@app.task(input=True)
def step_by_step() -> None:
    for data in current.inputs():
        print("got", data)
        current.emit(data.decode())

@app.task(max_retry=1, retry={"base": 0})
def again() -> None:
    for number in range(3):
        current.emit([current.job.attempt, number])
    if current.job.attempt == 1:
        raise ValueError("once more")

@app.task
def failing() -> None:
    current.emit(1)
    raise ValueError("no")

@app.task
def wrong() -> None:
    current.emit(object())

@app.task
def silent() -> str:
    print("only printed")
    return "done"
"""


@dataclass
class Move:
    piece: str
    at: datetime


@pytest.fixture(params=STORES)
def shop(request: pytest.FixtureRequest, make_harness: MakeHarness) -> WorkerHarness:
    kind: StoreKind = request.param
    return make_harness(TASKS, store="" if kind == "file" else request.getfixturevalue("redis_server").url)


@pytest.fixture
def on_a_file(make_harness: MakeHarness) -> WorkerHarness:
    return make_harness(TASKS)


def test_each_kind_of_task_emits_typed_values(shop: WorkerHarness) -> None:
    jobs = [getattr(shop.tasks, kind).enqueue(3) for kind in ("function", "coroutine", "alone")]
    shop.burst()
    for job in jobs:
        assert [*job.values(Move)] == [Move(f"p{n}", datetime(2026, 1, 1 + n, tzinfo=UTC)) for n in range(3)]
        assert [one["piece"] for one in job.values()] == ["p0", "p1", "p2"]
        assert job.result(60) == "done"
    assert b"".join(one.data for one in jobs[2].output()) == b"printed\n", "values are no output for people"
    with pytest.raises(Invalid, match="values"):
        [*jobs[0].values(int)]


def test_values_come_while_the_job_runs(shop: WorkerHarness) -> None:
    shop.start()
    job = shop.tasks.step_by_step.enqueue()
    values = job.values(str)
    for word in ("a", "b", "c"):
        job.send(word)
        assert next(values) == word
    assert job.state == "running"
    late = job.values(str)
    assert [next(late) for _ in range(3)] == ["a", "b", "c"], "who comes later gets them all"
    job.send("")
    assert ([*values], [*late]) == ([], []), "it ends with the job"


async def test_values_come_to_asynchronous_code(on_a_file: WorkerHarness) -> None:
    on_a_file.start()
    job = await on_a_file.tasks.step_by_step.aenqueue()
    async with aclosing(job.avalues(str)) as values:
        for word in ("a", "b"):
            await job.asend(word)
            assert await anext(values) == word
    await job.asend("")
    assert [one async for one in job.avalues()] == ["a", "b"]
    await on_a_file.app.aclose()


def test_a_job_that_runs_again_emits_anew_and_readers_notice(shop: WorkerHarness) -> None:
    job = shop.tasks.again.enqueue()
    shop.start()
    values = job.values(list[int])
    assert [(values.run, value) for value in values] == [
        *[(1, [1, number]) for number in range(3)],
        *[(2, [2, number]) for number in range(3)],
    ]


def test_the_values_of_a_job_that_failed_are_kept(on_a_file: WorkerHarness) -> None:
    failing, wrong = on_a_file.tasks.failing.enqueue(), on_a_file.tasks.wrong.enqueue()
    on_a_file.burst()
    assert [*failing.values()] == [1]
    with pytest.raises(JobFailed, match="the value cannot be sent: a object cannot be sent"):
        wrong.result(60)


def test_values_over_the_command_line(on_a_file: WorkerHarness) -> None:
    again, silent = on_a_file.tasks.again.enqueue(), on_a_file.tasks.silent.enqueue()
    place = ["--tenant", on_a_file.tenant]
    on_a_file.start()
    followed = on_a_file.run("jobs", "values", again.id, "--follow", *place)
    assert [json.loads(line) for line in followed.stdout.splitlines()] == [[a, n] for a in (1, 2) for n in range(3)]
    assert followed.stderr == "windlass: the job has begun again\n"
    assert on_a_file.run("jobs", "values", again.id, *place).stdout == followed.stdout
    silent.result(60)
    assert on_a_file.run("jobs", "values", silent.id, *place).stdout == ""
    assert on_a_file.run("jobs", "output", again.id, *place).stdout == ""
    assert "values [1,0]" in " ".join(on_a_file.run("jobs", "tail", again.id, *place).stdout.split())


def test_values_over_http(on_a_file: WorkerHarness) -> None:
    with process(on_a_file.folder, "--no-worker", "--no-journal", store=on_a_file.store) as server:
        away = Windlass(server=server.address, token=server.token, tenant=on_a_file.tenant)
        again = on_a_file.tasks.again.enqueue()
        on_a_file.start()
        values = away.job(again.id).values(list[int])
        assert [*values] == [[attempt, number] for attempt in (1, 2) for number in range(3)]
        assert values.run == 2
        headers = {"authorization": f"Bearer {server.token}", "accept": "text/plain"}
        with httpx2.Client(base_url=f"{server.address}/v1/{on_a_file.tenant}", headers=headers, trust_env=False) as web:
            lines = web.get(f"/jobs/{again.id}/output", params={"stream": "values"}).text
            assert lines == "\n[1,0]\n[1,1]\n[1,2]\n\n[2,0]\n[2,1]\n[2,2]\n"
            assert web.get(f"/jobs/{again.id}/output").text == "", "they are not what it printed"
        away.close()


# In the engine


async def test_a_worker_elsewhere_sends_values_as_whole_lines(engine: Engine) -> None:
    job = await enqueue(engine)
    claimed = await take(engine, await register(engine))

    async def put_out(stream: Any, data: bytes) -> None:
        await engine(Output(id=job.id, token=claimed.token, stream=stream, data=data))

    await put_out("stdout", b"before")
    await put_out("values", b"\n1\n2\n")
    for _ in range(5):
        await put_out("stdout", b"between")
    await put_out("values", b"3\n")
    with pytest.raises(Invalid, match="values are whole lines"):
        await put_out("values", b"4")
    page = await engine(GetOutput(id=job.id, stream="values"))
    assert ([chunk.data for chunk in page.chunks], page.next) == ([b"\n1\n2\n", b"3\n"], 8)
    assert (await engine(GetOutput(id=job.id, stream="values", after=page.next))).chunks == []
    (one,) = (await engine(GetOutput(id=job.id, stream="values", after=2, limit=2))).chunks
    assert one.data == b"3\n", "it is found behind pages of other output"
    assert len((await engine(GetOutput(id=job.id))).chunks) == 8


async def test_the_output_policy_bounds_values_too_and_cuts_between_them(engine: Engine) -> None:
    def run(**policy: Any) -> ActiveRun:
        record = claimed.job.__class__(
            **{name: getattr(claimed.job, name) for name in claimed.job.__struct_fields__ if name != "output"},
            output=OutputPolicy(**policy),
        )
        return ActiveRun(1, record, claimed.token, 0.0, None)  # type: ignore[arg-type]

    await enqueue(engine)
    claimed = await take(engine, await register(engine))
    small = run(limit=10, over="drop")
    small.print("values", b"\n123\n")
    small.print("values", b"456\n789\n")
    assert b"".join(chunk.data for chunk in _chunks(small.log)) == b"\n123\n456\n"
    endless = run(limit=None)
    line = b"7" * 999 + b"\n"
    for _ in range(MOST_OUTPUT // 1000 + 50):
        endless.print("values", line * 2)
    chunks = [*_chunks(endless.log)]
    assert [chunk.data for chunk in _chunks([("values", b"x" * (MOST_CHUNK + 1))])] == [b"x" * MOST_CHUNK, b"x"]
    assert [chunk.data for chunk in _chunks([("stdout", b"")])] == [b""]
    assert all(set(chunk.data.splitlines(keepends=True)) == {line} for chunk in chunks)
    assert max(len(chunk.data) for chunk in chunks) <= MOST_CHUNK
    assert MOST_OUTPUT - 1000 < sum(len(chunk.data) for chunk in chunks) <= MOST_OUTPUT


def test_a_value_has_a_bound_and_a_plain_call_emits_nothing() -> None:
    from windlass import current  # noqa: PLC0415 - of this test alone
    from windlass.call.values import encode_value  # noqa: PLC0415

    assert len(encode_value("x" * (MOST_VALUE - 3))) == MOST_VALUE
    with pytest.raises(TooLarge, match=f"emit: the value has {MOST_VALUE} bytes as JSON, at most {MOST_VALUE - 1} fit"):
        encode_value("x" * (MOST_VALUE - 2))
    current.emit(object())


def test_values_in_a_test() -> None:
    app = Windlass(":memory:")

    @app.task
    def count(upto: int) -> None:
        from windlass import current  # noqa: PLC0415

        for number in range(upto):
            current.emit(number)

    with app.testing.inline():
        assert [*count.enqueue(3).values(int)] == [0, 1, 2]
