"""Opening files: by several threads at once; or made by an older Windlass, and migrated with all their jobs."""

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import apsw
import pytest

from tests.support.stores import SeededChance, VirtualClock, World, ids, open_store, scrub
from windlass.model.job import NewJob, State
from windlass.model.names import DEFAULT_TENANT, JobKey, raw_id, text_id
from windlass.store.data import Dependency
from windlass.store.encoding import pack_terms, pack_then
from windlass.store.sqlite.file import APPLICATION_ID, connect

OLD = {version: Path(__file__).with_name(f"format_{version}.sql").read_text() for version in (2, 3, 4, 5, 6)}
ID = text_id(bytes(range(16)))
RENAMED = 5
"""The format in which tables and columns got the names that they have now."""


@pytest.mark.parametrize("version", OLD)
async def test_an_old_file_is_migrated_with_its_jobs(tmp_path: Path, version: int) -> None:
    path = tmp_path / "jobs.db"
    _make(path, version)
    async with open_store("file", str(path), VirtualClock(), "x") as store:
        world = World(store, VirtualClock(), SeededChance(2))
        new = await world.add(unattended=10)
        assert ids(await world.claim(slots=2)) == [ID, new]
        assert await scrub(store) == []


async def test_from_format_3_jobs_of_all_tenants_keep_their_ids_and_what_follows_them(tmp_path: Path) -> None:
    path = tmp_path / "jobs.db"
    _make(path, 3)
    parent, child, ended = (text_id(bytes([number] * 16)) for number in (1, 2, 3))
    sql = apsw.Connection(str(path))
    sql.execute("INSERT INTO line (id, tenant, queue) VALUES (8, 'acme', 'default')")
    sql.execute(
        "INSERT INTO lane (id, line, tenant, queue, task, bounds, blocked, queued, succeeded, priority, arrival)"
        " VALUES (10, 8, 'acme', 'default', 'a', '', 1, 1, 1, 0, 2)"
    )
    for seq, id, state, followed, waits, ended_at in (
        (2, parent, 2, 1, None, None),
        (3, child, 0, 0, raw_id(parent), None),
        (4, ended, 4, 1, None, 5),
    ):
        sql.execute(
            "INSERT INTO job (seq, id, lane, line, state, priority, files, size, created_at, updated_at, terms,"
            " payload, followed, waits, finished_at) VALUES (?, ?, 10, 8, ?, 0, 0, 1, 0, 0, ?, x'01', ?, ?, ?)",
            (seq, raw_id(id), state, pack_terms(NewJob(task="a")), followed, waits, ended_at),
        )
    sql.execute("INSERT INTO edge (parent, child) VALUES (?, ?)", (raw_id(parent), raw_id(child)))
    sql.execute("INSERT INTO sequel (parent, data) VALUES (?, ?)", (raw_id(ended), pack_then("acme", NewJob(task="b"))))
    sql.execute("INSERT INTO ripe (id, tenant, state) VALUES (?, 'acme', 4)", (raw_id(ended),))
    sql.close()
    async with open_store("file", str(path), VirtualClock(), "x") as store:
        assert await scrub(store) == []
        world = World(store, VirtualClock(), SeededChance(2))
        found = (await store.jobs.read([JobKey(id, "acme") for id in (parent, child, ended)])).records
        assert [record and record.job.id for record in found] == [parent, child, ended]
        assert found[1] is not None
        assert found[1].job.waits_for == [parent]
        assert await world.record(ID, tenant=DEFAULT_TENANT) is not None
        (ripe,) = await store.jobs.completed_parents([], 10)
        assert (ripe.id, ripe.tenant, ripe.then and ripe.then.task) == (ended, "acme", "b")
        assert await store.jobs.add_dependencies([Dependency(parent, "acme", child)]) == [State.QUEUED]
        await world.succeed(await world.take(world.worker(tenant="acme")))
        completed = {one.id: one for one in await store.jobs.completed_parents([], 10)}
        assert completed[parent].children == [child]
        assert await store.jobs.add([world.draft(id=parent)]) == [True], "another tenant may have the same id"


@pytest.mark.parametrize("version", OLD)
async def test_it_has_the_tables_columns_and_indices_of_a_new_one(tmp_path: Path, version: int) -> None:
    _make(tmp_path / "old.db", version)
    for name in ("old.db", "new.db"):
        async with open_store("file", str(tmp_path / name), VirtualClock(), "x"):
            pass
    assert _shape(tmp_path / "old.db") == _shape(tmp_path / "new.db")


def test_a_new_file_may_be_opened_by_many_at_once(tmp_path: Path) -> None:
    with ThreadPoolExecutor(4) as threads:
        for number in range(100):
            path, start = str(tmp_path / f"{number}.db"), threading.Barrier(4)
            opened = [threads.submit(_opened_after, start, path) for _ in range(4)]
            for one in opened:
                one.result().close()


def _opened_after(start: threading.Barrier, path: str) -> apsw.Connection:
    start.wait()
    return connect(path)


def _make(path: Path, version: int) -> None:
    """A file as it was, with one queued job."""
    sql = apsw.Connection(str(path))
    sql.execute(OLD[version])
    rows = """
        INSERT INTO LINE (id, tenant, queue) VALUES (7, 'default', 'default');
        INSERT INTO lane (id, LINE, tenant, queue, task, BOUNDS, queued, priority, arrival)
            VALUES (9, 7, 'default', 'default', 'a', '', 1, 0, 1);
        INSERT INTO job (seq, id, lane, LINE, state, priority, files, size, created_at, updated_at, terms, payload)
            VALUES (1, ?, 9, 7, 2, 0, 0, 1, 0, 0, ?, x'01')
    """
    line, bounds = ("line", "bounds") if version < RENAMED else ("tenant_queue", "limit_keys")
    text = rows.replace("LINE", line).replace("BOUNDS", bounds)
    sql.execute(text, (raw_id(ID), pack_terms(NewJob(task="a"))))
    sql.pragma("application_id", APPLICATION_ID)
    sql.pragma("user_version", version)
    sql.close()


def _shape(path: Path) -> dict[str, object]:
    """The columns of each table, and the statement of each index without quotes and line breaks."""
    sql = apsw.Connection(str(path))
    shape: dict[str, object] = {}
    found = sql.execute("SELECT type, name, sql FROM sqlite_schema WHERE sql IS NOT NULL").fetchall()
    for kind, name, text in (map(str, row) for row in found):
        columns = {str(column[1]) for column in sql.execute(f"PRAGMA table_xinfo({name})")}
        shape[name] = " ".join(text.replace('"', "").split()) if kind == "index" else columns
    sql.close()
    return shape
