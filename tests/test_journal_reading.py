"""What a long absence of the store leaves is read back little by little: whoever enqueues must not notice."""

from pathlib import Path

from tests.journals import PaperDisk, contents, draft, filled, lines, opened
from windlass.engine.journal.journal import READ_AT_ONCE
from windlass.engine.lines import lines_with
from windlass.model.names import key_of

LITTLE = 64 << 10


class ReadDisk(PaperDisk):
    """Remembers how much was read at a time."""

    def __init__(self) -> None:
        super().__init__()
        self.sizes: list[int] = []

    def read(self, path: Path, at: int = 0, size: int = -1) -> bytes:
        found = super().read(path, at, size)
        self.sizes.append(len(found))
        return found


async def test_jobs_are_read_back_little_by_little() -> None:
    disk = ReadDisk()
    await filled(disk, 2000)
    journal = opened(disk)
    disk.sizes.clear()
    assert await contents(journal) == list(range(2000))
    assert len(disk.sizes) > 2, "several times, or this test is blind"
    assert max(disk.sizes) <= LITTLE == READ_AT_ONCE


async def test_of_a_record_that_is_larger_only_that_is_read() -> None:
    disk = ReadDisk()
    journal = opened(disk)
    jobs = lines(0, 1000)
    large = [b"\xc6" + (200).to_bytes(4) + bytes(200)] * 1000
    for _ in range(5):
        await journal.accept(lines_with(jobs.tenant, jobs.common, jobs.ids, large))
    last = await journal.accept([draft(7)])
    await journal.close()
    journal = opened(disk)
    size = sum(map(len, disk.written.values()))
    disk.sizes.clear()
    at = 0
    while entries := await journal.read(at, 250):
        at = entries[-1].sequence
    assert at == last == 5001
    assert max(disk.sizes) < size / 4
    found = journal.find(key_of(draft(7)))
    assert found is not None
    assert found.sequence == last
    assert disk.sizes[-1] <= LITTLE
