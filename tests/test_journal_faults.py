"""A journal that finds its disk full of what was drained, failing, or damaged; and texts of several tenants."""

import logging
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest
from msgspec import Raw

from tests.draining import CLOCK, engine_at, journaled_at
from tests.journals import FOLDER, PaperDisk, contents, draft, filled, opened
from tests.servers import NewPrefix, Server
from windlass.addresses import open_engine
from windlass.engine.journal import Disk, JournalSettings, open_journaled
from windlass.engine.journal.format import HEADER_SIZE
from windlass.engine.journal.segments import listed
from windlass.engine.journal.text import Line, Malformed, read_text
from windlass.model.errors import JournalFull, Unavailable
from windlass.model.job import TEXT, NewJob
from windlass.model.names import fresh_id
from windlass.model.operations import Enqueue, EnqueueLines, EnqueueMany, List
from windlass.store import Draft
from windlass.system import SystemChance


class SmallDisk(PaperDisk):
    """A disk of so many bytes, which knows how full it is."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.room = size

    def fullness(self, folder: Path) -> float:
        return sum(map(len, self.written.values())) / self.room


# A full disk


@pytest.mark.parametrize("most_full", [0.5, 1.0], ids=["nearly full", "to the last byte"])
@pytest.mark.parametrize("segment_bytes", [500, 1 << 20], ids=["many segments", "one segment"])
async def test_what_was_drained_goes_first_where_room_is_short(most_full: float, segment_bytes: int) -> None:
    disk = SmallDisk(10_000)
    journal = opened(disk, most_full=most_full, segment_bytes=segment_bytes)
    journal._looked_at_disk = -100.0
    for number in range(1000):
        journal._disk_full = journal._disk_full or number % 2 == 0  # it looks each other time
        await journal.accept([draft(number)])
        journal.forget(journal.last)
    journal.check_room()
    await journal.accept([draft(1000)])
    assert (await contents(journal, after=journal.drained)) == [1000]
    await journal.close()
    again = opened(disk)
    assert (await contents(again))[-1] == 1000, "and nothing is missing that was not drained"
    assert not again.findings
    await again.close()


async def test_what_was_not_drained_is_never_deleted_for_want_of_room() -> None:
    disk = SmallDisk(10_000)
    journal = opened(disk, most_full=1.0, segment_bytes=500)
    accepted = []
    with suppress(JournalFull):
        for number in range(1000):
            await journal.accept([draft(number)])
            accepted.append(number)
    assert len(accepted) < 1000
    assert await contents(journal) == accepted
    journal.forget(journal.last - 5)
    await journal.accept([draft(1000)])
    assert await contents(journal, after=journal.drained) == [*accepted[-5:], 1000]
    await journal.close()


async def test_a_server_whose_journal_is_full_is_not_ready(
    server: Server, new_prefix: NewPrefix, tmp_path: Path
) -> None:
    settings = JournalSettings(most_full=1e-9)
    async with (
        engine_at(server.url, new_prefix()) as engine,
        open_journaled(engine, tmp_path, CLOCK, settings, Disk()) as service,
    ):
        with pytest.raises(JournalFull, match=r"more than .* full"):
            await service.check_ready()


async def test_a_disk_that_fails_is_not_called_full() -> None:
    disk = PaperDisk()
    journal = opened(disk)
    await journal.accept([draft(1)])
    for what in ("write", "sync", "create"):
        disk.faults = {what: 1}
        with pytest.raises(Unavailable, match="Input/output error"):
            await journal.accept([draft(2)])
        disk.faults = {}
    await journal.accept([draft(3)])
    assert await contents(journal) == [1, 3]
    await journal.close()


# A damaged header


@pytest.mark.parametrize("which", ["the newest", "an older one"])
@pytest.mark.parametrize("bit", range(0, 8 * HEADER_SIZE, 17))
async def test_a_flipped_bit_in_a_header_costs_no_record(bit: int, which: str) -> None:
    disk = PaperDisk()
    await filled(disk, 12, segment_bytes=300)
    path = listed(disk, FOLDER)[-1 if which == "the newest" else 1]
    disk.written[path][bit // 8] ^= 1 << bit % 8
    journal = opened(disk, seed=99)
    assert await contents(journal) == list(range(12))
    assert [(finding.path, finding.lost) for finding in journal.findings] == [(path, 0)]
    await journal.accept([draft(12)])
    await journal.close()
    again = opened(disk, seed=100)
    assert (await contents(again), again.findings) == (list(range(13)), [])
    await again.close()


def windlass(*command: str) -> "subprocess.CompletedProcess[str]":
    whole = [sys.executable, "-m", "windlass", "journal", *command]
    return subprocess.run(whole, capture_output=True, text=True, timeout=60, check=False)


async def test_verify_fails_where_the_newest_segment_cannot_be_read(tmp_path: Path) -> None:
    await filled(Disk(), 3, tmp_path)
    (path,) = listed(Disk(), tmp_path)
    data = bytearray(path.read_bytes())
    data[0] ^= 1
    path.write_bytes(data)
    told = windlass("verify", str(tmp_path))
    assert (told.returncode, "3 records (1 to 3)" in told.stdout) == (0, True), told.stdout
    data[:HEADER_SIZE] = bytes(HEADER_SIZE)
    path.write_bytes(data)
    told = windlass("verify", str(tmp_path))
    assert told.returncode == 1
    assert "nothing from sequence 1 on can be read" in told.stdout
    journal = opened(Disk(), tmp_path, seed=5)
    await journal.accept([draft(1)])
    await journal.close()
    told = windlass("verify", str(tmp_path))
    assert (told.returncode, "was put aside" in told.stdout) == (1, True), "nor afterwards"


# Texts


async def of_tenants(folder: Path, kind: str = "") -> None:
    journal = opened(Disk(), folder)
    for name, payload in (("a", "one"), ("a", "two"), ("b", "secret"), ("a", "three")):
        tenant = f"{name}{kind}"
        new = NewJob(task="mail", payload=Raw(payload.encode()), content_type=TEXT)
        await journal.accept([Draft(tenant, fresh_id(SystemChance().uuid7(), "default"), new)])
    await journal.close()


@pytest.mark.parametrize("form", ["records", "batches", "json"])
async def test_a_dump_of_a_tenant_holds_no_other(form: str, tmp_path: Path) -> None:
    await of_tenants(tmp_path)
    told = windlass("dump", str(tmp_path), "--tenant", "a", "--form", form).stdout
    assert ("one" in told, "three" in told, "secret" in told) == (True, True, False)
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
