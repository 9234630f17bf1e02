"""Opening files: by several threads at once; or made by an older Windlass, and migrated with all their jobs."""

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import apsw
import pytest
from msgspec import msgpack

from tests.support.stores import SeededChance, VirtualClock, World, ids, open_store, scrub
from windlass.model.job import State
from windlass.model.names import DEFAULT_TENANT, JobKey, raw_id, text_id
from windlass.model.new_job import NewJob
from windlass.store.data import Dependency
from windlass.store.encoding import pack_terms, pack_then, unpack_then
from windlass.store.sqlite.file import APPLICATION_ID, connect

OLD = {version: Path(__file__).with_name(f"format_{version}.sql").read_text() for version in (2, 3, 4, 5, 6, 7, 8)}
ID = text_id(bytes(range(16)))
RENAMED = 5
"""The format in which tables and columns got the names that they have now."""


@pytest.mark.parametrize("version", OLD)
async def test_an_old_file_is_migrated_with_its_jobs(tmp_path: Path, version: int) -> None:
    path = tmp_path / "jobs.db"
    _make(path, version)
    async with open_store("file", str(path), VirtualClock(), "x") as store:
        world = World(store, VirtualClock(), SeededChance(2))
        new = await world.add(owner_timeout=10)
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


async def test_from_format_7_options_and_rules_keep_their_values_under_other_names(tmp_path: Path) -> None:
    path = tmp_path / "jobs.db"
    _make(path, 7)
    sql = apsw.Connection(str(path))
    options = {"unattended": 10.0, "headers": {"unattended": "shut"}, "tags": ["unattended"]}
    sql.execute("UPDATE job SET terms = ?, abandon_at = 10000000, followed = 1", (msgpack.encode(options),))
    rules = {"edition": 3, "grouping": 2, "fair_lines": {"shut,default": {"marks": 2.0}}}
    sql.execute("UPDATE rules SET version = 3, data = ?", (msgpack.encode(rules),))
    chain = [[{"task": "b", "unattended": 20.0}, b"unattended"], [{"task": "c"}, None]]
    sql.execute("INSERT INTO follow_up (parent, data) VALUES (?, ?)", (raw_id(ID), msgpack.encode(["default", chain])))
    then = {"task": "b", "unattended": 20.0}
    records = {
        ("task-options", "-/a"): {"unattended": 30.0},
        ("schedule", "default/a"): {"job": {"task": "a", "payload": {"unattended": 1}, "then": then}},
    }
    for (kind, name), data in records.items():
        sql.execute("INSERT INTO record (kind, name, data) VALUES (?, ?, ?)", (kind, name, msgpack.encode(data)))
    worker = {"name": "w", "options": {"shut": {"unattended": 40.0}}}
    sql.execute(
        "INSERT INTO worker (id, tenant, registered_at, seen_at, until, data) VALUES ('w', 'default', 0, 0, ?, ?)",
        (2**60, msgpack.encode(worker)),
    )
    sql.close()
    async with open_store("file", str(path), VirtualClock(), "x") as store:
        assert await scrub(store) == []
        record = (await store.jobs.read([JobKey(ID, DEFAULT_TENANT)])).records[0]
        assert record is not None
        assert record.job.owner_timeout == 10.0
        assert (record.job.headers, record.job.tags) == ({"unattended": "shut"}, ["unattended"])
        found = await store.flow.rules()
        assert (found.version, found.group_epoch) == (3, 2)
        assert found.fair_tenant_queues == {"shut,default": {"marks": 2.0}}
        kept = (await store.records.list("task-options"))["-/a"]
        assert msgpack.decode(kept) == {"owner_timeout": 30.0}
        job = msgpack.decode((await store.records.list("schedule"))["default/a"])["job"]
        assert (job["payload"], job["then"]) == ({"unattended": 1}, {"task": "b", "owner_timeout": 20.0})
        (alive,) = await store.workers.list(DEFAULT_TENANT)
        assert alive.options is not None
        assert alive.options["shut"].owner_timeout == 40.0
    sql = apsw.Connection(str(path))
    _, following = unpack_then(sql.execute("SELECT data FROM follow_up").get)
    assert (following.owner_timeout, bytes(following.payload)) == (20.0, b"unattended")
    sql.close()


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
