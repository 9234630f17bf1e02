"""Workers that run code kept in the queue, beside an app's tasks or alone; and the commands that keep the code there.

The numbers in brackets are the promises of an older function queue that a test holds us to.
"""

import asyncio
import json
import re
import signal
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx2
import psutil
import pytest
from msgspec import Raw

from tests.support.http_servers import process
from tests.support.patience import PATIENCE
from tests.support.worker_harness import ON_A_FILE, WorkerHarness, never, until
from windlass import config
from windlass.addresses import open_engine
from windlass.cli.worker import worker_options
from windlass.model import wire
from windlass.model.handler import HandlerOptions, NewHandler
from windlass.model.job import FINISHED, Job, Reason, State
from windlass.model.match import Match
from windlass.model.names import keyed_id
from windlass.model.new_job import JobOptions, NewJob
from windlass.model.operations import (
    A,
    Cancel,
    ChangeQueue,
    Count,
    Enqueue,
    EnqueueLines,
    Finish,
    GetResult,
    List,
    Operation,
    PutHandler,
    PutQuota,
    Rerun,
    Service,
    Show,
)
from windlass.model.queue import QueueChange, Tier
from windlass.model.quota import Quota
from windlass.model.retry import RetryPolicy
from windlass.system import SystemClock, SystemRandomness
from windlass.worker import WorkerOptions, supervisor
from windlass.worker.contexts.processes import ProcessManager
from windlass.worker.functions import FunctionOptions
from windlass.worker.functions.runner import QuotaLeft, delays
from windlass.worker.supervisor import NO_APP, Supervisor

ECHO = "def run(payload):\n    return payload\n"


class Bench:
    """What a test does to the queue of a harness, without its app."""

    def __init__(self, harness: WorkerHarness) -> None:
        self.harness = harness

    def ask(self, operation: Any) -> Any:
        return self.harness.app.link.ask(operation)

    def upload(self, task: str, body: str = ECHO, lang: Any = "python", **more: Any) -> None:
        handler = NewHandler(lang=lang, body=body, **more)
        self.ask(PutHandler(tenant=self.harness.tenant, task=task, handler=handler))

    def feed(self, task: str, *lines: str, **more: Any) -> list[str]:
        ids: list[str] = self.ask(
            EnqueueLines(tenant=self.harness.tenant, task=task, text="\n".join(lines), **more)
        ).ids
        return ids

    def job(self, id: str) -> Job:
        job: Job = self.ask(Show(tenant=self.harness.tenant, id=id))
        return job

    def ended(self, id: str) -> Job:
        assert self.ask(GetResult(tenant=self.harness.tenant, id=id, wait=20.0)).state in FINISHED, self.job(id)
        return self.job(id)

    def result(self, id: str) -> Any:
        job = self.ended(id)
        assert job.state is State.SUCCEEDED, job
        answer = self.ask(GetResult(tenant=self.harness.tenant, id=id))
        return json.loads(bytes(answer.result))

    def command(self, *words: str) -> str:
        ran = self.harness.run(*words, "--tenant", self.harness.tenant)
        assert ran.returncode == 0, ran.stderr
        return ran.stdout + ran.stderr


@pytest.fixture
def bench(harness: WorkerHarness) -> Bench:
    return Bench(harness)


@ON_A_FILE
def test_a_worker_of_all_tenants_keeps_jobs_of_the_same_id_apart(bench: Bench) -> None:
    """Both run at once; one of them is cancelled while it runs, and the other goes on to its own end."""
    id = keyed_id("bob", "default", "order-1")
    body = "import time\ndef run(payload):\n    time.sleep(payload)\n    return TENANT\n"
    for tenant, seconds in (("mallory", 60), ("bob", 6)):
        own = NewHandler(lang="python", body=body.replace("TENANT", repr(tenant)))
        bench.ask(PutHandler(tenant=tenant, task="nap", handler=own))
        bench.ask(Enqueue(tenant=tenant, job=NewJob(task="nap", id=id, payload=Raw(wire.encode(seconds)))))
    worker = bench.harness.start("--tenant", "-", "-c", "4", target="")
    until(lambda: all(bench.ask(Show(tenant=one, id=id)).pid for one in ("mallory", "bob")))
    bench.ask(Cancel(tenant="mallory", ids=[id]))
    assert bench.ask(GetResult(tenant="mallory", id=id, wait=30.0)).state is State.CANCELLED
    found = bench.ask(GetResult(tenant="bob", id=id, wait=30.0))
    assert (found.state, json.loads(bytes(found.result))) == (State.SUCCEEDED, "bob")
    assert worker.stop() == 0


# Beside an app


def test_a_worker_runs_the_tasks_of_its_app_and_what_has_a_handler(harness: WorkerHarness, bench: Bench) -> None:
    harness.start()
    added = harness.tasks.add.enqueue(1, 2)
    bench.upload("echo")
    (echoed,) = bench.feed("echo", "so")
    assert harness.ended(added).state is State.SUCCEEDED
    assert bench.result(echoed) == "so"


@ON_A_FILE
def test_a_handler_without_a_payload_of_its_own_gets_the_results_before_it(bench: Bench) -> None:
    bench.upload("echo")
    after = list(reversed(bench.feed("echo", "one", "two")))
    bench.harness.start()

    def enqueue(**terms: Any) -> str:
        id: str = bench.ask(Enqueue(tenant=bench.harness.tenant, job=NewJob(task="echo", **terms))).id
        return id

    merged = enqueue(after=after, with_results="list")
    last = enqueue(after=[merged], with_results="one")
    own = enqueue(after=after, with_results="list", payload=Raw(wire.encode("own")))
    assert bench.result(last) == ["two", "one"]
    assert bench.result(own) == "own"


def test_a_record_names_the_version_of_the_handler_and_the_sandbox_of_that_run(
    harness: WorkerHarness, bench: Bench
) -> None:
    bench.upload("echo", "def run(payload):\n    return 1\n")
    bench.upload("echo", "def run(payload):\n    return 2\n")
    bench.upload("bad", "def run(payload):\n    raise KeyError(payload)\n")
    harness.start("--sandbox", "limits")
    added = harness.tasks.add.enqueue(1, 2)
    (echoed,) = bench.feed("echo", "so")
    (failed,) = bench.feed("bad", "so", options=JobOptions(max_retry=0))
    assert bench.result(echoed) == 2
    plain = harness.ended(added)
    assert (plain.sandbox, plain.handler_version) == (None, None), "a task of the app runs with all rights"
    found = bench.ended(echoed)
    assert (found.sandbox, found.handler_version) == ("limits", 2)
    wrong = bench.ended(failed)
    assert (wrong.state, wrong.sandbox, wrong.handler_version) == (State.FAILED, "limits", 1)
    assert re.search(r"worker .*version 2 of its handler, sandbox limits", bench.command("jobs", "show", echoed))
    assert "sandbox" not in bench.command("jobs", "show", added.id)
    bench.upload("doze", "sleep 600", "sh")
    (dozing,) = bench.feed("doze", "so")
    until(lambda: bench.job(dozing).pid)
    running = bench.job(dozing)
    assert (running.sandbox, running.handler_version) == ("limits", 1), "known while it runs"
    bench.command("jobs", "cancel", dozing)
    assert bench.ended(dozing).state is State.CANCELLED


@ON_A_FILE
def test_code_that_was_sent_in_cannot_take_the_place_of_a_task(harness: WorkerHarness, bench: Bench) -> None:
    bench.upload("add", "def run(payload):\n    return 'forged'\n")
    harness.start()
    assert harness.tasks.add.enqueue(1, 2).result(PATIENCE) == 3


@ON_A_FILE
def test_a_worker_without_handlers_leaves_their_jobs_alone(harness: WorkerHarness, bench: Bench) -> None:
    bench.upload("echo")
    (id,) = bench.feed("echo", "so")
    harness.burst("--no-handlers")
    assert bench.job(id).state is State.QUEUED
    harness.burst()
    assert bench.result(id) == "so"


@ON_A_FILE
def test_a_function_outlives_the_process_that_forks_the_contexts_of_the_app(
    harness: WorkerHarness, bench: Bench
) -> None:
    bench.upload("doze", "sleep 2; echo done", "sh")
    worker = harness.start()
    (id,) = bench.feed("doze", "x")
    until(lambda: bench.job(id).pid)
    (guardian,) = [
        one for one in psutil.Process(worker.pid).children() if "windlass.worker.contexts.zygote" in one.cmdline()
    ]
    (zygote,) = guardian.children()
    zygote.kill()
    worker.hear("starting it again")
    assert harness.tasks.add.enqueue(1, 2).result(PATIENCE) == 3
    job = bench.ended(id)
    assert (job.state, job.attempt, job.errors) == (State.SUCCEEDED, 1, [])


@ON_A_FILE
def test_a_server_that_ends_lets_functions_finish_beside_an_app(
    harness: WorkerHarness, bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """[37]"""
    monkeypatch.chdir(harness.folder)
    monkeypatch.setenv("HARNESS_TENANT", harness.tenant)
    bench.upload("doze", "sleep 2; echo done", "sh")
    with process(tmp_path, "--app", "tasks:app", store=harness.store) as served:
        (id,) = bench.feed("doze", "x")
        until(lambda: bench.job(id).pid)
        assert served.child is not None
        served.child.terminate()
        assert served.child.wait(PATIENCE) == 0
    job = bench.job(id)
    assert (job.state, job.attempt, job.errors) == (State.SUCCEEDED, 1, [])


@ON_A_FILE
def test_a_server_keeps_the_tasks_of_its_app_for_the_app(
    harness: WorkerHarness, bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(harness.folder)
    monkeypatch.setenv("HARNESS_TENANT", harness.tenant)
    bench.upload("add", "def run(payload):\n    return 'forged'\n")
    bench.upload("echo")
    with process(tmp_path, "--app", "tasks:app", "--allow-upload", store=harness.store) as served:
        jobs = [harness.tasks.add.enqueue(n, n) for n in range(20)]
        assert [job.result(PATIENCE) for job in jobs] == [2 * n for n in range(20)]
        assert bench.result(bench.feed("echo", "x")[0]) == "x"
        refused = httpx2.put(
            f"{served.address}/v1/{harness.tenant}/handlers/add",
            json={"lang": "sh", "body": "cat"},
            headers={"authorization": f"Bearer {served.token}"},
        )
        assert (refused.status_code, "app" in refused.json()["detail"]) == (409, True)


# Alone


def test_a_worker_without_an_app_runs_what_has_a_handler(harness: WorkerHarness, bench: Bench) -> None:
    bench.upload("echo")
    ids = bench.feed("echo", *map(str, range(50)))
    (other,) = bench.feed("add", "1")
    worker = harness.start("--tenant", harness.tenant, target="")
    assert [bench.result(id) for id in ids] == [str(number) for number in range(50)]
    assert bench.job(other).state is State.QUEUED
    assert worker.stop() == 0


@ON_A_FILE
def test_the_same_across_the_network(harness: WorkerHarness, bench: Bench, tmp_path: Path) -> None:
    with process(tmp_path, "--no-worker", store=harness.store) as served:
        harness.start("--tenant", "-", "--server", served.address, target="", WINDLASS_TOKEN=served.token)
        (early,) = bench.feed("echo", "before it was there")
        bench.upload("echo")
        assert bench.result(early) == "before it was there"
        (late,) = bench.feed("echo", "after")
        assert bench.result(late) == "after"


@ON_A_FILE
def test_the_payload_is_what_was_sent_whatever_it_is(harness: WorkerHarness, bench: Bench) -> None:
    """[28]"""
    bench.upload("kind", "def run(payload):\n    return [type(payload).__name__, payload]\n")
    given: list[tuple[str, Any]] = [("dict", {"n": [1, None, "ü"]}), ("int", 5), ("NoneType", None), ("str", "J: x|y")]
    ids = [harness.app.link.ask(_enqueue(harness, value)).id for _, value in given]
    harness.start("--tenant", harness.tenant, target="")
    assert [bench.result(id) for id in ids] == [list(pair) for pair in given]


def _enqueue(harness: WorkerHarness, value: Any) -> Any:
    return Enqueue(tenant=harness.tenant, job=NewJob(task="kind", payload=Raw(wire.encode(value))))


@ON_A_FILE
def test_a_second_signal_gives_functions_back_uncounted(harness: WorkerHarness, bench: Bench) -> None:
    """[16, 37]"""
    bench.upload("nap", "sleep 600", "sh", options=HandlerOptions(batch=1))
    ids = bench.feed("nap", "1", "2", "3")
    worker = harness.start("--tenant", harness.tenant, target="")
    until(lambda: all(bench.job(id).pid for id in ids))
    worker.send(signal.SIGTERM)
    worker.hear("get 30 s to finish")
    assert worker.stop() == 0
    assert [(bench.job(id).state, bench.job(id).attempt) for id in ids] == [(State.QUEUED, 0)] * 3


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL])
def test_a_function_that_may_not_run_twice_does_not(harness: WorkerHarness, bench: Bench, how: signal.Signals) -> None:
    harness.app.ask(ChangeQueue(queue="default", tenant=harness.tenant, change=QueueChange(on_lost="fail")))
    bench.upload("nap", "echo started; sleep 600", "sh", options=HandlerOptions(batch=1))
    (id,) = bench.feed("nap", "1")
    worker = harness.start("--tenant", harness.tenant, "--grace", "0s", target="", lease="1s")
    until(lambda: (pid := bench.job(id).pid) and pid != worker.pid)
    worker.send(how)
    worker.ended()
    harness.start("--tenant", harness.tenant, target="", lease="1s")
    record = bench.ended(id)
    assert (record.state, record.reason, record.attempt) == (State.FAILED, Reason.LOST, 1)
    assert [entry.pid for entry in record.errors] == [record.pid]


@ON_A_FILE
def test_a_first_signal_lets_functions_finish(harness: WorkerHarness, bench: Bench) -> None:
    """[37]"""
    bench.upload("nap", "sleep 1; echo done", "sh")
    (id,) = bench.feed("nap", "x")
    worker = harness.start("--tenant", harness.tenant, target="")
    until(lambda: bench.job(id).pid)
    assert worker.stop() == 0
    assert bench.job(id).state is State.SUCCEEDED


def test_a_function_longer_than_its_lease_keeps_it_and_is_cancelled_when_asked(
    harness: WorkerHarness, bench: Bench
) -> None:
    """[14, 16]"""
    bench.upload("nap", "sleep 600", "sh")
    ids = bench.feed("nap", *"abcdef")
    harness.start("--tenant", harness.tenant, "-c", "6", target="", lease="3s")
    until(lambda: all(bench.job(id).pid for id in ids))
    never(lambda: any(bench.job(id).attempt > 1 or bench.job(id).state is not State.RUNNING for id in ids), 4.0)
    bench.ask(Cancel(tenant=harness.tenant, ids=ids))
    assert [bench.ended(id).state for id in ids] == [State.CANCELLED] * 6


def test_a_function_that_loses_time_to_others_says_that_it_ran_too_long(harness: WorkerHarness, bench: Bench) -> None:
    tiers = [Tier(name="fast", seconds=1), Tier(name="slow", seconds=60)]
    bench.ask(ChangeQueue(tenant=harness.tenant, queue="default", change=QueueChange(tiers=tiers)))
    bench.upload("nap", "sleep 600", "sh")
    (flexible,) = bench.feed("nap", "a")
    harness.start("--tenant", harness.tenant, "-c", "1", target="")
    until(lambda: bench.job(flexible).pid)
    bench.feed("nap", "b", options=JobOptions(tier="fast"))
    job = bench.ended(flexible)
    assert job.error is not None
    told = "ran longer than its time limit of 1 s: it was shortened to tier fast, for a job that waits"
    assert (job.reason, job.error.message) == (Reason.TIMEOUT, told)


@ON_A_FILE
def test_what_a_worker_will_not_run_says_so_and_another_may_run_it(harness: WorkerHarness, bench: Bench) -> None:
    bench.upload("fetch", options=HandlerOptions(network=True))
    policy = JobOptions(max_retry=1, retry=RetryPolicy(base=0.1, jitter=0))
    (id,) = bench.feed("fetch", "x", options=policy)
    first = harness.start("--tenant", harness.tenant, target="")
    first.hear("1 jobs of fetch are refused: .*network")
    first.stop()
    job = bench.job(id)
    assert job.error is not None
    assert (job.error.type, "network" in job.error.message) == ("Refused", True)
    if job.state is State.FAILED:  # it was refused twice
        bench.ask(Rerun(tenant=harness.tenant, ids=[id]))
    harness.start("--tenant", harness.tenant, "--network", target="")
    assert bench.result(id) == "x"


@ON_A_FILE
def test_the_log_has_a_line_for_each_step_of_a_jobs_life(harness: WorkerHarness, bench: Bench) -> None:
    """[21, 38]"""
    bench.upload("first", "echo 'J: second|x'", "sh")
    bench.upload("second", "exit 66", "sh")
    bench.upload("exits", "exit $(cat)", "sh")
    (id,) = bench.feed("first", "x")
    again, broke = bench.feed("exits", "75", "1")
    worker = harness.start("-v", "--tenant", harness.tenant, target="")
    worker.hear(f"{id} first running, attempt 1")
    worker.hear(f"{id} first completed, ok 200 after [0-9.]+ s")
    entered = worker.hear("([0-9a-f-]{36}) second entered")
    worker.hear(f"{re.escape(entered[1])} second completed, failed 466 after")
    worker.hear(f"{again} exits completed, retry 100 after")
    worker.hear(f"{broke} exits completed, error 500 after")


# Commands


@ON_A_FILE
def test_commands_keep_list_show_and_remove_handlers(harness: WorkerHarness, bench: Bench) -> None:
    """[26]"""
    (harness.folder / "echo.py").write_text(ECHO)
    (harness.folder / "echo.js").write_text("run = (payload) => payload")
    (harness.folder / "first").write_text("seen = []\n")
    bench.feed("echo", "")
    assert "no handlers" in bench.command("handlers", "ls")
    terms = ("--batch", "3", "--timeout", "2m", "--cpu", "9s", "--memory", "64MiB", "--disk", "10MiB")
    bench.command("handlers", "set", "echo", "echo.py", "--before", "first", *terms)
    assert "version 2" in bench.command("handlers", "set", "echo", "echo.js")
    kept = json.loads(bench.command("handlers", "show", "echo", "--version", "1", "--json"))
    assert (kept["lang"], kept["body"], kept["before"]) == ("python", ECHO, "seen = []\n")
    assert kept["options"] == {"batch": 3, "timeout": 120.0, "cpu": 9.0, "memory": 64 << 20, "disk": 10 << 20}
    assert "run = (payload) => payload" in bench.command("handlers", "show", "echo")
    assert re.search(r"echo +\S+ +node +2", bench.command("handlers", "ls"))
    bench.command("handlers", "rm", "echo")
    assert json.loads(bench.command("handlers", "ls", "--json")) == []


@ON_A_FILE
@pytest.mark.parametrize(
    ("words", "status", "said"),
    [
        (("set", "echo", "echo.txt"), 2, "--lang"),
        (("set", "echo", "none.py"), 3, "none.py"),
        (("set", "a b", "http://h/"), 2, "task"),
        (("show", "echo"), 3, "no handler"),
        (("rm", "echo"), 3, "no handler"),
    ],
)
def test_what_cannot_be_done_is_said(harness: WorkerHarness, words: tuple[str, ...], status: int, said: str) -> None:
    harness.run("handlers", "set", "other", "http://localhost/")
    ran = harness.run("handlers", *words)
    assert (ran.returncode, said in ran.stderr) == (status, True), ran.stderr


def test_what_functions_may_take_is_set_like_everything_else(tmp_path: Path) -> None:
    environment = {"WINDLASS_FUNCTIONS_MEMORY": "64MiB", "WINDLASS_FUNCTIONS_NODE": "/opt/node"}
    functions = worker_options(config.load(environment, tmp_path, {"worker.sandbox": "isolated"})).functions
    assert functions == FunctionOptions(tier="isolated", memory=64 << 20, interpreters={"node": "/opt/node"})
    assert worker_options(config.load({}, tmp_path, {})).functions == FunctionOptions()


class SlowToKeep:
    """A queue that takes its time over reports."""

    def __init__(self, service: Service) -> None:
        self._service = service

    async def __call__(self, operation: Operation[A], /) -> A:
        if isinstance(operation, Finish):
            await asyncio.sleep(0.3)
        return await self._service(operation)


async def test_a_burst_runs_also_what_its_last_jobs_make(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor, "adopt_orphans", lambda: None)  # those of later tests are not for this process
    first = NewHandler(lang="sh", body="echo 'J: second|x'")
    options = WorkerOptions(burst=True, functions=FunctionOptions())
    async with open_engine(str(tmp_path / "queue.db")) as engine:
        await engine(PutHandler(task="first", handler=first))
        await engine(PutHandler(task="second", handler=NewHandler(lang="sh", body="true")))
        await engine(EnqueueLines(task="first", text="x"))
        clock, chance = SystemClock(), SystemRandomness()
        await Supervisor(SlowToKeep(engine), ProcessManager(""), NO_APP, options, clock=clock, chance=chance).run()
        assert (await engine(Count(match=Match(task="second", state=["succeeded"])))).count == 1


def test_what_a_function_makes_is_on_the_terms_of_its_maker(harness: WorkerHarness, bench: Bench) -> None:
    """Else nothing of a chain would ever be run again, for a line cannot name terms. [19] [20] [22] [24]"""
    terms = JobOptions(
        priority=3, timeout=50.0, max_retry=2, retry=RetryPolicy(base=0.01, jitter=0.0), keep_success=3600.0,
        keep_failure=7200.0, expires=900.0, tags=["mine"],
    )  # fmt: skip
    bench.upload("first", "def run(payload):\n    print('J: second|' + payload)\n")
    bench.upload("second", "def run(payload):\n    raise Retry()\n")
    harness.start()
    (first,) = bench.feed("first", "x", options=terms)
    bench.ended(first)
    (listed,) = bench.ask(List(tenant=harness.tenant, match=Match(task="second"))).jobs
    made = bench.ended(listed.id)
    same = ("priority", "timeout", "max_retry", "retry", "keep_success", "keep_failure", "expires")
    assert {name: getattr(made, name) for name in same} == {name: getattr(terms, name) for name in same}
    assert (made.tags, made.state, made.attempt, made.code) == ([], State.FAILED, 3, 100)


@ON_A_FILE
def test_jobs_that_go_in_one_call_are_not_spread(harness: WorkerHarness, bench: Bench) -> None:
    bodies = list[bytes]()

    class Here(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            bodies.append(self.rfile.read(int(self.headers["content-length"])))
            answer = b"200\n" * bodies[-1].count(b"\n")
            self.send_response(200)
            self.send_header("content-length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

    with ThreadingHTTPServer(("127.0.0.1", 0), Here) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}/"
        bench.upload("hook", url, "http", options=HandlerOptions(whole_batch=True, batch=4))
        bench.feed("hook", *"abcdef")
        harness.burst("--reach", f"127.0.0.1:{server.server_port}")
        server.shutdown()
    assert sorted(bodies) == [b"a\nb\nc\nd\n", b"e\nf\n"]


BREED = "def run(payload):\n    for _ in range(10):\n        print('J: breed|' + payload)\n"


@ON_A_FILE
def test_a_function_cannot_make_more_jobs_than_its_tenant_may_have(harness: WorkerHarness, bench: Bench) -> None:
    tenant = harness.tenant
    bench.ask(PutQuota(tenant=tenant, quota=Quota(stored_jobs=300)))
    bench.upload("breed", BREED)
    bench.feed("breed", "x")
    harness.burst()
    assert bench.ask(Count(tenant=tenant)).count < 1000  # what is on its way to be reported may be too much
    assert bench.ask(Count(tenant=tenant, match=Match(state=["succeeded"]))).count > 10
    refused = bench.ask(List(tenant=tenant, match=Match(state=["failed"]))).jobs
    assert len(refused) > 10
    assert {"this tenant may have 300 jobs on record" in job.error.message for job in refused} == {True}


@ON_A_FILE
def test_what_functions_make_beyond_a_rate_is_kept_and_starts_later(harness: WorkerHarness, bench: Bench) -> None:
    """So a function that makes itself anew is as fast as its tenant may be, and holds up nobody."""
    tenant = harness.tenant
    bench.ask(PutQuota(tenant=tenant, quota=Quota(jobs_per_second=2)))
    bench.upload("many", "def run(payload):\n    for n in range(6):\n        print(f'J: one|{n}')\n")
    bench.upload("one", "def run(payload):\n    return payload\n")
    bench.feed("many", "x")
    harness.burst()
    made = bench.ask(List(tenant=tenant, match=Match(task="one"))).jobs
    assert len(made) == 6, "none is lost"
    waits = sorted((job.run_at - job.created_at).total_seconds() if job.run_at else 0.0 for job in made)
    assert waits[:2] == [0.0, 0.0], "a second's worth comes at once"
    assert waits[2:] == pytest.approx([0.5, 1.0, 1.5, 2.0], abs=0.1)


def test_time_pays_for_what_was_made_before_its_time() -> None:
    limit_rule = QuotaLeft()
    assert delays(limit_rule, 3, 0.0) == [0.0] * 3
    limit_rule.quota = Quota(jobs_per_second=2)
    assert delays(limit_rule, 4, 0.0) == [0.0, 0.0, 0.5, 1.0]
    assert delays(limit_rule, 1, 0.5) == [1.0], "behind those that are to come"
    assert delays(limit_rule, 3, 100.0) == [0.0, 0.0, 0.5], "no more than a second's worth is saved up"


@ON_A_FILE
def test_a_function_cannot_make_larger_jobs_than_its_tenant_may_send(harness: WorkerHarness, bench: Bench) -> None:
    bench.ask(PutQuota(tenant=harness.tenant, quota=Quota(payload_bytes=10)))
    bench.upload("larger", "def run(payload):\n    print('J: larger|' + payload * 2)\n")
    bench.feed("larger", "xxx")
    harness.burst()
    jobs = bench.ask(List(tenant=harness.tenant)).jobs
    assert sorted((job.size, str(job.state)) for job in jobs) == [(3, "succeeded"), (6, "failed")]


@ON_A_FILE
def test_a_job_without_a_worker_for_its_handler_says_so(harness: WorkerHarness, bench: Bench) -> None:
    """[27]"""
    (id,) = bench.feed("echo", "x")
    harness.start()
    said = bench.command("jobs", "show", id)
    assert said.count("waits") == 1
    assert "a worker: none knows its task or runs its handler" in " ".join(said.split())
    advice = harness.run("doctor", "--tenant", harness.tenant).stdout
    assert "windlass handlers set echo FILE" in advice
    bench.upload("echo")
    bench.ended(id)
    assert "waits" not in bench.command("jobs", "show", id)
