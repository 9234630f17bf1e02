"""A worker takes only jobs of handlers that it can run; those that nobody can run wait, and say why."""

import asyncio
import re
import signal
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.functions.test_handlers_worker import Bench
from tests.support.engines import register
from tests.support.function_harness import alive, let_others_in
from tests.support.function_harness import bench as function_bench
from tests.support.worker_harness import ON_A_FILE, WorkerHarness, until
from windlass.engine import Engine
from windlass.model.errors import Invalid, Missing
from windlass.model.estimate import Why
from windlass.model.handler import NewHandler
from windlass.model.job import State
from windlass.model.new_job import NewJob
from windlass.model.operations import Claim, Enqueue, GetEstimate, PutHandler, Register, Workers
from windlass.model.worker import NewWorker
from windlass.worker.functions import FunctionOptions, languages


@pytest.fixture
def bench(harness: WorkerHarness) -> Bench:
    return Bench(harness)


def program(folder: Path, name: str, text: str) -> str:
    """A program that anybody may run."""
    let_others_in(folder)
    path = folder / name
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return str(path)


# In the engine


async def upload(engine: Engine, task: str, lang: Any) -> None:
    await engine(PutHandler(task=task, handler=NewHandler(lang=lang, body="x = 1" if lang == "python" else "true")))


async def test_jobs_of_languages_that_a_worker_does_not_run_are_left_to_others(engine: Engine) -> None:
    await upload(engine, "snake", "python")
    await upload(engine, "shell", "sh")
    for task in ("snake", "shell", "own"):
        await engine(Enqueue(job=NewJob(task=task)))
    new = NewWorker(name="w", tasks=["own"], handlers=True, languages=["sh"], slots=10)
    worker = (await engine(Register(worker=new))).worker
    claimed = await engine(Claim(worker=worker, slots=10))
    assert sorted(one.job.task for one in claimed) == ["own", "shell"]
    none = await engine(Claim(worker=worker, slots=10, languages=[]))
    assert none == []
    (last,) = await engine(Claim(worker=worker, slots=10, languages=["python"]))
    assert last.job.task == "snake"


async def test_a_worker_of_all_tenants_too(engine: Engine) -> None:
    await upload(engine, "snake", "python")
    await engine(Enqueue(job=NewJob(task="snake")))
    new = NewWorker(name="w", tasks=[], handlers=True, languages=["php"])
    worker = (await engine(Register(tenant="-", worker=new))).worker
    assert await engine(Claim(tenant="-", worker=worker)) == []
    (taken,) = await engine(Claim(tenant="-", worker=worker, languages=["python", "http"]))
    assert taken.job.task == "snake"


async def test_a_worker_says_something_new_of_itself_and_stays_who_it_is(engine: Engine) -> None:
    new = NewWorker(name="w", tasks=[], handlers=True, languages=["http"])
    first = await engine(Register(worker=new))
    told = NewWorker(name="w", tasks=[], handlers=True, languages=["sh", "http"], unable={"python": "it is not here"})
    again = await engine(Register(worker=told, id=first.worker))
    assert again.worker == first.worker
    (found,) = await engine(Workers())
    assert (found.id, found.languages, found.unable) == (first.worker, ["sh", "http"], {"python": "it is not here"})
    with pytest.raises(Missing):
        await engine(Register(tenant="other", worker=told, id=first.worker))
    with pytest.raises(Invalid, match="URL cannot change"):
        await engine(Register(worker=NewWorker(name="w", url="https://w.example/"), id=first.worker))


async def test_a_job_that_no_worker_can_run_says_why(engine: Engine) -> None:
    await upload(engine, "snake", "python")
    job = await engine(Enqueue(job=NewJob(task="snake")))
    new = NewWorker(name="w", tasks=[], handlers=True, languages=["sh"], unable={"python": "it is not here"})
    await engine(Register(tenant="-", worker=new))
    found = await engine(GetEstimate(id=job.id))
    assert (found.why, found.name) == (Why.HANDLER, "no worker can run python: it is not here")
    await register(engine, handlers=True, tasks=[])
    assert (await engine(GetEstimate(id=job.id))).why is not Why.HANDLER


# The trial


async def test_every_language_of_this_machine_works() -> None:
    assert await languages.unable(FunctionOptions()) == {}


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("exit 3", "it ended with 3 and printed nothing"),
        ("echo something else", "it ended with 0 and printed something else"),
        ("echo no such library >&2; exit 127", "no such library"),
        ("sleep 600 & sleep 600", "it did not answer within 0.3 s"),
    ],
)
async def test_an_interpreter_that_does_not_work_is_found_out(
    text: str, why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if "sleep" in text:
        monkeypatch.setattr(languages, "WITHIN", 0.3)
    node = program(tmp_path, "node", text)
    chosen = {"node": node, "php": str(tmp_path / "nowhere")}
    if "sleep" in text:
        chosen |= {"python": node, "sh": node}
    unable = await languages.unable(FunctionOptions(interpreters=chosen))
    assert f"its interpreter {node} (`[functions] node`) does not work: " in unable["node"]
    assert why in unable["node"]
    assert (
        unable["php"]
        == f"`[functions] php` is {tmp_path}/nowhere: there is no such file. Name another, or leave it out"
    )
    assert ("python" in unable) == ("sleep" in text)
    until(lambda: not [one for one in psutil.process_iter(["cmdline"]) if node in (one.info["cmdline"] or [])])


async def test_a_probe_that_is_broken_off_leaves_no_process_behind(tmp_path: Path) -> None:
    noted = tmp_path / "pid"
    node = program(tmp_path, "node", f"echo $$ > {noted}; sleep 600")
    noted.touch()
    noted.chmod(0o666)
    task = asyncio.create_task(languages.unable(FunctionOptions(interpreters={"node": node})))
    await asyncio.to_thread(until, noted.read_text)
    pid = int(noted.read_text())
    task.cancel()
    await asyncio.wait([task], timeout=30)
    assert task.cancelled()
    until(lambda: not alive(pid))


@pytest.mark.parametrize("tier", ["confined", "isolated"])
async def test_a_tier_that_cannot_be_had_is_no_language_at_all(tier: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from windlass.worker.functions.sandbox import kernel  # noqa: PLC0415

    monkeypatch.setattr(kernel, "landlock_version", lambda: 0)
    async with function_bench(tier=tier) as cell:
        unable = await cell.functions.unable()
    assert set(unable) == {"python", "node", "php", "sh"}
    assert all(f"sandbox tier {tier!r} needs Landlock" in why for why in unable.values())


# Workers


def test_a_worker_without_the_interpreter_leaves_jobs_to_one_that_has_it(harness: WorkerHarness, bench: Bench) -> None:
    """None is failed for good by the one that cannot run them, which asks for jobs all the time."""
    lame = harness.start("--name", "lame", WINDLASS_FUNCTIONS_PYTHON="/nowhere/python3")
    lame.hear(r"takes no jobs of handlers in python: `\[functions\] python` is .*: there is no such file")
    bench.upload("echo", "def run(payload):\n    return payload\n")
    ids = bench.feed("echo", *map(str, range(30)))
    until(lambda: bench.job(ids[0]).state is State.QUEUED)
    why = "no worker can run python: `[functions] python` is "
    until(lambda: why in re.sub(r"\s+", " ", bench.command("jobs", "show", ids[0])))
    listed = re.sub(r"\s+", " ", bench.command("workers", "ls"))
    assert "lame cannot run python: `[functions] python` is " in listed
    doctor = re.sub(r"\s+", " ", harness.run("doctor").stdout)
    assert "lame cannot run handlers in python" in doctor
    assert "of task echo in default" in doctor
    harness.start("--name", "whole")
    assert [bench.result(id) for id in ids] == [str(n) for n in range(30)]
    assert {bench.job(id).attempt for id in ids} == {1}


@ON_A_FILE
def test_a_burst_runs_what_it_can_and_leaves_the_rest(harness: WorkerHarness, bench: Bench) -> None:
    bench.upload("snake", "def run(payload):\n    return payload\n")
    bench.upload("snail", "cat", "sh")
    (snake,), (snail,) = bench.feed("snake", "a"), bench.feed("snail", "b")
    lame = harness.start_raw("--burst", WINDLASS_FUNCTIONS_NODE="/nowhere", WINDLASS_FUNCTIONS_SH="/nowhere")
    assert lame.ended() == 0
    assert (bench.job(snake).state, bench.job(snail).state) == (State.SUCCEEDED, State.QUEUED)
    assert bench.job(snail).attempt == 0


@ON_A_FILE
@pytest.mark.parametrize("after", ["at once", "in the middle"])
def test_a_worker_whose_interpreter_hangs_works_and_ends_at_a_signal(
    harness: WorkerHarness, tmp_path: Path, after: str
) -> None:
    noted = tmp_path / "asked"
    hangs = program(tmp_path, "python3", f"echo $$ >> {noted}; trap '' TERM; sleep 600; sleep 600")
    noted.touch()
    noted.chmod(0o666)
    worker = harness.start(WINDLASS_FUNCTIONS_NODE=hangs, WINDLASS_FUNCTIONS_PHP=hangs)
    if after == "in the middle":
        until(lambda: len(noted.read_text().split()) == 2)
        assert harness.tasks.add.enqueue(1, 2).result(30) == 3
    worker.send(signal.SIGTERM)
    assert worker.ended() == 0
    for pid in map(int, noted.read_text().split()):
        until(lambda pid=pid: not alive(pid))  # type: ignore[misc]
