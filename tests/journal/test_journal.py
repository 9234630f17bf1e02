"""The journal by itself: accepted jobs are on disk before the caller hears of it, and come out in order."""

import asyncio
import errno
import random
import resource
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import apsw
import pytest

from tests.support.faulty_disk import (
    contents,
    copied,
    disk_of,
    draft,
    failing,
    fill_up,
    filled,
    findings_in,
    journal_file,
    kept_in,
    log_of,
    names_in,
    number_of,
    opened,
    watched,
)
from tests.support.patience import PATIENCE
from tests.support.stores import SeededChance, VirtualClock
from windlass.engine.journal import file
from windlass.engine.journal.drain import Reservations
from windlass.engine.journal.file import RESERVE, SPARE_PAGES, VERSION, Row, volatile_file_system
from windlass.model.errors import Conflict, Invalid, JournalFull, Unavailable
from windlass.model.names import key_of

# Accepted means durable


async def test_what_was_acknowledged_is_in_the_files_at_that_moment(tmp_path: Path) -> None:
    journal = opened(tmp_path / "journal")
    for number in range(30):
        await journal.accept([draft(number)])
        if number % 7 == 0:
            copy = copied(tmp_path / "journal", tmp_path / f"copy-{number}")
            assert await kept_in(copy) == list(range(number + 1))
    await journal.close()


async def test_every_commit_is_synced_before_it_returns(tmp_path: Path) -> None:
    journal = opened(tmp_path)
    assert (journal._file._sql.pragma("journal_mode"), journal._file._sql.pragma("synchronous")) == ("wal", 2)
    await journal.close()


async def test_s3_item_4_many_adds_share_one_sync(tmp_path: Path) -> None:
    journal = opened(tmp_path)
    await journal.accept([draft(0)])
    with watched(journal, lambda _: None) as commits:
        await asyncio.gather(*(journal.accept([draft(number)]) for number in range(1, 501)))
    assert len(commits) <= 2, "one for the first, one for all who came meanwhile"
    assert await contents(journal) == list(range(501))
    await journal.close()


async def test_no_caller_hears_that_a_job_was_accepted_while_its_commit_is_going_on(tmp_path: Path) -> None:
    journal = opened(tmp_path)
    heard: list[int] = []
    heard_at_commit: list[tuple[int, list[int]]] = []

    async def accept(number: int) -> None:
        await journal.accept([draft(number)])
        heard.append(number)

    def look(rows: Sequence[Row]) -> None:
        heard_at_commit.append((rows[0].first, list(heard)))

    with watched(journal, look):
        await asyncio.gather(*(accept(number) for number in range(1, 6)))
    assert all(number < first for first, before in heard_at_commit for number in before)
    assert sorted(heard) == [1, 2, 3, 4, 5]
    await journal.close()


async def test_a_caller_that_has_given_up_before_the_commit_has_queued_nothing(tmp_path: Path) -> None:
    journal = opened(tmp_path)
    first = asyncio.create_task(journal.accept([draft(1)]))
    await asyncio.sleep(0)
    second = asyncio.create_task(journal.accept([draft(2)]))
    await asyncio.sleep(0)
    second.cancel()
    await first
    await journal.accept([draft(3)])
    assert await contents(journal) == [1, 3]
    await journal.close()


async def test_a_failed_commit_refuses_its_callers_and_nothing_relies_on_that_log_again(tmp_path: Path) -> None:
    journal = opened(tmp_path)
    await journal.accept([draft(1)])
    assert log_of(tmp_path).stat().st_size > 0
    with failing(journal):
        refused = await asyncio.gather(*(journal.accept([draft(n)]) for n in (2, 3)), return_exceptions=True)
    assert any(isinstance(fault, Unavailable) for fault in refused)
    acknowledged = [n for n, answer in zip((2, 3), refused, strict=True) if not isinstance(answer, BaseException)]
    if not acknowledged:
        assert log_of(tmp_path).stat().st_size == 0, "what was committed is in the file, the rest is gone"
    await journal.accept([draft(4)])
    await journal.close()
    assert await kept_in(tmp_path) == [1, *acknowledged, 4], "what was refused is not there, what was not is"
    assert not findings_in(tmp_path)


async def test_while_the_log_cannot_be_begun_again_new_jobs_are_refused(tmp_path: Path) -> None:
    journal = opened(tmp_path)
    await journal.accept([draft(1)])
    with failing(journal, times=1000):
        for _ in range(3):
            with pytest.raises(Unavailable, match="the journal cannot be written"):
                await journal.accept([draft(2)])
    await journal.accept([draft(3)])
    assert await contents(journal) == [1, 3]
    await journal.close()


@pytest.mark.parametrize("cuts", [40, pytest.param(400, marks=pytest.mark.long)])
async def test_a_log_that_is_cut_off_anywhere_costs_only_what_came_behind(cuts: int, tmp_path: Path) -> None:
    """What a power cut leaves: of what was not synced, any beginning may be there."""
    journal = opened(tmp_path / "journal")
    sizes = [log_of(tmp_path / "journal").stat().st_size]
    for number in range(20):
        await journal.accept([draft(number)])
        sizes.append(log_of(tmp_path / "journal").stat().st_size)
    chance = random.Random(3)
    for cut in range(cuts):
        copy = copied(tmp_path / "journal", tmp_path / f"cut-{cut}")
        size = chance.randint(sizes[0], sizes[-1])
        with log_of(copy).open("r+b") as log:
            log.truncate(size)
            if cut % 2:
                log.seek(size)
                log.write(chance.randbytes(5000))
        sure = sum(size >= one for one in sizes) - 1
        assert await kept_in(copy) == list(range(sure)), f"cut at {size}"
        assert not findings_in(copy)
    await journal.close()


WRITER = """
import asyncio, sys
from pathlib import Path
from tests.support.faulty_disk import draft
from windlass.engine.journal import Journal, JournalSettings
from windlass.system import SystemRandomness, SystemClock

async def main():
    journal = Journal(Path(sys.argv[1]), SystemClock(), SystemRandomness(), JournalSettings())
    assert journal.open()
    async def accept(start):
        for number in range(start, 1_000_000, 8):
            await journal.accept([draft(number)])
            print(number, flush=True)
    await asyncio.gather(*(accept(start) for start in range(8)))

asyncio.run(main())
"""


def killed_after(folder: Path, acknowledged: int) -> list[int]:
    """All that a writer has acknowledged that is killed after so many."""
    writer = subprocess.Popen([sys.executable, "-c", WRITER, str(folder)], stdout=subprocess.PIPE, text=True)
    assert writer.stdout is not None
    heard = [int(writer.stdout.readline()) for _ in range(acknowledged)]
    writer.kill()
    heard += [int(line) for line in writer.stdout.read().splitlines(keepends=True) if line.endswith("\n")]
    writer.wait(PATIENCE)
    writer.stdout.close()
    return heard


async def test_a_process_that_is_killed_while_it_writes_has_kept_all_that_it_acknowledged(tmp_path: Path) -> None:
    for round_ in range(3):
        folder = tmp_path / str(round_)
        heard = killed_after(folder, 100 + 150 * round_)
        kept = await kept_in(folder)
        assert set(heard) <= set(kept), "lost"
        assert len(kept) <= len(heard) + 8, "no more than were on their way"
        for line in range(8):
            own = [number for number in kept if number % 8 == line]
            assert own == sorted(own)
        assert not findings_in(folder)


# Disk full


async def test_a_full_disk_is_reported_at_once_and_over_when_it_is_over(tmp_path: Path) -> None:
    with disk_of(tmp_path / "disk", 8) as disk:
        journal = opened(disk / "journal", most_full=1.0)
        await journal.accept([draft(1)])
        ballast = fill_up(disk)
        with pytest.raises(JournalFull, match=r"No space left|100% full") as refused:
            await journal.accept([draft(2, headers={"x": "y" * 20_000})])
        assert refused.value.status == 507
        ballast.unlink()
        await journal.accept([draft(3)])
        assert await contents(journal) == [1, 3]
        await journal.close()
        assert await kept_in(disk / "journal") == [1, 3]
        assert not findings_in(disk / "journal")


async def test_a_write_that_was_cut_short_leaves_nothing_behind(tmp_path: Path) -> None:
    journal = opened(tmp_path)
    await journal.accept([draft(1)])
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (log_of(tmp_path).stat().st_size + 40, before[1]))
    try:
        with pytest.raises(JournalFull, match="File too large"):
            await journal.accept([draft(2)])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    await journal.accept([draft(3)])
    await journal.close()
    assert await kept_in(tmp_path) == [1, 3]
    assert not findings_in(tmp_path)


async def test_a_nearly_full_disk_takes_nothing_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = VirtualClock()
    journal = opened(tmp_path, clock=clock, most_full=0.95)
    monkeypatch.setattr(file, "fullness", lambda _: 0.5)
    await journal.accept([draft(1)])
    monkeypatch.setattr(file, "fullness", lambda _: 0.96)
    clock.advance(1)
    with pytest.raises(JournalFull, match="95%"):
        await journal.accept([draft(2)])
    monkeypatch.setattr(file, "fullness", lambda _: 0.5)
    await journal.accept([draft(3)])
    assert await contents(journal) == [1, 3]
    await journal.close()


# What is kept, and for how long


async def test_jobs_come_out_as_they_went_in(tmp_path: Path) -> None:
    then = draft(9).new
    new = draft(
        3, tags=["a", "b"], key="k", delay=5.0, files={"f": b"\0"}, headers={"x": "y"}, then=then, max_retry=None
    )
    journal = opened(tmp_path)
    await journal.accept([new])
    assert await journal.read(0, 10) == [await journal.find(key_of(new))]
    await journal.close()
    again = opened(tmp_path)
    (entry,) = await again.read(0, 10)
    assert entry.draft == new
    assert await again.find(key_of(new)) == entry
    await again.close()


async def test_a_backlog_is_read_from_disk_and_stays_in_order(tmp_path: Path) -> None:
    journal = opened(tmp_path)
    number = 12_500
    for start in range(0, number, 500):
        await journal.accept([draft(one) for one in range(start, start + 500)])
    assert await contents(journal) == list(range(number))
    assert number_of((await journal.find(key_of(draft(3)))).draft) == 3  # type: ignore[union-attr]
    await journal.close()


async def test_s3_item_9_the_journal_does_not_grow_without_bound(tmp_path: Path) -> None:
    clock = VirtualClock()
    journal = opened(tmp_path, clock=clock, keep=600)
    for start in range(0, 2000, 100):
        await journal.accept([draft(one, headers={"x": "y" * 1000}) for one in range(start, start + 100)])
        await journal.forget(journal.last)
        clock.advance(300)
    assert 200 <= len(await contents(journal)) <= 400, "what was drained is kept for ten minutes"
    assert await journal.find(key_of(draft(1999))) is None, "it is drained"
    await journal.close()
    assert journal_file(tmp_path).stat().st_size < 2_000_000, "freed pages are used again"
    again = opened(tmp_path)
    assert again.last == 2000, "numbers go on"
    await again.close()


async def test_a_file_that_was_once_large_shrinks_again(tmp_path: Path) -> None:
    clock = VirtualClock()
    journal = opened(tmp_path, clock=clock, keep=600)
    large = draft(0, headers={"x": "y" * 60_000})
    for _ in range(10):
        await journal.accept([large] * 50)
    for _ in range(40):
        await journal.forget(journal.last)
        clock.advance(30)
    await journal.close()
    assert journal_file(tmp_path).stat().st_size <= (SPARE_PAGES + 10) * 4096 < 500 * 60_000
    assert (await kept_in(tmp_path)) == []


async def test_what_was_drained_long_ago_is_not_kept_for_lack_of_newer_jobs(tmp_path: Path) -> None:
    """Or a store that is emptied on purpose would get jobs of long ago."""
    clock = VirtualClock()
    journal = opened(tmp_path, clock=clock, keep=600)
    await journal.accept([draft(number) for number in range(10)])
    for _ in range(3):
        await journal.forget(10)
        clock.advance(300)
    await journal.forget(10)
    assert await contents(journal) == []
    await journal.accept([draft(10)])
    id = journal.id
    await journal.close()
    again = opened(tmp_path)
    assert (await contents(again), again.last, again.id) == ([10], 11, id)
    assert not again.findings
    await again.close()


async def test_a_trickle_of_jobs_does_not_keep_old_ones(tmp_path: Path) -> None:
    clock = VirtualClock()
    journal = opened(tmp_path, clock=clock, keep=600)
    for number in range(100):
        await journal.accept([draft(number)])
        await journal.forget(journal.last)
        clock.advance(60)
    kept = await contents(journal)
    assert 10 <= len(kept) <= 25
    assert kept[-1] == 99
    await journal.close()


async def test_what_was_not_drained_is_never_deleted(tmp_path: Path) -> None:
    clock = VirtualClock()
    journal = opened(tmp_path, clock=clock, keep=1)
    for number in range(50):
        await journal.accept([draft(number)])
        clock.advance(100)
        await journal.forget(10)
    assert set(range(10, 50)) <= set(await contents(journal))
    await journal.close()


async def test_there_is_one_writer(tmp_path: Path) -> None:
    journal = opened(tmp_path)
    with pytest.raises(AssertionError, match="another process"):
        opened(tmp_path)
    await journal.close()
    await opened(tmp_path).close()


async def test_only_its_owner_can_read_it(tmp_path: Path) -> None:
    journal = opened(tmp_path / "journal")
    await journal.accept([draft(1)])
    assert (tmp_path / "journal").stat().st_mode & 0o777 == 0o700
    modes = {path.name: path.stat().st_mode & 0o777 for path in (tmp_path / "journal").iterdir()}
    assert {*modes.values()} == {0o600}, modes
    await journal.close()


async def test_some_room_on_the_disk_is_kept_back_for_deletions(tmp_path: Path) -> None:
    await filled(tmp_path, 1)
    assert 0 < (tmp_path / "reserve").stat().st_size <= RESERVE


def test_a_folder_that_does_not_last_is_known(tmp_path: Path) -> None:
    mounts = tmp_path / "mounts"
    mounts.write_text(f"/dev/vda / ext4 rw 0 0\ntmpfs {tmp_path}/fast tmpfs rw 0 0\n")
    assert volatile_file_system(tmp_path / "fast" / "journal", mounts) == "tmpfs"
    assert volatile_file_system(tmp_path / "slow", mounts) is None


async def test_a_journal_of_a_newer_format_is_refused(tmp_path: Path) -> None:
    await filled(tmp_path, 1)
    sql = apsw.Connection(str(journal_file(tmp_path)))
    sql.pragma("user_version", VERSION + 1)
    sql.close()
    with pytest.raises(Invalid, match=f"format {VERSION + 1}"):
        opened(tmp_path)


async def test_a_journal_of_segments_is_refused_and_left_as_it_is(tmp_path: Path) -> None:
    segment = tmp_path / "0000000000000001-000001.journal"
    segment.write_bytes(b"WLJ\2")
    with pytest.raises(Invalid, match=r"an older Windlass .*: drain it with the version that wrote it"):
        opened(tmp_path)
    assert names_in(tmp_path) == {segment.name, "lock"}
    segment.unlink()
    await opened(tmp_path).close()


async def test_a_database_of_another_program_is_refused(tmp_path: Path) -> None:
    other = tmp_path / "journal-0011223344556677.db"
    sql = apsw.Connection(str(other))
    sql.pragma("application_id", 7)
    sql.execute("CREATE TABLE t (a)")
    sql.close()
    before = other.read_bytes()
    with pytest.raises(Invalid, match="another program"):
        opened(tmp_path)
    assert other.read_bytes() == before


# Reservations


async def test_s3_item_5_what_is_not_committed_in_time_is_read_again_and_what_is_never(tmp_path: Path) -> None:
    clock = VirtualClock()
    journal = opened(tmp_path, clock=clock)
    await journal.accept([draft(number) for number in range(6)])
    reservations = Reservations(journal, clock, SeededChance())

    async def taken() -> tuple[str, list[int]]:
        token = await reservations.reserve(2, 2.0)
        assert token is not None
        return token, [number_of(entry.draft) for entry in reservations.read(token)]

    first, numbers = await taken()
    assert numbers == [0, 1]
    late, numbers = await taken()
    assert numbers == [2, 3]
    reservations.commit(first)
    clock.advance(2.0)
    again, numbers = await taken()
    assert numbers == [2, 3], "its time was over"
    reservations.cancel(again)
    again, numbers = await taken()
    assert numbers == [2, 3]
    reservations.commit(again)
    last, numbers = await taken()
    assert numbers == [4, 5]
    reservations.commit(last)
    assert await reservations.reserve(2, 2.0) is None
    with pytest.raises(Conflict):
        reservations.commit(late)
    await journal.close()


async def test_s3_item_6_an_expired_or_used_token_is_an_error(tmp_path: Path) -> None:
    clock = VirtualClock()
    journal = opened(tmp_path, clock=clock)
    await journal.accept([draft(1)])
    reservations = Reservations(journal, clock, SeededChance())
    expired = await reservations.reserve(1, 2.0)
    assert expired is not None
    clock.advance(2.0)
    with pytest.raises(Conflict):
        reservations.read(expired)
    used = await reservations.reserve(1, 2.0)
    assert used is not None
    reservations.commit(used)
    for asks in (reservations.read, reservations.commit, reservations.cancel):
        with pytest.raises(Conflict):
            asks(used)
    await journal.close()


async def test_a_full_disk_and_a_failing_disk_are_different_errors(tmp_path: Path) -> None:
    journal = opened(tmp_path)
    for reason, kind in ((errno.EIO, Unavailable), (errno.ENOSPC, JournalFull), (errno.EDQUOT, JournalFull)):
        with failing(journal, reason=reason), pytest.raises(kind):
            await journal.accept([draft(1)])
    await journal.accept([draft(2)])
    assert await contents(journal) == [2]
    await journal.close()
