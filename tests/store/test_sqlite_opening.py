"""Opening files: by several threads at once; and those that are not ours, or of another format."""

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import apsw
import pytest

from windlass.model.errors import Invalid
from windlass.store.sqlite.file import APPLICATION_ID, FORMAT, connect


def test_a_new_file_may_be_opened_by_many_at_once(tmp_path: Path) -> None:
    with ThreadPoolExecutor(4) as threads:
        for number in range(100):
            path, start = str(tmp_path / f"{number}.db"), threading.Barrier(4)
            opened = [threads.submit(_opened_after, start, path) for _ in range(4)]
            for one in opened:
                one.result().close()


@pytest.mark.parametrize(
    ("mark", "version", "advice"),
    [
        (APPLICATION_ID, FORMAT + 1, f"has format {FORMAT + 1}, .* use a newer Windlass"),
        (APPLICATION_ID, FORMAT - 1, f"has format {FORMAT - 1}, older than {FORMAT}, .* start with a new file"),
        (0, FORMAT, "is the database of another program"),
    ],
)
def test_a_file_of_another_format_or_program_is_refused_and_left_as_it_is(
    tmp_path: Path, mark: int, version: int, advice: str
) -> None:
    path = str(tmp_path / "jobs.db")
    sql = apsw.Connection(path)
    sql.execute("CREATE TABLE job (a INTEGER)")
    sql.pragma("application_id", mark)
    sql.pragma("user_version", version)
    sql.close()
    with pytest.raises(Invalid, match=advice):
        connect(path)
    sql = apsw.Connection(path)
    assert (sql.pragma("application_id"), sql.pragma("user_version")) == (mark, version)
    assert sql.execute("SELECT name FROM sqlite_schema").fetchall() == [("job",)]
    sql.close()


def _opened_after(start: threading.Barrier, path: str) -> apsw.Connection:
    start.wait()
    return connect(path)
