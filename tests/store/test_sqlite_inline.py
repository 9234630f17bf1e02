"""A file for callers without an event loop: it is written in their own threads."""

import asyncio
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from typing import Any

import apsw
import pytest
from msgspec import Raw
from msgspec.structs import asdict, replace

from tests.support.patience import PATIENCE
from tests.support.stores import SeededChance, VirtualClock, World, ids
from windlass import Windlass
from windlass.connection import run_sync
from windlass.engine import Engine
from windlass.model.errors import Full, Unavailable
from windlass.model.limit import NewLimit, Which
from windlass.model.names import JobKey, fresh_id, raw_id
from windlass.model.new_job import NOTHING, NewJob
from windlass.model.operations import Claim, EnqueueMany, PutLimit, Register, Show
from windlass.model.template import template_of
from windlass.model.worker import NewWorker
from windlass.store.data import Draft
from windlass.store.sqlite import SqliteStore, file, scrub
from windlass.store.sqlite.connection import InlineConnection
from windlass.system import SystemClock, SystemRandomness

CHANCE = SystemRandomness()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "jobs.db"


@pytest.fixture
def store(path: Path) -> Iterator[SqliteStore]:
    found = SqliteStore.open(path, SystemClock(), blocking=True)
    yield found
    run_sync(found.close())


def _connection(store: SqliteStore) -> InlineConnection:
    connection = store._connection
    assert isinstance(connection, InlineConnection)
    return connection


def add(store: SqliteStore) -> str:
    new = Draft("default", fresh_id(CHANCE.uuid7(), "default"), NewJob(task="a", payload=Raw(b"\xc0")))
    assert run_sync(store.jobs.add([new])) == [True]
    return new.id


def exists(store: SqliteStore, id: str) -> bool:
    return run_sync(store.jobs.read([JobKey(id, "default")])).records != [None]


def count(store: SqliteStore) -> int:
    return sum(tally.count for tally in run_sync(store.jobs.counts("-")).jobs)


def test_a_lone_job_writes_five_pages_of_the_log(path: Path, store: SqliteStore) -> None:
    """Its row, three indices, and its lane."""
    add(store)
    sql = apsw.Connection(str(path))
    ends = []
    for _ in range(10):
        add(store)
        assert sql.execute("SELECT max(seq) FROM job").get  # else it knows only what it has read before
        end, _ = sql.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_NOOP)
        ends.append(end)
    sql.close()
    assert [after - before for before, after in pairwise(ends)] == [5] * 9


def test_sync_code_queues_and_reads_jobs_in_a_file_without_another_thread(path: Path) -> None:
    app = Windlass(str(path))

    @app.task
    def work(number: int) -> int:
        return number

    before = set(threading.enumerate())
    jobs = [work.enqueue(number) for number in range(3)]
    jobs += work.map(range(5))
    assert jobs[0].state == "queued"
    assert jobs[0].cancel()
    assert set(threading.enumerate()) == before
    app.close()


async def test_it_is_the_same_store_as_for_an_event_loop(path: Path, store: SqliteStore) -> None:
    """Also inside a loop: its methods never pause."""
    clock, chance = VirtualClock(), SeededChance()
    other = SqliteStore.open(path, clock)
    here, there = (World(one, clock, chance) for one in (store, other))
    first, second = await here.add(), await there.add()
    taken = await here.claim(slots=2)
    assert ids(taken) == [first, second]
    assert await there.succeed(taken[0], b"1")
    assert await here.result(first) == await there.result(first)
    assert await scrub.scrub(store) == await scrub.scrub(other) == []
    await other.close()


PROCESS = """
import sys, threading
from windlass import Windlass

app = Windlass(sys.argv[1])

@app.task
def work(number: int) -> None: ...

found = []
def some():
    found.extend(work.enqueue(number).id for number in range(25))

threads = [threading.Thread(target=some) for _ in range(4)]
for thread in threads: thread.start()
for thread in threads: thread.join()
print(*found)
"""


def test_several_threads_of_several_processes_lose_nothing(path: Path, store: SqliteStore) -> None:
    command = [sys.executable, "-c", PROCESS, str(path)]
    running = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(3)]
    queued = [id for process in running for id in process.communicate(timeout=PATIENCE)[0].split()]
    assert len(set(queued)) == 300
    assert all(exists(store, id) for id in queued)
    assert count(store) == 300
    assert run_sync(scrub.scrub(store)) == []


class SlowSync:
    """Stands in for the sync of a log: the first waits until it may go on."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = 0
        self.entered, self.go_on = threading.Event(), threading.Event()
        sync = file.Log.sync

        def slow(log: file.Log) -> None:
            self.count += 1
            self.entered.set()
            assert self.go_on.wait(PATIENCE)
            sync(log)

        monkeypatch.setattr(file.Log, "sync", slow)


def wait_until(is_so: Callable[[], bool]) -> None:
    for _ in range(int(PATIENCE * 100)):
        if is_so():
            return
        threading.Event().wait(0.01)
    pytest.fail("it did not happen")


def test_calls_that_wait_for_another_thread_share_one_sync(store: SqliteStore, monkeypatch: pytest.MonkeyPatch) -> None:
    slow = SlowSync(monkeypatch)
    waiting = _connection(store)._waiting
    with ThreadPoolExecutor(9) as threads:
        first = threads.submit(add, store)
        assert slow.entered.wait(PATIENCE)
        others = [threads.submit(add, store) for _ in range(8)]
        wait_until(lambda: len(waiting) == 8)
        assert not first.done(), "a job is accepted when it is on disk"
        slow.go_on.set()
        queued = {one.result() for one in (first, *others)}
    assert slow.count == 2
    assert all(exists(store, id) for id in queued)


def test_of_calls_that_run_together_only_the_wrong_one_fails(
    store: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = SlowSync(monkeypatch)
    waiting = _connection(store)._waiting

    def fail() -> None:
        def work(_: object) -> None:
            raise Full("no room")

        run_sync(_connection(store).write(work))

    with ThreadPoolExecutor(3) as threads:
        first = threads.submit(add, store)
        assert slow.entered.wait(PATIENCE)
        wrong, right = threads.submit(fail), threads.submit(add, store)
        wait_until(lambda: len(waiting) == 2)
        slow.go_on.set()
        with pytest.raises(Full, match="no room"):
            wrong.result()
        assert exists(store, first.result())
        assert exists(store, right.result())


def test_an_interrupted_call_leaves_nothing_and_disturbs_no_other(store: SqliteStore) -> None:
    def work(_: object) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_sync(_connection(store).write(work))
    assert exists(store, add(store))
    assert count(store) == 1


def test_a_signal_handler_in_the_middle_of_a_call_is_refused(
    store: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would wait for a call that goes on only when it is over."""
    found: list[str] = []

    def handler(*_: object) -> None:
        with pytest.raises(Unavailable, match="use it after the call"):
            add(store)
        found.append("refused")

    sync = file.Log.sync

    def interrupted(log: file.Log) -> None:
        signal.raise_signal(signal.SIGUSR1)
        sync(log)

    monkeypatch.setattr(file.Log, "sync", interrupted)
    before = signal.signal(signal.SIGUSR1, handler)
    try:
        assert exists(store, add(store))
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert found == ["refused"]


def test_a_call_that_is_interrupted_while_it_waits_is_not_run(
    store: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = SlowSync(monkeypatch)
    waiting = _connection(store)._waiting

    def interrupt() -> None:
        wait_until(lambda: bool(waiting))
        signal.raise_signal(signal.SIGINT)
        slow.go_on.set()

    with ThreadPoolExecutor(2) as threads:
        first = threads.submit(add, store)
        assert slow.entered.wait(PATIENCE)
        interrupting = threads.submit(interrupt)
        with pytest.raises(KeyboardInterrupt):
            add(store)
        interrupting.result()
        assert exists(store, first.result())
    assert count(store) == 1
    add(store)


def test_a_closed_store_takes_nothing(store: SqliteStore) -> None:
    run_sync(store.close())
    with pytest.raises(Unavailable, match="the store is closed"):
        add(store)


def forked(work: Callable[[], None]) -> None:
    """Run in a forked process; its failure is ours."""
    pid = os.fork()
    if not pid:
        try:
            work()
        except BaseException:  # noqa: BLE001 - there is no test runner in the child
            os._exit(1)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
def test_both_sides_of_a_fork_go_on_though_other_threads_write_meanwhile(store: SqliteStore) -> None:
    stop = threading.Event()
    queued: list[str] = []

    def keep_adding() -> None:
        while not stop.is_set():
            queued.append(add(store))

    def add_three() -> None:
        for _ in range(3):
            add(store)

    with ThreadPoolExecutor(2) as threads:
        adding = [threads.submit(keep_adding) for _ in range(2)]
        try:
            for number in range(1, 11):
                forked(add_three)
                wait_until(lambda number=number: len(queued) > number)  # type: ignore[misc]
        finally:
            stop.set()
        for one in adding:
            one.result()
    assert all(exists(store, id) for id in queued)
    assert count(store) == len(queued) + 30
    assert run_sync(scrub.scrub(store)) == []


# Lone jobs like one before


@pytest.fixture
def engine(store: SqliteStore) -> Engine:
    found = Engine(store, CHANCE)
    run_sync(found(EnqueueMany(jobs=[NewJob(task="first")])))  # then it knows that there are no rules
    return found


def new_job(task: str = "work", payload: bytes = b"\x01", **options: Any) -> NewJob:
    id = fresh_id(CHANCE.uuid7(), options.get("queue", "default"))
    return NewJob(task=task, id=id, payload=Raw(payload), **options)


def add_prepared(engine: Engine, new: NewJob, tenant: str = "default") -> bool | None:
    template = template_of(replace(new, id=None, payload=NOTHING))
    return engine.prepared.add(tenant, template, raw_id(str(new.id)), bytes(new.payload))


def shown(engine: Engine, new: NewJob, tenant: str) -> dict[str, Any]:
    """All of a job but what differs between any two."""
    job = asdict(run_sync(engine(Show(id=str(new.id), tenant=tenant, payload=True))))
    return {name: value for name, value in job.items() if name not in ("id", "created_at", "updated_at")}


@pytest.mark.parametrize("tenant", ["default", "acme"])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"queue": "other", "timeout": 5.0, "tags": ["a"], "keep_result": "once", "keep_success": None, "max_retry": 2},
        {"priority": -7, "headers": {"x": "é"}, "isolate": True, "content_type": "text/plain"},
    ],
)
def test_a_prepared_job_is_like_any_other(
    engine: Engine, store: SqliteStore, options: dict[str, Any], tenant: str
) -> None:
    for payload in (b"\x01", b"", b"\r\n\0" * 300, b"x" * 5000):
        usual, prepared = new_job("task", payload, **options), new_job("task", payload, **options)
        run_sync(engine(EnqueueMany(tenant=tenant, jobs=[usual])))
        assert add_prepared(engine, prepared, tenant) is True
        assert shown(engine, usual, tenant) == shown(engine, prepared, tenant)
        assert add_prepared(engine, prepared, tenant) is False, "sent again, it changes nothing"
    assert run_sync(scrub.scrub(store)) == []


@pytest.mark.parametrize("options", [{"delay": 5.0}, {"expires": 5.0}, {"owner_timeout": 5.0}, {"files": {"a": b"b"}}])
def test_a_job_with_more_to_it_is_not_prepared(engine: Engine, options: dict[str, Any]) -> None:
    assert add_prepared(engine, new_job(**options)) is None


def test_no_job_is_prepared_while_rules_are_in_force(engine: Engine, path: Path) -> None:
    assert add_prepared(engine, new_job(queue="bounded"))
    other = SqliteStore.open(path, SystemClock(), blocking=True)
    limit = NewLimit(match=Which(queue="bounded"), running=1)
    run_sync(Engine(other, CHANCE)(PutLimit(name="few", limit=limit)))
    for _ in range(3):
        new = new_job(queue="bounded")
        assert add_prepared(engine, new) is None, "the file has rules that this engine has not read"
        run_sync(engine(EnqueueMany(jobs=[new])))
    worker = run_sync(engine(Register(worker=NewWorker(name="w", queues=["bounded"])))).worker
    assert len(asyncio.run(engine(Claim(worker=worker, slots=10)))) == 1
    run_sync(other.close())
