"""Damage to the write-ahead log of a journal: what SQLite passes over in silence is found, counted and named."""

import logging
import os
import random
import shutil
from pathlib import Path

import apsw
import pytest

from tests.journal.test_commands import windlass
from tests.support.faulty_disk import (
    contents,
    copied,
    draft,
    findings_in,
    journal_file,
    lines,
    log_of,
    moved_aside,
    names_in,
    opened,
    rows_in,
)
from windlass.engine.journal.file import JournalFinding

FRAME, HEADER = 4096 + 24, 32


def flip(path: Path, bit: int) -> None:
    with path.open("r+b") as file:
        file.seek(bit // 8)
        byte = file.read(1)[0]
        file.seek(bit // 8)
        file.write(bytes([byte ^ 1 << bit % 8]))


def named_in(findings: list[JournalFinding], upto: int) -> set[int]:
    """The numbers that are said to be lost."""
    closed = {number for found in findings for number in range(found.first, found.last + 1)}
    return closed | {number for found in findings if found.open_ended for number in range(found.first, upto + 1)}


def with_index(folder: Path, to: Path) -> Path:
    """The files of a journal as the death of its process would leave them."""
    copied(folder, to)
    index = Path(f"{journal_file(folder)}-shm")
    shutil.copyfile(index, to / index.name)
    return to


async def written(folder: Path) -> int:
    """Fill a journal by commits of all sizes, some of them deletions, and copy it; the number of its newest job."""
    journal = opened(folder, keep=0)
    for number in range(30):
        await journal.accept([draft(number, headers={"x": "y" * (number % 7 * 700)})])
        if number % 10 == 0:
            await journal.accept(lines(1000 * number, 1000 * number + 300))
            await journal.forget(journal.last // 2)
    with_index(folder, folder / "copy")
    await journal.close()
    return journal.last


@pytest.mark.parametrize("flips", [10, pytest.param(200, marks=pytest.mark.long)])
@pytest.mark.parametrize("stopped", ["its process was killed", "the power failed"])
async def test_a_flipped_bit_in_the_log_loses_nothing_silently(stopped: str, flips: int, tmp_path: Path) -> None:
    last = await written(tmp_path / "sound")
    sound = tmp_path / "sound" / "copy"
    chance = random.Random(7)
    whole = {number for row in rows_in(copied(sound, tmp_path / "whole")) for number in range(row.first, row.last + 1)}
    for turn in range(flips):
        folder = tmp_path / str(turn)
        (with_index if stopped == "its process was killed" else copied)(sound, folder)
        last_commit = 4 * FRAME if stopped == "the power failed" else 0
        flip(log_of(folder), chance.randrange(8 * (log_of(folder).stat().st_size - last_commit)))
        before = {path.name: path.read_bytes() for path in folder.iterdir()}
        found = findings_in(folder)
        again = findings_in(folder)
        assert [one.what for one in again] == [one.what for one in found], "each time"
        named = named_in(found, last)
        left = {number for row in rows_in(folder) for number in range(row.first, row.last + 1)}
        assert whole - left <= named, f"turn {turn}: {sorted(whole - left - named)[:9]} were dropped silently"
        assert not named & left, f"turn {turn}"
        if found:
            assert {path.name: path.read_bytes() for path in folder.iterdir() if path.name in before} == before
        journal = opened(folder, seed=turn)
        assert [one.what for one in journal.findings] == [one.what for one in found]
        assert bool(journal.findings) == bool(moved_aside(folder))
        await journal.accept([draft(5000)])
        assert (await contents(journal))[-1] == 5000, "it goes on"
        await journal.close()
        assert named_in(findings_in(folder), last) >= named, "it is reported afterwards too"


async def lone_jobs(folder: Path, number: int) -> Path:
    """A journal of so many jobs, a commit each, all still in its log, as the death of its process leaves it."""
    journal = opened(folder / "journal")
    for one in range(number):
        await journal.accept([draft(one)])
    killed = with_index(folder / "journal", folder / "killed")
    await journal.close()
    return killed


async def test_verify_and_the_server_name_the_jobs_that_damage_to_the_log_has_cut_off(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    killed = await lone_jobs(tmp_path, 40)
    flip(log_of(killed), 8 * (log_of(killed).stat().st_size - 12 * FRAME - 500))
    verified = windlass("journal", "verify", str(killed))
    assert verified.returncode == 1
    assert "only the first" in verified.stdout
    assert "jobs 28 to 40 are lost" in verified.stdout
    assert windlass("journal", "verify", str(killed)).stdout == verified.stdout
    with caplog.at_level(logging.ERROR, "windlass.journal"):
        journal = opened(killed)
    assert "jobs 28 to 40 are lost" in caplog.text
    assert await contents(journal) == list(range(27))
    assert await journal.accept([draft(99)]) == 41, "no number is given twice"
    await journal.close()
    (aside,) = moved_aside(killed)
    assert f"{aside.name}-wal" in names_in(killed), "with its log, for people to look at"


async def test_a_log_whose_last_commit_is_damaged_or_missing_is_reported_while_its_index_is_there(
    tmp_path: Path,
) -> None:
    killed = await lone_jobs(tmp_path, 10)
    for name, harm in (("flipped", lambda log: flip(log, 8 * log.stat().st_size - 9000)), ("cut off", shorten)):
        folder = with_index(killed, tmp_path / name)
        harm(log_of(folder))
        found = findings_in(folder)
        assert [one.first for one in found if one.open_ended] == [10], name
        assert len(rows_in(folder)) == 9


def shorten(log: Path) -> None:
    os.truncate(log, log.stat().st_size - FRAME)


async def test_the_head_of_the_log_may_be_damaged_too(tmp_path: Path) -> None:
    killed = await lone_jobs(tmp_path, 10)
    sure = len(rows_in(copied(killed, tmp_path / "whole")))
    for bit in (5, 70, 140, 200, 255):
        folder = copied(killed, tmp_path / str(bit))
        flip(log_of(folder), bit)
        found = findings_in(folder)
        assert found
        assert len(rows_in(folder)) + len(named_in(found, 10)) == sure


async def test_a_log_that_is_begun_again_is_sound_however_much_of_the_old_one_is_behind_it(tmp_path: Path) -> None:
    journal = opened(tmp_path / "journal")
    for number in range(20):
        await journal.accept([draft(number, headers={"x": "y" * 3000})])
    journal._file._sql.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_RESTART)
    for number in range(20, 25):
        await journal.accept([draft(number)])
        for copy in (copied, with_index):
            folder = copy(tmp_path / "journal", tmp_path / f"{number} {copy.__name__}")
            assert log_of(folder).stat().st_size > 40 * FRAME // 2
            assert findings_in(folder) == []
            assert len(rows_in(folder)) == number + 1
    await journal.close()


async def test_a_commit_that_a_power_cut_left_in_part_is_no_damage(tmp_path: Path) -> None:
    """Its pages reach the disk in any order, and no caller has an answer yet."""
    journal = opened(tmp_path / "journal")
    await journal.accept([draft(0)])
    before = log_of(tmp_path / "journal").stat().st_size
    await journal.accept(lines(1, 2001))
    chance = random.Random(4)
    frames = (log_of(tmp_path / "journal").stat().st_size - before) // FRAME
    assert frames > 5
    for turn in range(20):
        folder = copied(tmp_path / "journal", tmp_path / str(turn))
        with log_of(folder).open("r+b") as log:
            for missing in chance.sample(range(frames), chance.randint(1, frames - 1)):
                log.seek(before + missing * FRAME)
                log.write(bytes(FRAME))
        assert findings_in(folder) == []
        assert len(rows_in(folder)) == 1
    await journal.close()


async def test_verify_finds_damage_to_the_log_of_a_server_that_runs(tmp_path: Path) -> None:
    journal = opened(tmp_path)
    for number in range(10):
        await journal.accept([draft(number)])
    sound = windlass("journal", "verify", str(tmp_path))
    assert (sound.returncode, sound.stdout) == (0, f"{tmp_path}: 10 jobs (1 to 10) in 10 batches\n")
    flip(log_of(tmp_path), 8 * (HEADER + 3 * FRAME + 24 + 4000))
    verified = windlass("journal", "verify", str(tmp_path))
    assert verified.returncode == 1
    assert "only the first" in verified.stdout
    await journal.close()
