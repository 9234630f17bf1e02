"""What a long absence of the store leaves is read back little by little: callers that enqueue must not notice."""

from pathlib import Path

import pytest

from tests.support.faulty_disk import contents, draft, filled, lines, opened
from windlass.engine.journal.batch import encode, join
from windlass.engine.journal.file import READ_AT_ONCE, JournalFile, Row
from windlass.engine.new_jobs import make_batch
from windlass.model.names import key_of

LITTLE = 64 << 10


@pytest.fixture
def sizes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many bytes were read at a time."""
    found: list[int] = []
    read, find = JournalFile.read, JournalFile.find

    def noted(file: JournalFile, after: int) -> list[Row]:
        rows = read(file, after)
        found.append(sum(len(row.body) for row in rows))
        return rows

    def noted_one(file: JournalFile, sequence: int) -> Row | None:
        row = find(file, sequence)
        found.append(0 if row is None else len(row.body))
        return row

    monkeypatch.setattr(JournalFile, "read", noted)
    monkeypatch.setattr(JournalFile, "find", noted_one)
    return found


async def test_jobs_are_read_back_little_by_little(tmp_path: Path, sizes: list[int]) -> None:
    journal = opened(tmp_path)
    for start in range(0, 3500, 10):
        await journal.accept([draft(number) for number in range(start, start + 10)])
    await journal.close()
    journal = opened(tmp_path)
    sizes.clear()
    assert await contents(journal) == list(range(3500))
    assert len(sizes) > 2, "several times, or this test is blind"
    assert max(sizes) <= LITTLE + 1000
    assert LITTLE == READ_AT_ONCE
    await journal.close()


async def test_of_a_record_that_is_larger_only_that_is_read(tmp_path: Path, sizes: list[int]) -> None:
    journal = opened(tmp_path)
    jobs = lines(0, 1000)
    large = [b"\xc6" + (200).to_bytes(4) + bytes(200)] * 1000
    for _ in range(5):
        await journal.accept(make_batch(jobs.tenant, jobs.common, jobs.ids, large))
    last = await journal.accept([draft(7)])
    await journal.close()
    journal = opened(tmp_path)
    sizes.clear()
    at = 0
    while entries := await journal.read(at, 250):
        at = entries[-1].sequence
    assert at == last == 5001
    assert max(sizes) < sum(sizes) / 4
    found = await journal.find(key_of(draft(7)))
    assert found is not None
    assert found.sequence == last
    assert sizes[-1] <= LITTLE
    await journal.close()


async def test_what_was_written_one_by_one_is_read_many_at_a_time(tmp_path: Path, sizes: list[int]) -> None:
    await filled(tmp_path, 100)
    journal = opened(tmp_path)
    sizes.clear()
    assert await contents(journal) == list(range(100))
    assert len(sizes) == 1
    await journal.close()


async def test_a_job_is_not_drained_before_its_caller_knows_that_it_was_accepted(tmp_path: Path) -> None:
    """Else the store's answer, whether the job is new, would come before the question."""
    journal = opened(tmp_path)
    await journal.accept([draft(0)])
    journal._file.append([Row(2, 2, 0, join(encode([draft(1)])))])
    assert [entry.sequence for entry in await journal.read(0, 10)] == [1]
    await journal.close()
