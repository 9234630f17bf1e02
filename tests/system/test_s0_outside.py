"""The checklist of S0, a queue for drawing tasks and shells: what no other test shows from outside.

Real servers and workers on each store; clients speak `/asy`. A test names its items: in its own name (`test_s0_20_…`),
or in its docstring ("S0 20, 21").
"""

import asyncio
import re
import signal
import sys
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, contextmanager
from pathlib import Path
from typing import Any

import httpx2
import psutil
import pytest

from tests.support.asy_client import RESTORE, AsyClient, asy, sha
from tests.support.http_servers import Process, process
from tests.support.json_client import calling
from tests.support.patience import PATIENCE
from tests.support.servers import StartServer
from tests.support.worker_harness import STORES, MakeHarness, WorkerHarness, until
from windlass.dialect.asy import MOST_INPUT
from windlass.model.job import Reason, State
from windlass.model.match import Match
from windlass.model.operations import ChangeQueue, Count, GetQueue, List
from windlass.model.queue import QueueChange, Tier

SMALL = Path(__file__).parents[2] / "examples" / "asymptote" / "small_draw.py"
ITEMS = {"s0": range(1, 41), "s1": range(1, 36)}
"""Of the checklists of two queues: the one for drawings, and one for very long tasks."""
ON_BOTH = pytest.mark.parametrize("kind", STORES)


@pytest.mark.parametrize("checklist", ITEMS)
def test_each_item_has_a_test(checklist: str) -> None:
    named: set[int] = set()
    for file in Path(__file__).parents[1].rglob("test_*.py"):
        text = file.read_text()
        for numbers in re.findall(rf"def test_(?:{checklist})((?:_(?:and_|to_)?\d+)+)_", text):
            named |= _numbers(numbers.replace("_", " "))
        for numbers in re.findall(rf'"""{checklist.upper()} ([0-9, ]+(?:(?:to|and) [0-9, ]+)*)', text):
            named |= _numbers(numbers)
    assert sorted(set(ITEMS[checklist]) - named) == []


def _numbers(text: str) -> set[int]:
    """`1, 33, 35 to 37` as numbers."""
    found: set[int] = set()
    for first, last in re.findall(r"(\d+)(?: to (\d+))?", text):
        found |= set(range(int(first), int(last or first) + 1))
    return found


# Servers, workers and clients


class Drawing:
    """A server, and workers that draw: each program that starts says so in the notes of the harness."""

    def __init__(self, harness: WorkerHarness, server: Process) -> None:
        self.harness = harness
        self.server = server

    @property
    def site(self) -> str:
        return self.server.address

    def worker(self, *, slots: int = 1, lease: str = "10s") -> Any:
        notes, program = self.harness.folder / "notes", f'exec {sys.executable} {SMALL} "$@"'
        return self.harness.start(
            "--slots",
            str(slots),
            lease=lease,
            target="windlass.asy_app",
            WINDLASS_TENANT=self.harness.tenant,
            WINDLASS_ASY_PROGRAM=f"sh -c 'echo drawn $PPID >> {notes}; {program}' sh {{out}} {{main}}",
            WINDLASS_ASY_SHELL=f"{sys.executable} {SMALL}",
        )

    def count(self) -> int:
        return self.harness.app.ask(Count(match=Match(queue="asy"))).count

    def empty(self) -> None:
        until(lambda: self.count() == 0)

    def programs(self) -> list[int]:
        return [pid for pid in self.harness.processes() if str(SMALL) in _command(pid)]

    def held(self) -> dict[str, int]:
        """The jobs that run, by tier."""
        running = self.harness.app.ask(List(match=Match(queue="asy", state=["running"]))).jobs
        return dict(Counter(str(job.assigned) for job in running))


def _command(pid: int) -> list[str]:
    try:
        return psutil.Process(pid).cmdline()
    except psutil.NoSuchProcess:
        return []


TIERS = [Tier(name="fast", seconds=3), Tier(name="medium", seconds=10), Tier(name="slow", seconds=30, cap=1)]


@contextmanager
def serving(harness: WorkerHarness, folder: Path, *, owner_timeout: str = "60s") -> Iterator[Process]:
    settings = {"WINDLASS_ASY_PUBLIC": harness.tenant, "WINDLASS_ASY_OWNER_TIMEOUT": owner_timeout}
    folder.mkdir()
    with process(folder, "--no-worker", store=harness.store, **settings) as running:
        yield running


@pytest.fixture
def drawing(harness: WorkerHarness, tmp_path: Path) -> Iterator[Drawing]:
    harness.app.ask(ChangeQueue(queue="asy", change=QueueChange(tiers=TIERS)))
    with serving(harness, tmp_path / "server") as server:
        yield Drawing(harness, server)


def client_of(drawing: Drawing, *protocols: str, **more: Any) -> Any:
    return asy(drawing.site, *protocols, token=None, **more)


async def said(client: AsyClient, text: bytes) -> None:
    while text not in client.output("stdout"):
        await client.until("output")


async def drawn(drawing: Drawing, text: bytes = b"circle 1 1 1", **options: Any) -> None:
    async with client_of(drawing) as client:
        await client.draw(text, **options)
        assert (await client.rest())[-1] == ("complete", {}, None)


# Tasks and their clients


async def test_s0_20_and_21_a_client_that_leaves_takes_its_task_with_it(drawing: Drawing) -> None:
    async with client_of(drawing) as client:
        await client.draw(b"write begun", duration=30)
        await client.until("queue")
        assert drawing.count() == 1
    drawing.empty()
    drawing.worker()
    async with client_of(drawing) as client:
        await client.draw(b"write begun\nsleep 600", duration=30)
        await said(client, b"begun")
        assert drawing.held() == {"slow": 1}
        (program,) = drawing.programs()
    drawing.empty()
    until(lambda: not psutil.pid_exists(program))
    await drawn(drawing, duration=30)
    assert len(drawing.harness.notes("drawn")) == 2, "the first never ran; the slot and the tier of the second are free"
    assert drawing.held() == {}


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
async def test_s0_24_and_25_a_client_hears_that_its_task_ended_with_its_worker(
    drawing: Drawing, number: signal.Signals
) -> None:
    worker = drawing.worker(lease="1s")
    async with client_of(drawing) as client:
        await client.draw(b"write begun\nsleep 600", duration=30)
        await said(client, b"begun")
        worker.send(number)
        if number == signal.SIGTERM:
            worker.hear("stopping; 1 job")
            worker.send(number)
        worker.ended()
        assert (await client.rest())[-1] == ("complete", {"error": "the process was stopped"}, None)
    drawing.empty()
    drawing.worker()
    await drawn(drawing, duration=30)
    assert len(drawing.harness.notes("drawn")) == 2, "the first was not started again; its place at slow is free"


async def test_s0_26_and_28_a_task_that_was_dispatched_and_not_begun_goes_to_another_or_is_skipped(
    drawing: Drawing,
) -> None:
    with calling(drawing.server) as http:
        tenant = f"/v1/{drawing.harness.tenant}"
        new = {"name": "deaf", "queues": ["asy"], "lease": 1.0}
        deaf = http.post(f"{tenant}/workers", json=new).json()["worker"]
        async with client_of(drawing) as client:
            await client.draw(b"circle 1 1 1", duration=30)
            (claimed,) = await asyncio.to_thread(_claim, http, f"{tenant}/workers/{deaf}")
            assert claimed["job"]["assigned"] == "slow"
            drawing.worker()
            assert (await client.rest())[-1] == ("complete", {}, None), "after the lease, by another"
        drawing.empty()
        new["lease"] = 60.0
        patient = http.post(f"{tenant}/workers", json=new).json()["worker"]
        drawing.harness.workers[-1].stop()
        async with client_of(drawing) as client:
            await client.draw(b"circle 1 1 1", duration=30)
            (claimed,) = await asyncio.to_thread(_claim, http, f"{tenant}/workers/{patient}")
        until(lambda: _is_ordered(http, f"{tenant}/jobs/{claimed['job']['id']}"))
        answer = http.post(f"{tenant}/workers/{patient}/begin", json=_begun(claimed))
        assert answer.json() == {"applied": [], "refused": [claimed["job"]["id"]]}
        assert (drawing.count(), drawing.held()) == (0, {})
    assert len(drawing.harness.notes("drawn")) == 1


def _claim(http: httpx2.Client, worker: str) -> list[Any]:
    return until(lambda: http.post(f"{worker}/claim", json={"slots": 1, "wait": 5}).json())


def _begun(claimed: Any) -> list[Any]:
    return [{"id": claimed["job"]["id"], "token": claimed["token"], "pid": 7}]


def _is_ordered(http: httpx2.Client, job: str) -> bool:
    return bool(http.get(job).json().get("reason") == "deleted")


async def test_s0_27_and_31_each_task_is_drawn_once_by_one_of_two_workers_and_ids_grow(drawing: Drawing) -> None:
    number = 12
    async with AsyncExitStack() as opened:
        clients = [await opened.enter_async_context(client_of(drawing)) for _ in range(number)]
        for place, client in enumerate(clients, start=1):
            await client.draw(b"circle 1 1 1", duration=10)
            await asyncio.to_thread(until, lambda place=place: drawing.count() == place)
        ids = [job.id for job in drawing.harness.app.ask(List(match=Match(queue="asy"))).jobs]
        numbers = [int(id.replace("-", ""), 16) >> 8 for id in ids]
        assert numbers == sorted(set(numbers))
        for _ in range(2):
            drawing.worker(slots=3)
        for client in clients:
            assert (await client.rest())[-1] == ("complete", {}, None)
    assert len(drawing.harness.notes("drawn")) == number
    drawing.empty()


async def test_s0_1_and_32_a_shorter_duration_that_is_sent_after_the_start_ends_the_program(drawing: Drawing) -> None:
    drawing.worker()
    async with client_of(drawing) as client:
        await client.draw(b"write begun\nsleep 600", duration=30)
        await said(client, b"begun")
        for duration in (3, 30):
            await client.say("options", {"duration": duration})
        error = (await client.rest())[-1].value["error"]
        assert error == "time limit: ran longer than its time limit of 3 s: it was lowered to 3 s while it ran"
    until(lambda: drawing.programs() == [])


async def test_s0_35_36_and_38_what_is_sent_is_checked_and_what_is_known_not_sent_again(drawing: Drawing) -> None:
    drawing.worker()
    for frames in (["add {bad"], ["draw {}"], ['add {"filename": "../a"}'], ["start {}"]):
        async with client_of(drawing) as client:
            for frame in frames:
                await client.socket.send(frame)
            assert [frame.verb for frame in await client.rest()] == ["deny"]
    for late in ("start", "add"):
        async with client_of(drawing) as client:
            await client.draw(b"sleep 60", duration=30)
            await client.say(late, {"filename": "b", "main": "main.asy"}, b"x" if late == "add" else None)
            assert (await client.rest())[-1].verb == "deny"
    base, text = b"circle 5 5 5 red\n", b"import base.draw\ncircle 1 1 1\n"
    files = {"base.draw": base, "main.asy": text}
    for place in range(2):
        async with client_of(drawing, RESTORE) as client:
            for name, data in files.items():
                await client.say("add", {"filename": name, "hash": sha(data), "restore": True})
            await client.say("start", {"main": "main.asy"})
            if not place:
                missing = (await client.until("missing")).value
                assert {one["filename"] for one in missing} == set(files)
                for name, data in files.items():
                    await client.add(name, data, hash=sha(data))
                await client.say("start", {"main": "main.asy"})
            heard = await client.rest()
            assert [frame.verb for frame in heard].count("missing") == (not place)
            assert heard[-1] == ("complete", {}, None)
    async with client_of(drawing) as client:
        await client.add("a", b"#" * (MOST_INPUT - len(b"circle 1 1 1")))
        await client.draw(b"circle 1 1 1")
        assert (await client.rest())[-1] == ("complete", {}, None)
    async with client_of(drawing) as client:
        await client.add("a", b"#" * (MOST_INPUT + 1))
        assert (await client.rest())[-1] == ("deny", {"error": f"more than {MOST_INPUT} bytes of input"}, None)


async def test_s0_40_an_announcement_arrives_on_open_connections_and_in_the_status(drawing: Drawing) -> None:
    drawing.worker()
    async with client_of(drawing) as client:
        await client.draw(b"write begun\nsleep 60", duration=30)
        await said(client, b"begun")
        for text in ("closed at ten", ""):
            drawing.harness.app.ask(ChangeQueue(queue="asy", change=QueueChange(announcement=text)))
            assert (await client.until("status")).value == {"announcement": text}
            with httpx2.Client(base_url=drawing.site, trust_env=False) as http:
                assert http.get("/asy/status").json() == {"status": {"announcement": text}}


# Restarts


@ON_BOTH
def test_s0_29_a_restart_of_the_server_and_of_the_store_loses_nothing_and_runs_nothing_twice(
    kind: str, make_harness: MakeHarness, start_server: StartServer, tmp_path: Path
) -> None:
    store = None if kind == "file" else start_server("redis")
    harness = make_harness(store="" if store is None else store.url)
    tiers = [Tier(name="fast", seconds=300), Tier(name="slow", seconds=600, cap=1)]
    harness.app.ask(ChangeQueue(queue="default", change=QueueChange(tiers=tiers, on_lost="fail")))
    with serving(harness, tmp_path / "server") as server:
        worker = harness.start("-c", "2", "--server", server.address, WINDLASS_TOKEN=server.token, lease="60s")
        stay = harness.tasks.stay
        running = [stay.using(tier=tier).enqueue(word) for word, tier in (("a", "slow"), ("b", "fast"))]
        harness.noted("start", 2)
        waiting = [stay.using(tier=tier).enqueue(word) for word, tier in (("c", "slow"), ("d", "fast"), ("e", "slow"))]
        server.kill()
        if store is not None:
            store.restart()
        server.start()
        assert [job.state for job in running] == [State.RUNNING] * 2
        assert [job.state for job in waiting] == [State.QUEUED] * 3
        (harness.folder / "let go a").touch()
        assert harness.ended(running[0]).state is State.SUCCEEDED
        assert len(harness.noted("start", 3)) == 3
        (harness.folder / "let go").touch()
        records = [harness.ended(job) for job in (*running, *waiting)]
        assert [record.state for record in records] == [State.SUCCEEDED] * 5
        assert [record.attempt for record in records] == [1] * 5
        words = [line.split()[0] for line in harness.notes("start")]
        assert sorted(words) == ["a", "b", "c", "d", "e"], "each ran once"
        assert words.index("c") < words.index("e")
        assert harness.app.ask(GetQueue(queue="default")).caps == {"fast": 2, "slow": 1}
        assert worker.running


# Admission and halts


class Two:
    """Two servers over one store, which callers ask at the same time."""

    def __init__(self, harness: WorkerHarness, servers: list[Process]) -> None:
        self.harness = harness
        self.servers = servers

    def enqueue(self, number: int, **options: Any) -> list[httpx2.Response]:
        """The answers to so many callers."""
        body = {"task": "co_nap", "payload": {"seconds": 600, "word": "nap"}, **options}

        def ask(place: int) -> httpx2.Response:
            server = self.servers[place % 2]
            headers = {"authorization": f"Bearer {server.token}"}
            url = f"{server.address}/v1/{self.harness.tenant}/jobs"
            return httpx2.post(url, json=body, headers=headers, trust_env=False, timeout=PATIENCE)

        with ThreadPoolExecutor(number) as callers:
            return list(callers.map(ask, range(number)))

    def running(self, ids: list[str]) -> None:
        """Wait until they run."""
        until(lambda: all(self.harness.app.job(id).state is State.RUNNING for id in ids))

    def reasons(self, ids: list[str]) -> Counter[Reason | None]:
        return Counter(self.harness.app.job(id).refresh().reason for id in ids)

    def cancel(self, ids: list[str]) -> None:
        for id in ids:
            self.harness.app.job(id).cancel()
        for id in ids:
            self.harness.ended(self.harness.app.job(id))


@pytest.fixture
def two_servers(harness: WorkerHarness, tmp_path: Path) -> Iterator[Two]:
    tiers = [Tier(name="fast", seconds=300), Tier(name="slow", seconds=600)]
    harness.app.ask(ChangeQueue(queue="default", change=QueueChange(tiers=tiers)))
    with serving(harness, tmp_path / "one") as one, serving(harness, tmp_path / "two") as two:
        yield Two(harness, [one, two])


FEW_OR_MANY = pytest.mark.parametrize("trials", [4, pytest.param(120, marks=pytest.mark.long)])


@FEW_OR_MANY
def test_s0_15_of_five_callers_of_two_servers_one_gets_the_slot(two_servers: Two, trials: int) -> None:
    two_servers.harness.start("-c", "1")
    for _ in range(trials):
        answers = two_servers.enqueue(5, yielding=True)
        assert sorted(answer.status_code for answer in answers) == [201, 429, 429, 429, 429]
        two_servers.cancel([answer.json()["id"] for answer in answers if answer.status_code == 201])


@FEW_OR_MANY
def test_s0_6_14_and_16_as_many_sessions_are_halted_as_are_needed(two_servers: Two, trials: int) -> None:
    two_servers.harness.start("-c", "3")
    hit: Counter[int] = Counter()
    for trial in range(trials):
        sessions = [two_servers.enqueue(1, yielding=True)[0].json()["id"] for _ in range(3)]
        two_servers.running(sessions)
        needed = 1 + trial % 2
        new = [answer.json()["id"] for answer in two_servers.enqueue(needed, tier="fast")]
        two_servers.running(new)
        assert two_servers.reasons(sessions)[Reason.HALTED] == needed, f"trial {trial}"
        hit.update(place for place, id in enumerate(sessions) if two_servers.reasons([id])[Reason.HALTED])
        two_servers.cancel([*sessions, *new])
    assert trials < 20 or set(hit) == {0, 1, 2}, "each may be the one"
