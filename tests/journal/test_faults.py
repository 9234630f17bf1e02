"""A journal that finds its disk full of what was drained, failing, or damaged; and texts of several tenants."""

import asyncio
import logging
import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest
from msgspec import Raw

from tests.support.drained_journals import CLOCK, engine_at, journaled_at
from tests.support.faulty_disk import (
    contents,
    disk_of,
    draft,
    failing,
    fill_up,
    filled,
    journal_file,
    kept_in,
    opened,
    overwrite,
)
from tests.support.servers import NewPrefix, Server
from tests.support.stores import VirtualClock
from windlass.addresses import open_engine
from windlass.engine.journal import JournalSettings, open_journaled
from windlass.engine.journal.text import Line, Malformed, read_text
from windlass.model.errors import JournalFull, Unavailable
from windlass.model.job import TEXT
from windlass.model.names import fresh_id
from windlass.model.new_job import NewJob
from windlass.model.operations import Enqueue, EnqueueLines, EnqueueMany, List
from windlass.store.data import Draft
from windlass.system import SystemRandomness

# A full disk


def room(disk: Path) -> int:
    found = os.statvfs(disk)
    return found.f_bavail * found.f_frsize


@pytest.mark.parametrize("between", [0.0, 1.0], ids=["at once", "one each second"])
@pytest.mark.parametrize("megabytes", [16, 24, 40])
async def test_a_small_disk_takes_jobs_for_as_long_as_the_store_takes_them_from_it(
    megabytes: int, between: float, tmp_path: Path
) -> None:
    """The pages, the log and the reserve of the journal itself are on that disk, and are no reason to refuse."""
    clock = VirtualClock()
    with disk_of(tmp_path / "disk", megabytes) as disk:
        journal = opened(disk, clock=clock)
        for number in range(300):
            await journal.accept([draft(number, headers={"x": "y" * 300_000})])
            clock.advance(between)
            if number % 5 == 0:
                await journal.forget(journal.last - 1)
        assert await contents(journal, journal.last - 1) == [299]
        await journal.close()


@pytest.mark.parametrize("most_full", [0.8, 1.0], ids=["nearly full", "to the last byte"])
async def test_what_was_drained_goes_first_where_room_is_short(most_full: float, tmp_path: Path) -> None:
    clock = VirtualClock()
    with disk_of(tmp_path / "disk", 8) as disk:
        journal = opened(disk, clock=clock, most_full=most_full)
        for number in range(1200):
            await journal.accept([draft(number, headers={"x": "y" * 10_000})])
            await journal.forget(journal.last)
            clock.advance(0.3)
        await journal.check_room()
        assert journal.oldest > 500, "there was no room for all, or this test is blind"
        await journal.accept([draft(1200)])
        assert await contents(journal, after=journal.drained) == [1200]
        await journal.close()
        kept = await kept_in(disk)
        assert kept == list(range(kept[0], 1201)), "and nothing is missing that was not drained"


async def test_what_was_not_drained_is_never_deleted_for_want_of_room(tmp_path: Path) -> None:
    with disk_of(tmp_path / "disk", 8) as disk:
        journal = opened(disk, most_full=1.0)
        accepted: list[int] = []
        with suppress(JournalFull):
            for number in range(2000):
                await journal.accept([draft(number, headers={"x": "y" * 10_000})])
                accepted.append(number)
        assert len(accepted) < 2000
        assert await contents(journal) == accepted
        ballast = fill_up(disk)  # others take what is left of the disk
        await journal.forget(journal.last - 5)
        await journal.accept([draft(2000, headers={"x": "y" * 10_000})])
        assert await contents(journal, after=journal.drained) == [*accepted[-5:], 2000]
        await journal.close()
        ballast.unlink()
        assert (await kept_in(disk))[-6:] == [*accepted[-5:], 2000]


async def test_a_journal_on_a_full_disk_is_opened_and_read(tmp_path: Path) -> None:
    with disk_of(tmp_path / "disk", 8) as disk:
        await filled(disk, 20)
        ballast = fill_up(disk)
        assert room(disk) == 0
        journal = opened(disk, most_full=1.0)
        assert await contents(journal) == list(range(20))
        ballast.unlink()
        await journal.accept([draft(20)])
        await journal.close()
        assert await kept_in(disk) == list(range(21))


async def test_a_server_whose_journal_is_full_is_not_ready(
    server: Server, new_prefix: NewPrefix, tmp_path: Path
) -> None:
    settings = JournalSettings(most_full=1e-9)
    async with (
        engine_at(server.url, new_prefix()) as engine,
        open_journaled(engine, tmp_path, CLOCK, settings) as service,
    ):
        with pytest.raises(JournalFull, match=r"more than .* full"):
            await service.check_ready()


async def test_a_disk_that_fails_is_not_called_full(tmp_path: Path) -> None:
    journal = opened(tmp_path)
    await journal.accept([draft(1)])
    with failing(journal), pytest.raises(Unavailable, match="Input/output error"):
        await journal.accept([draft(2)])
    await journal.accept([draft(3)])
    assert await contents(journal) == [1, 3]
    await journal.close()


async def test_an_error_says_whether_anything_may_have_been_kept(tmp_path: Path) -> None:
    with disk_of(tmp_path / "disk", 8) as disk:
        journal = opened(disk / "journal", most_full=1.0)
        ballast = fill_up(disk)
        with pytest.raises(JournalFull, match=r"nothing of it was kept$"):
            await journal.accept([draft(1, headers={"x": "y" * 20_000})])
        ballast.unlink()
        with failing(journal), pytest.raises(Unavailable, match="it may have been kept all the same"):
            await journal.accept([draft(2)])
        await journal.close()


async def test_a_journal_that_cannot_be_written_says_so_before_it_gets_jobs_and_no_longer_than_that(
    tmp_path: Path,
) -> None:
    clock = VirtualClock()
    journal = opened(tmp_path, clock=clock)
    await journal.accept([draft(1)])
    await journal.check_writable()
    with failing(journal, times=1000):
        await journal.check_writable()  # it was written just now
        for _ in range(2):
            clock.advance(10)
            with pytest.raises(Unavailable, match=r"the journal cannot be written: [^;]*$"):
                await journal.check_writable()
    clock.advance(1)
    await journal.check_writable()
    assert await contents(journal) == [1]
    await journal.close()


async def test_refused_jobs_are_two_lines_in_the_log(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "windlass.journal")
    clock = VirtualClock()
    journal = opened(tmp_path, clock=clock)
    for turn in range(2):
        with failing(journal, times=1000):
            for number in range(5):
                with pytest.raises(Unavailable):
                    await journal.accept([draft(number)])
        clock.advance(2)
        for number in range(3):
            await journal.accept([draft(turn * 10 + number)])
    said = [record.getMessage() for record in caplog.records]
    assert said == 2 * [
        "journal: new jobs are refused: the journal cannot be written: Input/output error",
        "journal: new jobs are accepted again; 5 requests were refused",
    ]
    await journal.close()


# Damage


def windlass(*command: str) -> "subprocess.CompletedProcess[str]":
    whole = [sys.executable, "-m", "windlass", "journal", *command]
    return subprocess.run(whole, capture_output=True, text=True, timeout=60, check=False)


async def test_verify_fails_where_nothing_can_be_read(tmp_path: Path) -> None:
    await filled(tmp_path, 3)
    path = journal_file(tmp_path)
    overwrite(path, 1, b"\xa5" * path.stat().st_size)
    verified = windlass("verify", str(tmp_path))
    assert verified.returncode == 1
    assert f"{path.name}: damaged" in verified.stdout
    assert "jobs from 1 on are lost" in verified.stdout
    assert windlass("dump", str(tmp_path)).stdout == ""
    journal = opened(tmp_path, seed=5)
    await journal.accept([draft(1)])
    await journal.close()
    verified = windlass("verify", str(tmp_path))
    assert (verified.returncode, "was moved aside" in verified.stdout) == (1, True), "nor afterwards"


async def test_verify_and_dump_work_beside_a_process_that_writes(tmp_path: Path) -> None:
    journal = opened(tmp_path)
    for number in range(5):
        await journal.accept([draft(number)])
    verified = await asyncio.to_thread(windlass, "verify", str(tmp_path))
    assert (verified.returncode, verified.stdout) == (0, f"{tmp_path}: 5 jobs (1 to 5) in 5 batches\n")
    dumped = await asyncio.to_thread(windlass, "dump", str(tmp_path))
    assert dumped.stdout.count("\n") == 5
    await journal.accept([draft(5)])
    await journal.close()
    assert await kept_in(tmp_path) == list(range(6))


async def test_a_journal_of_an_older_windlass_is_named_by_each_command(tmp_path: Path) -> None:
    (tmp_path / "0000000000000001-000001.journal").write_bytes(b"WLJ\2")
    for command in ("verify", "dump"):
        refused = windlass(command, str(tmp_path))
        assert refused.returncode != 0
        assert "drain it with the version that wrote it" in refused.stderr
        assert "Traceback" not in refused.stderr


# Texts


async def of_tenants(folder: Path, kind: str = "") -> None:
    journal = opened(folder)
    for name, payload in (("a", "one"), ("a", "two"), ("b", "secret"), ("a", "three")):
        tenant = f"{name}{kind}"
        new = NewJob(task="mail", payload=Raw(payload.encode()), content_type=TEXT)
        await journal.accept([Draft(tenant, fresh_id(SystemRandomness().uuid7(), "default"), new)])
    await journal.close()


@pytest.mark.parametrize("form", ["records", "batches", "json"])
async def test_a_dump_of_a_tenant_holds_no_other(form: str, tmp_path: Path) -> None:
    await of_tenants(tmp_path)
    dumped = windlass("dump", str(tmp_path), "--tenant", "a", "--form", form).stdout
    assert ("one" in dumped, "three" in dumped, "secret" in dumped) == (True, True, False)
    assert "secret" in windlass("dump", str(tmp_path), "--form", form).stdout


@pytest.mark.parametrize("form", ["records", "batches"])
@pytest.mark.parametrize("store", ["file", "redis"])
async def test_what_is_loaded_comes_back_to_its_own_tenant(
    form: str, store: str, tmp_path: Path, redis_server: Server
) -> None:
    (tmp_path / "journal").mkdir()
    await of_tenants(tmp_path / "journal", form)
    (tmp_path / "text").write_text(windlass("dump", str(tmp_path / "journal"), "--form", form).stdout)
    address = str(tmp_path / "jobs.db") if store == "file" else redis_server.url
    loaded = windlass("load", str(tmp_path / "text"), "--store", address)
    assert (loaded.returncode, loaded.stdout) == (0, "4 new jobs of 4\n"), loaded.stderr
    async with open_engine(address) as engine:
        counts = [len((await engine(List(tenant=f"{name}{form}"))).jobs) for name in ("a", "b")]
    assert counts == [3, 1]


def test_a_text_may_name_tenants() -> None:
    text = (
        "x|mail|0\n#:Tenant a\ny|mail|1\n#:Batch jobtype=mail,tenant=b\n#:Tenant c\n2\n#:EndBatch\nz|mail|3\n"
        "#:Tenant no tenant\nw|mail|4\n#:Batch jobtype=mail\n5\n#:EndBatch\n"
        "#:Batch jobtype=mail,tenant=/\n6\n#:EndBatch\n"
    )
    assert [line for line in read_text(text) if isinstance(line, Line)] == [
        Line("x", "mail", "0"),
        Line("y", "mail", "1", "a"),
        Line("", "mail", "2", "b"),
        Line("z", "mail", "3", "a"),
        Line("", "mail", "5"),
    ]
    assert [line.number for line in read_text(text) if isinstance(line, Malformed)] == [9, 14]


# The log


async def test_what_is_accepted_by_the_journal_is_logged_as_entered(
    server: Server, new_prefix: NewPrefix, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "windlass.job")
    async with journaled_at(server.url, tmp_path, new_prefix()) as service:
        job = await service(Enqueue(job=NewJob(task="one", key="k")))
        await service(Enqueue(job=NewJob(task="one", key="k")))
        many = await service(EnqueueMany(jobs=[NewJob(task="two"), NewJob(task="two")]))
        lines = await service(EnqueueLines(task="three", text="a\nb\n"))
    said = [record.getMessage() for record in caplog.records if " entered" in record.getMessage()]
    assert said == [
        f"{job.id} one entered",
        f"{job.id} one entered, again",
        *(f"{id} two entered" for id in many.ids),
        *(f"{id} three entered" for id in lines.ids),
    ]
