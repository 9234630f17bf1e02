"""A file whose disk is full or read-only, that is deleted or replaced, damaged, or open to others."""

import os
import re
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from pathlib import Path

import apsw
import pytest

from tests.support.engines import enqueue, finish, packed, register, take
from tests.support.faulty_disk import disk_of
from tests.support.http_servers import served, web
from tests.support.stores import SeededChance
from windlass.engine import Engine
from windlass.model.errors import Damaged, Full, Unavailable
from windlass.model.new_job import NewJob
from windlass.model.operations import Alive, Delete, GetResult, Renew
from windlass.store.sqlite import SqliteStore
from windlass.store.sqlite.file import to_windlass_error
from windlass.system import SystemClock

pytestmark = pytest.mark.timeout(120)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of sixteen megabytes."""
    with disk_of(tmp_path / "disk", 16) as place:
        yield place


@pytest.fixture
async def on_disk(disk: Path) -> AsyncIterator[Engine]:
    store = SqliteStore.open(disk / "jobs.db", SystemClock())
    yield Engine(store, SeededChance(1))
    await store.close()


def fill(disk: Path) -> None:
    """Leave not a byte, as a forgotten log file would."""
    ballast = os.open(disk / "ballast", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    try:
        for size in (1 << 20, 4096, 1):
            with suppress(OSError):
                while os.write(ballast, bytes(size)):
                    continue
    finally:
        os.close(ballast)


LARGE = packed("x" * 200_000)


async def enqueue_many(engine: Engine) -> None:
    """More than there is room for inside what is there."""
    for _ in range(30):
        await enqueue(engine, payload=LARGE)


async def test_a_full_disk_refuses_new_jobs_and_nothing_else(disk: Path, on_disk: Engine) -> None:
    worker = await register(on_disk)
    jobs = [await enqueue(on_disk, payload=LARGE) for _ in range(20)]
    claimed = [await take(on_disk, worker) for _ in range(20)]
    fill(disk)
    for _ in range(2):
        with pytest.raises(Full, match=r"no room is left on the disk of .*jobs\.db: delete finished jobs"):
            await enqueue_many(on_disk)
    fill(disk)  # and the other program goes on filling it
    alive = [Alive(id=one.job.id, token=one.token) for one in claimed]
    for _ in range(200):
        assert (await on_disk(Renew(worker=worker, jobs=alive))).lost == []
    following = [NewJob(task="more")]
    for place, one in enumerate(claimed):
        assert (await finish(on_disk, worker, one, jobs=following if not place else [])).refused == []
    with pytest.raises(Full):
        await enqueue(on_disk, payload=LARGE)
    for job in jobs[:10]:
        await on_disk(Delete(ids=[job.id]))
    await enqueue(on_disk, payload=LARGE)  # in the room that they have left inside the file


async def test_the_log_gets_half_of_what_the_reserve_gives_up_whatever_other_programs_take(
    disk: Path, on_disk: Engine
) -> None:
    worker = await register(on_disk)
    for _ in range(20):
        await enqueue(on_disk)
    claimed = [await take(on_disk, worker) for _ in range(20)]
    fill(disk)
    with pytest.raises(Full):
        await enqueue_many(on_disk)
    fill(disk)
    for one in claimed:  # a mebibyte: more than the log had before
        assert (await finish(on_disk, worker, one, result=packed("x" * 50_000))).refused == []


async def test_reports_on_a_full_disk_go_into_the_file_so_that_the_log_has_room_for_renewals(
    disk: Path, on_disk: Engine
) -> None:
    other = Engine(SqliteStore.open(disk / "jobs.db", SystemClock()), SeededChance(2))  # does not notice the full disk
    worker = await register(other)
    for _ in range(13):
        await enqueue(on_disk)
    *ended, running = [await take(other, worker) for _ in range(13)]
    fill(disk)
    with pytest.raises(Full):
        await enqueue_many(on_disk)
    fill(disk)
    before = (disk / "jobs.db").stat().st_size
    large = packed("x" * 40_000)
    for one in ended:  # each in a commit of its own
        assert (await finish(other, worker, one, result=large)).refused == []
    alive = [Alive(id=running.job.id, token=running.token)]
    for _ in range(500):
        assert (await other(Renew(worker=worker, jobs=alive))).lost == []
    for one in ended:
        assert (await on_disk(GetResult(id=one.job.id))).result == large
    assert (disk / "jobs.db").stat().st_size > before + 12 * 40_000
    await other.context.store.close()


async def test_a_disk_that_has_room_again_takes_jobs_again(disk: Path, on_disk: Engine) -> None:
    await enqueue(on_disk)
    assert (disk / "jobs.db-reserve").stat().st_size == 1 << 20
    fill(disk)
    with pytest.raises(Full):
        await enqueue_many(on_disk)
    assert (disk / "jobs.db-reserve").stat().st_size < 1 << 20
    (disk / "ballast").unlink()
    while (disk / "jobs.db-reserve").stat().st_size < 1 << 20:
        try:
            await enqueue(on_disk)
        except Full:
            continue
    assert (disk / "jobs.db-reserve").stat().st_size == 1 << 20


async def test_a_server_on_a_full_disk_is_not_ready(disk: Path, on_disk: Engine) -> None:
    async with served(on_disk, SystemClock()) as address, web(address) as client:
        assert (await client.get("/readyz")).status_code == 200
        fill(disk)
        answer = await client.post("/v1/default/jobs", json={"task": "a", "payload": "x" * 900_000})
        assert (answer.status_code, answer.json()["code"]) == (507, "full")
        answer = await client.get("/readyz")
        assert (answer.status_code, "no room is left" in answer.json()["detail"]) == (503, True)
        assert (await client.get("/healthz")).status_code == 200
        (disk / "ballast").unlink()
        while (await client.get("/readyz")).status_code != 200:
            pass


async def test_a_program_that_opens_a_file_on_a_full_disk_can_read_and_delete(disk: Path, on_disk: Engine) -> None:
    worker = await register(on_disk)
    job = await enqueue(on_disk)
    await finish(on_disk, worker, await take(on_disk, worker))
    await on_disk.context.store.close()
    fill(disk)
    again = Engine(SqliteStore.open(disk / "jobs.db", SystemClock()), SeededChance(2))
    await again(Delete(ids=[job.id]))
    await again.context.store.close()


# Another file


@pytest.mark.parametrize("what", ["deleted", "replaced", "its log deleted"])
async def test_a_file_that_is_no_longer_there_takes_nothing(tmp_path: Path, what: str) -> None:
    path = tmp_path / "jobs.db"
    engine = Engine(SqliteStore.open(path, SystemClock()), SeededChance(1))
    await enqueue(engine)
    if what == "its log deleted":
        (tmp_path / "jobs.db-wal").unlink()
    else:
        path.unlink()
    if what == "replaced":
        path.write_bytes(b"")
    for _ in range(2):
        with pytest.raises(Damaged, match=rf"{re.escape(str(path))} was deleted or replaced"):
            await enqueue(engine)
        with pytest.raises(Unavailable):
            await engine.check_ready()
    await engine.context.store.close()
    assert path.exists() is (what != "deleted")


async def test_a_server_whose_file_was_deleted_answers_503(tmp_path: Path) -> None:
    engine = Engine(SqliteStore.open(tmp_path / "jobs.db", SystemClock()), SeededChance(1))
    async with served(engine, SystemClock()) as address, web(address) as client:
        assert (await client.post("/v1/default/jobs", json={"task": "a"})).status_code == 201
        (tmp_path / "jobs.db").unlink()
        answer = await client.post("/v1/default/jobs", json={"task": "a"})
        assert (answer.status_code, answer.json()["code"]) == (503, "damaged")
        assert (await client.get("/readyz")).status_code == 503
    await engine.context.store.close()


# Who may read it


def modes_in(folder: Path) -> dict[str, int]:
    return {path.name: path.stat().st_mode & 0o777 for path in folder.rglob("*")}


async def test_a_new_file_and_all_beside_it_is_its_owners_alone(tmp_path: Path) -> None:
    mask = os.umask(0o022)
    try:
        engine = Engine(SqliteStore.open(tmp_path / "jobs.db", SystemClock()), SeededChance(1))
        await enqueue(engine)
        async with engine.context.store.events.listen(["work/a"]):
            modes = modes_in(tmp_path)
    finally:
        os.umask(mask)
    assert {name for name in modes if not name.startswith("work-")} == {
        *("jobs.db", "jobs.db-wal", "jobs.db-shm", "jobs.db-reserve", "jobs.db-wake")
    }
    assert {mode for name, mode in modes.items() if name != "jobs.db-wake"} == {0o600}
    assert modes["jobs.db-wake"] == 0o700
    await engine.context.store.close()


@pytest.mark.parametrize("mode", [0o644, 0o640, 0o602])
async def test_the_doctor_reports_a_file_that_others_can_read(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "jobs.db"
    await SqliteStore.open(path, SystemClock()).close()
    assert "can read" not in output_of("doctor", "--store", str(path)).stdout
    path.chmod(mode)
    answer = output_of("doctor", "--store", str(path)).stdout
    assert "others can read or write" in answer
    assert "chmod 600" in answer


# What cannot be read, or written


def output_of(*command: str) -> "subprocess.CompletedProcess[str]":
    environ = {name: value for name, value in os.environ.items() if not name.startswith("WINDLASS_")}
    whole = [sys.executable, "-m", "windlass", *command]
    return subprocess.run(
        whole, capture_output=True, text=True, timeout=100, check=False, env=environ | {"COLUMNS": "300"}
    )


def damaged(path: Path, table: str) -> None:
    """A file with a job, in which the first page of a table is none."""
    assert output_of("enqueue", "a", "--store", str(path)).returncode == 0
    sql = apsw.Connection(str(path))
    page = sql.execute("SELECT rootpage FROM sqlite_schema WHERE name = ?", (table,)).get
    size = sql.pragma("page_size")
    sql.close()
    with path.open("r+b") as file:
        file.seek((page - 1) * size)
        file.write(b"\xff" * size)


@pytest.mark.parametrize("table", ["job", "worker", "lease"])
def test_a_worker_in_a_burst_ends_where_a_page_is_damaged(tmp_path: Path, table: str) -> None:
    path = tmp_path / "jobs.db"
    damaged(path, table)
    (tmp_path / "app.py").write_text(
        f"from windlass import Windlass\napp = Windlass({str(path)!r})\n@app.task\ndef a() -> None: ...\n"
    )
    environ = {**os.environ, "PYTHONPATH": f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}"}
    command = [sys.executable, "-m", "windlass", "worker", "app:app", "--burst", "--no-handlers"]
    ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False, env=environ)
    assert ended.returncode == 1
    assert f"{path} is damaged" in ended.stderr.splitlines()[-1], ended.stderr


@pytest.mark.parametrize("table", ["payload", "result", "audit"])
def test_the_doctor_finds_a_damaged_page(tmp_path: Path, table: str) -> None:
    path = tmp_path / "jobs.db"
    damaged(path, table)
    seen = output_of("doctor", "--store", str(path))
    assert seen.returncode == 1
    assert "FAIL" in seen.stdout
    assert "restore a backup" in seen.stdout


def test_the_error_names_a_read_only_disk(disk: Path) -> None:
    assert output_of("enqueue", "a", "--store", str(disk / "jobs.db")).returncode == 0
    subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
    for command in (["doctor"], ["enqueue", "a"]):
        answer = output_of(*command, "--store", str(disk / "jobs.db"))
        assert answer.returncode
        assert f"{disk / 'jobs.db'} cannot be written, its disk is mounted read-only" in answer.stdout + answer.stderr
        assert "see that it runs" not in answer.stdout


@pytest.mark.parametrize("fault", [apsw.CantOpenError("unable to open database file"), apsw.IOError("disk I/O error")])
def test_a_file_that_cannot_be_used_is_named(fault: Exception) -> None:
    assert "/srv/jobs.db cannot be" in str(to_windlass_error(fault, "/srv/jobs.db"))
