"""Sandbox tiers: what can be had, what is refused, whom code runs as."""

import os
import shutil
import socket
import subprocess
from pathlib import Path

import msgspec
import pytest

from tests.support.function_harness import LANGUAGES, bench, handler, let_others_in
from tests.support.patience import PATIENCE
from windlass.model.job import JSON
from windlass.system import SystemRandomness
from windlass.worker.functions import FunctionOptions, Tier
from windlass.worker.functions.languages import Interpreter, find, is_for_all
from windlass.worker.functions.pool import Functions
from windlass.worker.functions.process import MONITOR
from windlass.worker.functions.sandbox import kernel, plans
from windlass.worker.functions.sandbox.folders import Users
from windlass.worker.network import Allowed, Network

ECHO = "def run(payload):\n    return payload"


# What cannot be had


@pytest.mark.parametrize(
    ("tier", "missing", "why"),
    [
        ("confined", "landlock", "sandbox tier 'confined' needs Landlock, which this kernel lacks or has switched off"),
        ("isolated", "landlock", "sandbox tier 'isolated' needs Landlock, which this kernel lacks or has switched off"),
        ("confined", "seccomp", "sandbox tier 'confined' has no filter of system calls for this kind of processor"),
        ("isolated", "bwrap", "sandbox tier 'isolated' needs bubblewrap: install it (bwrap)"),
    ],
)
async def test_a_tier_that_cannot_be_had_refuses_and_nothing_runs_below_it(
    tier: str, missing: str, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    match missing:
        case "landlock":
            monkeypatch.setattr(kernel, "landlock_version", lambda: 0)
        case "seccomp":
            monkeypatch.setattr(kernel, "MACHINES", {})
        case _:
            monkeypatch.setattr(plans, "SEARCH_PATH", "/nowhere")
    async with bench(tier=tier) as cell:
        heard = await cell.run(handler("python", ECHO), b"", b"")
        assert {(one.unrun, one.message) for one in heard.outcomes.values()} == {(True, why)}
        assert not heard.pids
        assert cell.functions.refusal(handler("python", ECHO)) == why


async def test_what_the_kernel_refuses_to_put_in_force_keeps_the_code_from_running(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(kernel, "seccomp_program", lambda *_, **__: b"\xff" * 8)
    async with bench() as cell:
        outcome = (await cell.run(handler("python", ECHO), b"")).one
        assert outcome.unrun
        assert "prctl 22" in outcome.message


@pytest.mark.parametrize("lang", LANGUAGES)
async def test_a_missing_interpreter_refuses(lang: str, tmp_path: Path) -> None:
    nowhere = dict.fromkeys(LANGUAGES, str(tmp_path / "none"))
    async with bench(interpreters=nowhere) as cell:
        outcome = (await cell.run(handler(lang, "x"), b"")).one
        assert outcome.unrun
        assert f"is {tmp_path / 'none'}: there is no such file" in outcome.message


async def test_a_folder_that_other_users_cannot_reach_refuses(tmp_path: Path) -> None:
    (tmp_path / "closed").mkdir(mode=0o700)
    let_others_in(tmp_path)
    async with bench(folder=str(tmp_path / "closed")) as cell:
        outcome = (await cell.run(handler("python", ECHO), b"")).one
    if os.getuid() == 0:
        assert outcome.unrun
        assert outcome.message.endswith(f"other users than root may not enter {tmp_path / 'closed'}")
    else:
        assert outcome.code == 200


def test_an_interpreter_that_only_root_can_read_is_not_taken(tmp_path: Path) -> None:
    hidden = tmp_path / "hidden"
    hidden.mkdir(mode=0o700)
    (hidden / "python3").write_text("#!/bin/sh\n")
    (hidden / "python3").chmod(0o755)
    assert not is_for_all(str(hidden / "python3"))
    found = find("python", {"python": str(hidden / "python3")}, as_another=True)
    assert found == (
        f"`[functions] python` is {hidden / 'python3'}: no other user than root may read it, and functions run as "
        "another user. Name another, or leave it out"
    )


@pytest.mark.parametrize(("name", "why"), [("folder", "that is no file"), ("text", "that file is not executable")])
def test_a_chosen_interpreter_that_is_of_no_use_is_named(tmp_path: Path, name: str, why: str) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "text").write_text("")
    found = find("node", {"node": str(tmp_path / name)}, as_another=False)
    assert found == f"`[functions] node` is {tmp_path / name}: {why}. Name another, or leave it out"


@pytest.mark.parametrize("tier", ["confined", "isolated"])
async def test_an_interpreter_of_ones_own_opens_its_parts_and_not_the_home_it_lies_in(
    tier: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    system = find("python", {}, as_another=True)
    assert isinstance(system, Interpreter)
    (tmp_path / "bin").mkdir()
    let_others_in(tmp_path / "bin")
    shutil.copy(system.path, tmp_path / "bin" / "python3")
    (tmp_path / "diary").write_text("secret")
    (tmp_path / "diary").chmod(0o644)
    reads = f"import sys\ndef run(p):\n    print(sys.executable)\n    return open({str(tmp_path / 'diary')!r}).read()"
    async with bench(tier=tier, interpreters={"python": str(tmp_path / "bin" / "python3")}) as cell:
        heard = await cell.run(handler("python", reads), b"")
    assert heard.output["0000", "stdout"].decode().strip() == str(tmp_path / "bin" / "python3")
    assert heard.one.type in ("PermissionError", "FileNotFoundError")


def test_users_are_the_same_everywhere_and_of_one_tenant_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    first, second = Users(0x7000_0000), Users(0x7000_0000)
    assert first.of("acme") == second.of("acme") != first.of("other")
    monkeypatch.setattr("windlass.worker.functions.sandbox.folders.SPAN", 2)
    crowded = Users(1000)
    assert {crowded.of("a"), crowded.of("b")} == {1000, 1001}
    with pytest.raises(LookupError):
        crowded.of("c")
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert first.of("acme") is None


async def test_the_tier_is_in_the_record(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "windlass.functions")
    async with bench() as cell:
        heard = await cell.run(handler("python", ECHO), b'"1"', content_type=JSON)
    assert heard.tiers == {"confined"}
    assert "runs python under confined: limits" in caplog.text
    assert "no network" in caplog.text


# A worker that is not root

NOBODY = 65534

SAME_USER = """
import os
def tried(what):
    try:
        what()
        return 'done'
    except OSError as fault:
        return type(fault).__name__
parent = os.getppid()
print(os.getuid())
print(tried(lambda: os.kill(parent, 0)))
print(tried(lambda: os.kill(parent, 9)))
print(tried(lambda: open(f'/proc/{parent}/environ').read()))
print(tried(lambda: open(f'/proc/{parent}/mem', 'rb')))
print(tried(lambda: os.utime('../diary', (1, 1))))
print(tried(lambda: os.utime('../diary')))
print(tried(lambda: open('own', 'w')))
"""


def test_without_users_of_its_own_the_kernel_still_keeps_code_from_its_neighbours(tmp_path: Path) -> None:
    """The monitor as anybody's process: only Landlock stands between it and code of the same user."""
    folder = tmp_path / "own"
    folder.mkdir()
    let_others_in(folder)
    user = NOBODY if os.getuid() == 0 else os.getuid()
    (tmp_path / "diary").touch()
    for own in (folder, tmp_path / "diary"):
        os.chown(own, user, -1)
    python = find("python", {}, as_another=True)
    assert isinstance(python, Interpreter)
    program = shutil.copy(MONITOR, tmp_path)  # ours may lie where only its owner can read it
    Path(program).chmod(0o644)
    wires = os.pipe()
    ask = plans.PlanRequest(python, str(folder), None, 256 << 20, 1 << 30, False)
    plan = msgspec.structs.replace(
        plans.plan(ask, FunctionOptions(), os.environ), wires=list(wires), argv=[python.path, "-I", "-c", SAME_USER]
    )
    ours, theirs = socket.socketpair()
    with ours, theirs:
        monitor = subprocess.Popen(
            [python.path, "-I", "-S", program],
            stdin=theirs.fileno(), stdout=subprocess.PIPE, pass_fds=wires, user=user, env={}, cwd="/",
        )  # fmt: skip
        ours.sendall(msgspec.json.encode(plan) + b"\n")
        printed, _ = monitor.communicate(timeout=PATIENCE)
        assert b"started" in ours.recv(1000)
    for wire in wires:
        os.close(wire)
    assert printed.decode().split() == [str(user), *["PermissionError"] * 6, "done"]
    assert monitor.returncode == 0


@pytest.mark.parametrize(
    ("tier", "user", "warned"), [("limits", 1000, True), ("limits", 0, False), ("confined", 1000, False)]
)
async def test_a_worker_that_is_not_root_warns_of_limits(
    tier: Tier, user: int, warned: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: user)
    Functions(FunctionOptions(tier=tier), Network(Allowed()), chance=SystemRandomness())
    assert [record.levelname for record in caplog.records if "--sandbox confined" in record.message] == [
        "WARNING"
    ] * warned
