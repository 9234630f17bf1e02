"""The journal by itself: what is accepted is on disk before anybody hears of it, and comes out in order."""

import asyncio
import random
import resource
from pathlib import Path

import pytest

from tests.journals import FOLDER, PaperDisk, contents, draft, failing, filled, number_of, only, opened, whole
from tests.worlds import SeededChance, VirtualClock
from windlass.engine.journal import Disk, File
from windlass.engine.journal.files import fleeting
from windlass.engine.journal.format import VERSION
from windlass.engine.journal.journal import MOST_DRAFTS_IN_MEMORY
from windlass.engine.journal.reserving import Reservations
from windlass.engine.journal.segments import Finding, listed
from windlass.model.errors import Conflict, JournalFull, Unavailable
from windlass.model.names import key_of


@pytest.fixture
def disk() -> PaperDisk:
    return PaperDisk()


# Accepted means durable


async def test_the_reply_comes_after_the_write_and_its_sync(disk: PaperDisk) -> None:
    journal = opened(disk)
    for number in range(1000):
        disk.calls.clear()
        await journal.accept([draft(number)])
        steps = [what for what, _ in disk.calls]
        assert steps[-2:] == ["write", "sync"], "the last thing before the reply is the sync of what was written"
    await journal.close()


async def test_a_new_segment_is_in_its_folder_for_good_before_anything_is_acknowledged_from_it(disk: PaperDisk) -> None:
    journal = opened(disk)
    await journal.accept([draft(1)])
    await journal.close()
    steps = [what for what, _ in disk.calls]
    assert steps[:6] == ["create", "write", "sync", "sync folder", "write", "sync"]


async def test_s3_item_4_many_adds_share_one_sync(disk: PaperDisk) -> None:
    journal = opened(disk)
    await journal.accept([draft(0)])
    disk.calls.clear()
    await asyncio.gather(*(journal.accept([draft(number)]) for number in range(1, 501)))
    syncs = [what for what, _ in disk.calls].count("sync")
    assert syncs <= 2, "one for the first, one for all who came meanwhile"
    assert await contents(journal) == list(range(501))
    await journal.close()


async def test_nobody_is_told_that_a_job_was_accepted_while_its_sync_is_going_on(disk: PaperDisk) -> None:
    journal = opened(disk)
    await journal.accept([draft(0)])
    told: list[int] = []
    seen_at_sync: list[list[int]] = []
    disk.before = lambda what: seen_at_sync.append(list(told)) if what == "sync" else None

    async def accept(number: int) -> None:
        await journal.accept([draft(number)])
        told.append(number)

    await asyncio.gather(*(accept(number) for number in range(1, 6)))
    assert seen_at_sync[0] == []
    assert sorted(told) == [1, 2, 3, 4, 5]
    await journal.close()


async def test_a_failed_sync_is_never_tried_again_and_nothing_is_acknowledged_from_its_segment(disk: PaperDisk) -> None:
    journal = opened(disk)
    await journal.accept([draft(1)])
    failed = only(disk)
    with failing(disk, "sync"):
        refused = await asyncio.gather(*(journal.accept([draft(n)]) for n in (2, 3)), return_exceptions=True)
    assert any(isinstance(fault, Unavailable) for fault in refused)
    after = len(disk.calls)
    await journal.accept([draft(4)])
    assert failed.name not in {name for what, name in disk.calls[after:] if what in ("write", "sync")}
    syncs = [what for what, name in disk.calls if name == failed.name and what == "sync"]
    assert len(syncs) == 3, "its header, its first record, and the one that failed"
    await journal.close()
    again = opened(disk)
    kept = await contents(again)
    assert {1, 4} <= set(kept)
    acknowledged = {n for n, answer in zip((2, 3), refused, strict=True) if not isinstance(answer, BaseException)}
    assert set(kept) - {1, 4} == acknowledged, "what was refused is not there, what was not is"
    assert not again.findings
    await again.close()


async def test_what_a_failed_sync_left_behind_is_no_job(disk: PaperDisk) -> None:
    """Not even cutting it off worked: the segment that follows says what was acknowledged before it."""
    journal = opened(disk)
    await journal.accept([draft(1)])
    disk.faults = {"sync": 1, "cut": 1}
    with pytest.raises(Unavailable):
        await journal.accept([draft(2)])
    disk.faults = {}
    await journal.accept([draft(3)])
    await journal.close()
    again = opened(disk)
    assert await contents(again) == [1, 3]
    assert [finding.lost for finding in again.findings] == [0]
    await again.close()


async def test_if_no_new_segment_can_be_opened_new_jobs_are_refused_until_one_can(disk: PaperDisk) -> None:
    journal = opened(disk)
    await journal.accept([draft(1)])
    disk.faults = {"sync": 3}
    with pytest.raises(Unavailable):
        await journal.accept([draft(2)])
    for _ in range(2):
        with pytest.raises(Unavailable, match="the journal cannot be written: Input/output error"):
            await journal.accept([draft(2)])
    await journal.accept([draft(3)])
    assert await contents(journal) == [1, 3]
    await journal.close()


@pytest.mark.parametrize("cuts", [60, pytest.param(500, marks=pytest.mark.long)])
async def test_a_power_cut_takes_nothing_that_was_acknowledged(cuts: int) -> None:
    for seed in range(cuts):
        chance, disk = random.Random(seed), PaperDisk()
        journal = opened(disk, seed=seed, segment_bytes=600)
        acknowledged: list[int] = []
        stop_at = chance.randint(1, 60)
        unplugged: list[PaperDisk] = []

        def pull(what: str, disk: PaperDisk = disk, at: int = stop_at, found: list[PaperDisk] = unplugged) -> None:
            if len(disk.calls) == at and not found:
                found.append(disk.unplugged(random.Random(at)))

        disk.before = pull
        sure = 0
        for number in range(20):
            await journal.accept([draft(number)])
            acknowledged.append(number)
            if not unplugged:
                sure = len(acknowledged)
        await journal.close()
        after = unplugged[0] if unplugged else disk.unplugged(chance)
        again = opened(after, seed=seed + 1)
        kept = await contents(again)
        assert kept[:sure] == acknowledged[:sure], f"seed {seed}"
        assert kept == list(range(len(kept))), f"seed {seed}: nothing is invented"
        assert not sum(finding.lost for finding in again.findings)
        await again.close()


# Disk full


class Dropping(Disk):
    """The machine's disk, but whatever is written goes to a device that is always full, while it is."""

    full = False

    def create(self, path: Path) -> File:
        return _MayBeFull(super().create(path), self)


class _MayBeFull:
    def __init__(self, file: File, disk: Dropping) -> None:
        self._file, self._disk = file, disk
        self.sync, self.cut, self.close = file.sync, file.cut, file.close

    def write(self, *parts: bytes) -> None:
        if not self._disk.full:
            self._file.write(*parts)
            return
        with Path("/dev/full").open("wb", buffering=0) as device:
            device.write(b"".join(parts))


async def test_a_full_disk_is_said_at_once_and_over_when_it_is_over(tmp_path: Path) -> None:
    disk = Dropping()
    journal = opened(disk, tmp_path)
    await journal.accept([draft(1)])
    disk.full = True
    with pytest.raises(JournalFull, match="No space left") as refused:
        await journal.accept([draft(2)])
    assert refused.value.status == 507
    disk.full = False
    await journal.accept([draft(3)])
    assert await contents(journal) == [1, 3]
    await journal.close()
    again = opened(Disk(), tmp_path)
    assert await contents(again) == [1, 3]
    assert not again.findings
    await again.close()


async def test_a_write_that_was_cut_short_leaves_nothing_behind(tmp_path: Path) -> None:
    journal = opened(Disk(), tmp_path)
    await journal.accept([draft(1)])
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (only(Disk(), tmp_path).stat().st_size + 40, before[1]))
    try:
        with pytest.raises(JournalFull, match="File too large"):
            await journal.accept([draft(2)])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    await journal.accept([draft(3)])
    await journal.close()
    again = opened(Disk(), tmp_path)
    assert await contents(again) == [1, 3]
    assert not again.findings, "no torn record in the middle"
    await again.close()


async def test_a_nearly_full_disk_takes_nothing_more(disk: PaperDisk) -> None:
    clock = VirtualClock()
    journal = opened(disk, clock=clock, most_full=0.95)
    await journal.accept([draft(1)])
    disk.used = 0.96
    clock.advance(1)
    with pytest.raises(JournalFull, match="95%"):
        await journal.accept([draft(2)])
    disk.used = 0.5
    await journal.accept([draft(3)])
    assert await contents(journal) == [1, 3]
    await journal.close()


# What is kept, and for how long


async def test_jobs_come_out_as_they_went_in(disk: PaperDisk) -> None:
    then = draft(9).new
    new = draft(
        3, tags=["a", "b"], key="k", delay=5.0, files={"f": b"\0"}, headers={"x": "y"}, then=then, max_retry=None
    )
    journal = opened(disk)
    await journal.accept([new])
    assert await journal.read(0, 10) == [journal.find(key_of(new))]
    await journal.close()
    again = opened(disk)
    (entry,) = await again.read(0, 10)
    assert entry.draft == new
    assert again.find(key_of(new)) == entry
    await again.close()


async def test_a_backlog_is_read_from_disk_and_stays_in_order(disk: PaperDisk) -> None:
    journal = opened(disk, segment_bytes=1 << 19)
    number = 3 * MOST_DRAFTS_IN_MEMORY + 500
    for start in range(0, number, 500):
        await journal.accept([draft(one) for one in range(start, start + 500)])
    assert sum(run.last - run.first + 1 for run in journal._recent) <= MOST_DRAFTS_IN_MEMORY
    assert len(listed(disk, FOLDER)) > 1
    assert await contents(journal) == list(range(number))
    assert number_of(journal.find(key_of(draft(3))).draft) == 3  # type: ignore[union-attr]
    await journal.close()


async def test_s3_item_9_the_journal_does_not_grow_without_bound(disk: PaperDisk) -> None:
    clock = VirtualClock()
    journal = opened(disk, clock=clock, segment_bytes=5000, keep=600)
    for start in range(0, 2000, 100):
        await journal.accept([draft(one) for one in range(start, start + 100)])
        journal.forget(journal.last)
        clock.advance(300)
    assert len(listed(disk, FOLDER)) <= 4
    assert len(await contents(journal)) >= 200, "what was drained is kept for ten minutes"
    assert journal.find(key_of(draft(1999))) is None, "it is drained"
    await journal.close()
    again = opened(disk)
    assert again.last == 2000, "numbers go on"
    await again.close()


async def test_what_was_drained_long_ago_is_not_kept_for_lack_of_newer_jobs(disk: PaperDisk) -> None:
    """Or a store that is emptied on purpose would be given jobs of long ago."""
    clock = VirtualClock()
    journal = opened(disk, clock=clock, keep=600)
    await journal.accept([draft(number) for number in range(10)])
    for _ in range(3):
        journal.forget(10)
        clock.advance(300)
    journal.forget(10)
    assert await contents(journal) == []
    assert len(listed(disk, FOLDER)) == 1
    await journal.accept([draft(10)])
    await journal.close()
    again = opened(disk)
    assert (await contents(again), again.last, again.id) == ([10], 11, journal.id)
    assert not again.findings
    await again.close()


async def test_a_trickle_of_jobs_does_not_keep_old_ones(disk: PaperDisk) -> None:
    clock = VirtualClock()
    journal = opened(disk, clock=clock, keep=600)
    for number in range(100):
        await journal.accept([draft(number)])
        journal.forget(journal.last)
        clock.advance(60)
    kept = await contents(journal)
    assert 10 <= len(kept) <= 25
    assert kept[-1] == 99
    await journal.close()


async def test_what_was_not_drained_is_never_deleted(disk: PaperDisk) -> None:
    clock = VirtualClock()
    journal = opened(disk, clock=clock, segment_bytes=1000, keep=1)
    for number in range(50):
        await journal.accept([draft(number)])
        clock.advance(100)
        journal.forget(10)
    assert set(range(10, 50)) <= set(await contents(journal))
    await journal.close()


async def test_there_is_one_writer(tmp_path: Path) -> None:
    journal = opened(Disk(), tmp_path)
    with pytest.raises(AssertionError, match="somebody else"):
        opened(Disk(), tmp_path)
    await journal.close()
    await opened(Disk(), tmp_path).close()


async def test_only_its_owner_can_read_it(tmp_path: Path) -> None:
    await filled(Disk(), 1, tmp_path / "journal")
    assert (tmp_path / "journal").stat().st_mode & 0o777 == 0o700
    assert only(Disk(), tmp_path / "journal").stat().st_mode & 0o777 == 0o600


def test_a_folder_that_does_not_last_is_known(tmp_path: Path) -> None:
    mounts = tmp_path / "mounts"
    mounts.write_text(f"/dev/vda / ext4 rw 0 0\ntmpfs {tmp_path}/fast tmpfs rw 0 0\n")
    assert fleeting(tmp_path / "fast" / "journal", mounts) == "tmpfs"
    assert fleeting(tmp_path / "slow", mounts) is None


async def test_a_journal_of_a_newer_format_is_refused(disk: PaperDisk) -> None:
    await filled(disk, 1)
    data = disk.written[only(disk)]
    from zlib import crc32  # noqa: PLC0415

    data[3] = VERSION + 1
    data[24:28] = crc32(bytes(data[:24])).to_bytes(4)
    with pytest.raises(Exception, match=f"format {VERSION + 1}"):
        opened(disk)


# Reservations


async def test_s3_item_5_what_is_not_committed_in_time_is_read_again_and_what_is_never(disk: PaperDisk) -> None:
    clock = VirtualClock()
    journal = opened(disk, clock=clock)
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


async def test_s3_item_6_an_expired_or_used_token_is_an_error(disk: PaperDisk) -> None:
    clock = VirtualClock()
    journal = opened(disk, clock=clock)
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


async def test_a_sound_journal_has_no_findings(disk: PaperDisk) -> None:
    await filled(disk, 10, segment_bytes=500)
    assert not [found for found in whole(disk) if isinstance(found, Finding)]
