"""Files that are opened: by many at once; or made by an older Windlass, and brought up to date with all they hold."""

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import apsw

from tests.worlds import SeededChance, VirtualClock, World, ids, open_store, scrub
from windlass.model.job import NewJob
from windlass.model.names import raw_id, text_id
from windlass.store.sqlite.opening import APPLICATION, connect
from windlass.store.terms import pack

OLD = Path(__file__).with_name("format_2.sql").read_text()
ID = text_id(bytes(range(16)))


async def test_a_file_of_format_2_is_brought_up_to_date_with_its_jobs(tmp_path: Path) -> None:
    path = tmp_path / "jobs.db"
    _make(path)
    async with open_store("file", str(path), VirtualClock(), "x") as store:
        world = World(store, VirtualClock(), SeededChance(2))
        new = await world.add(unattended=10)
        assert ids(await world.claim(slots=2)) == [ID, new]
        assert await scrub(store) == []


async def test_it_has_the_tables_columns_and_indices_of_a_new_one(tmp_path: Path) -> None:
    _make(tmp_path / "old.db")
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


def _make(path: Path) -> None:
    """A file as it was, with one queued job."""
    sql = apsw.Connection(str(path))
    sql.execute(OLD)
    sql.execute("INSERT INTO line (id, tenant, queue) VALUES (7, 'default', 'default')")
    sql.execute(
        "INSERT INTO lane (id, line, tenant, queue, task, bounds, queued, priority, arrival)"
        " VALUES (9, 7, 'default', 'default', 'a', '', 1, 0, 1)"
    )
    sql.execute(
        "INSERT INTO job (seq, id, lane, line, state, priority, files, size, created_at, updated_at, terms, payload)"
        " VALUES (1, ?, 9, 7, 2, 0, 0, 1, 0, 0, ?, x'01')",
        (raw_id(ID), pack(NewJob(task="a"))),
    )
    sql.pragma("application_id", APPLICATION)
    sql.pragma("user_version", 2)
    sql.close()


def _shape(path: Path) -> dict[str, set[str]]:
    sql = apsw.Connection(str(path))
    names = [name for (name,) in sql.execute("SELECT name FROM sqlite_schema WHERE sql IS NOT NULL")]
    shape = {name: {str(column[1]) for column in sql.execute(f"PRAGMA table_xinfo({name})")} for name in names}
    sql.close()
    return shape
