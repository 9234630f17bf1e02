"""Several jobs in one record of the journal: all of them or none, and each is found and drained by itself."""

import os
import random
import time
import uuid
from pathlib import Path

import msgspec
import pytest
from msgspec import Raw
from msgspec.structs import replace

from tests.journal.test_commands import windlass
from tests.support.drained_journals import (
    down,
    drained,
    engine_at,
    in_order,
    journaled_at,
    lose,
    redis_of,
    taken,
    until,
    up,
)
from tests.support.faulty_disk import (
    contents,
    copied,
    draft,
    kept_in,
    lines,
    log_of,
    number_of,
    opened,
    rows_in,
    watched,
)
from tests.support.servers import NewPrefix, Server, StartServer
from tests.support.stores import journal_of
from windlass.engine.journal.batch import MOST_IN_RECORD, Entry, decode, encode, join
from windlass.engine.journal.journal import PAGE
from windlass.engine.journal.text import Line, read_text
from windlass.engine.new_jobs import drafts_in, make_batch
from windlass.model.errors import Conflict, Unavailable
from windlass.model.job import TEXT, Reason, State
from windlass.model.names import JobKey, check_id, check_mark, ids_like, key_of, marked, text_id, text_ids, texts_like
from windlass.model.new_job import JobOptions, NewJob
from windlass.model.operations import Count, Enqueue, EnqueueLines, EnqueueMany, GetProgress, List, Show
from windlass.store import encoding
from windlass.store.data import Draft, DrainRequest
from windlass.store.redis.scrub import scrub
from windlass.system import SystemRandomness

# On disk


async def test_the_lines_of_a_request_are_one_batch_and_one_commit(tmp_path: Path) -> None:
    journal = opened(tmp_path)
    await journal.accept([draft(0)])
    with watched(journal, lambda _: None) as commits:
        assert await journal.accept(lines(1, 901)) == 901
    assert commits == [1]
    await journal.close()
    assert [(row.first, row.last) for row in rows_in(tmp_path)] == [(1, 1), (2, 901)]


@pytest.mark.parametrize("at_once", [1, 7, 1000, 5000])
async def test_jobs_come_out_in_order_however_many_are_read_at_a_time(tmp_path: Path, at_once: int) -> None:
    journal = opened(tmp_path / "journal")
    for start in range(0, 600, 200):
        await journal.accept(lines(start, start + 199))
        await journal.accept([draft(start + 199)])
    for again in (journal, opened(copied(tmp_path / "journal", tmp_path / "copy"), seed=8)):
        found, at = [], 0
        while entries := await again.read(at, at_once):
            assert len(entries) <= at_once
            found += [(entry.sequence, number_of(entry.draft)) for entry in entries]
            at = entries[-1].sequence
        assert found == [(number + 1, number) for number in range(600)]
        await again.close()


async def test_more_lines_than_fit_into_a_record_come_out_in_order(tmp_path: Path) -> None:
    journal = opened(tmp_path)
    number = 21 * MOST_IN_RECORD + 5
    await journal.accept(lines(0, number))
    assert await contents(journal) == list(range(number))
    await journal.accept(lines(number, number + 10))
    assert await contents(journal, number - 3) == list(range(number - 3, number + 10))
    await journal.close()


async def test_what_the_lines_share_is_kept(tmp_path: Path) -> None:
    terms = {"priority": 3, "delay": 5.0, "headers": {"a": "b"}, "tags": ["x"]}
    given = lines(0, 3, queue="q", tenant="shop", **terms)
    journal = opened(tmp_path)
    await journal.accept(given)
    await journal.close()
    again = opened(tmp_path)
    assert [entry.draft for entry in await again.read(0, 10)] == drafts_in(given)
    await again.close()


async def test_a_request_of_many_batches_is_there_whole_or_not_at_all(tmp_path: Path) -> None:
    """However much of the log a power cut leaves."""
    journal = opened(tmp_path / "journal")
    await journal.accept([draft(0)])
    before = log_of(tmp_path / "journal").stat().st_size
    await journal.accept(lines(1, 4001))
    after = log_of(tmp_path / "journal").stat().st_size
    assert len(rows_in(tmp_path / "journal")) > 2
    chance = random.Random(5)
    for cut, size in enumerate([before, *(chance.randrange(before, after) for _ in range(8)), after]):
        copy = copied(tmp_path / "journal", tmp_path / str(cut))
        os.truncate(log_of(copy), size)
        assert len(await kept_in(copy)) == (4001 if size == after else 1), f"cut at {size} of {after}"
    await journal.close()


def test_a_batch_of_rubbish_is_no_job_and_its_bytes_are_kept() -> None:
    body = join(encode([draft(1), draft(2)]))
    for seed in range(300):
        chance = random.Random(seed)
        broken = bytearray(body)
        broken[chance.randrange(len(body))] = chance.randrange(256)
        for entry in decode(1, 2, 0, bytes(broken)):
            assert (entry.draft is None) == bool(entry.raw)
    assert decode(1, 2, 0, b"\xc1") == [Entry(2, 0, None, b"\xc1")]
    assert decode(1, 3, 0, body) == [Entry(3, 0, None, body)], "not as many as its numbers say"


# Finding


async def test_each_job_of_a_batch_is_found_by_its_id_until_it_is_drained(tmp_path: Path) -> None:
    journal = opened(tmp_path / "journal")
    await journal.accept(lines(0, 50))
    await journal.accept([draft(50)])
    await journal.accept(lines(51, 100))
    ids = [*text_ids(lines(0, 50).ids), draft(50).id, *text_ids(lines(51, 100).ids)]
    again = opened(copied(tmp_path / "journal", tmp_path / "copy"), seed=8)
    for one in (journal, again):
        for number, id in enumerate(ids):
            entry = await one.find(JobKey(id, "default"))
            assert entry is not None
            assert (entry.sequence, number_of(entry.draft)) == (number + 1, number)
        assert await one.find(key_of(draft(999))) is None
        for upto in (20, 51):
            await one.forget(upto)
            waiting = [number for number, id in enumerate(ids) if await one.find(JobKey(id, "default"))]
            assert waiting == list(range(upto, 100))
        await one.close()


async def test_a_job_is_found_however_many_wait(tmp_path: Path) -> None:
    journal = opened(tmp_path)
    number = 3 * PAGE + 5
    for start in range(0, number, 99):
        await journal.accept([draft(one, tenant="shop") for one in range(start, min(number, start + 99))])
    for one in (0, 1, PAGE - 1, PAGE, 2 * PAGE + 7, number - 1):
        entry = await journal.find(key_of(draft(one, tenant="shop")))
        assert entry is not None
        assert (entry.sequence, number_of(entry.draft)) == (one + 1, one)
        assert await journal.find(key_of(draft(one))) is None, "that is another tenant's"
    await journal.forget(PAGE)
    assert await journal.find(key_of(draft(PAGE - 1, tenant="shop"))) is None
    assert await journal.find(key_of(draft(PAGE, tenant="shop"))) is not None
    await journal.close()


# Draining


async def test_a_store_whose_mark_is_inside_a_batch_is_given_the_rest_of_it(
    redis_server: Server, new_prefix: NewPrefix, tmp_path: Path
) -> None:
    async with engine_at(redis_server.url, new_prefix()) as engine:
        store = redis_of(engine)
        journal = taken(tmp_path)
        given = lines(0, 10)
        await journal.accept(given)
        await journal_of(store).drain(DrainRequest(journal.id.hex(), 0, 0, 6, drafts_in(given)[:6]))
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
        with pytest.raises(Unavailable, match="does not have all accepted jobs"):
            await service(GetProgress(ids=accepted.ids[2000:], wait=0.1))
        server.start()
        await up(service)
        progress = await service(GetProgress(ids=accepted.ids[2000:]))
        assert (progress.done, progress.states) == (0, {State.QUEUED: 500})
        assert (await service(Show(id=accepted.ids[2499]))).reason is None
        first = await service(List(limit=1000))
        second = await service(List(limit=1000, after=first.next))
        assert [job.id for job in (*first.jobs, *second.jobs)] == accepted.ids[:2000]


async def test_unique_jobs_go_to_the_store_at_once_and_need_it(start_server: StartServer, tmp_path: Path) -> None:
    server = start_server("redis", fsync="always")
    one = NewJob(task="work", unique="pending")
    async with journaled_at(server.url, tmp_path) as service:
        first = await service(Enqueue(job=one))
        assert (first.created, first.reason) == (True, None)
        again = await service(Enqueue(job=one))
        assert (again.created, again.id) == (False, first.id)
        with pytest.raises(Conflict, match=first.id):
            await service(Enqueue(job=replace(one, on_duplicate="reject")))
        options = JobOptions(unique="pending", on_duplicate="replace")
        lines = await service(EnqueueLines(task="work", text="a\nb\na", options=options))
        assert (lines.created, lines.ids[0] == lines.ids[2]) == (2, True)
        server.kill()
        await down(service)
        with pytest.raises(Unavailable, match="only the store can say whether a yielding or unique job is taken"):
            await service(EnqueueMany(jobs=[NewJob(task="work"), one]))
        assert (await service(Enqueue(job=NewJob(task="work")))).reason is Reason.ACCEPTED
        server.start()
        await up(service)
        assert (await service(Enqueue(job=one))).id == first.id
        assert (await service(Count())).count == 4


async def test_a_batch_that_this_program_cannot_read_is_put_aside_and_the_rest_goes_on(
    redis_server: Server, new_prefix: NewPrefix, tmp_path: Path
) -> None:
    async with engine_at(redis_server.url, new_prefix()) as engine:
        journal = taken(tmp_path)
        await journal.accept([draft(0)])
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(encoding, "pack_terms", lambda _: b"\xc1")
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
    journal = opened(tmp_path)
    await journal.accept([text_job("single")])
    await journal.accept(make_batch("shop", text_job("").new, lines(0, 3).ids, [b"one", b"two|2", b"three"]))
    await journal.close()
    ids = [text_job("single").id, *text_ids(lines(0, 3).ids)]
    verified = windlass("journal", "verify", str(tmp_path))
    assert verified.stdout == f"{tmp_path}: 4 jobs (1 to 4) in 2 batches\n"
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
    first = marked(SystemRandomness().uuid7(), "q")
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
    made = ids_like(SystemRandomness().uuid7(), 3)
    after = time.time_ns() // 1_000_000
    assert before <= int.from_bytes(made[:6]) <= after
