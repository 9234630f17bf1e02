"""Jobs that one talks to: a standard input through a pipe or a terminal, and `windlass shell`."""

import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.support.http_servers import Process
from tests.support.patience import PATIENCE
from tests.support.worker_harness import WorkerHarness, until
from windlass.job_handle import Job
from windlass.model.errors import TooLarge
from windlass.model.job import State
from windlass.model.operations import ChangeQueue
from windlass.model.queue import QueueChange, Tier


def said(job: "Job[Any]") -> bytes:
    return b"".join(chunk.data for chunk in job.output())


def _has_said(job: "Job[Any]", text: str) -> bool:
    return text.encode() in said(job)


def test_s0_37_and_38_a_program_reads_what_is_sent_to_its_job_and_the_end_of_it(harness: WorkerHarness) -> None:
    harness.start()
    job = harness.tasks.cat.using(most_input=20).enqueue()
    for word in ("one", "two", "three"):
        job.send(f"{word}\n")
        until(partial(_has_said, job, f"> {word}\n"))
    with pytest.raises(TooLarge, match="20 bytes of input"):
        job.send("four\n")
    job.send("")
    assert job.result(PATIENCE) == len("one\ntwo\nthree\n")
    first = next(iter(job.output()))
    assert (first.stream, first.data) == ("stdout", b""), "an empty piece marks the start"


def test_a_task_at_a_terminal_is_asked_and_can_be_interrupted(harness: WorkerHarness) -> None:
    harness.start()
    jobs = [harness.tasks.asked.enqueue() for _ in range(2)]
    until(lambda: all(b"your name?" in said(job) for job in jobs))
    jobs[0].send("Ada\r")
    assert jobs[0].result(PATIENCE) == "Ada"
    jobs[1].signal("INT")
    assert jobs[1].result(PATIENCE) == "interrupted"


def sleepers(harness: WorkerHarness) -> list[int]:
    found = []
    for pid in harness.processes():
        with suppress(FileNotFoundError, ProcessLookupError):
            found += [pid] if Path(f"/proc/{pid}/comm").read_text() == "sleep\n" else []
    return found


def test_s0_39_nothing_that_was_started_from_a_shell_survives_it(harness: WorkerHarness) -> None:
    harness.start()
    job = harness.tasks.shell.enqueue()
    job.resize(33, 99)
    job.send("stty size; setsid sleep 600 & sleep 601 & echo start''ed\n")
    until(lambda: b"started" in said(job))
    assert b"33 99" in said(job)
    # The shell goes on as soon as it has forked: that these have become `sleep` is seen later.
    asleep = until(lambda: found if len(found := sleepers(harness)) == 2 else None)
    job.cancel()
    assert harness.ended(job).state is State.CANCELLED
    until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in asleep or []))


class Terminal:
    """A terminal with `windlass shell` at it."""

    def __init__(self, harness: WorkerHarness, *words: str) -> None:
        self._ours, theirs = pty.openpty()
        self.before = termios.tcgetattr(theirs)
        self._theirs = theirs
        self.resize(40, 120)
        command = [sys.executable, "-m", "windlass", "shell", "default", *words, "--tenant", harness.tenant]
        self.process = subprocess.Popen(
            command,
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            env=harness.environ | {"TERM": "vt100"},
            cwd=harness.folder,
            start_new_session=True,
        )
        self.seen = b""

    def resize(self, rows: int, columns: int) -> None:
        fcntl.ioctl(self._ours, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def type(self, text: str) -> None:
        os.write(self._ours, text.encode())

    def expect(self, pattern: str) -> None:
        """Wait until this is on the screen; what is before it is forgotten."""
        until_ = time.monotonic() + PATIENCE
        while (found := re.search(pattern.encode(), self.seen)) is None:
            assert time.monotonic() < until_, f"{pattern!r} never came, but {self.seen!r}"
            if select.select([self._ours], [], [], 0.1)[0]:
                self.seen += os.read(self._ours, 4096)
        self.seen = self.seen[found.end() :]

    def ended(self) -> int:
        """Read on until the program has ended; its exit status."""
        over = time.monotonic() + PATIENCE
        while (status := self.process.poll()) is None:
            assert time.monotonic() < over, f"it has not ended, but {self.seen!r}"
            if select.select([self._ours], [], [], 0.05)[0]:
                self.seen += os.read(self._ours, 4096)
        return status

    @property
    def is_restored(self) -> bool:
        return termios.tcgetattr(self._theirs) == self.before

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._ours)
        os.close(self._theirs)


@pytest.fixture
def terminals(harness: WorkerHarness) -> Iterator[list[Terminal]]:
    opened: list[Terminal] = []
    yield opened
    for terminal in opened:
        terminal.close()


def test_windlass_shell_is_a_terminal_to_the_job(harness: WorkerHarness, terminals: list[Terminal]) -> None:
    harness.start()
    terminals.append(terminal := Terminal(harness))
    terminal.expect(r"\$ ")
    assert not terminal.is_restored
    terminal.type("echo size $(stty size) $TERM\r")
    terminal.expect("size 40 120 vt100")
    terminal.resize(50, 100)
    os.kill(terminal.process.pid, signal.SIGWINCH)
    # The program says itself that it runs: a shell that is just about to start one loses a Ctrl-C.
    program = "sh -c 'echo resi\"\"zed; exec sleep 600'"
    terminal.type(f"until [ \"$(stty size)\" = '50 100' ]; do sleep 0.1; done; {program}\r")
    terminal.expect("resized")
    terminal.type("\x03")
    terminal.expect(r"\^C")
    terminal.type("echo ba''ck\r")
    terminal.expect("back")
    terminal.type("exit 7\r")
    assert terminal.ended() == 7
    assert terminal.is_restored


def test_a_shell_that_is_ended_leaves_the_terminal_as_it_was_and_no_job(
    harness: WorkerHarness, terminals: list[Terminal]
) -> None:
    harness.start()
    terminals.append(terminal := Terminal(harness))
    terminal.expect(r"\$ ")
    terminal.process.send_signal(signal.SIGTERM)
    assert terminal.ended() == 128 + signal.SIGTERM
    assert terminal.is_restored
    (line,) = harness.noted("shell")
    until(lambda: not Path(f"/proc/{line.split()[0]}").exists())


def test_s0_15_and_16_one_place_is_for_one_shell_and_other_jobs_halt_it(
    harness: WorkerHarness, terminals: list[Terminal]
) -> None:
    tiers = [Tier(name="fast", seconds=60)]
    harness.app.ask(ChangeQueue(queue="default", change=QueueChange(tiers=tiers)))
    harness.start("-c", "1")
    terminals.append(first := Terminal(harness))
    first.expect(r"\$ ")
    terminals.append(second := Terminal(harness))
    second.expect("no slot is free")
    assert second.ended() == 75
    harness.tasks.add.enqueue(1, 2)
    first.expect("halted: its place is needed for other jobs")
    assert first.ended() == 1
    assert first.is_restored


@pytest.fixture
def server(harness: WorkerHarness, tmp_path: Path) -> Iterator[Process]:
    process = Process(tmp_path, store=harness.store)
    process.start()
    yield process
    process.kill()


def test_a_shell_says_what_it_waits_for(harness: WorkerHarness, terminals: list[Terminal]) -> None:
    terminals.append(terminal := Terminal(harness))
    terminal.expect("waiting: position 1, for a worker: none takes from its queue")
    terminal.process.send_signal(signal.SIGINT)
    assert terminal.ended() == 128 + signal.SIGINT


def shell_in_a_pipe(harness: WorkerHarness, *where: str, **environ: str) -> None:
    program = [
        sys.executable,
        "-m",
        "windlass",
        "shell",
        "default",
        "--task",
        "cat",
        "--tenant",
        harness.tenant,
        *where,
    ]
    about: dict[str, Any] = {"env": harness.environ | environ, "cwd": harness.folder, "timeout": PATIENCE}
    told = subprocess.run(program, input=b"a\nb\n", capture_output=True, check=False, **about)
    assert (told.stdout, told.returncode) == (b"> a\n> b\n", 4), told.stderr


def test_a_shell_in_a_pipe_gives_its_input_to_the_job(harness: WorkerHarness) -> None:
    harness.start()
    shell_in_a_pipe(harness)


def test_a_shell_works_the_same_over_http(harness: WorkerHarness, server: Process) -> None:
    harness.start()
    shell_in_a_pipe(harness, "--server", server.address, WINDLASS_TOKEN=server.token)
