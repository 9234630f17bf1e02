"""Disks that are full or fail under a real server: what it answers, what it never does again, what is kept."""

import re
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.board import Board, await_
from tests.patience import PATIENCE
from tests.servers import Server, StartServer
from tests.serving import Process, process
from tests.test_journal_board import stored, tool
from tests.wires import Crowd
from windlass.model import wire

__all__ = ["tool"]

pytestmark = pytest.mark.timeout(240)

LARGE = wire.encode({"task": "a", "headers": {"x": "y" * 8000}})
SMALL = wire.encode({"task": "a"})


# A disk that is full


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of six megabytes, two of which are taken by a file that can be removed."""
    place = tmp_path / "disk"
    place.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=6m", "tmpfs", str(place)], check=True)
    try:
        (place / "ballast").write_bytes(bytes(2 << 20))
        yield place
    finally:
        subprocess.run(["umount", "--lazy", str(place)], check=True)


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
def test_r11_a_disk_that_is_full_under_the_journal_is_told_and_over_when_there_is_room(
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
        assert "is on a tmpfs: what is accepted does not outlast the machine" in (tmp_path / "log").read_text()


def test_r11_a_disk_that_is_full_under_a_file_is_told_and_over_when_there_is_room(
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


def test_r11_a_disk_that_is_full_under_redis_stops_nobody_who_enqueues(small_disk: Path, tmp_path: Path) -> None:
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


def test_r12_after_a_sync_that_failed_nothing_is_acknowledged_from_that_file_nor_is_it_synced_again(
    tool: str, tmp_path: Path, start_server: StartServer
) -> None:
    server = start_server("redis")
    with process(tmp_path, store=server.url) as serving:
        crowd = Crowd(serving.port, serving.token, lambda _: SMALL, lines=1)
        calls = "trace=write,writev,sendto,sendmsg,fdatasync"
        with traced(serving, tool, "-e", calls, "-e", "inject=fdatasync:error=EIO:when=8") as log:
            crowd.run(40, 10_000, lambda: None)
        refused = [one for one in crowd.sent if one.status != 201]
        assert refused, "a sync has failed, or this test is blind"
        assert {one.status for one in refused} == {503}
        failed = list(failures(log.read_text(errors="replace").splitlines()))
        assert failed
        for name, after in failed:
            assert not [line for line in after if re.search(rf"(write|fdatasync)\(\d+<[^>]*{name}>", line)]
            assert "HTTP/1.1 503" in next(line for line in after if "HTTP/1.1" in line), "whoever waited is told"
        serving.kill()
        serving.start()
        check_kept(tmp_path, server.url, crowd)


def failures(lines: list[str]) -> Iterator[tuple[str, list[str]]]:
    """Each file whose sync has failed, and what happened after that; a call may be told in two lines of its thread."""
    begun: dict[str, str] = {}
    for at, line in enumerate(lines):
        thread = line.split()[0]
        if found := re.search(r"fdatasync\(\d+<[^>]*/([^/>]+\.journal)>", line):
            begun[thread] = re.escape(found[1])
        if "fdatasync" in line and "EIO" in line:
            yield begun[thread], lines[at + 1 :]


def test_r12_a_file_that_comes_or_goes_is_for_good_before_anything_is_said_of_it(
    tool: str, tmp_path: Path, start_server: StartServer
) -> None:
    server = start_server("redis")
    small = {"WINDLASS_JOURNAL_SEGMENT_BYTES": "2000", "WINDLASS_JOURNAL_KEEP": "0.5"}
    with process(tmp_path, store=server.url, **small) as serving:
        crowd = Crowd(serving.port, serving.token, lambda _: SMALL, lines=1)
        calls = "trace=openat,unlink,unlinkat,write,writev,sendto,sendmsg,fsync"
        with traced(serving, tool, "-e", calls) as log:
            crowd.run(60, 30, lambda: None)
            await_("old files have gone", lambda: "unlink" in log.read_text(errors="replace"))
            crowd.run(5, 30, lambda: None)
            await_("that is written", lambda: log.read_text(errors="replace").count("HTTP/1.1 201") == 65)
        steps = [step for line in log.read_text(errors="replace").splitlines() if (step := step_of(line))]
    assert steps.count("create") >= 2
    for at, step in enumerate(steps):
        if step == "create":
            assert steps[at + 1] == "sync folder", "before anything is acknowledged from it"
    assert "sync folder" in steps[steps.index("remove") :]


def step_of(line: str) -> str | None:
    if "HTTP/1.1 201" in line:
        return "reply"
    if re.search(r"openat\(.*\.journal\".*O_CREAT", line):
        return "create"
    if re.search(r"unlink(at)?\(.*\.journal", line):
        return "remove"
    if re.search(r"fsync\(\d+<[^>]*/journal/\d+>", line):
        return "sync folder"
    return None
