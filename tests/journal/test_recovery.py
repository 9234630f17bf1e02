"""What a journal does about damage: what can be read is kept, what is lost is named, nothing is dropped silently."""

import logging
import os
import random
import re
from pathlib import Path

import apsw
import pytest

from tests.support.faulty_disk import (
    PAGE,
    contents,
    draft,
    filled,
    findings_in,
    journal_file,
    lines,
    moved_aside,
    names_in,
    number_of,
    opened,
    overwrite,
    pages_of_batches,
    rows_in,
)
from windlass.engine.journal import file
from windlass.engine.journal.file import JournalFinding
from windlass.model.errors import Unavailable
from windlass.model.names import key_of

NUMBER = 80
SIZE = 1000
"""Bytes of a job: three fit into a page."""
GARBAGE = random.Random(1).randbytes(PAGE)


async def recovered(folder: Path) -> tuple[list[int], list[JournalFinding]]:
    """What is kept of a damaged journal, which then goes on."""
    journal = opened(folder, seed=99)
    found, findings, id = await contents(journal), journal.findings, journal.id
    await journal.accept([draft(1000)])
    assert (await contents(journal))[-1] == 1000, "it goes on"
    await journal.close()
    again = opened(folder, seed=100)
    assert await contents(again) == [*found, 1000], "once is enough"
    assert again.findings == []
    assert again.id == id
    await again.close()
    return found, findings


def lost_in(findings: list[JournalFinding]) -> list[int]:
    return [number - 1 for found in findings for number in range(found.first, found.last + 1)]


@pytest.mark.parametrize("rubbish", [GARBAGE, bytes(PAGE)], ids=["garbage", "zeros"])
@pytest.mark.parametrize("which", ["the first", "one in the middle", "the last"])
async def test_a_page_of_rubbish_costs_only_the_jobs_in_it_and_they_are_named(
    which: str, rubbish: bytes, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    await filled(tmp_path, NUMBER, size=SIZE)
    path = journal_file(tmp_path)
    pages = pages_of_batches(path)
    page = {"the first": pages[0], "one in the middle": pages[len(pages) // 2], "the last": pages[-1]}[which]
    overwrite(path, page, rubbish)
    damaged = path.read_bytes()
    with caplog.at_level(logging.ERROR, "windlass.journal"):
        kept, findings = await recovered(tmp_path)
    assert NUMBER - 4 <= len(kept) < NUMBER
    missing = sorted({*range(NUMBER)} - {*kept})
    if which == "the last":
        assert [found.first for found in findings if found.open_ended] == [missing[0] + 1]
    else:
        assert lost_in(findings) == missing
        assert f"jobs {missing[0] + 1} to {missing[-1] + 1} are lost" in caplog.text
    (aside,) = moved_aside(tmp_path)
    assert aside.read_bytes() == damaged, "as it was, for people to look at"


async def test_several_damaged_pages_are_all_named(tmp_path: Path) -> None:
    await filled(tmp_path, NUMBER, size=SIZE)
    path = journal_file(tmp_path)
    pages = pages_of_batches(path)
    for page in (pages[1], pages[3], pages[4]):
        overwrite(path, page)
    kept, findings = await recovered(tmp_path)
    assert lost_in(findings) == sorted({*range(NUMBER)} - {*kept})
    assert kept[0] == 0
    assert kept[-1] == NUMBER - 1


async def test_a_page_in_the_middle_of_a_large_batch_costs_that_batch(tmp_path: Path) -> None:
    journal = opened(tmp_path)
    for start in range(0, 5000, 1000):
        await journal.accept(lines(start, start + 1000))
    await journal.close()
    path = journal_file(tmp_path)
    third = rows_in(tmp_path)[2].body[9000:9100]
    overwrite(path, path.read_bytes().index(third) // PAGE + 1)
    kept, findings = await recovered(tmp_path)
    assert kept == [*range(2000), *range(3000, 5000)]
    assert [(found.first, found.last) for found in findings if found.lost] == [(2001, 3000)]


async def test_damage_in_the_list_of_gaps_costs_no_job(tmp_path: Path) -> None:
    journal = opened(tmp_path, keep=0)
    for number in range(NUMBER):
        await journal.accept([draft(number)])
    await journal.forget(30)
    await journal.close()
    path = journal_file(tmp_path)
    batches = {*pages_of_batches(path)}
    root = next(page for page in range(2, 6) if page not in batches and b"drained" in _page(path, page))
    overwrite(path, root)
    kept, findings = await recovered(tmp_path)
    assert kept == list(range(30, NUMBER))
    assert lost_in(findings) == []
    assert findings


def _page(path: Path, page: int) -> bytes:
    return path.read_bytes()[(page - 1) * PAGE : page * PAGE]


def leading_pages(path: Path) -> list[int]:
    """The pages that lead to batches, the root first."""
    sql = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY)
    query = "SELECT pageno FROM dbstat WHERE name = 'batches' AND pagetype = 'internal' ORDER BY path"
    found = [int(page) for (page,) in sql.execute(query)]
    sql.close()
    return found


@pytest.mark.parametrize("rubbish", [GARBAGE, bytes(PAGE)], ids=["garbage", "zeros"])
@pytest.mark.parametrize("whole", [0, 20], ids=["all of it", "its end"])
@pytest.mark.parametrize("first_too", [False, True], ids=["", "and the first page"])
async def test_damage_to_the_page_that_leads_to_all_others_costs_no_job(
    rubbish: bytes, whole: int, first_too: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    journal = opened(tmp_path, keep=0)
    for number in range(NUMBER):
        await journal.accept([draft(number, headers={"x": "y" * SIZE})])
    await journal.forget(30)  # their pages are free, and have them still
    await journal.close()
    path = journal_file(tmp_path)
    (root,) = leading_pages(path)
    overwrite(path, root, _page(path, root)[:whole] + rubbish[whole:])
    if first_too:
        overwrite(path, 1, rubbish)
    with caplog.at_level(logging.ERROR, "windlass.journal"):
        kept, findings = await recovered(tmp_path)
    assert kept == list(range(30, NUMBER))
    assert not any(found.lost or found.open_ended for found in findings)
    assert "pages that lead to jobs; the jobs are read without them" in caplog.text


async def test_under_a_damaged_root_only_what_is_in_damaged_pages_is_lost(tmp_path: Path) -> None:
    await filled(tmp_path, NUMBER, size=SIZE)
    path = journal_file(tmp_path)
    (root,) = leading_pages(path)
    pages = pages_of_batches(path)
    overwrite(path, root)
    overwrite(path, pages[3])
    overwrite(path, pages[-1])
    kept, findings = await recovered(tmp_path)
    missing = sorted({*range(NUMBER)} - {*kept})
    assert NUMBER - 8 <= len(kept) < NUMBER - 1
    assert kept == sorted(kept)
    assert lost_in(findings) == [number for number in missing if number < kept[-1]]
    assert [found.first for found in findings if found.open_ended] == [kept[-1] + 2]


async def test_a_large_journal_is_read_without_the_pages_that_lead_to_its_jobs(tmp_path: Path) -> None:
    await filled(tmp_path, 600, size=3000)  # one in a page
    path = journal_file(tmp_path)
    leading = leading_pages(path)
    assert len(leading) > 2, "the root leads to pages that lead to others"
    for page in leading:
        overwrite(path, page)
    assert (await recovered(tmp_path))[0] == list(range(600))


async def test_with_the_only_page_of_the_table_every_job_is_lost_and_named(tmp_path: Path) -> None:
    await filled(tmp_path, 2)
    path = journal_file(tmp_path)
    (root,) = pages_of_batches(path)
    overwrite(path, root)
    kept, findings = await recovered(tmp_path)
    assert kept == []
    assert [(found.first, found.open_ended) for found in findings if found.open_ended] == [(1, True)]


async def test_a_file_of_which_nothing_can_be_read_is_moved_aside_and_a_new_one_goes_on(tmp_path: Path) -> None:
    await filled(tmp_path, 10)
    path = journal_file(tmp_path)
    overwrite(path, 1, GARBAGE * (path.stat().st_size // PAGE))
    damaged = path.read_bytes()
    kept, findings = await recovered(tmp_path)
    assert kept == []
    assert [(found.first, found.open_ended) for found in findings if found.open_ended] == [(1, True)]
    assert findings[0].path.read_bytes() == damaged
    assert [found.open_ended for found in findings_in(tmp_path)] == [True, False], "it is reported afterwards too"


@pytest.mark.parametrize("rubbish", [GARBAGE, bytes(PAGE)], ids=["garbage", "zeros"])
async def test_damage_to_the_first_page_costs_no_job(rubbish: bytes, tmp_path: Path) -> None:
    await filled(tmp_path, NUMBER, size=SIZE)
    overwrite(journal_file(tmp_path), 1, rubbish)
    kept, findings = await recovered(tmp_path)
    assert kept == list(range(NUMBER))
    assert lost_in(findings) == []
    assert findings


async def test_damage_to_the_first_page_does_not_make_numbers_known(tmp_path: Path) -> None:
    await unconfirmed(tmp_path, size=5000)
    overwrite(journal_file(tmp_path), 1)
    journal = opened(tmp_path)
    assert journal.findings
    assert journal.unconfirmed == 3
    await journal.close()


async def test_behind_a_log_that_cannot_be_read_without_its_first_page_jobs_may_be_lost(tmp_path: Path) -> None:
    await filled(tmp_path, NUMBER, size=SIZE)
    path = journal_file(tmp_path)
    overwrite(path, 1)
    path.with_name(path.name + "-wal").write_bytes(b"no log")
    _, findings = await recovered(tmp_path)
    assert [found.first for found in findings if found.open_ended] == [NUMBER + 1]


async def test_a_file_that_was_cut_off_keeps_what_is_left(tmp_path: Path) -> None:
    await filled(tmp_path, NUMBER, size=SIZE)
    path = journal_file(tmp_path)
    os.truncate(path, path.stat().st_size // 2 // PAGE * PAGE)
    kept, findings = await recovered(tmp_path)
    assert kept == list(range(len(kept)))
    assert 0 < len(kept) < NUMBER
    assert any(found.open_ended or found.lost for found in findings)


async def test_damage_that_comes_twice_is_moved_aside_twice(tmp_path: Path) -> None:
    await filled(tmp_path, NUMBER, size=SIZE)
    for _ in range(2):
        path = journal_file(tmp_path)
        overwrite(path, pages_of_batches(path)[1])
        await recovered(tmp_path)
    assert [path.name.split(".", 2)[2] for path in moved_aside(tmp_path)] == ["1.damaged", "2.damaged"]


@pytest.mark.parametrize("step", range(4))
async def test_a_crash_while_damage_is_moved_aside_is_made_good(
    step: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await filled(tmp_path, NUMBER, size=SIZE)
    path = journal_file(tmp_path)
    overwrite(path, pages_of_batches(path)[3])
    steps = 0
    rename, sync = Path.rename, file._sync_folder

    def crash_at(number: int) -> None:
        nonlocal steps
        if steps == number:
            raise KeyboardInterrupt
        steps += 1

    def rename_or_crash(one: Path, to: Path | str) -> Path:
        crash_at(step)
        return rename(one, to)

    def sync_or_crash(folder: Path) -> None:
        crash_at(step)
        sync(folder)

    monkeypatch.setattr(Path, "rename", rename_or_crash)
    monkeypatch.setattr(file, "_sync_folder", sync_or_crash)
    with pytest.raises(KeyboardInterrupt):
        opened(tmp_path)
    monkeypatch.undo()
    journal = opened(tmp_path)
    kept = await contents(journal)
    await journal.close()
    assert NUMBER - 4 <= len(kept) < NUMBER
    assert not [name for name in names_in(tmp_path) if name.endswith(".salvaged")]


async def test_what_was_lost_is_reported_each_time_the_journal_is_looked_through(tmp_path: Path) -> None:
    await filled(tmp_path, NUMBER, size=SIZE)
    path = journal_file(tmp_path)
    overwrite(path, pages_of_batches(path)[3])
    journal = opened(tmp_path)
    lost = lost_in(journal.findings)
    await journal.close()
    assert lost
    assert lost_in(findings_in(tmp_path)) == lost


async def test_damage_under_a_running_journal_is_an_error_and_not_an_empty_answer(tmp_path: Path) -> None:
    await filled(tmp_path, NUMBER, size=SIZE)
    journal = opened(tmp_path)
    journal._file._sql.pragma("cache_size", 0)
    for page in pages_of_batches(journal_file(tmp_path)):
        overwrite(journal_file(tmp_path), page)
    journal._file._sql.release_memory()
    with pytest.raises(Unavailable, match="damaged"):
        await journal.read(0, 10)
    await journal.close()


@pytest.mark.parametrize("mutants", [40, pytest.param(1000, marks=pytest.mark.long)])
@pytest.mark.timeout(600)
async def test_no_damage_to_pages_invents_a_job_or_loses_one_silently(mutants: int, tmp_path: Path) -> None:
    await filled(tmp_path / "sound", 40, size=SIZE)
    sound = journal_file(tmp_path / "sound")
    known = {draft(number).id for number in range(40)}
    for seed in range(mutants):
        chance = random.Random(seed)
        folder = tmp_path / str(seed)
        folder.mkdir()
        data = bytearray(sound.read_bytes())
        for _ in range(chance.randint(1, 3)):
            at = chance.randrange(len(data) // PAGE) * PAGE
            data[at : at + PAGE] = chance.choice([bytes(PAGE), chance.randbytes(PAGE), data[:PAGE]])
        (folder / sound.name).write_bytes(data)
        journal = opened(folder, seed=seed)
        entries = await journal.read(journal.oldest - 1, 1000)
        found = [(entry.sequence, entry.draft.id) for entry in entries if entry.draft is not None]
        assert {id for _, id in found} <= known, f"seed {seed}: invented"
        sequences = [sequence for sequence, _ in found]
        assert sequences == sorted({*sequences}), f"seed {seed}"
        reported = {number + 1 for number in lost_in(journal.findings)}
        for one in journal.findings:
            if doubtful := re.search(r"whether jobs up to (\d+) were drained or are lost", one.what):
                reported |= {*range(1, int(doubtful[1]) + 1)}
        ends = [one.first for one in journal.findings if one.open_ended]
        missing = {*range(1, 41)} - {*sequences} - reported - {n for n in range(1, 41) if ends and n >= min(ends)}
        assert not missing, f"seed {seed}: {missing} were dropped silently"
        await journal.close()


@pytest.mark.long
async def test_a_large_journal_is_opened_with_few_reads_of_its_file(tmp_path: Path) -> None:
    journal = opened(tmp_path)
    drafts = [draft(number, headers={"x": "y" * 200}) for number in range(1000)]
    for _ in range(130):
        await journal.accept(drafts)
    await journal.close()
    size = journal_file(tmp_path).stat().st_size
    before = bytes_read()
    again = opened(tmp_path)
    read = bytes_read() - before
    assert again.last == 130_000
    assert not again.findings
    assert read < 3 * size, f"{read / 1e6:.0f} MB for a file of {size / 1e6:.0f} MB"
    await again.close()


def bytes_read() -> int:
    """What this process has read from files and sockets so far."""
    counts = dict(line.split(": ") for line in Path("/proc/self/io").read_text().splitlines())
    return int(counts["rchar"])


# Numbers that the store may know


async def unconfirmed(folder: Path, size: int = 0) -> None:
    """Two jobs of a process that has met its store, and some of two that have not."""
    journal = opened(folder)
    await journal.confirm(0)
    await journal.accept([draft(number) for number in range(2)])
    await journal.close()
    for start in (2, 4):
        journal = opened(folder)
        for number in range(start, start + 2):
            await journal.accept([draft(number, headers={"x": "y" * size} if size else {})])
        await journal.close()


async def test_what_was_accepted_without_the_store_moves_behind_what_the_store_knows(tmp_path: Path) -> None:
    await unconfirmed(tmp_path)
    journal = opened(tmp_path)
    assert journal.unconfirmed == 3
    await journal.accept([draft(6)])
    await journal.confirm(10)
    assert await contents(journal) == list(range(7))
    assert journal.last == 15
    found = await journal.find(key_of(draft(3)))
    assert found is not None
    assert (found.sequence, number_of(found.draft)) == (12, 3)
    await journal.confirm(15)
    assert await journal.accept([draft(7)]) == 16
    await journal.close()
    assert findings_in(tmp_path) == [], "numbers that were skipped are no damage"
    again = opened(tmp_path)
    assert (again.last, again.unconfirmed, await contents(again)) == (16, 17, list(range(8)))
    await again.close()


@pytest.mark.parametrize("known", [0, 2])
async def test_numbers_that_the_store_does_not_know_stay(known: int, tmp_path: Path) -> None:
    await unconfirmed(tmp_path)
    journal = opened(tmp_path)
    await journal.confirm(known)
    assert (journal.last, await contents(journal)) == (6, list(range(6)))
    await journal.close()
    again = opened(tmp_path)
    assert again.unconfirmed == 7
    await again.close()


async def test_damage_does_not_make_numbers_known(tmp_path: Path) -> None:
    await unconfirmed(tmp_path, size=5000)
    path = journal_file(tmp_path)
    overwrite(path, pages_of_batches(path)[-1])
    journal = opened(tmp_path)
    assert journal.findings
    assert journal.unconfirmed == 3
    await journal.close()
