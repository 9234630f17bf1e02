"""Several jobs in one record of the journal: all of them or none, and each of them found and drained by itself."""

import random
import time
import uuid
import zlib
from pathlib import Path

import msgspec
import pytest
from msgspec import Raw

from tests.draining import down, drained, engine_at, in_order, journaled_at, lose, redis_of, taken, until, up
from tests.journals import PaperDisk, contents, draft, lines, number_of, only, opened, whole
from tests.servers import NewPrefix, Server, StartServer
from tests.test_journal_recovery import mutated, recovered, with_bytes
from tests.test_journal_text import windlass
from windlass.engine.journal import Disk, bodies
from windlass.engine.journal.format import BATCH, HEADER_SIZE, Record
from windlass.engine.journal.journal import MOST_IN_BATCH, MOST_IN_MEMORY
from windlass.engine.journal.text import Line, read_text
from windlass.engine.lines import drafts_in, lines_with
from windlass.model.errors import Unavailable
from windlass.model.fresh_ids import ids_like, text_ids, texts_like
from windlass.model.job import TEXT, NewJob, Reason, State
from windlass.model.names import JobKey, check_id, check_mark, key_of, marked, text_id
from windlass.model.operations import Count, EnqueueLines, EnqueueMany, List, Show
from windlass.store import Draft
from windlass.store.beside import Haul
from windlass.store.redis.scrub import scrub
from windlass.system import SystemChance


@pytest.fixture
def disk() -> PaperDisk:
    return PaperDisk()


async def mixed(disk: PaperDisk) -> bytes:
    """A job, a batch of seven, a job; the bytes of their segment."""
    journal = opened(disk)
    await journal.accept([draft(0)])
    await journal.accept(lines(1, 8))
    await journal.accept([draft(8)])
    await journal.close()
    return bytes(disk.written[only(disk)])


def ends(disk: PaperDisk) -> list[int]:
    return [found[0].end for found in whole(disk) if isinstance(found, tuple) and isinstance(found[0], Record)]


# On disk


async def test_the_lines_of_a_request_are_one_record_one_write_and_one_sync(disk: PaperDisk) -> None:
    journal = opened(disk)
    await journal.accept([draft(0)])
    disk.calls.clear()
    assert await journal.accept(lines(1, 901)) == 901
    assert [what for what, _ in disk.calls] == ["write", "sync"]
    await journal.close()
    (_, batch) = [found[0] for found in whole(disk) if isinstance(found, tuple)]
    assert isinstance(batch, Record)
    assert (batch.flags, batch.sequence) == (BATCH, 901)


@pytest.mark.parametrize("at_once", [1, 7, 1000, 5000])
async def test_jobs_come_out_in_order_however_many_are_read_at_a_time(disk: PaperDisk, at_once: int) -> None:
    journal = opened(disk)
    for start in range(0, 600, 200):
        await journal.accept(lines(start, start + 199))
        await journal.accept([draft(start + 199)])
    for again in (journal, opened(copied(disk), seed=8)):
        found, at = [], 0
        while entries := await again.read(at, at_once):
            assert len(entries) <= at_once
            found += [(entry.sequence, number_of(entry.draft)) for entry in entries]
            at = entries[-1].sequence
        assert found == [(number + 1, number) for number in range(600)]
        await again.close()


async def test_more_lines_than_fit_into_a_record_or_into_memory_come_out_in_order(disk: PaperDisk) -> None:
    journal = opened(disk)
    number = MOST_IN_MEMORY + MOST_IN_BATCH + 5
    await journal.accept(lines(0, number))
    assert await contents(journal) == list(range(number))
    await journal.accept(lines(number, number + 10))
    assert await contents(journal, number - 3) == list(range(number - 3, number + 10))
    await journal.close()


async def test_what_the_lines_share_is_kept(disk: PaperDisk) -> None:
    terms = {"priority": 3, "delay": 5.0, "headers": {"a": "b"}, "tags": ["x"]}
    given = lines(0, 3, queue="q", tenant="shop", **terms)
    journal = opened(disk)
    await journal.accept(given)
    await journal.close()
    again = opened(disk)
    assert [entry.draft for entry in await again.read(0, 10)] == drafts_in(given)
    await again.close()


# Damage


async def test_a_batch_that_was_cut_off_at_any_byte_leaves_nothing_of_itself(disk: PaperDisk) -> None:
    data = await mixed(disk)
    first, second, _ = ends(disk)
    for size in range(first, second):
        kept, findings = await recovered(with_bytes(only(disk), data[:size]))
        assert kept == [0], f"cut at {size}"
        assert len(findings) == (size != first)
        assert not any(finding.lost for finding in findings)
    assert (await recovered(with_bytes(only(disk), data[:second])))[0] == list(range(8))


async def test_a_batch_with_any_byte_damaged_is_lost_whole_and_all_its_numbers_are_told(disk: PaperDisk) -> None:
    data = await mixed(disk)
    first, second, _ = ends(disk)
    for at in range(first, second, 3):
        broken = bytearray(data)
        broken[at] ^= 0x41
        kept, findings = await recovered(with_bytes(only(disk), broken))
        assert kept == [0, 8], f"byte {at}"
        assert [(finding.first, finding.last) for finding in findings] == [(2, 8)]


async def test_a_batch_is_carried_over_whole_when_its_segment_is_damaged(disk: PaperDisk) -> None:
    data = bytearray(await mixed(disk))
    data[HEADER_SIZE + 20] ^= 1
    kept, findings = await recovered(with_bytes(only(disk), data))
    assert kept == list(range(1, 9))
    assert [(finding.first, finding.last) for finding in findings] == [(1, 1)]


async def test_no_mutation_invents_a_job_or_tears_a_batch(disk: PaperDisk) -> None:
    data = await mixed(disk)
    known = {draft(0).id, *text_ids(lines(1, 8).ids), draft(8).id}
    for seed in range(800):
        journal = opened(with_bytes(only(disk), mutated(data, random.Random(seed))), seed=seed)
        entries = [entry for entry in await journal.read(journal.oldest - 1, 100) if entry.draft is not None]
        found = [entry.sequence for entry in entries]
        assert {entry.draft.id for entry in entries if entry.draft} <= known, f"seed {seed}: invented"
        assert len({*range(2, 9)} & {*found}) in (0, 7), f"seed {seed}: torn"
        told = {n for finding in journal.findings for n in range(finding.first, finding.last + 1)}
        assert not found or {*range(1, found[-1])} - {*found} <= told, f"seed {seed}: skipped in silence"
        await journal.close()


async def test_a_journal_of_the_format_before_is_read_and_goes_on(disk: PaperDisk) -> None:
    journal = opened(disk)
    await journal.accept([draft(0), draft(1)])
    await journal.close()
    data = disk.written[only(disk)]
    data[3] = 1
    data[24:28] = zlib.crc32(bytes(data[:24])).to_bytes(4)
    again = opened(disk, seed=8)
    await again.accept(lines(2, 5))
    assert await contents(again) == [0, 1, 2, 3, 4]
    assert not again.findings
    await again.close()
    assert [bytes(file)[3] for _, file in sorted(disk.written.items())] == [1, 2]


# Finding


async def test_each_job_of_a_batch_is_found_by_its_id_until_it_is_drained(disk: PaperDisk) -> None:
    journal = opened(disk)
    await journal.accept(lines(0, 50))
    await journal.accept([draft(50)])
    await journal.accept(lines(51, 100))
    ids = [*text_ids(lines(0, 50).ids), draft(50).id, *text_ids(lines(51, 100).ids)]
    again = opened(copied(disk), seed=8)
    for one in (journal, again):
        for number, id in enumerate(ids):
            entry = one.find(JobKey(id, "default"))
            assert entry is not None
            assert (entry.sequence, number_of(entry.draft)) == (number + 1, number)
        assert one.find(key_of(draft(999))) is None
        one.forget(20)
        assert [number for number, id in enumerate(ids) if one.find(JobKey(id, "default"))] == list(range(20, 100))
        one.forget(51)
        assert [number for number, id in enumerate(ids) if one.find(JobKey(id, "default"))] == list(range(51, 100))
        await one.close()


def copied(disk: PaperDisk) -> PaperDisk:
    copy = PaperDisk()
    copy.written = {path: bytearray(data) for path, data in disk.written.items()}
    return copy


# Draining


async def test_a_store_whose_mark_is_inside_a_batch_is_given_the_rest_of_it(
    redis_server: Server, new_prefix: NewPrefix, tmp_path: Path
) -> None:
    async with engine_at(redis_server.url, new_prefix()) as engine:
        store = redis_of(engine)
        journal = taken(tmp_path)
        given = lines(0, 10)
        await journal.accept(given)
        await store.drain(Haul(journal.id.hex(), 0, 0, 6, drafts_in(given)[:6]))
        await journal.close()
        assert await drained(tmp_path, engine) == 6
        assert await in_order(engine) == list(range(10))


async def test_lines_and_jobs_of_several_queues_arrive_once_also_when_the_store_has_lost_them(
    server: Server, new_prefix: NewPrefix, tmp_path: Path
) -> None:
    prefix = new_prefix()
    async with journaled_at(server.url, tmp_path, prefix) as service, engine_at(server.url, prefix) as engine:
        store = redis_of(engine)
        for queue in ("a", "b", "c"):
            await service._journal.accept(lines(0, 1200, queue=queue))
            await service(EnqueueMany(jobs=[NewJob(task="work", queue=f"q{number % 5}") for number in range(50)]))
        assert service._journal.last == 3750
        await up(service)
        assert (await engine(Count())).count == 3750
        await lose(server, prefix)

        async def back() -> bool:
            return (await engine(Count())).count == 3750

        await until(back)
        assert not await scrub(store)


async def test_lines_that_are_only_in_the_journal_are_shown_and_drained_in_order(
    start_server: StartServer, tmp_path: Path
) -> None:
    server = start_server("redis", fsync="always")
    async with journaled_at(server.url, tmp_path) as service:
        server.kill()
        await down(service)
        text = "".join(f"line {number}\n" for number in range(2500))
        accepted = await service(EnqueueLines(task="work", text=text))
        assert (accepted.created, len({*accepted.ids})) == (2500, 2500)
        shown = await service(Show(id=accepted.ids[1234], payload=True))
        assert (shown.state, shown.reason, shown.task) == (State.QUEUED, Reason.ACCEPTED, "work")
        assert bytes(shown.payload) == b"line 1234"  # type: ignore[arg-type]
        with pytest.raises(Unavailable):
            await service(Show(tenant="other", id=accepted.ids[1234]))
        server.start()
        await up(service)
        assert (await service(Show(id=accepted.ids[2499]))).reason is None
        first = await service(List(limit=1000))
        second = await service(List(limit=1000, after=first.next))
        assert [job.id for job in (*first.jobs, *second.jobs)] == accepted.ids[:2000]


async def test_a_batch_that_nobody_can_read_is_put_aside_and_the_rest_goes_on(
    redis_server: Server, new_prefix: NewPrefix, tmp_path: Path
) -> None:
    async with engine_at(redis_server.url, new_prefix()) as engine:
        journal = taken(tmp_path)
        await journal.accept([draft(0)])
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(bodies, "pack_lines", lambda _: b"\xc1")
            await journal.accept(lines(1, 4))
        await journal.accept([draft(4)])
        await journal.close()
        await drained(tmp_path, engine)
        assert await in_order(engine) == [0, 4]
        (line,) = (tmp_path / "rejected").read_text().splitlines()
        assert line.startswith("4 "), "the number of the last of them"
        assert lines(1, 4).ids.hex() in line, "their ids are in what was put aside"


# As text


async def test_batches_are_dumped_a_job_at_a_time(tmp_path: Path) -> None:
    journal = opened(Disk(), tmp_path)
    await journal.accept([text_job("single")])
    await journal.accept(lines_with("shop", text_job("").new, lines(0, 3).ids, [b"one", b"two|2", b"three"]))
    await journal.close()
    ids = [text_job("single").id, *text_ids(lines(0, 3).ids)]
    verified = windlass("journal", "verify", str(tmp_path))
    assert verified.stdout == f"{tmp_path}: 2 records (1 to 4) in 1 segment\n"
    dumped = windlass("journal", "dump", str(tmp_path)).stdout.splitlines()
    jobs = [msgspec.json.decode(line) for line in dumped]
    assert [(job["sequence"], job["id"]) for job in jobs] == list(enumerate(ids, start=1))
    payloads = ["single", "one", "two|2", "three"]
    assert [job["payload"] for job in jobs] == payloads
    records = windlass("journal", "dump", str(tmp_path), "--form", "records").stdout
    assert list(read_text(records)) == [
        Line(id, "mail", payload, "shop") for id, payload in zip(ids, payloads, strict=True)
    ]
    batches = windlass("journal", "dump", str(tmp_path), "--form", "batches").stdout
    assert [line.payload for line in read_text(batches) if isinstance(line, Line)] == payloads


def text_job(payload: str) -> Draft:
    new = NewJob(task="mail", payload=Raw(payload.encode()), content_type=TEXT)
    return Draft("shop", draft(77).id, new)


# Ids


@pytest.mark.parametrize("number", [0, 1, 5, 4096, 10_000])
def test_ids_that_are_made_together_are_like_those_that_are_made_one_by_one_and_ascend(number: int) -> None:
    first = marked(SystemChance().uuid7(), "q")
    raw, texts = ids_like(first, number), texts_like(first, number)
    assert texts == text_ids(raw)
    assert texts == [text_id(raw[at : at + 16]) for at in range(0, len(raw), 16)]
    assert texts == sorted({*texts})
    assert len(texts) == number
    for id in texts:
        check_id(id)
        check_mark(id, "q")
        assert (uuid.UUID(id).version, uuid.UUID(id).variant) == (7, uuid.RFC_4122)


def test_ids_tell_their_time() -> None:
    before = time.time_ns() // 1_000_000
    made = ids_like(SystemChance().uuid7(), 3)
    after = time.time_ns() // 1_000_000
    assert before <= int.from_bytes(made[:6]) <= after
