"""Folders in which a journal cannot be kept: those are told in a line, and what can be used is used."""

import errno
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.draining import CLOCK, engine_at, in_order, new, taken
from tests.journals import draft
from tests.patience import PATIENCE
from tests.ports import free_port
from tests.servers import NewPrefix, Server
from windlass.engine.journal import Disk, File, open_journaled
from windlass.model.errors import JournalFull, Unavailable
from windlass.model.operations import Count, Enqueue


class OthersDisk(Disk):
    """Some of its folders belong to others."""

    def __init__(self, is_ours: Callable[[Path], bool]) -> None:
        self._is_ours = is_ours

    def lock(self, path: Path) -> int | None:
        self._check(path)
        return super().lock(path)

    def create(self, path: Path) -> File:
        self._check(path)
        return super().create(path)

    def _check(self, path: Path) -> None:
        if not self._is_ours(path):
            raise PermissionError(errno.EACCES, "Permission denied", str(path))


async def test_a_journal_that_belongs_to_others_is_left_to_them(
    redis_server: Server, new_prefix: NewPrefix, tmp_path: Path
) -> None:
    others = taken(tmp_path / "0")
    await others.accept([draft(7)])
    await others.close()
    before = {path: path.read_bytes() for path in (tmp_path / "0").iterdir()}
    disk = OthersDisk(lambda path: path.parent.name != "0")
    async with (
        engine_at(redis_server.url, new_prefix()) as engine,
        open_journaled(engine, tmp_path, CLOCK, files=disk) as service,
    ):
        await service(Enqueue(job=new(1)))
        assert (await service(Count())).count == 1
        assert await in_order(engine) == [1]
    assert {path: path.read_bytes() for path in (tmp_path / "0").iterdir()} == before


async def test_where_no_journal_can_be_kept_nothing_begins(
    redis_server: Server, new_prefix: NewPrefix, tmp_path: Path
) -> None:
    async with engine_at(redis_server.url, new_prefix()) as engine:
        with pytest.raises(JournalFull, match=f"no journal can be kept in {tmp_path}: Permission denied"):
            async with open_journaled(engine, tmp_path, CLOCK, files=OthersDisk(lambda _: False)):
                pass


async def test_a_folder_that_becomes_read_only_refuses_new_jobs_and_goes_on_when_it_is_not(
    redis_server: Server, new_prefix: NewPrefix, tmp_path: Path
) -> None:
    writable = True
    disk = OthersDisk(lambda _: writable)
    async with (
        engine_at(redis_server.url, new_prefix()) as engine,
        open_journaled(engine, tmp_path, CLOCK, files=disk) as service,
    ):
        writable = False
        with pytest.raises(Unavailable, match="Permission denied"):
            await service(Enqueue(job=new(1)))
        writable = True
        await service(Enqueue(job=new(2)))
        await service(Count())
        assert await in_order(engine) == [2], "what was refused was not kept"


def test_a_server_says_in_a_line_where_it_cannot_keep_its_journal(redis_server: Server, tmp_path: Path) -> None:
    (tmp_path / "journal").touch()
    place = ["--store", redis_server.url, "--data", str(tmp_path), "--port", str(free_port())]
    command = [sys.executable, "-m", "windlass", "serve", *place]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert ended.returncode != 0
    assert f"no journal can be kept in {tmp_path / 'journal'}: Not a directory" in ended.stderr
    assert "Traceback" not in ended.stderr
