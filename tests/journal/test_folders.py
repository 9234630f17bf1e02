"""Folders in which a journal cannot be kept: the error is one line, and what can be used is used."""

import errno
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from tests.support.drained_journals import CLOCK, engine_at, in_order, new, taken
from tests.support.faulty_disk import draft
from tests.support.patience import PATIENCE
from tests.support.ports import free_port
from tests.support.servers import NewPrefix, Server
from windlass.engine.journal import file, open_journaled
from windlass.engine.journal.file import JournalFile, Row
from windlass.model.errors import Invalid, JournalFull, Unavailable
from windlass.model.operations import Count, Enqueue


@pytest.fixture
def belongs_to_others(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[Path], bool]], None]:
    """Let some folders belong to others; the tests run as root, who may write everywhere."""

    def begin(is_ours: Callable[[Path], bool]) -> None:
        lock, insert = file.lock_folder, JournalFile._insert

        def check(folder: Path) -> None:
            if not is_ours(folder):
                raise PermissionError(errno.EACCES, "Permission denied", str(folder))

        def lock_or_refuse(folder: Path) -> int | None:
            check(folder)
            return lock(folder)

        def insert_or_refuse(one: JournalFile, rows: Sequence[Row]) -> None:
            check(one.path.parent)
            insert(one, rows)

        monkeypatch.setattr(file, "lock_folder", lock_or_refuse)
        monkeypatch.setattr(JournalFile, "_insert", insert_or_refuse)

    return begin


Belongs = Callable[[Callable[[Path], bool]], None]


async def test_a_journal_that_belongs_to_others_is_left_to_them(
    redis_server: Server, new_prefix: NewPrefix, tmp_path: Path, belongs_to_others: Belongs
) -> None:
    others = taken(tmp_path / "0")
    await others.accept([draft(7)])
    await others.close()
    before = {path: path.read_bytes() for path in (tmp_path / "0").iterdir()}
    belongs_to_others(lambda folder: folder.name != "0")
    async with (
        engine_at(redis_server.url, new_prefix()) as engine,
        open_journaled(engine, tmp_path, CLOCK) as service,
    ):
        await service(Enqueue(job=new(1)))
        assert (await service(Count())).count == 1
        assert await in_order(engine) == [1]
    assert {path: path.read_bytes() for path in (tmp_path / "0").iterdir()} == before


async def test_where_no_journal_can_be_kept_nothing_begins(
    redis_server: Server, new_prefix: NewPrefix, tmp_path: Path, belongs_to_others: Belongs
) -> None:
    belongs_to_others(lambda _: False)
    async with engine_at(redis_server.url, new_prefix()) as engine:
        with pytest.raises(JournalFull, match=f"no journal can be kept in {tmp_path}: Permission denied"):
            async with open_journaled(engine, tmp_path, CLOCK):
                pass


async def test_a_folder_that_becomes_read_only_refuses_new_jobs_and_goes_on_when_it_is_not(
    redis_server: Server, new_prefix: NewPrefix, tmp_path: Path, belongs_to_others: Belongs
) -> None:
    writable = True
    belongs_to_others(lambda _: writable)
    async with (
        engine_at(redis_server.url, new_prefix()) as engine,
        open_journaled(engine, tmp_path, CLOCK) as service,
    ):
        writable = False
        with pytest.raises(Unavailable, match="Permission denied"):
            await service(Enqueue(job=new(1)))
        writable = True
        await service(Enqueue(job=new(2)))
        await service(Count())
        assert await in_order(engine) == [2], "what was refused was not kept"


async def test_a_journal_of_an_older_windlass_stops_the_start_with_what_to_do(
    redis_server: Server, new_prefix: NewPrefix, tmp_path: Path
) -> None:
    (tmp_path / "0").mkdir()
    (tmp_path / "0" / "0000000000000001-000001.journal").write_bytes(b"WLJ\2")
    async with engine_at(redis_server.url, new_prefix()) as engine:
        with pytest.raises(Invalid, match="drain it with the version that wrote it"):
            async with open_journaled(engine, tmp_path, CLOCK):
                pass


def test_a_server_says_in_a_line_where_it_cannot_keep_its_journal(redis_server: Server, tmp_path: Path) -> None:
    (tmp_path / "journal").touch()
    place = ["--store", redis_server.url, "--data", str(tmp_path), "--port", str(free_port())]
    command = [sys.executable, "-m", "windlass", "serve", *place]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert ended.returncode != 0
    assert f"no journal can be kept in {tmp_path / 'journal'}: Not a directory" in ended.stderr
    assert "Traceback" not in ended.stderr
