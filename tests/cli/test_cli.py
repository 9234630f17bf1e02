"""The command line over a file and over Redis: what it prints, what it refuses, how it ends."""

import asyncio
import io
import json
import os
import pty
import re
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from operator import itemgetter
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pytest
from msgspec import Raw
from rich.console import Console

from tests.support.clusters import joined
from tests.support.patience import PATIENCE
from tests.support.servers import NewPrefix, Server, StartServer
from windlass import __version__, cli
from windlass.addresses import open_engine
from windlass.cli import console, doctor, job_view, terminal, values
from windlass.cli.match_options import MatchOptions
from windlass.engine import Engine
from windlass.model import wire
from windlass.model.errors import Invalid
from windlass.model.job import JSON, Error, Job
from windlass.model.match import Match
from windlass.model.new_job import NewJob
from windlass.model.operations import (
    Alive,
    Began,
    Begin,
    Claim,
    Claimed,
    Enqueue,
    EnqueueMany,
    Finish,
    Finished,
    Register,
    Renew,
    Unregister,
)
from windlass.model.outcome import Verdict
from windlass.model.output import NewChunk, Progress
from windlass.model.worker import NewWorker
from windlass.system import SystemClock

PROGRAM = [sys.executable, "-c", "import sys; from windlass.cli import main; sys.exit(main())"]
UNKNOWN_ID = "01936f2e-0000-7000-8000-0000000000df"
NO_PORT = 1
"""A port without a listener."""


class Ran(NamedTuple):
    """How a command ended, and what it said."""

    status: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


Windlass = Callable[..., Ran]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder, and an environment that says nothing."""
    for name in list(os.environ):
        if name.startswith("WINDLASS_"):
            monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def windlass(capfd: pytest.CaptureFixture[str]) -> Windlass:
    """Run a command in this process."""

    def run(*argv: str) -> Ran:
        capfd.readouterr()
        status = cli.run(argv)
        return Ran(status, *capfd.readouterr())

    return run


class Place(NamedTuple):
    """Where the commands of a test look, and a way to do there what a worker does."""

    store: str
    tenant: str

    def do(self, act: Callable[[Engine], Awaitable[Any]]) -> Any:
        async def main() -> Any:
            async with open_engine(self.store) as engine:
                return await act(engine)

        return asyncio.run(main())

    async def register(self, engine: Engine, *queues: str) -> str:
        new = NewWorker(name="tester", node="box", queues=list(queues) or ["default"], slots=4)
        return (await engine(Register(tenant=self.tenant, worker=new))).worker

    def work(self, finish: Callable[[Claimed], Finished], *queues: str) -> None:
        """Claim everything there is, and report of each."""

        async def act(engine: Engine) -> None:
            worker = await self.register(engine, *queues)
            claimed = await engine(Claim(tenant=self.tenant, worker=worker, slots=100))
            await engine(Finish(tenant=self.tenant, worker=worker, jobs=[finish(one) for one in claimed]))

        self.do(act)


@pytest.fixture(params=["file", "redis"])
def place(
    request: pytest.FixtureRequest, folder: Path, new_prefix: NewPrefix, monkeypatch: pytest.MonkeyPatch
) -> Place:
    """A file and a Redis server in turn, named by the environment."""
    tenant = f"{new_prefix()}-{os.getpid()}"
    store = str(folder / "jobs.db")
    if request.param == "redis":
        server: Server = request.getfixturevalue("redis_server")
        store = server.url
    monkeypatch.setenv("WINDLASS_STORE", store)
    monkeypatch.setenv("WINDLASS_TENANT", tenant)
    return Place(store, tenant)


@pytest.fixture
def file(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    """The default store file."""
    return Place("windlass.db", "default")


def ok(one: Claimed, result: Any = None) -> Finished:
    return Finished(id=one.job.id, token=one.token, outcome=Verdict.OK, result=Raw(wire.encode(result)))


def broken(one: Claimed) -> Finished:
    error = Error(type="OSError", message="no space left", traceback="Traceback (most recent call last):\n  …\n")
    return Finished(id=one.job.id, token=one.token, outcome=Verdict.ERROR, error=error)


def until(true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not true():
        assert time.monotonic() < deadline, "this should long have come true"
        time.sleep(0.01)


# --- Enqueue ------------------------------------------------------------------------------------------------------


def test_enqueue_prints_the_id_of_a_job_that_is_there_afterwards(windlass: Windlass, place: Place) -> None:
    queued = windlass("enqueue", "render", '{"scene": 7}')
    assert queued.status == 0
    shown = windlass("jobs", "show", queued.out.strip(), "--json").json
    assert (shown["task"], shown["state"], shown["payload"]) == ("render", "queued", {"scene": 7})
    assert shown["content_type"] == "application/vnd.msgpack"


def test_every_option_of_enqueue_reaches_the_job(windlass: Windlass, place: Place) -> None:
    options = "-q slow --priority -5 --delay 10m --key k1 --tag a --tag b --timeout 2m --max-retry 3 --isolate"
    options += " --owner-timeout 1h --keep-result-for 90s"
    job = windlass("enqueue", "mail", *options.split(), "--json").json
    assert job["state"] == "scheduled"
    wanted = {"queue": "slow", "priority": -5, "key": "k1", "tags": ["a", "b"], "timeout": 120.0, "max_retry": 3}
    wanted |= {"owner_timeout": 3600.0, "keep_result_for": 90.0}
    assert {name: job[name] for name in wanted} == wanted
    assert job["isolate"] is True
    created, due = (datetime.fromisoformat(job[name]) for name in ("created_at", "run_at"))
    assert due - created == timedelta(minutes=10)


def test_the_same_key_again_is_the_same_job(windlass: Windlass, place: Place) -> None:
    assert windlass("enqueue", "mail", "--key", "k").out == windlass("enqueue", "mail", "--key", "k").out
    assert windlass("jobs", "count").out == "1\n"


@pytest.mark.parametrize(
    ("typed", "meant"),
    [("hello", "hello"), ('"7"', "7"), ("7", 7), ("-7", -7), ("[1, null]", [1, None]), ("{bad", "{bad"), ("", "")],
)
def test_a_payload_is_json_if_it_reads_as_json_and_text_otherwise(
    windlass: Windlass, file: Place, typed: str, meant: object
) -> None:
    id = windlass("enqueue", "t", typed).out.strip()
    assert windlass("jobs", "show", id, "--json").json["payload"] == meant


@pytest.mark.parametrize(
    ("sent", "meant"), [(b'{"a": 1}\n', {"a": 1}), (b"two\nlines\n", "two\nlines"), (b"\xff\x00", "/wA=")]
)
def test_a_dash_takes_the_payload_from_stdin(
    windlass: Windlass, file: Place, monkeypatch: pytest.MonkeyPatch, sent: bytes, meant: object
) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(sent)))
    id = windlass("enqueue", "t", "-").out.strip()
    assert windlass("jobs", "show", id, "--json").json["payload"] == meant


@contextmanager
def worker_at_work(place: Place, finish: Callable[[Claimed], Finished]) -> Iterator[None]:
    """A worker that waits for one job, reports progress and finishes it."""

    async def act(engine: Engine) -> None:
        worker = await place.register(engine)
        (one,) = await engine(Claim(tenant=place.tenant, worker=worker, wait=PATIENCE))
        await engine(Begin(tenant=place.tenant, worker=worker, jobs=[Began(id=one.job.id, token=one.token, pid=1)]))
        said = Progress(done=1, total=4, note="frame 1")
        output = [NewChunk(stream="stdout", data=b"one\ntwo\n"), NewChunk(stream="stderr", data=b"oh\x1b[2J\n")]
        alive = Alive(id=one.job.id, token=one.token, progress=said, output=output)
        await engine(Renew(tenant=place.tenant, worker=worker, jobs=[alive]))
        await asyncio.sleep(2 * job_view.LOOK_EVERY)  # a client looks meanwhile
        await engine(Finish(tenant=place.tenant, worker=worker, jobs=[finish(one)]))

    thread = threading.Thread(target=place.do, args=(act,))
    thread.start()
    try:
        yield
    finally:
        thread.join(PATIENCE)


def test_enqueue_waits_for_the_result_and_prints_it(windlass: Windlass, place: Place) -> None:
    with worker_at_work(place, lambda one: ok(one, {"sum": 5})):
        ended = windlass("enqueue", "add", "[2, 3]", "--wait")
    assert ended == Ran(0, '{\n  "sum": 5\n}\n', "")


def test_a_failed_job_prints_its_error_and_exits_1(windlass: Windlass, place: Place) -> None:
    with worker_at_work(place, broken):
        ended = windlass("enqueue", "add", "--wait")
    assert (ended.status, ended.out) == (1, "")
    assert "Traceback (most recent call last):" in ended.err
    assert re.search(r"^windlass: job \S+ failed with code 500: OSError: no space left$", ended.err, re.MULTILINE)


def test_an_error_without_a_traceback_is_printed_once(windlass: Windlass, file: Place) -> None:
    id = windlass("enqueue", "t").out.strip()
    error = Error(type="windlass.Fail", message="no such customer", traceback="windlass.Fail: no such customer\n")
    file.work(lambda one: Finished(id=one.job.id, token=one.token, outcome=Verdict.FAILED, error=error, code=400))
    failed = windlass("jobs", "result", id)
    assert failed.err == f"windlass: job {id} failed with code 400: windlass.Fail: no such customer\n"


def test_for_programs_a_failed_job_is_a_document(windlass: Windlass, place: Place) -> None:
    with worker_at_work(place, broken):
        ended = windlass("enqueue", "add", "--wait", "--json")
    assert (ended.status, ended.err) == (1, "")
    assert (ended.json["state"], ended.json["code"], ended.json["error"]["type"]) == ("failed", 500, "OSError")


def test_a_wait_that_is_too_short_exits_75_and_leaves_the_job(windlass: Windlass, place: Place) -> None:
    ended = windlass("enqueue", "add", "--wait", "0.05")
    assert (ended.status, ended.out) == (75, "")
    assert "is still queued after" in ended.err
    assert windlass("jobs", "count", "--state", "queued").out == "1\n"


def test_a_payload_behind_wait_is_not_taken_for_a_time(windlass: Windlass, file: Place) -> None:
    ended = windlass("enqueue", "add", "--wait", "[2, 3]")
    assert ended.status == 2
    assert ended.err.startswith("windlass: --wait: '[2, 3]' is not a duration")
    assert windlass("jobs", "count").status == 3, "nothing was queued"


# --- Looking at jobs ----------------------------------------------------------------------------------------------


def many(place: Place, count: int) -> None:
    jobs = [NewJob(task="work", payload=Raw(wire.encode({"n": n}))) for n in range(count)]

    async def act(engine: Engine) -> None:
        for start in range(0, count, 1000):
            await engine(EnqueueMany(tenant=place.tenant, jobs=jobs[start : start + 1000]))

    place.do(act)


def test_a_table_shows_some_jobs_and_the_number_of_others(windlass: Windlass, place: Place) -> None:
    many(place, 60)
    listed = windlass("jobs", "ls")
    assert len(listed.out.splitlines()) == 1 + 50
    assert listed.err == "10 more jobs; --limit shows more, --json shows all\n"
    assert len(windlass("jobs", "ls", "--limit", "3").out.splitlines()) == 1 + 3
    assert windlass("jobs", "ls", "--limit", "100").err == ""


def test_the_newest_job_is_listed_first_unless_the_oldest_is_asked_for(windlass: Windlass, place: Place) -> None:
    ids = [windlass("enqueue", "mail").out.strip() for _ in range(3)]

    def listed(*flags: str) -> list[str]:
        return [json.loads(line)["id"] for line in windlass("jobs", "ls", "--json", *flags).out.splitlines()]

    assert listed() == ids[::-1]
    assert listed("--limit", "2") == ids[:0:-1]
    assert listed("--oldest-first") == ids
    table = windlass("jobs", "ls").out
    assert table.index(ids[2]) < table.index(ids[1]) < table.index(ids[0])


def test_for_programs_a_listing_is_one_job_a_line_through_all_pages(windlass: Windlass, place: Place) -> None:
    many(place, 2100)
    listed = windlass("jobs", "ls", "--json")
    ids = {json.loads(line)["id"] for line in listed.out.splitlines()}
    assert len(ids) == 2100
    assert len(windlass("jobs", "ls", "--json", "--limit", "1001").out.splitlines()) == 1001


def test_what_does_not_match_is_not_listed(windlass: Windlass, place: Place) -> None:
    a = windlass("enqueue", "mail", '{"to": {"id": 7}}', "--tag", "x", "--tag", "y").out.strip()
    b = windlass("enqueue", "mail", '{"to": {"id": "7"}}', "-q", "slow", "--key", "k").out.strip()
    c = windlass("enqueue", "draw", "--delay", "1h", "--tag", "x").out.strip()
    for flags, meant in {
        "--task mail": {a, b},
        "-q slow": {b},
        "--state scheduled": {c},
        "--state queued --state scheduled": {a, b, c},
        "--state pending": {a, b, c},
        "--state finished": set(),
        "--tag x": {a, c},
        "--tag x --tag y": {a},
        "--key k": {b},
        "--payload to.id=7": {a},
        '--payload to.id="7"': {b},
        "--created-after 1h": {a, b, c},
        "--created-before 1h": set(),
        "--created-before 2000-01-01": set(),
        "--text nothing": set(),
        "--reason error": set(),
        f"--worker {UNKNOWN_ID}": set(),
    }.items():
        listed = windlass("jobs", "ls", "--json", *flags.split())
        assert {json.loads(line)["id"] for line in listed.out.splitlines()} == meant, flags
        assert windlass("jobs", "count", *flags.split()).out == f"{len(meant)}\n", flags


def test_each_flag_is_a_field_of_a_match() -> None:
    assert set(MatchOptions.__dataclass_fields__) == set(Match.__struct_fields__)


def test_a_time_without_a_zone_is_by_the_clock_on_the_wall() -> None:
    wall = datetime(2026, 1, 31, 12)  # noqa: DTZ001 - that is the point
    now = datetime.now(UTC)
    assert MatchOptions(created_after="2026-01-31 12:00").match(now).created_after == wall.astimezone()
    zoned = MatchOptions(created_after="2026-01-31T12:00:00Z").match(now)
    assert zoned.created_after == datetime(2026, 1, 31, 12, tzinfo=UTC)


@pytest.mark.parametrize("flags", [{"created_after": "soon"}, {"payload": ["a"]}, {"payload": ["a=[1]"]}])
def test_flags_that_make_no_sense_are_refused(flags: dict[str, Any]) -> None:
    with pytest.raises(Invalid):
        MatchOptions(**flags).match(datetime.now(UTC))


def test_a_card_shows_what_is_out_of_the_ordinary(windlass: Windlass, place: Place) -> None:
    id = windlass("enqueue", "render", '{"scene": 7}', "--max-retry", "1", "--tag", "night").out.strip()
    place.work(broken)
    card = windlass("jobs", "show", id)
    assert card.status == 0
    for line in (
        r"job +" + id,
        r"task +render",
        r"state +scheduled +error, attempt 1",
        r"tags +night",
        r"max retry +1",
    ):
        assert re.search(f"^{line}", card.out, re.MULTILINE), line
    assert re.search(r"^created +(just now|\S+ m?s ago)  20\d\d-\d\d-\d\d \d\d:\d\d:\d\d", card.out, re.MULTILINE)
    assert re.search(r"^due +in ", card.out, re.MULTILINE)
    assert '"scene": 7' in card.out
    assert "Traceback (most recent call last):" in card.out
    assert "priority" not in card.out, "what is as usual is not worth a line"


def test_a_card_names_the_jobs_before_and_after_a_job(windlass: Windlass, place: Place) -> None:
    async def chained(engine: Engine) -> tuple[Job, Job]:
        new = NewJob(task="first", then=NewJob(task="next"))
        first = await engine(Enqueue(tenant=place.tenant, job=new))
        return first, await engine(Enqueue(tenant=place.tenant, job=NewJob(task="last", after=[first.id])))

    first, last = place.do(chained)
    assert re.search(f"^follow-up +{first.follow_up} *$", windlass("jobs", "show", first.id).out, re.MULTILINE)
    assert re.search(f"^after +{first.id} *$", windlass("jobs", "show", last.id).out, re.MULTILINE)
    assert windlass("jobs", "show", first.id, "--json").json["follow_up"] == first.follow_up


def test_the_result_of_a_job_is_printed_as_json(windlass: Windlass, place: Place) -> None:
    id = windlass("enqueue", "t").out.strip()
    pending = windlass("jobs", "result", id)
    assert (pending.status, pending.err) == (75, f"windlass: job {id} is queued; --wait waits for its end\n")
    place.work(lambda one: ok(one, {"name": "Ada", "raw": b"\x00\xff", 3: [1]}))
    found = windlass("jobs", "result", id)
    assert (found.status, found.json) == (0, {"name": "Ada", "raw": "AP8=", "3": [1]})
    assert found.err == "windlass: bytes are shown in base64\n"
    document = windlass("jobs", "result", id, "--json")
    assert document.err == ""
    assert document.json == {"id": id, "state": "succeeded", "result": found.json, "code": 200, "error": None}


def test_whatever_a_result_is_encoded_in_it_is_shown() -> None:
    assert values.readable(b'{"a": 1}', JSON) == {"a": 1}
    assert values.readable("grüß".encode(), "text/plain") == "grüß"
    assert values.readable(b"\xff", "application/octet-stream") == b"\xff"
    assert values.readable(b"\xc1", "application/vnd.msgpack") == b"\xc1", "broken: shown as the bytes that are there"


def test_tail_follows_a_job_to_its_end(windlass: Windlass, place: Place) -> None:
    id = windlass("enqueue", "t").out.strip()
    with worker_at_work(place, ok):
        followed = windlass("jobs", "tail", id)
    assert followed.status == 0
    assert re.search(r"running  attempt 1, 25%, 1 of 4 frame 1$", followed.out, re.MULTILINE)
    assert re.search(r"^\d\d:\d\d:\d\d  succeeded  took ", followed.out.splitlines()[-1])
    assert "  stdout one\n  stdout two\n" in followed.out
    assert "  stderr oh�[2J\n" in followed.out, "output cannot command the terminal"
    again = [json.loads(line) for line in windlass("jobs", "tail", id, "--json").out.splitlines()]
    said = [(line["stream"], line["output"]) for line in again[:2]]
    assert said == [("stdout", "one\ntwo\n"), ("stderr", "oh\x1b[2J\n")]
    assert [line["state"] for line in again[2:]] == ["succeeded"]


# --- Changing jobs ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("action", ["cancel", "retry", "rm"])
def test_nothing_happens_to_all_jobs_by_accident(windlass: Windlass, file: Place, action: str) -> None:
    windlass("enqueue", "t")
    refused = windlass("jobs", action)
    assert refused == Ran(2, "", "windlass: select jobs: give ids, options such as --state failed, or --all\n")
    assert windlass("jobs", action, "--all", "--task", "t").status == 2
    assert windlass("jobs", action, UNKNOWN_ID, "--task", "t").status == 2
    assert windlass("jobs", "count", "--state", "queued").out == "1\n"


def test_jobs_are_cancelled_run_again_and_deleted(windlass: Windlass, place: Place) -> None:
    ids = [windlass("enqueue", "t").out.strip() for _ in range(3)]
    assert windlass("jobs", "cancel", *ids[:2], "--dry-run").out == "would cancel 2 jobs\n"
    assert windlass("jobs", "count", "--state", "queued").out == "3\n"
    assert windlass("jobs", "cancel", *ids[:2]).out == "cancelled 2 jobs\n"
    assert windlass("jobs", "count", "--state", "cancelled").out == "2\n"
    assert windlass("jobs", "retry", "--state", "cancelled", "--json").json == {"changed": 2}
    refused = windlass("jobs", "rm", "--finished-only", ids[0])
    assert (refused.status, "only finished jobs are to be deleted" in refused.err) == (4, True)
    assert windlass("jobs", "rm", "--all", "--finished-only").out == "deleted 0 jobs\n"
    assert windlass("jobs", "rm", ids[0]).out == "deleted 1 job\n"
    assert windlass("jobs", "rm", "--all", "--dry-run").out == "would delete 2 jobs\n"
    assert windlass("jobs", "rm", "--all").out == "deleted 2 jobs\n"
    assert windlass("jobs", "count").out == "0\n"


def test_what_cannot_be_done_to_a_job_is_a_conflict(windlass: Windlass, place: Place) -> None:
    id = windlass("enqueue", "t").out.strip()
    refused = windlass("jobs", "retry", id)
    assert refused == Ran(4, "", f"windlass: id: job {id} is queued: there is nothing to queue again\n")


# --- Queues, workers, top -----------------------------------------------------------------------------------------


def test_queues_and_workers_are_listed(windlass: Windlass, place: Place) -> None:
    windlass("enqueue", "a", "-q", "slow")
    windlass("enqueue", "b", "-q", "slow", "--delay", "1h")
    assert windlass("workers", "ls") == Ran(0, "", "no workers; `windlass worker` starts one\n")
    place.do(lambda engine: place.register(engine, "slow", "quick"))
    (line,) = windlass("queues", "ls", "--json").json
    assert line == {
        "tenant": place.tenant,
        "queue": "slow",
        "states": {"scheduled": 1, "queued": 1},
        "outcomes": {},
        "workers": 1,
    }
    header, row = windlass("queues", "ls").out.splitlines()
    assert header.split() == ["queue", "scheduled", "queued", "running", "succeeded", "failed", "workers"]
    assert row.split() == ["slow", "1", "1", "·", "·", "·", "1"]
    shown = windlass("queues", "show", "slow")
    assert [line.split()[0] for line in shown.out.splitlines() if line] == [
        "queue",
        "a",
        "task",
        "a",
        "b",
        "worker",
        "tester",
    ]
    assert windlass("queues", "show", "nowhere").status == 3
    (worker,) = windlass("workers", "ls", "--json").json
    assert (worker["name"], worker["queues"], worker["slots"]) == ("tester", ["slow", "quick"], 4)
    assert re.search(r"^tester  box .* slow,quick +0 of 4  ", windlass("workers", "ls").out, re.MULTILINE)


def test_a_queue_with_free_slots_starts_a_new_job_at_once(windlass: Windlass, file: Place) -> None:
    windlass("enqueue", "t")
    file.work(lambda one: Finished(id=one.job.id, token=one.token, outcome=Verdict.OK))
    assert "a new job starts at once\n" in windlass("queues", "show", "default").out


def test_a_job_that_was_asked_to_stop_is_not_asked_again(windlass: Windlass, file: Place) -> None:
    id = windlass("enqueue", "t").out.strip()

    async def claim(engine: Engine) -> None:
        await engine(Claim(tenant=file.tenant, worker=await file.register(engine), slots=1))

    file.do(claim)
    assert windlass("jobs", "cancel", id).out == "1 running job will be cancelled once it has stopped\n"
    assert "attempt 1, stopping (cancelled)" in windlass("jobs", "ls").out
    again = windlass("jobs", "cancel", id)
    assert (again.status, again.err) == (4, f"windlass: id: job {id} is running: it was asked to stop already\n")


def test_top_prints_a_frame_with_counts_and_failures(windlass: Windlass, place: Place) -> None:
    id = windlass("enqueue", "t").out.strip()
    place.work(broken)
    windlass("enqueue", "t")
    frame = windlass("top", "--once").out
    assert re.search(r"^default +1 +· +· +1 ", frame, re.MULTILINE)
    assert re.search(rf"^{id}  t +(just now|.* ago) +OSError: no space left$", frame, re.MULTILINE)
    assert "1 worker, 0 of 4 slots in use" in frame
    document = windlass("top", "--once", "--json").json
    assert [job["id"] for job in document["failures"]] == [id]


def test_top_in_a_pipe_prints_frames_with_speeds(file: Place, windlass: Windlass) -> None:
    windlass("enqueue", "t")
    with subprocess.Popen([*PROGRAM, "top", "--every", "0.2s"], stdout=subprocess.PIPE, text=True) as top:
        assert top.stdout is not None
        rows = (line.split() for line in top.stdout if line.startswith("default"))
        assert next(rows)[:5] == ["default", "1", "·", "·", "·"], "the first frame has nothing to compare with"
        windlass("enqueue", "t")
        assert any(float(row[1]) > 0 for row in rows), "what came in has a speed"
        top.terminate()


def test_q_ends_top_and_leaves_the_terminal_as_it_was(file: Place, windlass: Windlass) -> None:
    windlass("enqueue", "t")
    ours, theirs = pty.openpty()
    with subprocess.Popen([*PROGRAM, "top"], stdin=theirs, stdout=theirs, stderr=theirs) as top:
        os.close(theirs)
        said = b""
        while b"default" not in said:
            said += os.read(ours, 65536)
        os.write(ours, b"q")
        assert top.wait(PATIENCE) == 0
    os.set_blocking(ours, False)
    assert b"\x1b[?1049l" in said + os.read(ours, 65536), "the screen that was there is back"
    os.close(ours)


# --- Doctor, bench ------------------------------------------------------------------------------------------------


def findings(ran: Ran) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for finding in ran.json["findings"]:
        found.setdefault(finding["what"], []).append(f"{finding['level']} {finding['found']}")
    return found


def test_a_healthy_file_gets_a_clean_bill(windlass: Windlass, file: Place) -> None:
    windlass("enqueue", "t")
    place_worker(file)
    seen = windlass("doctor")
    assert seen.status == 0
    assert {line.split()[0] for line in seen.out.splitlines()} == {"ok"}
    found = findings(windlass("doctor", "--json"))
    assert re.match(r"ok SQLite 3\.\d+\.\d+ at /.*/windlass\.db", found["store"][0])
    assert found["durability"] == ["ok journal_mode wal, synchronous FULL"]
    assert found["workers"] == ["ok 1 worker, 0 of 4 slots in use"]


def place_worker(place: Place, *queues: str) -> None:
    place.do(lambda engine: place.register(engine, *queues))


def test_workers_that_came_and_went_are_listed(windlass: Windlass, place: Place) -> None:
    async def come_and_go(engine: Engine) -> str:
        worker = await place.register(engine)
        await engine(Unregister(tenant=place.tenant, worker=worker))
        return worker

    worker = place.do(come_and_go)
    lines = [line for line in windlass("workers", "changes").out.splitlines() if worker in line]
    assert [re.findall(r"stopped|joined|tester|box|" + worker, line) for line in lines] == [
        ["stopped", "tester", "box", worker],
        ["joined", "tester", "box", worker],
    ]
    assert len(windlass("workers", "changes", "1", "--json").json) == 1


def test_paused_tasks_are_listed(windlass: Windlass, place: Place) -> None:
    windlass("tasks", "pause", "charge", "--why", "the bank is down")
    assert re.search(r"^charge +paused: the bank is down", windlass("tasks", "ls").out, re.MULTILINE)
    assert [one["task"] for one in windlass("tasks", "ls", "--json").json if one.get("paused")] == ["charge"]


def test_the_doctor_says_how_full_the_store_is(windlass: Windlass, place: Place) -> None:
    windlass("enqueue", "t")
    found = {one["what"]: one for one in windlass("doctor", "--json").json["findings"]}
    assert re.match(r"[\d.]+ \w+ used", found["space"]["found"])


def test_the_doctor_warns_of_a_store_that_is_nearly_full(
    windlass: Windlass, file: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    windlass("enqueue", "t")
    monkeypatch.setattr("windlass.cli.doctor.NEARLY_FULL", float("inf"))
    (space,) = (one for one in windlass("doctor", "--json").json["findings"] if one["what"] == "space")
    assert (space["level"], space["advice"]) == ("warn", "make room before it is full")


def test_the_doctor_names_queues_without_workers(windlass: Windlass, file: Place) -> None:
    windlass("enqueue", "t", "-q", "slow")
    found = findings(windlass("doctor", "--json"))
    assert found["workers"] == ["warn none"]
    assert found["queue"] == ["warn 1 job of task t in slow, and no worker"]
    place_worker(file, "slow")
    assert "queue" not in findings(windlass("doctor", "--json"))


def test_the_doctor_tells_of_a_clock_that_was_set_back(
    windlass: Windlass, file: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(SystemClock, "now", lambda _: datetime.now(UTC) + timedelta(hours=1))
        windlass("enqueue", "t")
    windlass("enqueue", "t")
    (found,) = findings(windlass("doctor", "--json"))["clock"]
    assert re.fullmatch(r"warn (1 h|59 min \d+ s) ahead of its host, whose clock was set back", found)
    with monkeypatch.context() as patch:
        patch.setattr(SystemClock, "now", lambda _: datetime.now(UTC) + timedelta(hours=2))
        (found,) = findings(windlass("doctor", "--json"))["clock"]
    assert re.fullmatch(r"ok .* this host", found)


def test_an_age_is_by_the_stores_time_even_if_that_is_ahead_of_its_host(
    windlass: Windlass, file: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(SystemClock, "now", lambda _: datetime.now(UTC) + timedelta(hours=1))
        id = windlass("enqueue", "t").out.strip()
    with monkeypatch.context() as patch:
        patch.setattr(SystemClock, "now", lambda _: datetime.now(UTC) + timedelta(hours=2))
        windlass("enqueue", "other")
    ages = [line.split()[3:5] for line in windlass("jobs", "ls").out.splitlines()[1:]]
    assert ages[0] != ["0", "ms"], ages
    assert ages[1] == ["1", "h"], ages
    assert " 1 h" in windlass("jobs", "show", id).out


def test_ages_in_a_match_and_times_of_a_limit_are_by_the_stores_time_whatever_the_callers_clock_shows(
    windlass: Windlass, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    on_server = place.store.startswith("redis")
    windlass("enqueue", "t")
    if not on_server:  # the time of a file is that of its host, until that is set back
        monkeypatch.setattr(SystemClock, "now", lambda _: datetime.now(UTC) + timedelta(hours=1))
    windlass("enqueue", "t")
    windlass("limits", "set", "slow", "--rate", "2/40m", "--burst", "1")
    place.work(ok)
    monkeypatch.setattr(SystemClock, "now", lambda _: datetime.now(UTC) + timedelta(hours=on_server))
    assert re.search(r"in (20|19) min", windlass("limits", "show", "slow").out)
    old = 0 if on_server else 1
    for flags, meant in (("--created-after 30m", 2 - old), ("--created-before 30m", old)):
        assert windlass("jobs", "count", *flags.split()).out == f"{meant}\n", flags
        assert len(windlass("jobs", "ls", "--json", *flags.split()).out.splitlines()) == meant, flags
        assert f"would delete {meant} job" in windlass("jobs", "rm", "--dry-run", *flags.split()).out, flags


def test_pauses_and_tables_are_by_the_stores_time_even_if_that_is_ahead_of_its_host(
    windlass: Windlass, file: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(SystemClock, "now", lambda _: datetime.now(UTC) + timedelta(hours=1))
        place_worker(file, "slow")
        windlass("schedules", "set", "s", "t", "--every", "10m")
    assert "in 59 min" not in windlass("workers", "ls").out
    assert re.search(r"in [0-9.]+ (min|s)", windlass("schedules", "ls").out)
    assert "paused" in windlass("queues", "pause", "slow", "--for", "10m").err
    assert "paused" in windlass("schedules", "pause", "s", "--for", "10m").err


def test_the_doctor_tells_of_a_servers_clock_that_was_set_back(windlass: Windlass, start_server: StartServer) -> None:
    server = start_server("redis")
    later = int((datetime.now(UTC) + timedelta(hours=1)).timestamp() * 1_000_000)
    quoted = "".join(f"\\x{byte:02x}" for byte in struct.pack(">QQ", later, later))
    server.ask("SET", "wl{0}:clock", f'"{quoted}"')
    windlass("enqueue", "t", "--store", server.url)
    (found,) = findings(windlass("doctor", "--json", "--store", server.url))["clock"]
    assert re.fullmatch(r"warn (1 h|59 min \d+ s) ahead of its host, whose clock was set back", found)


def test_late_jobs_show_that_no_process_does_upkeep(
    windlass: Windlass, file: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    windlass("enqueue", "t", "--delay", "1h")
    windlass("enqueue", "t", "--delay", "20ms")
    assert windlass("doctor").status == 0, "five seconds are granted"
    monkeypatch.setattr(doctor, "LATE", 0.01)
    until(lambda: windlass("doctor").status == 1)
    assert re.search(r"^FAIL  upkeep +1 scheduled job late, by up to \d+", windlass("doctor").out, re.MULTILINE)


def test_the_doctor_warns_of_a_server_that_may_lose_jobs(windlass: Windlass, start_server: StartServer) -> None:
    server = start_server("redis", fsync="everysec")
    warned = windlass("doctor", "--json", "--store", server.url)
    assert findings(warned)["durability"] == ["warn appendonly yes, appendfsync everysec"]
    server.ask("CONFIG", "SET", "appendfsync", "always")
    calm = windlass("doctor", "--json", "--store", server.url)
    assert findings(calm)["durability"] == ["ok appendonly yes, appendfsync always"]
    assert findings(calm)["store"][0].startswith("ok Redis ")


def test_the_doctor_warns_in_words_of_a_server_without_an_append_only_file(
    windlass: Windlass, start_server: StartServer
) -> None:
    server = start_server("redis")
    server.ask("CONFIG", "SET", "appendonly", "no")
    warned = windlass("doctor", "--store", server.url)
    lines = warned.out.splitlines()
    place = lines.index("warn  durability   appendonly no, appendfsync no")
    advice = "jobs accepted since the last snapshot are lost when the server stops: set appendonly to yes"
    assert lines[place + 1] == f"{'':19}{advice}"
    assert (warned.status, warned.err) == (0, ""), "a risk that its owner may have chosen; nothing is broken"


def test_the_doctor_knows_each_kind_of_server(windlass: Windlass, server: Server) -> None:
    name = {"redis": "Redis", "valkey": "Valkey", "cluster": "Redis Cluster"}[server.kind]
    found = findings(windlass("doctor", "--json", "--store", server.url))
    assert re.fullmatch(rf"ok {name} \d+\.\d+\.\d+ at {re.escape(server.url)}", found["store"][0])
    assert found["clock"][0].startswith("ok ")


def test_the_doctor_warns_of_a_cluster_that_stops_as_a_whole(windlass: Windlass, start_server: StartServer) -> None:
    def found() -> list[str]:
        return findings(windlass("doctor", "--json", "--store", members[0].url)).get("cluster", [])

    members = joined(start_server, 2)
    assert found() == ["warn stops as a whole when a part fails"], "two have no majority without each other"
    members = [start_server("cluster")]
    assert found() == []
    members[0].ask("CONFIG", "SET", "cluster-require-full-coverage", "yes")
    assert found() == ["warn stops as a whole when a part fails"]


def test_a_store_that_does_not_answer_fails_the_examination(windlass: Windlass, start_server: StartServer) -> None:
    server = start_server("redis")
    server.stop()
    seen = windlass("doctor", "--store", server.url)
    assert seen.status == 1
    assert seen.out.startswith("FAIL  store ")
    assert windlass("jobs", "ls", "--store", server.url).status == 75


def test_bench_measures_three_steps_and_leaves_nothing_behind(windlass: Windlass, place: Place) -> None:
    windlass("enqueue", "t")
    speeds = windlass("bench", "--jobs", "300", "--seconds", "600", "--json").json
    assert [speed["jobs"] for speed in speeds] == [300, 300, 300]
    assert all(speed["per_second"] > 0 for speed in speeds)
    assert len(windlass("bench", "--jobs", "10").out.splitlines()) == 1 + 3
    assert windlass("jobs", "count").out == "1\n"
    assert windlass("workers", "ls", "--json").json == []


def test_an_interrupted_bench_cleans_up_all_the_same(windlass: Windlass, file: Place) -> None:
    windlass("enqueue", "t")
    command = [*PROGRAM, "bench", "--jobs", "1000000", "--seconds", "60"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as bench:
        until(lambda: int(windlass("jobs", "count").out) > 10)
        bench.send_signal(signal.SIGINT)
        assert bench.communicate(timeout=PATIENCE) == (b"", b"")
        assert bench.returncode == 130
    assert windlass("jobs", "count").out == "1\n"
    assert windlass("workers", "ls", "--json").json == []


# --- How it ends --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("argv", "status", "said"),
    [
        ("jobs show x", 2, "windlass: id: 'x' is not a UUID in lower case"),
        (f"jobs show {UNKNOWN_ID}", 3, f"windlass: id: there is no job {UNKNOWN_ID}"),
        ("enqueue", 2, "windlass: TASK is missing (see windlass enqueue --help)"),
        ("enqueue t --delay", 2, "windlass: --delay needs a value (see windlass enqueue --help)"),
        ("limits set few", 2, "LIMIT: a limit says how many may run at once (--running N) or start per time"),
        (
            "queues set q --tier a:3s:x",
            2,
            "--tier: the cap of 'a:3s:x' is not a number of jobs or a share of the slots",
        ),
        ("enqueue t --nope", 2, "windlass: Unknown option: --nope"),
        ("enqueue t --delay soon", 2, "windlass: --delay: 'soon' is not a duration"),
        ("enqueue two%20words", 2, "windlass: job.task: not a name"),
        ("enqueue t --priority high", 2, "--priority"),
        ("jobs ls --state queud", 2, 'Did you mean "queued"?'),
        ("jobs ls --limit 0", 2, "--limit"),
        ("nope", 2, "windlass: there is no command 'nope' (see windlass --help)"),
        ("enqeue", 2, "did you mean enqueue?"),
        ("jobs lss", 2, "did you mean ls? (see windlass jobs --help)"),
        ("jobs ls more", 2, "windlass: unexpected argument 'more' (see windlass jobs ls --help)"),
        ("serve shop:app", 2, "windlass: unexpected argument 'shop:app'; did you mean --app shop:app?"),
        ("jobs ls --store ftp://x", 2, "windlass: store: 'ftp://x' is no store"),
        ("jobs ls --tenant two/words", 2, "windlass: tenant: "),
        ("top --every 1ms", 2, "windlass: --every: "),
        ("--store x.db jobs ls", 2, "windlass: options go after the command, and --store is before it"),
        (
            "jobs ls --server localhost:7717",
            2,
            "give http://, https:// or http+unix://; for a store use --store",
        ),
        ("jobs ls --store localhost:6379", 2, "windlass: store: is 'localhost:6379' a server? Write redis://HOST:PORT"),
        ("enqueue t --store redis:/localhost", 2, "windlass: store: is 'redis:/localhost' a server?"),
        ("worker shop:app -c 0", 2, "windlass: --slots: Expected `int` >= 1"),
        ("worker shop:app --max-memory lots", 2, "windlass: --max-memory: 'lots' is not a size"),
        (f"jobs ls --store redis://127.0.0.1:{NO_PORT}", 75, f"127.0.0.1:{NO_PORT}: Connection refused"),
    ],
)
def test_a_mistake_is_one_clear_line(windlass: Windlass, file: Place, argv: str, status: int, said: str) -> None:
    windlass("enqueue", "t")
    refused = windlass(*argv.split())
    assert (refused.status, refused.out) == (status, "")
    assert said in refused.err
    assert refused.err.count("\n") == 1


def test_for_programs_a_mistake_is_a_problem_document(windlass: Windlass, file: Place) -> None:
    windlass("enqueue", "t")
    refused = windlass("jobs", "show", UNKNOWN_ID, "--json")
    assert (refused.status, refused.out) == (3, "")
    problem = json.loads(refused.err)
    assert (problem["status"], problem["code"], problem["at"]) == (404, "missing", "id")
    assert json.loads(windlass("enqueue", "--json").err)["code"] == "invalid"


@pytest.mark.parametrize(
    "argv",
    [
        "jobs ls",
        "jobs count",
        f"jobs show {UNKNOWN_ID}",
        "jobs rm --all",
        "queues ls",
        "workers ls",
        "top",
        "doctor",
        "bench",
    ],
)
def test_a_file_that_is_not_there_is_named_and_not_made(windlass: Windlass, folder: Path, argv: str) -> None:
    refused = windlass(*argv.split())
    assert (refused.status, refused.out) == (3, "")
    assert refused.err.startswith("windlass: store: there is no file windlass.db")
    assert not list(folder.iterdir())


def test_the_file_names_the_store_and_a_flag_another(windlass: Windlass, folder: Path) -> None:
    (folder / "windlass.toml").write_text('store = "a.db"\ntenant = "me"')
    windlass("enqueue", "t")
    assert (folder / "a.db").exists()
    assert windlass("jobs", "ls", "--json").json["tenant"] == "me"
    windlass("enqueue", "t", "--store", "b.db", "--tenant", "you")
    assert (folder / "b.db").exists()
    assert windlass("jobs", "count", "--store", "sqlite://b.db", "--tenant", "-").out == "1\n"


def test_faults_in_the_settings_are_said_before_anything_is_done(windlass: Windlass, folder: Path) -> None:
    (folder / "windlass.toml").write_text('[engine]\nlease = "soon"')
    refused = windlass("enqueue", "t")
    assert refused.status == 2
    assert refused.err.startswith("windlass: windlass.toml: engine.lease: 'soon' is not a duration")
    assert not (folder / "windlass.db").exists()


def test_settings_of_the_engine_hold_for_commands(
    windlass: Windlass, file: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WINDLASS_ENGINE_MOST_PAYLOAD", "10")
    assert windlass("enqueue", "t", "x" * 20).err.startswith("windlass: job.payload: 21 bytes")
    assert windlass("enqueue", "t", "x").status == 0


def program(*argv: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*PROGRAM, *argv], capture_output=True, text=True, timeout=PATIENCE, check=False)


def test_the_program_itself_ends_with_the_status_of_its_command(folder: Path) -> None:
    queued = program("enqueue", "t")
    assert (queued.returncode, queued.stderr) == (0, "")
    assert program("jobs", "show", queued.stdout.strip()).returncode == 0
    assert program("jobs", "show", UNKNOWN_ID).returncode == 3
    assert program("--version").stdout == f"{__version__}\n"


def test_help_names_every_command_and_how_to_begin() -> None:
    helped = program("--help")
    assert helped.returncode == 0
    for name, (_, _, about) in cli.COMMANDS.items():
        assert re.search(rf"^│ {name} +{re.escape(about)} ", helped.stdout, re.MULTILINE), name
    assert "windlass enqueue render" in helped.stdout
    assert program().stdout == helped.stdout, "without a word it helps as well"


@pytest.mark.parametrize("name", sorted(set(cli.COMMANDS) - {"worker"}))
def test_each_command_explains_itself(windlass: Windlass, name: str) -> None:
    inner = [command for command in cli.build(name)[name] if not command.startswith("-")]
    for path in [[name, command] for command in inner] or [[name]]:
        helped = windlass(*path, "--help")
        assert helped.status == 0
        usage, _, summary, *_ = helped.out.splitlines()
        assert usage.startswith(f"Usage: windlass {' '.join(path)}")
        assert summary.strip()
        assert all(option in helped.out for option in ("--store", "--tenant", "--json")), path


@pytest.mark.parametrize("argv", [["--help"], ["--version"], ["nope"]])
def test_what_needs_no_store_imports_none(argv: list[str]) -> None:
    code = "import sys; from windlass.cli import run; run(sys.argv[1:]); print(*sys.modules, file=sys.stderr)"
    ran = subprocess.run(
        [sys.executable, "-c", code, *argv], capture_output=True, text=True, timeout=PATIENCE, check=True
    )
    loaded = set(ran.stderr.split())
    assert "windlass.cli" in loaded
    assert not loaded & {"apsw", "redis", "hiredis", "asyncio", "windlass.run_worker"}


def test_what_draws_nothing_imports_nothing_that_draws() -> None:
    code = "import sys; import windlass.cli.worker, windlass.cli.serve, windlass.cli.enqueue; print(*sys.modules)"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=PATIENCE, check=True)
    loaded = set(ran.stdout.split())
    assert "windlass.cli.enqueue" in loaded
    assert not loaded & {"rich", "windlass.cli.terminal"}


def test_an_interrupted_wait_ends_quietly_and_leaves_the_job(windlass: Windlass, file: Place) -> None:
    with subprocess.Popen([*PROGRAM, "enqueue", "t", "--wait"], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as wait:
        until(lambda: windlass("jobs", "count").out == "1\n")
        wait.send_signal(signal.SIGINT)
        assert wait.communicate(timeout=PATIENCE) == (b"", b"")
        assert wait.returncode == 130
    assert windlass("jobs", "count", "--state", "queued").out == "1\n"


@pytest.mark.parametrize(
    "command",
    [["--help"], ["jobs", "--help"], ["jobs", "ls"], ["jobs", "ls", "--json"], ["doctor"], ["doctor", "--deep"]],
)
def test_a_reader_that_goes_away_is_no_error(file: Place, command: list[str]) -> None:
    many(file, 10)
    with subprocess.Popen([*PROGRAM, *command], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as program:
        assert program.stdout is not None
        assert program.stderr is not None
        program.stdout.close()
        assert program.stderr.read() == b""
        assert program.wait(PATIENCE) == cli.OUTPUT_CLOSED


def test_on_a_terminal_a_live_line_shows_the_state_of_the_job(file: Place) -> None:
    ours, theirs = pty.openpty()
    command = [*PROGRAM, "enqueue", "t", "--wait"]
    with (
        worker_at_work(file, lambda one: ok(one, "done")),
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=theirs) as wait,
    ):
        os.close(theirs)
        out, _ = wait.communicate(timeout=PATIENCE)
    os.set_blocking(ours, False)
    said = os.read(ours, 65536).decode()
    os.close(ours)
    assert json.loads(out) == "done"
    assert re.search(r"^job [0-9a-f-]{36}", re.sub(r"\x1b\[[0-9;?]*\w", "", said))
    assert "25%, 1 of 4 frame 1" in said


# --- Words --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("seconds", "said"),
    [
        (0, "0 ms"),
        (0.35, "350 ms"),
        (3.21, "3.2 s"),
        (9.99, "10 s"),
        (59, "59 s"),
        (60, "1 min"),
        (250, "4 min 10 s"),
        (7500, "2 h 5 min"),
        (86400, "1 d"),
        (100_000, "1 d 3 h"),
    ],
)
def test_lengths_of_time(seconds: float, said: str) -> None:
    assert console.span(seconds) == said


def test_in_a_narrow_place_only_the_last_column_of_a_table_gives_way() -> None:
    columns = [terminal.Column("id", itemgetter(0)), terminal.Column("count", itemgetter(1), right=True)]
    columns.append(terminal.Column("", itemgetter(2)))
    row = ("x" * 20, "1", "a long remark that is cut off at the end of the line")
    paper = Console(width=40, file=io.StringIO())
    paper.print(terminal.Table(columns, [row]))
    assert paper.file.getvalue().splitlines() == [  # type: ignore[attr-defined]
        "id" + " " * 20 + "count",
        "x" * 20 + "      1  a long rem…",
    ]


def test_in_a_very_narrow_place_numbers_are_left_out_and_never_cut() -> None:
    columns = [terminal.Column("id", itemgetter(0)), terminal.Column("count", itemgetter(1), right=True)]
    columns.append(terminal.Column("", itemgetter(2)))
    row = ("x" * 20, "12345678", "a remark")
    for width, last in ((40, "x" * 20 + "  12345678  a remark"), (32, "x" * 20 + "  12345678"), (29, "x" * 20)):
        paper = Console(width=width, file=io.StringIO())
        paper.print(terminal.Table(columns, [row]))
        assert paper.file.getvalue().splitlines()[1] == last  # type: ignore[attr-defined]


def test_text_of_jobs_is_never_read_as_markup(windlass: Windlass, file: Place) -> None:
    id = windlass("enqueue", "t", "[red]hello[/nope]", "--tag", "[bold]").out.strip()
    card = windlass("jobs", "show", id)
    assert card.status == 0
    assert '"[red]hello[/nope]"' in card.out
    assert "[bold]" in card.out


def test_text_of_jobs_cannot_command_the_terminal(windlass: Windlass, file: Place) -> None:
    windlass("enqueue", "t", "--tag", "\x1b]0;mine\x07")
    error = Error(type="E", message="\x1b[2Jgone\x9b", traceback="\x1b[31mred")
    file.work(lambda one: Finished(id=one.job.id, token=one.token, outcome=Verdict.ERROR, error=error))
    id = windlass("jobs", "ls", "--json").json["id"]
    for argv in (["ls"], ["show", id], ["tail", id], ["result", id]):
        ran = windlass("jobs", *argv)
        assert not set(ran.out + ran.err) & set("\x1b\x07\x9b"), argv
        assert "gone" in ran.out + ran.err or argv[0] == "show"
    assert "�[2Jgone" in windlass("top", "--once").out


def test_an_answer_for_programs_is_one_line(windlass: Windlass, file: Place) -> None:
    for argv in ("enqueue t", "jobs count", "queues ls", "workers ls", "doctor", "top --once"):
        ran = windlass(*argv.split(), "--json")
        assert ran.out.count("\n") == 1, argv
        msgspec.json.decode(ran.out)


def test_a_server_whose_port_is_in_use_says_so_and_starts_nothing(windlass: Windlass, folder: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        ran = windlass("serve", "--port", str(port), "--data", str(folder / "data"))
    assert ran.status == 4
    assert f"another program listens at http://127.0.0.1:{port}: stop it, or choose another port" in ran.err
    assert "serves" not in ran.err
    assert not (folder / "data").exists()


@pytest.mark.parametrize(("port", "must_be"), [("65536", "<= 65535"), ("-1", ">= 0")])
def test_a_port_that_cannot_be_is_refused(windlass: Windlass, folder: Path, port: str, must_be: str) -> None:
    ran = windlass("serve", "--port", port, "--data", str(folder / "data"))
    assert ran.status == 2
    assert ran.err == f"windlass: --port: Expected `int` {must_be}\n"
    assert not (folder / "data").exists()


def test_a_server_that_cannot_find_its_host_says_so(windlass: Windlass, folder: Path) -> None:
    ran = windlass("serve", "--host", "no such host", "--data", str(folder / "data"))
    assert ran.status == 2
    assert "'no such host' is not an address of this machine" in ran.err
