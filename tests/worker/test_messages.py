"""Messages to running jobs, with real workers: beside the store, and over HTTP alone."""

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from websockets.asyncio.client import connect

from tests.support.http_servers import Process, process
from tests.support.patience import PATIENCE
from tests.support.worker_harness import MakeHarness, WorkerHarness, tell, until
from windlass.model.errors import Busy, Conflict, Invalid, Missing
from windlass.model.job import MSGPACK, State
from windlass.model.operations import Cancel, Delete, Send
from windlass.model.output import MOST_MESSAGE, MOST_MESSAGES
from windlass.worker.contexts.frames import (
    Assignment,
    Command,
    ContextUpdate,
    FrameReader,
    JobMessage,
    RunOutcome,
    encode_frame,
)

pytestmark = pytest.mark.timeout(240)

APP = '''
import asyncio, os, time
from pathlib import Path
from windlass import Windlass, current

app = Windlass(tenant=os.environ["HARNESS_TENANT"], token=os.environ.get("HARNESS_TOKEN"))
HERE = Path(__file__).parent


def note(*words):
    file = os.open(HERE / "notes", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(file, (" ".join(map(str, words)) + "\\n").encode())
    os.close(file)


def told(data):
    note("got", time.time(), data.decode())


@app.task(input=True)
def echo() -> list[str]:
    note("begun", current.job.attempt)
    said = []
    for data in current.inputs():
        told(data)
        current.log(data.decode())
        said.append(data.decode())
    return said


@app.task(input=True)
async def aecho() -> list[str]:
    note("begun", current.job.attempt)
    said = []
    async for data in current.ainputs():
        told(data)
        current.log(data.decode())
        said.append(data.decode())
    return said


@app.task(input=True)
def late(file: str) -> int:
    """Takes nothing before a file is there."""
    note("begun", current.job.attempt)
    while not (HERE / file).exists():
        time.sleep(0.01)
    return sum(1 for _ in current.inputs())


@app.task(input=True)
def impatient() -> str:
    try:
        current.input(timeout=0.05)
    except TimeoutError as fault:
        return str(fault)


@app.task
def deaf() -> bytes:
    return current.input()
'''

NOBODY = "00000000-0000-7000-8000-0000000000df"

KINDS = ("echo", "aecho", "alone", "aalone")
"""In a thread, in an event loop, and each of them in a process of its own."""


def task(shop: WorkerHarness, kind: str) -> Any:
    if kind in ("alone", "aalone"):
        return getattr(shop.tasks, "echo" if kind == "alone" else "aecho").using(isolate=True)
    return getattr(shop.tasks, kind)


@pytest.fixture
def far(tmp_path: Path) -> Iterator[Process]:
    """A server: whoever uses it has nothing else."""
    (tmp_path / "server").mkdir()
    with process(tmp_path / "server", "--no-worker") as running:
        yield running


@pytest.fixture(params=["file", "redis", "http"])
def shop(request: pytest.FixtureRequest, make_harness: MakeHarness, monkeypatch: pytest.MonkeyPatch) -> WorkerHarness:
    match request.param:
        case "file":
            return make_harness(APP)
        case "redis":
            return make_harness(APP, store=request.getfixturevalue("redis_server").url)
        case _:
            running = request.getfixturevalue("far")
            monkeypatch.setenv("HARNESS_TOKEN", running.token)
            return make_harness(APP, store=running.address)


@pytest.mark.parametrize("kind", KINDS)
def test_messages_reach_the_task_in_order_and_soon(shop: WorkerHarness, kind: str) -> None:
    shop.start("-c", "4", "--contexts", "1")
    job = task(shop, kind).enqueue()
    shop.noted("begun")
    sent = []
    for n in range(20):
        sent.append(time.time())
        job.send(f"message-{n}")
        if n % 4 == 0:
            shop.noted("got", n + 1)  # some alone, some on each other's heels
    job.send(b"")
    assert job.result(timeout=PATIENCE) == [f"message-{n}" for n in range(20)]
    delays = sorted(float(line.split()[0]) - at for line, at in zip(shop.notes("got"), sent, strict=True))
    tell(f"median {delays[10]:.3f} s, longest {delays[-1]:.3f} s")


def test_what_is_sent_before_the_run_waits_for_it(shop: WorkerHarness) -> None:
    job = shop.tasks.echo.enqueue()
    for text in ("one", "two", ""):
        job.send(text)
    shop.start("-c", "1", "--contexts", "1")
    assert job.result(timeout=PATIENCE) == ["one", "two"]


def until_refused(job: Any) -> int:
    """Send until the queue says that it is too much; how many were taken."""
    for sent in range(4 * MOST_MESSAGES):
        try:
            job.send(b"x")
        except Busy:
            return sent
    raise AssertionError("it never is")


def test_too_much_is_refused_and_nothing_is_lost(shop: WorkerHarness) -> None:
    shop.start("-c", "2", "--contexts", "1")
    job = shop.tasks.late.enqueue("go")
    shop.noted("begun")
    sent = until_refused(job)
    with pytest.raises(Busy, match="has not read its earlier messages"):
        job.send(b"x")
    assert MOST_MESSAGES <= sent <= 2 * MOST_MESSAGES, "what waits in the queue, and what its worker was given"
    with pytest.raises(Invalid, match="65536"):
        job.send(b"x" * (MOST_MESSAGE + 1))
    (shop.folder / "go").touch()

    def goes() -> bool:
        try:
            job.send(b"")
        except Busy:
            return False
        return True

    until(goes)
    assert job.result(timeout=PATIENCE) == sent


def test_a_job_that_takes_none_or_has_ended_says_so(shop: WorkerHarness) -> None:
    shop.start("-c", "2", "--contexts", "1")
    deaf, ended = shop.tasks.deaf.enqueue(), shop.tasks.echo.enqueue()
    with pytest.raises(Conflict, match="takes no input"):
        deaf.send("x")
    assert "takes no input" in str(shop.ended(deaf).error)
    ended.send("")
    assert ended.result(timeout=PATIENCE) == []
    with pytest.raises(Conflict, match="has ended"):
        ended.send("x")
    with pytest.raises(Missing):
        shop.app.link.ask(Send(tenant=shop.tenant, id=NOBODY, data=b"x"))
    foreign = Send(tenant="somebody", id=ended.id, data=b"x")
    with pytest.raises(Missing, match="there is no job"):
        shop.app.link.ask(foreign)
    shop.app.link.ask(Delete(tenant=shop.tenant, ids=[ended.id]))
    with pytest.raises(Missing):
        ended.send("x")


@pytest.mark.parametrize("kind", KINDS)
def test_a_job_that_waits_for_a_message_is_stopped_at_once(shop: WorkerHarness, kind: str) -> None:
    shop.start("-c", "2", "--contexts", "1")
    job = task(shop, kind).enqueue()
    shop.noted("begun")
    shop.app.link.ask(Cancel(tenant=shop.tenant, ids=[job.id]))
    assert shop.ended(job).state is State.CANCELLED


def test_a_run_after_a_killed_worker_begins_with_an_empty_box(shop: WorkerHarness) -> None:
    worker = shop.start("-c", "1", "--contexts", "1", lease="1s")
    job = shop.tasks.echo.using(max_retry=3).enqueue()
    shop.noted("begun")
    job.send("lost with the run")
    shop.noted("got")
    worker.send(signal.SIGKILL)
    worker.ended()
    shop.start("-c", "1", "--contexts", "1")
    shop.noted("begun", 2)
    job.send("for the second")
    shop.noted("got", 2)
    job.send("")
    assert job.result(timeout=PATIENCE) == ["for the second"]
    assert job.refresh().attempt == 2


@pytest.mark.parametrize("shop", ["file"], indirect=True)
def test_a_task_may_wait_for_a_while_only(shop: WorkerHarness) -> None:
    shop.start("-c", "1", "--contexts", "1")
    assert shop.tasks.impatient.enqueue().result(timeout=PATIENCE) == "nothing was sent within 0.05 s"


@pytest.mark.parametrize("shop", ["file"], indirect=True)
def test_the_command_sends_words_or_what_it_reads(shop: WorkerHarness) -> None:
    shop.start("-c", "1", "--contexts", "1")
    job = shop.tasks.echo.enqueue()
    shop.noted("begun")
    tenant = ["--tenant", shop.tenant]
    assert shop.run("jobs", "send", job.id, "hello there", *tenant).returncode == 0
    assert shop.noted("got")[0].endswith("hello there")
    assert shop.run("jobs", "send", job.id, "", *tenant).returncode == 0
    assert job.result(timeout=PATIENCE) == ["hello there"]
    late = shop.run("jobs", "send", job.id, "more", *tenant)
    assert late.returncode != 0
    assert "has ended" in late.stderr


@pytest.mark.parametrize("shop", ["http"], indirect=True)
async def test_a_websocket_echoes(shop: WorkerHarness, far: Process) -> None:
    await asyncio.to_thread(shop.start, "-c", "2", "--contexts", "1")
    job = await shop.tasks.aecho.aenqueue()
    address = f"ws://127.0.0.1:{far.port}/v1/{shop.tenant}/jobs/{job.id}/live"
    async with (
        asyncio.timeout(PATIENCE),
        connect(address, additional_headers={"authorization": f"Bearer {far.token}"}) as ws,
    ):
        heard = []
        await ws.send(b"one")
        async for message in ws:
            if isinstance(message, bytes):
                heard.append(message)
                if len(heard) == 2:
                    await ws.send("")
                elif len(heard) == 1:
                    await ws.send("two as text")
            elif json.loads(message)["event"] == "succeeded":
                break
    assert b"".join(heard) == b"one\ntwo as text\n"
    assert await job.aresult(timeout=PATIENCE) == ["one", "two as text"]


def test_inside_a_test_a_job_finds_what_was_sent_before(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(os.environ, "HARNESS_TENANT", "shop")
    (tmp_path / "inner.py").write_text(APP)
    monkeypatch.syspath_prepend(str(tmp_path))
    import inner  # type: ignore[import-not-found]  # noqa: PLC0415

    with inner.app.testing.manual() as trial:
        for echo in (inner.echo, inner.aecho):
            job = echo.enqueue()
            job.send("hello")
            trial.drain()
            assert job.result() == ["hello"]


LATE = """
import socket, sys
from windlass.worker.contexts.frames import Command, FrameReader
from windlass.worker.contexts.main import run_isolated
from inner import app
run_isolated(socket.socket(fileno=int(sys.argv[1])), app.tasks, FrameReader(Command), app.hooks)
"""


@pytest.mark.parametrize("task", ["echo", "aecho"])
def test_a_process_that_begins_late_misses_nothing_that_came_with_its_job(task: str, tmp_path: Path) -> None:
    (tmp_path / "inner.py").write_text(APP)
    job = Assignment(1, task, b"\xc0", MSGPACK, NOBODY, "q", "t", 1, 0, 0.0, input=True)
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.sendall(
            b"".join(
                map(encode_frame, [Command([job]), Command(messages=[JobMessage(1, b"early"), JobMessage(1, b"")])])
            )
        )
        program = [sys.executable, "-c", LATE, str(theirs.fileno())]
        environ = os.environ | {"HARNESS_TENANT": "t"}
        with subprocess.Popen(program, pass_fds=[theirs.fileno()], cwd=tmp_path, env=environ) as child:
            theirs.close()
            ours.settimeout(20)
            frames = FrameReader(ContextUpdate)
            outcomes: list[RunOutcome] = []
            while not outcomes and (data := ours.recv(1 << 16)):
                outcomes += [outcome for update in frames.feed(data) for outcome in update.outcomes]
            ours.close()
            child.wait(PATIENCE)
    assert [msgspec.msgpack.decode(outcome.result or b"") for outcome in outcomes] == [["early"]]
