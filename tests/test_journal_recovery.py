"""What a journal makes of damage: every whole record is kept, nothing is invented, nothing is skipped in silence."""

import random
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.journals import PaperDisk, contents, draft, filled, opened, whole
from windlass.engine.journal import Disk
from windlass.engine.journal.format import HEADER_SIZE, Record, read_header, read_record
from windlass.engine.journal.segments import Finding, listed

NUMBER = 8


async def written(number: int = NUMBER, **settings: Any) -> tuple[PaperDisk, Path, list[int]]:
    """A disk with a journal of so many jobs, its last file, and where the records in that end."""
    disk = PaperDisk()
    await filled(disk, number, **settings)
    path = listed(disk, Path("/journal"))[-1]
    data = bytes(disk.written[path])
    header = read_header(data)
    assert header is not None
    ends, at = [HEADER_SIZE], HEADER_SIZE
    while (record := read_record(data, header, at)) is not None:
        at = record.end
        ends.append(at)
    return disk, path, ends


def with_bytes(path: Path, data: bytes | bytearray) -> PaperDisk:
    disk = PaperDisk()
    disk.written[path] = bytearray(data)
    return disk


async def recovered(disk: PaperDisk) -> tuple[list[int], list[Finding]]:
    journal = opened(disk, seed=99)
    found, findings = await contents(journal), journal.findings
    await journal.accept([draft(1000)])
    assert (await contents(journal))[-1] == 1000, "it goes on"
    await journal.close()
    again = opened(disk, seed=100)
    assert await contents(again) == [*found, 1000], "once is enough"
    assert not again.findings
    await again.close()
    return found, findings


async def test_a_tail_that_was_cut_off_at_any_byte_costs_only_what_was_cut() -> None:
    disk, path, ends = await written()
    data = bytes(disk.written[path])
    for size in range(ends[0], len(data) + 1):
        kept, findings = await recovered(with_bytes(path, data[:size]))
        complete = sum(end <= size for end in ends) - 1
        assert kept == list(range(complete)), f"cut at {size}"
        assert len(findings) == (0 if size in ends else 1)
        assert not any(finding.lost for finding in findings)


@pytest.mark.parametrize("tail", ["zeros", "noise", "old records"])
async def test_a_tail_of_anything_else_is_cut_off(tail: str) -> None:
    disk, path, ends = await written()
    data = bytes(disk.written[path])
    used = with_bytes(path, data)
    await filled(used, 5, seed=8)
    later = listed(used, Path("/journal"))[-1]
    assert later != path
    rubbish = {
        "zeros": bytes(5000),
        "noise": random.Random(1).randbytes(5000),
        "old records": bytes(used.written[later])[HEADER_SIZE:],
    }[tail]
    for complete, end in enumerate(ends):
        kept, findings = await recovered(with_bytes(path, data[:end] + rubbish))
        assert kept == list(range(complete))
        assert len(findings) == 1
        assert "torn" in findings[0].what


async def test_a_damaged_record_in_the_middle_is_reported_put_aside_and_the_rest_is_kept() -> None:
    disk, path, ends = await written()
    data = bytearray(disk.written[path])
    data[ends[3] + 20] ^= 1
    broken = with_bytes(path, data)
    kept, findings = await recovered(broken)
    assert kept == [0, 1, 2, 4, 5, 6, 7]
    assert [(finding.first, finding.last) for finding in findings] == [(4, 4)]
    assert bytes(broken.written[path.with_name(path.name + ".damaged")]) == data, "as it was, for people to look at"


async def test_several_damaged_places_are_all_reported() -> None:
    disk, path, ends = await written()
    data = bytearray(disk.written[path])
    for place in (1, 2, 5):
        data[ends[place] + 30] ^= 0xFF
    kept, findings = await recovered(with_bytes(path, data))
    assert kept == [0, 3, 4, 6, 7]
    assert [(finding.first, finding.last) for finding in findings] == [(2, 3), (6, 6)]


async def test_bytes_that_were_taken_out_of_the_middle_are_missed() -> None:
    disk, path, ends = await written()
    data = bytes(disk.written[path])
    kept, findings = await recovered(with_bytes(path, data[: ends[2]] + data[ends[5] :]))
    assert kept == [0, 1, 5, 6, 7]
    assert [(finding.first, finding.last) for finding in findings] == [(3, 5)]


async def test_an_older_segment_that_ends_too_early_is_damaged_not_torn() -> None:
    disk, _, _ = await written(12, segment_bytes=300)
    paths = listed(disk, Path("/journal"))
    assert len(paths) > 2
    second = bytes(disk.written[paths[1]])
    disk.written[paths[1]] = bytearray(second[:-1])
    kept, findings = await recovered(disk)
    (finding,) = findings
    assert finding.lost == 1
    assert sorted({*range(12)} - {*kept}) == [finding.first - 1]


async def test_a_damaged_header_loses_its_segment_and_says_which_numbers() -> None:
    disk, _, _ = await written(12, segment_bytes=300)
    paths = listed(disk, Path("/journal"))
    disk.written[paths[1]][5] ^= 1
    kept, findings = await recovered(disk)
    (finding,) = findings
    assert [*range(12)] == sorted([*kept, *range(finding.first - 1, finding.last)])


async def test_a_file_that_was_never_begun_is_dropped() -> None:
    disk, path, _ = await written()
    disk.written[path.with_name("0000000000000009-000009.journal")] = bytearray(b"WL")
    kept, findings = await recovered(disk)
    assert kept == list(range(NUMBER))
    assert [finding.lost for finding in findings] == [0]


async def test_a_crash_while_damage_is_put_aside_is_made_good() -> None:
    disk, path, ends = await written()
    disk.written[path][ends[3] + 20] ^= 1
    renamed = 0

    def crash(what: str) -> None:
        nonlocal renamed
        renamed += what == "rename"
        if what == "rename" and renamed == 2:
            raise KeyboardInterrupt

    disk.before = crash
    with pytest.raises(KeyboardInterrupt):
        opened(disk)
    disk.before = lambda _: None
    disk.locked.clear()
    assert (await recovered(disk))[0] == [0, 1, 2, 4, 5, 6, 7]


async def test_what_was_lost_is_told_each_time_the_journal_is_looked_through() -> None:
    disk, path, ends = await written()
    disk.written[path][ends[3] + 20] ^= 1
    journal = opened(disk)
    await journal.close()
    lost = [record for record in whole(disk) if isinstance(record, tuple) and isinstance(record[0], Record)]
    assert any(record[0].flags for record in lost), "a record stands in the place of what is gone"


def mutated(data: bytes, chance: random.Random) -> bytes:
    made = bytearray(data)
    for _ in range(chance.randint(1, 4)):
        at = chance.randrange(len(made)) if made else 0
        match chance.randrange(6):
            case 0:
                made[at : at + 1] = bytes([chance.randrange(256)])
            case 1:
                del made[at : at + chance.randint(1, 200)]
            case 2:
                made[at:at] = chance.randbytes(chance.randint(1, 200))
            case 3:
                made[at : at + 100] = bytes(100)
            case 4:
                start = chance.randrange(len(made)) if made else 0
                made[at:at] = made[start : start + 150]
            case _:
                made[at : at + 4] = chance.choice([b"\xff\xff\xff\xff", b"\x7f\xff\xff\xff", bytes(4), b"\0\0\0\x3a"])
    return bytes(made)


@pytest.mark.parametrize("mutants", [1500, pytest.param(20_000, marks=pytest.mark.long)])
@pytest.mark.timeout(600)
async def test_no_mutation_invents_a_job_or_loses_one_in_silence(mutants: int) -> None:
    disk, path, _ = await written(12)
    data = bytes(disk.written[path])
    known = {draft(number).id for number in range(12)}
    began = psutil.Process().memory_info().rss
    for seed in range(mutants):
        chance = random.Random(seed)
        broken = with_bytes(path, mutated(data, chance))
        started = time.process_time()
        journal = opened(broken, seed=seed)
        found: list[tuple[int, str]] = []
        at = journal.oldest - 1
        while entries := await journal.read(at, 100):
            found += [(entry.sequence, entry.draft.id) for entry in entries if entry.draft is not None]
            at = entries[-1].sequence
        assert {id for _, id in found} <= known, f"seed {seed}: invented"
        assert [sequence for sequence, _ in found] == sorted({sequence for sequence, _ in found}), f"seed {seed}"
        missing = {*range(1, found[-1][0])} - {sequence for sequence, _ in found} if found else set()
        told = {n for finding in journal.findings for n in range(finding.first, finding.last + 1)}
        assert missing <= told, f"seed {seed}: {missing - told} were skipped in silence"
        if len(found) < 12:
            assert journal.findings or data.startswith(bytes(broken.written.get(path, b""))), f"seed {seed}"
        await journal.close()
        assert time.process_time() - started < 10.0
    assert psutil.Process().memory_info().rss - began < 100e6


@pytest.mark.long
async def test_a_hundred_megabytes_are_opened_within_a_second_or_so(tmp_path: Path) -> None:
    journal = opened(Disk(), tmp_path)
    drafts = [draft(number, headers={"x": "y" * 200}) for number in range(1000)]
    for _ in range(130):
        await journal.accept(drafts)
    await journal.close()
    size = sum(path.stat().st_size for path in listed(Disk(), tmp_path))
    began = time.process_time()
    again = opened(Disk(), tmp_path)
    took = time.process_time() - began
    assert again.last == 130_000
    assert not again.findings
    assert took < 3 * size / 100e6, f"{took:.2f} s for {size / 1e6:.0f} MB"
    await again.close()
