"""Disks that are full or fail under a real server: what it answers, what it never does again, what is kept."""

import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2
import msgspec
import pytest

from tests.journal.test_scoreboard import stored, tool
from tests.support.faulty_disk import disk_of
from tests.support.http_servers import Process, process
from tests.support.patience import PATIENCE
from tests.support.relays import Crowd
from tests.support.scoreboard import Board, await_
from tests.support.servers import Server, StartServer
from windlass.model import wire

__all__ = ["tool"]

pytestmark = pytest.mark.timeout(240)

LARGE = wire.encode({"task": "a", "headers": {"x": "y" * 8000}})
SMALL = wire.encode({"task": "a"})


# A disk that is full


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of six megabytes, two of which are taken by a file that can be removed."""
    with disk_of(tmp_path / "disk", 6) as place:
        (place / "ballast").write_bytes(bytes(2 << 20))
        yield place


def fill(crowd: Crowd) -> list[Any]:
    """Send large jobs until some are refused; those."""
    for _ in range(30):
        crowd.run(50, 10_000, lambda: None)
        if refused := [one for one in crowd.sent if one.status != 201]:
            return refused
    raise AssertionError("it takes more than there is room for")


def goes_on(crowd: Crowd) -> float:
    """Seconds until the next job is accepted."""
    began = time.monotonic()
    while True:
        crowd.run(1, 10_000, lambda: None)
        if crowd.sent[-1].status == 201:
            return time.monotonic() - began
        assert time.monotonic() - began < PATIENCE


def check_kept(folder: Path, store: str, crowd: Crowd) -> None:
    board = Board(folder, store)
    try:
        number = sum(one.status == 201 for one in crowd.sent)
        await_("all that were acknowledged are there, and no others", lambda: stored(board) == number)
    finally:
        board.close()


@pytest.mark.parametrize("most_full", ["0.95", "1.0"], ids=["nearly full", "to the last byte"])
def test_r11_a_disk_that_is_full_under_the_journal_is_reported_and_over_when_there_is_room(
    most_full: str, small_disk: Path, tmp_path: Path, start_server: StartServer
) -> None:
    server = start_server("redis")
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "journal").symlink_to(small_disk)
    with process(tmp_path, store=server.url, WINDLASS_JOURNAL_MOST_FULL=most_full) as serving:
        crowd = Crowd(serving.port, serving.token, lambda _: LARGE, lines=1)
        server.stop()  # else what is drained makes room
        refused = fill(crowd)
        assert {one.status for one in refused} == {507}
        assert {msgspec.msgpack.decode(one.body)["code"] for one in refused} == {"journal_full"}
        (small_disk / "ballast").unlink()
        goes_on(crowd)  # without a restart
        server.start()
        check_kept(tmp_path, server.url, crowd)
        serving.kill()
        serving.start()
        check_kept(tmp_path, server.url, crowd)
        assert "is on a tmpfs: it does not outlast the machine" in (tmp_path / "log").read_text()


def test_r11_a_disk_that_is_full_under_a_file_is_reported_and_over_when_there_is_room(
    small_disk: Path, tmp_path: Path
) -> None:
    store = str(small_disk / "jobs.db")
    with process(tmp_path, store=store) as serving:
        crowd = Crowd(serving.port, serving.token, lambda _: LARGE, lines=1)
        refused = fill(crowd)
        assert {one.status for one in refused} == {507}, refused[0]
        (small_disk / "ballast").unlink()
        goes_on(crowd)
        serving.kill()
        serving.start()
        check_kept(tmp_path, store, crowd)


def test_r11_a_disk_that_is_full_under_redis_stops_no_caller_who_enqueues(small_disk: Path, tmp_path: Path) -> None:
    """A server that syncs always ends when it cannot write: the journal goes on without it, and gives it all later."""
    with Server("redis", small_disk, fsync="always") as server, process(tmp_path, store=server.url) as serving:
        crowd = Crowd(serving.port, serving.token, lambda _: LARGE, lines=1)
        for _ in range(30):
            crowd.run(50, 10_000, lambda: None)
            if not server.running:
                break
        assert not server.running, "the disk was full, or this test is blind"
        crowd.run(20, 10_000, lambda: None)
        assert {one.status for one in crowd.sent} == {201}
        (small_disk / "ballast").unlink()
        server.start()
        check_kept(tmp_path, server.url, crowd)


# A disk that fails


@contextmanager
def traced(serving: Process, tool: str, *what: str) -> Iterator[Path]:
    """What a server asks of the system meanwhile, and perhaps does not get."""
    log, said = serving.folder / "trace", serving.folder / "strace"
    assert serving.child is not None
    command = [tool, "-f", "-y", "-s", "24", *what, "-o", str(log), "-p", str(serving.child.pid)]
    with said.open("wb") as file:
        tracer = subprocess.Popen(command, stderr=file)
    await_("it is traced", lambda: "attached" in said.read_text())
    try:
        yield log
    finally:
        tracer.terminate()
        tracer.wait()


def test_r12_after_a_sync_that_failed_its_callers_are_refused_and_the_log_is_begun_again(
    tool: str, tmp_path: Path, start_server: StartServer
) -> None:
    server = start_server("redis")
    with process(tmp_path, store=server.url) as serving:
        crowd = Crowd(serving.port, serving.token, lambda _: SMALL, lines=1)
        calls = "trace=pwrite64,ftruncate,sendto,sendmsg,write,writev,fdatasync"
        with traced(serving, tool, "-e", calls, "-e", "inject=fdatasync:error=EIO:when=8") as log:
            crowd.run(40, 10_000, lambda: None)
        refused = [one for one in crowd.sent if one.status != 201]
        assert refused, "a sync has failed, or this test is blind"
        assert {one.status for one in refused} == {503}
        assert b"Input/output error" in refused[0].body
        failed = list(failures(log.read_text(errors="replace").splitlines()))
        assert failed
        for after in failed:
            replied = next(place for place, line in enumerate(after) if "HTTP/1.1" in line)
            assert "HTTP/1.1 503" in after[replied], "the caller that waited is refused"
            emptied = next(
                place for place, line in enumerate(after) if re.search(r"ftruncate\(\d+<[^>]*-wal>, 0", line)
            )
            again = next(place for place, line in enumerate(after) if re.search(r"pwrite64\(\d+<[^>]*-wal>", line))
            assert emptied < replied, "nothing of the refused group is left behind"
            assert emptied < again, "nor is anything added to that log"
        serving.kill()
        serving.start()
        check_kept(tmp_path, server.url, crowd)


def test_while_the_disk_fails_a_server_is_not_ready_and_what_it_refuses_may_be_kept(
    tool: str, tmp_path: Path, start_server: StartServer
) -> None:
    server = start_server("redis")
    fails = ("-e", "trace=fdatasync", "-e", "inject=fdatasync:error=EIO")
    with process(tmp_path, store=server.url) as serving, asking(serving) as client:
        with traced(serving, tool, *fails):
            refused = client.post("/v1/default/jobs", json={"task": "a", "key": "one"})
            assert refused.status_code == 503
            assert "may have been kept all the same" in refused.json()["detail"]
            ready = client.get("/readyz")
            assert (ready.status_code, "Input/output error" in ready.text) == (503, True)
            assert client.get("/healthz").status_code == 200
        await_("it is ready again, without any job", lambda: client.get("/readyz").status_code == 200)
        assert client.post("/v1/default/jobs", json={"task": "a", "key": "one"}).status_code == 201
        with traced(serving, tool, *fails):
            assert client.post("/v1/default/jobs", json={"task": "a", "key": "two"}).status_code == 503
            serving.kill()
        serving.start()
        again = client.post("/v1/default/jobs", json={"task": "a", "key": "two"})
        assert (again.status_code, again.json()["created"]) == (200, False), "it was in the log"
        assert len(client.get("/v1/default/jobs").json()["jobs"]) == 2
    assert 1 <= (tmp_path / "log").read_text().count("new jobs are refused") <= 2, "not for each of them"


@contextmanager
def asking(serving: Process) -> Iterator[httpx2.Client]:
    headers = {"authorization": f"Bearer {serving.token}"}
    common: dict[str, Any] = {"trust_env": False, "verify": False, "timeout": PATIENCE}
    with httpx2.Client(base_url=serving.address, headers=headers, **common) as client:
        yield client


def place_of(lines: list[str], pattern: str) -> int:
    return next(place for place, line in enumerate(lines) if re.search(pattern, line))


def failures(lines: list[str]) -> Iterator[list[str]]:
    """What happened after each sync of the log that has failed; a call may take two lines."""
    begun: dict[str, bool] = {}
    for at, line in enumerate(lines):
        thread = line.split()[0]
        if "fdatasync(" in line:
            begun[thread] = "-wal>" in line
        if "fdatasync" in line and "EIO" in line and begun.get(thread):
            yield lines[at + 1 :]


ONE_JOB = """
import asyncio, sys
from pathlib import Path
from tests.support.faulty_disk import draft
from windlass.engine.journal import Journal, JournalSettings
from windlass.system import SystemRandomness, SystemClock

async def main():
    journal = Journal(Path(sys.argv[1]), SystemClock(), SystemRandomness(), JournalSettings())
    assert journal.open()
    await journal.accept([draft(1)])
    print("accepted", flush=True)
    await journal.close()

asyncio.run(main())
"""


def test_r12_a_new_file_is_there_for_good_before_anything_is_accepted_into_it(tool: str, tmp_path: Path) -> None:
    log, folder = tmp_path / "trace", tmp_path / "journal" / "0"
    calls = "trace=openat,mknod,mknodat,write,fsync,fdatasync"
    command = [tool, "-f", "-y", "-e", calls, "-o", str(log), sys.executable, "-c", ONE_JOB, str(folder)]
    subprocess.run(command, check=True, capture_output=True, timeout=PATIENCE)
    steps = [step for line in log.read_text(errors="replace").splitlines() if (step := step_of(line))]
    accepted = steps.index("accepted")
    assert steps.index("create file") < steps.index("sync folder") < accepted
    assert steps.index("create log") < accepted
    assert "sync folder" in steps[steps.index("create log") : accepted], "the log is in its folder for good, too"
    assert steps[accepted - 1] == "sync log"


def step_of(line: str) -> str | None:
    steps = {
        r"write\(1<.*accepted": "accepted",
        r"mknod(at)?\(.*\.db\"": "create file",
        r"openat\(.*\.db-wal\".*O_CREAT": "create log",
        r"fsync\(\d+<[^>]*/journal/0>": "sync folder",
        r"fdatasync\(\d+<[^>]*/journal/0>": "sync folder",
        r"fdatasync\(\d+<[^>]*-wal>": "sync log",
    }
    return next((step for pattern, step in steps.items() if re.search(pattern, line)), None)
