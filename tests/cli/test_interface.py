"""What the command line and the package offer: every name, option and answer that the pages promise."""

import json
import os
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import redis

import windlass
from tests.support.servers import StartServer
from windlass import cli
from windlass.model import errors

Run = Callable[..., "Ran"]


class Ran(NamedTuple):
    """How a command ended, and what it said."""

    status: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder, and an environment that says nothing."""
    for name in list(os.environ):
        if name.startswith("WINDLASS_"):
            monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def run(capfd: pytest.CaptureFixture[str]) -> Run:
    """Run a command in this process."""

    def run(*argv: str) -> Ran:
        capfd.readouterr()
        status = cli.run(argv)
        return Ran(status, *capfd.readouterr())

    return run


# --- Names --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [*errors.ERRORS.values(), errors.WindlassError], ids=lambda kind: kind.__name__)
def test_every_error_is_exported(kind: type[errors.WindlassError]) -> None:
    assert getattr(windlass, kind.__name__) is kind
    assert kind.__name__ in windlass.__all__
    assert kind.__module__ == "windlass", "what it is called when it is printed"


# --- doctor --deep ------------------------------------------------------------------------------------------------


def test_doctor_deep_checks_a_file(run: Run) -> None:
    run("enqueue", "t")
    sound = run("doctor", "--deep", "--json")
    assert (sound.status, sound.json["ok"]) == (0, True)
    assert [one["level"] for one in sound.json["findings"] if one["what"] == "consistency"] == ["ok"]
    with sqlite3.connect("windlass.db") as file:
        file.execute("UPDATE lane SET queued = queued + 1")
    assert run("doctor").status == 0, "a quick look does not read everything"
    broken = run("doctor", "--deep")
    assert broken.status == 1
    assert "FAIL  consistency" in broken.out
    assert "queued jobs but counts 2" in broken.out


def test_doctor_deep_checks_a_redis_store(run: Run, start_server: StartServer) -> None:
    server = start_server("redis")
    run("enqueue", "t", "--store", server.url)
    assert run("doctor", "--deep", "--store", server.url).status == 0
    with redis.Redis.from_url(server.url) as client:
        (counts,) = client.keys("*:counts:default")
        client.hset(counts, "default,z,2", 7)
    broken = run("doctor", "--deep", "--store", server.url)
    assert broken.status == 1
    assert "FAIL  consistency" in broken.out
    assert "default,z,2" in broken.out


# --- Options and errors -------------------------------------------------------------------------------------------


def test_slots_may_be_called_concurrency(run: Run) -> None:
    for command in (["worker", "shop:app"], ["serve"]):
        refused = run(*command, "--concurrency", "0")
        assert refused.status == 2
        assert "--slots: Expected `int` >= 1" in refused.err
    assert "Did you mean --slots?" in run("worker", "--slot", "3").err


def test_a_wait_that_ends_too_early_names_the_state_and_what_to_do(run: Run) -> None:
    waited = run("enqueue", "t", "--wait", "0.1")
    assert waited.status == 75
    (line,) = waited.err.splitlines()
    id = run("jobs", "ls", "--json").json["id"]
    assert line.startswith(f"windlass: job {id} is still queued after ")
    assert f"`windlass jobs result {id} --wait` waits again" in line
    assert f"`windlass jobs cancel {id}` cancels it" in line
    assert "goes on" not in line


def test_the_settings_of_a_queue_are_on_stdout(run: Run) -> None:
    run("enqueue", "t")
    run("queues", "set", "default", "--timeout", "5m")
    shown = run("queues", "show", "default")
    assert "queue default: timeout 300 s\n" in shown.out
    assert "a new job waits" in shown.out
    assert "timeout" not in shown.err


def test_a_data_folder_that_is_a_file_is_one_clear_error(folder: Path) -> None:
    (folder / "data").write_text("")
    program = [sys.executable, "-m", "windlass", "serve", "--port", "0", "--data", "data"]
    ended = subprocess.run(program, capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 2
    assert ended.stderr == "windlass: --data: data is not a folder: name the folder where the server keeps its token\n"


def test_openapi_prints_the_document_that_the_server_gives(run: Run) -> None:
    answer = run("openapi")
    assert (answer.status, answer.err) == (0, "")
    assert answer.json["openapi"] == "3.1.0"
    assert "/v1/{tenant}/jobs" in answer.json["paths"]
    assert "/v2/notify" in answer.json["paths"], "those of other dialects too"
    assert not Path("windlass.db").exists(), "no store is needed"
