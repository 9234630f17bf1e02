"""Functions and nothing but `curl`, as the page says it, while server, worker and Redis are killed: nothing is lost."""

import json
import os
import random
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.support.http_servers import Process, process
from tests.support.servers import Server, StartServer
from tests.support.worker_harness import tell, until

PAGE = (Path(__file__).parents[2] / "docs" / "functions-curl.md").read_text()
SERVE, FUNCTIONS, SEND_IN, FEED, WATCH = re.findall(r"```sh\n(.*?)```", PAGE, re.DOTALL)
LANGUAGES = ("python", "node", "php", "sh")
LEASE = {"WINDLASS_ENGINE_LEASE": "8", "WINDLASS_WORKER_LEASE": "8"}
ROOM = {"WINDLASS_FUNCTIONS_CONTEXTS": "20"}
"""For five functions, four contexts each: none makes way for another."""


class Scene:
    """A Redis, a server in front of it, a worker that runs functions; each may be killed at any moment."""

    def __init__(self, folder: Path, store: Server, serving: Process) -> None:
        self.folder = folder
        self.store = store
        self.serving = serving
        self.accepted: set[str] = set()
        self.kills = 0
        self._worker = self._work()

    def _work(self) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "windlass", "worker", "--store", self.store.url, "-c", "4"]
        with (self.folder / "worker.log").open("ab") as log:
            return subprocess.Popen(
                command, stdout=log, stderr=log, cwd=self.folder, env={**os.environ, **LEASE, **ROOM}
            )

    def script(self, text: str, **variables: object) -> subprocess.Popen[str]:
        environ = {
            "PATH": os.environ["PATH"],
            "TOKEN": self.serving.token,
            "queue": f"{self.serving.address}/v1/default",
            "old": f"{self.serving.address}/default",
            **{name: str(value) for name, value in variables.items()},
        }
        return subprocess.Popen(
            ["bash", "-euo", "pipefail", "-c", text], cwd=self.folder, env=environ, start_new_session=True,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip

    def run(self, text: str, **variables: object) -> str:
        child = self.script(text, **variables)
        said, _ = child.communicate(timeout=300)
        assert child.returncode == 0, said
        return said

    def fed(self, first: int, last: int) -> bool:
        """Feed these lines to each function; whether all were taken in."""
        for lang in LANGUAGES:
            (self.folder / f"{lang}.json").unlink(missing_ok=True)
        child = self.script(FEED, first=first, last=last)
        child.communicate(timeout=300)
        for lang in LANGUAGES:
            answer = self.folder / f"{lang}.json"
            if answer.exists() and answer.read_text().endswith("}\n"):
                self.accepted.update(json.loads(answer.read_text())["ids"])
        return child.returncode == 0

    def kill(self, who: str) -> None:
        self.kills += who != "nobody"
        match who:
            case "server":
                self.serving.kill()
            case "worker":
                self._worker.kill()
                self._worker.wait()
            case "redis":
                self.store.kill()

    def bring_back(self, who: str) -> None:
        match who:
            case "server":
                self.serving.start()
            case "worker":
                self._worker = self._work()
            case "redis":
                self.store.start()

    def count(self, match: str) -> int:
        text = f'curl -sSf -H "Authorization: Bearer $TOKEN" "$queue/jobs/count?{match}"'
        number: int = json.loads(self.run(text))["count"]
        return number

    def rest(self, within: float) -> None:
        """Wait until nothing is left to be done."""
        deadline = time.monotonic() + within
        while left := self.count("state=pending"):
            assert time.monotonic() < deadline, f"{left} are left\n{(self.folder / 'worker.log').read_text()[-4000:]}"
            time.sleep(0.5)  # each look is a process of its own

    def listed(self, match: str) -> list[Any]:
        form = "Accept: application/x-ndjson"
        text = f'curl -sSf -H "Authorization: Bearer $TOKEN" -H "{form}" "$queue/jobs?{match}"'
        return [json.loads(line) for line in self.run(text).splitlines()]

    def close(self) -> None:
        self._worker.kill()
        self._worker.wait()


@contextmanager
def scene(folder: Path, start_server: StartServer) -> Iterator[Scene]:
    store = start_server("redis", fsync="always")
    with process(folder, "--allow-upload", "--no-handlers", store=store.url, **LEASE) as serving:
        found = Scene(folder, store, serving)
        try:
            yield found
        finally:
            found.close()


@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    ("lines", "pieces"), [(300, 5), pytest.param(10_000, 20, marks=pytest.mark.long)], ids=["300", "10000"]
)
def test_nothing_that_curl_saw_accepted_is_lost_whatever_is_killed(
    lines: int, pieces: int, tmp_path: Path, start_server: StartServer
) -> None:
    """The first piece is left in peace; with each other one somebody is killed at some moment of it."""
    began, each, chance = time.monotonic(), lines // len(LANGUAGES) // pieces, random.Random(7)
    with scene(tmp_path, start_server) as one:
        one.run(FUNCTIONS + SEND_IN)
        for piece in range(pieces):
            span = (piece * each + 1, (piece + 1) * each)
            who = ("nobody", "server", "worker", "redis")[(piece - 1) % 3 + 1 if piece else 0]
            killer = threading.Timer(chance.uniform(0, 0.2), one.kill, [who])
            killer.start()
            well = one.fed(*span)
            killer.join()
            one.bring_back(who)
            assert well or who == "server", who
            if not well:
                assert one.fed(*span)
        assert len(one.accepted) >= lines
        one.rest(within=120 + lines / 20)
        done = {job["id"]: job for job in one.listed("state=succeeded")}
        shouts = [job for job in done.values() if job["task"] != "gather"]
        assert one.accepted <= done.keys(), "lost"
        assert len(done) - len(shouts) == len(shouts), "each has made one job, once"
        assert one.count("state=failed") == 0
        assert {job["sandbox"] for job in done.values()} == {"confined"}
        tell(f"{len(one.accepted)} accepted, {len(done)} run, {one.kills} kills, {time.monotonic() - began:.0f} s")


def test_the_page_shows_how_chained_jobs_are_watched(tmp_path: Path, start_server: StartServer) -> None:
    with scene(tmp_path, start_server) as one:
        one.run(FUNCTIONS + SEND_IN)
        watching = one.script(WATCH, seconds=60)
        assert watching.stdout is not None
        assert one.fed(1, 10)
        events = iter(watching.stdout.readline, "")
        seen = sum(1 for _ in zip(range(10), (line for line in events if line == "event: succeeded\n"), strict=False))
        os.killpg(watching.pid, signal.SIGKILL)
        watching.communicate()
        assert seen == 10
        until(lambda: one.count("task=gather&state=succeeded") == 40)
    assert "--allow-upload" in SERVE
