"""One rule for every way in: an argument, then the environment, then `windlass.toml`, then the default."""

import asyncio
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from unittest.mock import Mock

import pytest

from tests.support.servers import Server
from windlass import Windlass, addresses
from windlass.config import load
from windlass.model.errors import Invalid, TooLarge
from windlass.model.operations import GetStats

SHOP = """
from windlass import Windlass
app = Windlass()

@app.task
def add(a: int, b: int) -> int:
    return a + b

@app.task
def more() -> str:
    return add.enqueue(2, 3).id
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder, and an environment that says nothing."""
    for name in list(os.environ):
        if name.startswith("WINDLASS_"):
            monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    "use",
    [
        addresses.file_of,
        lambda address: asyncio.run(addresses.open_store(address)),
        lambda address: asyncio.run(addresses.open_blocking_store(address)),
        lambda address: asyncio.run(addresses.scrub(Mock(), address)),
        lambda address: asyncio.run(addresses.facts_of(Mock(), address)),
        lambda address: Windlass(address).link.ask(GetStats()),
    ],
    ids=["file_of", "open_store", "open_blocking_store", "scrub", "facts_of", "app"],
)
def test_an_address_with_an_unknown_scheme_names_the_known_ones(use: Callable[[str], object]) -> None:
    with pytest.raises(Invalid, match=r"'ftp://x' is no store: give a file, redis://.* or redis\+cluster://"):
        use("ftp://x")


def test_the_file_is_looked_for_upwards_and_its_store_lies_beside_it(folder: Path) -> None:
    (folder / "windlass.toml").write_text('store = "jobs.db"\ntenant = "acme"')
    below = folder / "src" / "shop"
    below.mkdir(parents=True)
    assert load({}, folder, {}).store == "jobs.db"
    found = load({}, below, {})
    assert (found.store, found.tenant) == (str(folder / "jobs.db"), "acme")
    (folder / "src" / "windlass.toml").write_text('store = "redis://localhost"')
    nearer = load({}, below, {})
    assert (nearer.store, nearer.tenant) == ("redis://localhost", "default"), "the nearest file counts, and it alone"
    assert load({"WINDLASS_CONFIG": "../../windlass.toml"}, below, {}).store == str(below / "../../jobs.db")
    assert load({"WINDLASS_STORE": "x.db"}, below, {}).store == "x.db", "what is said here is meant here"


@pytest.mark.parametrize("store", ["/srv/jobs.db", ":memory:", "sqlite:///srv/jobs.db", "http://localhost:7717"])
def test_an_address_that_is_not_relative_stays_as_it_is(folder: Path, store: str) -> None:
    (folder / "windlass.toml").write_text(f'store = "{store}"')
    (folder / "below").mkdir()
    assert load({}, folder / "below", {}).store == store


def test_an_app_obeys_the_file_the_environment_and_its_arguments(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "windlass.toml").write_text(
        'store = "file.db"\ntenant = "file"\n[engine]\nlease = "7s"\nmost_payload = "1KB"'
    )
    app = Windlass()
    assert (app.store, app.tenant) == ("file.db", "file")
    assert (app.settings.lease, app.settings.most_payload) == (7.0, 1000)
    with pytest.raises(TooLarge, match="payload"):
        app.task(name="big")(lambda text: None).enqueue("x" * 2000)
    app.close()

    monkeypatch.setenv("WINDLASS_TENANT", "environment")
    monkeypatch.setenv("WINDLASS_ENGINE_LEASE", "8s")
    app = Windlass()
    assert (app.store, app.tenant, app.settings.lease) == ("file.db", "environment", 8.0)
    monkeypatch.setenv("WINDLASS_STORE", "environment.db")
    assert Windlass().store == "environment.db"
    monkeypatch.setenv("WINDLASS_SERVER", "http://localhost:1")
    assert Windlass().store == "http://localhost:1"
    given = Windlass("given.db", tenant="given")
    assert (given.store, given.tenant) == ("given.db", "given")


@pytest.mark.parametrize("address", ["redis://:secret@localhost", "jobs.db", "localhost:7717"])
def test_a_store_in_the_variable_of_a_server_is_refused(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WINDLASS_SERVER", address)
    with pytest.raises(Invalid, match=r"is not the URL of a server.* for a store use WINDLASS_STORE") as refused:
        Windlass()
    assert refused.value.at == "WINDLASS_SERVER"
    assert "secret" not in str(refused.value)
    assert Windlass("given.db").store == "given.db"


def test_a_command_with_a_store_in_the_variable_of_a_server_ends_with_one_clear_line(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WINDLASS_SERVER", "redis://localhost")
    clear = (
        "'redis://localhost' is not the URL of a server: give http://, https:// or http+unix://; "
        "for a store use WINDLASS_STORE\n"
    )
    for argv in (["jobs", "ls"], ["enqueue", "add"], ["worker"]):
        ended = program(*argv, cwd=folder)
        assert (ended.returncode, ended.stdout, ended.stderr) == (2, "", f"windlass: WINDLASS_SERVER: {clear}")
    ended = program("doctor", cwd=folder)
    assert (ended.returncode, ended.stdout, ended.stderr) == (1, f"FAIL  WINDLASS_SERVER  {clear}", "")


def test_a_fault_in_the_file_is_named(folder: Path) -> None:
    (folder / "windlass.toml").write_text("stor = 'x.db'")
    with pytest.raises(Invalid, match=r"windlass.toml: stor: there is no such setting; did you mean store\?"):
        Windlass()


def program(*argv: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    path = os.environ | {"PYTHONPATH": str(cwd)}
    words = [sys.executable, "-m", "windlass", *argv]
    return subprocess.run(words, cwd=cwd, env=path, capture_output=True, text=True, timeout=60, check=False)


def test_a_worker_uses_the_store_of_the_commands_and_logs_it(folder: Path) -> None:
    (folder / "windlass.toml").write_text('store = "file.db"\ntenant = "acme"')
    below = folder / "src"
    below.mkdir()
    (below / "shop.py").write_text(SHOP)
    program("enqueue", "add", "[1, 2]", cwd=folder)
    worked = program("worker", "shop:app", "--burst", cwd=below)
    assert worked.returncode == 0, worked.stderr
    first = worked.stderr.splitlines()[0]
    assert f"store {folder}/file.db, tenant acme, queue default, tasks add, more" in first
    assert program("jobs", "count", "--state", "succeeded", cwd=below).stdout == "1\n"
    assert [path.name for path in folder.rglob("*.db")] == ["file.db"]


def test_options_of_a_worker_hold_for_its_tasks_too(folder: Path) -> None:
    (folder / "shop.py").write_text(SHOP)
    place = ["--store", "told.db", "--tenant", "acme"]
    program("enqueue", "more", *place, cwd=folder)
    worked = program("worker", "shop:app", "--burst", *place, cwd=folder)
    assert f"store {folder}/told.db, tenant acme" in worked.stderr.splitlines()[0]
    assert program("jobs", "count", "--state", "succeeded", *place, cwd=folder).stdout == "2\n"
    assert [path.name for path in folder.rglob("*.db")] == ["told.db"]


def test_passwords_are_not_shown(folder: Path, redis_server: Server) -> None:
    (folder / "shop.py").write_text(SHOP)
    refusing = redis_server.url.replace("://", "://:secret@")
    worked = program("worker", "shop:app", "--burst", "--store", refusing, cwd=folder)
    assert f"store {redis_server.url.replace('://', '://:…@')}, tenant default" in worked.stderr.splitlines()[0]
    assert "secret" not in worked.stderr
    assert addresses.shown("redis://user:secret@host:1/0") == "redis://user:…@host:1/0"
    assert addresses.shown("redis+sentinel://a:1/x?sentinel_password=secret") == (
        "redis+sentinel://a:1/x?sentinel_password=…"
    )
    assert addresses.shown("jobs.db") == str(folder / "jobs.db")
    assert addresses.shown(":memory:") == ":memory:"


def serve(below: Path, *flags: str, **variables: str) -> str:
    """What a server says until its worker has started."""
    words = [sys.executable, "-m", "windlass", "serve", *flags]
    environ = os.environ | {"PYTHONPATH": str(below.parent)} | variables
    said = []
    with subprocess.Popen(words, cwd=below, env=environ, stderr=subprocess.PIPE, text=True) as server:
        assert server.stderr is not None
        for line in server.stderr:
            said.append(line)
            if " runs jobs, " in line:
                server.terminate()
    assert server.returncode == 0, said
    return "".join(said)


def test_a_server_obeys_the_file_the_environment_and_its_flags(folder: Path) -> None:
    (folder / "shop.py").write_text(SHOP)
    (folder / "windlass.toml").write_text(
        'store = "file.db"\ndata = "state"\n'
        '[server]\nsocket = "file.sock"\napp = "shop:app"\n[worker]\nhandlers = false'
    )
    below = folder / "below"
    below.mkdir()
    said = serve(below)
    assert f"store {folder}/file.db, tenant default, queue default, tasks add, more" in said
    assert f"serves http+unix://{folder}/file.sock; its token is in {folder}/state/token" in said
    said = serve(below, WINDLASS_SERVER_SOCKET="environment.sock", WINDLASS_DATA="other")
    assert "serves http+unix://environment.sock; its token is in other/token" in said
    said = serve(below, "--socket", "flag.sock", "--data", "third", WINDLASS_SERVER_SOCKET="no.sock")
    assert "serves http+unix://flag.sock; its token is in third/token" in said


def test_all_faults_in_the_settings_of_a_server_are_named_at_once(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "windlass.toml").write_text('[server]\nport = 70000\njournal = "perhaps"')
    monkeypatch.setenv("WINDLASS_SERVER_HOTS", "0.0.0.0")  # noqa: S104 - it is refused
    ended = program("serve", "--slots", "0", cwd=folder)
    assert (ended.returncode, ended.stdout) == (2, "")
    first, *faults = ended.stderr.splitlines()
    assert first == "windlass: 4 errors in the settings"
    places = ("windlass.toml: server.port", "windlass.toml: server.journal", "WINDLASS_SERVER_HOTS", "--slots")
    for fault, place in zip(faults, places, strict=True):
        assert fault.strip().startswith(f"{place}: ")
