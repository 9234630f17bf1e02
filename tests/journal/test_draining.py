"""A journal in front of a real store: jobs arrive once and in order, whatever becomes of the store meanwhile."""

import asyncio
import logging
from pathlib import Path

import pytest

from tests.support.drained_journals import (
    CLOCK,
    down,
    drained,
    engine_at,
    in_order,
    journaled_at,
    lose,
    new,
    redis_of,
    taken,
    until,
    up,
)
from tests.support.engines import packed
from tests.support.faulty_disk import draft, filled, journal_file, number_of, overwrite, pages_of_batches
from tests.support.patience import PATIENCE
from tests.support.relays import Wire
from tests.support.scoreboard import Relay, await_
from tests.support.servers import NewPrefix, Server, StartServer
from tests.support.stores import journal_of
from windlass import Windlass
from windlass.dialect.aliases import KeepTimes, WithKeepTimes
from windlass.engine.journal import open_journaled
from windlass.engine.journal.file import JournalFile, Row
from windlass.engine.journal.service import drain_folder
from windlass.model.errors import Busy, Invalid, Unavailable
from windlass.model.health import Health, JournalHealth
from windlass.model.job import Reason, State
from windlass.model.limit import NewLimit, Which
from windlass.model.new_job import JobOptions, NewJob
from windlass.model.operations import (
    ChangeQueue,
    Claim,
    Count,
    Enqueue,
    EnqueueLines,
    EnqueueMany,
    GetEstimate,
    GetHealth,
    GetQuota,
    GetResult,
    GetStats,
    List,
    PutLimit,
    Register,
    Show,
)
from windlass.model.queue import QueueChange, Tier
from windlass.model.worker import NewWorker
from windlass.store import encoding
from windlass.store.data import DrainReply, DrainRequest
from windlass.store.optional import JournalTarget
from windlass.store.redis.scrub import scrub

# The mark


async def test_a_drain_moves_the_mark_with_its_jobs_or_does_nothing(server: Server, new_prefix: NewPrefix) -> None:
    async with engine_at(server.url, new_prefix()) as engine:
        store = redis_of(engine)
        drafts = [draft(number) for number in range(3)]
        partition = journal_of(store).partition_of(drafts[0])
        assert (await journal_of(store).drain(DrainRequest("j", partition, -1, 0, []))).mark == 0
        first = await journal_of(store).drain(DrainRequest("j", partition, 0, 3, drafts))
        assert (first.mark, first.created) == (3, [True] * 3)
        again = await journal_of(store).drain(DrainRequest("j", partition, 0, 3, drafts))
        assert (again.mark, again.created) == (3, []), "sent again, it does nothing"
        ahead = await journal_of(store).drain(DrainRequest("j", partition, 7, 9, [draft(8)]))
        assert (ahead.mark, ahead.created) == (3, []), "what comes before is missing"
        other = await journal_of(store).drain(DrainRequest("k", partition, 0, 5, drafts))
        assert (other.mark, other.created) == (5, [False] * 3), "each journal has its own; ids are known to all"
        assert (await engine(Count())).count == 3
        assert not await scrub(store)


async def test_the_mark_and_the_jobs_are_one_step_in_the_log_of_the_server(start_server: StartServer) -> None:
    """Cut anywhere, the log has both or neither."""
    server = start_server("redis", fsync="always")
    async with engine_at(server.url) as engine:
        store = redis_of(engine)
        await journal_of(store).drain(DrainRequest("j", 0, 0, 2, [draft(1), draft(2)]))
        before = _log_of(server).stat().st_size
        await journal_of(store).drain(DrainRequest("j", 0, 2, 4, [draft(3), draft(4)]))
    server.kill()
    log = _log_of(server)
    data = log.read_bytes()
    for size in range(before, len(data), max(1, (len(data) - before) // 12)):
        log.write_bytes(data[:size])
        server.start()
        async with engine_at(server.url) as engine:
            store = redis_of(engine)
            mark = (await journal_of(store).drain(DrainRequest("j", 0, -1, 0, []))).mark
            count = (await engine(Count())).count
            assert (mark, count) == (2, 2), f"cut at {size} of {len(data)}"
        server.kill()


def _log_of(server: Server) -> Path:
    (log,) = (server.folder / "appendonlydir").glob("*.incr.aof")
    return log


# With the store up


class Slow:
    """A store that takes its time."""

    def __init__(self, store: JournalTarget) -> None:
        self._store = store
        self.replicated_within = store.replicated_within
        self.partition_count, self.partition_of, self.ready = store.partition_count, store.partition_of, store.ready

    async def drain(self, request: DrainRequest) -> DrainReply:
        await asyncio.sleep(0.02)
        return await self._store.drain(request)


async def test_a_read_after_an_enqueue_finds_the_job(server: Server, new_prefix: NewPrefix, tmp_path: Path) -> None:
    async with journaled_at(server.url, tmp_path, new_prefix()) as service:
        service._drainer._target.store = Slow(service._drainer._target.store)
        for number in range(20):
            accepted = await service(Enqueue(job=new(number, queue=f"q{number % 5}")))
            assert accepted.created
            assert accepted.reason is None
            shown = await service(Show(id=accepted.id))
            assert (shown.state, shown.queue, shown.size) == (State.QUEUED, accepted.queue, accepted.size)
        many = await service(EnqueueMany(jobs=[new(number) for number in range(30)]))
        lines = await service(EnqueueLines(task="work", text="a\n\n#b\nc\n"))
        assert (many.created, lines.created, len(lines.ids)) == (30, 2, 2)
        assert (await service(Count())).count == 52
        assert {job.id for job in (await service(List(limit=100))).jobs} >= {*many.ids, *lines.ids}


async def test_limits_and_tiers_hold_for_jobs_that_came_by_the_journal(
    redis_server: Server, new_prefix: NewPrefix, tmp_path: Path
) -> None:
    tiers = [Tier(name="fast", seconds=3), Tier(name="slow", seconds=30, cap=1)]
    async with journaled_at(redis_server.url, tmp_path, new_prefix()) as service:
        service._drainer._target.store = Slow(service._drainer._target.store)
        await service(PutLimit(name="one", limit=NewLimit(match=Which(task="work"), running=1, key="payload.n")))
        await service(ChangeQueue(queue="web", change=QueueChange(tiers=tiers, timeout=7)))
        worker = (await service(Register(worker=NewWorker(name="w", queues=["default", "web"], slots=2)))).worker
        several = [NewJob(task="work", payload=packed({"n": n}), timeout=5) for n in (1, 1, 2, 2)]
        await service(EnqueueMany(jobs=several))
        assert (await service(Count())).count == 4, "and all of them are there now"
        held = await service(Claim(worker=worker, slots=10))
        assert len(held) == 2
        with pytest.raises(Invalid) as fault:
            await service(Enqueue(job=NewJob(task="work", queue="web", tier="huge")))
        assert fault.value.at == "job.tier"
        with pytest.raises(Invalid) as fault:
            await service(EnqueueLines(task="work", text="a", options=JobOptions(queue="web", tier="huge")))
        assert fault.value.at == "options.tier"
        with pytest.raises(Busy):
            await service(Enqueue(job=NewJob(task="work", queue="web", yielding=True)))
        fast = await service(Enqueue(job=NewJob(task="other", queue="web", tier="fast")))
        assert fast.estimate is not None
        assert fast.estimate > 0
        plain = await service(Enqueue(job=new(1)))
        assert (await service(GetEstimate(id=plain.id))).position == 3
        assert (await service(Show(id=fast.id))).timeout == 7


async def test_a_queues_own_times_to_keep_jobs_win_over_defaults_that_came_by_the_journal(
    redis_server: Server, new_prefix: NewPrefix, tmp_path: Path
) -> None:
    options = JobOptions(keep_success=60.0, keep_failure=120.0)
    async with journaled_at(redis_server.url, tmp_path, new_prefix()) as service:
        await service(ChangeQueue(queue="default", change=QueueChange(keep_success=5.0)))
        (asked,) = (await service(EnqueueLines(task="work", text="a", options=options))).ids
        times = KeepTimes(keep_success=60.0, keep_failure=120.0)
        by_dialect = WithKeepTimes(service, times, service._engine.context.flow_config, CLOCK)
        (default,) = (await by_dialect(EnqueueLines(task="work", text="a"))).ids
        kept = [await service(Show(id=id)) for id in (asked, default)]
    assert [(job.keep_success, job.keep_failure) for job in kept] == [(60.0, 120.0), (5.0, 120.0)]


async def test_an_id_or_key_that_the_store_knows_is_not_new(
    redis_server: Server, new_prefix: NewPrefix, tmp_path: Path
) -> None:
    prefix = new_prefix()
    async with engine_at(redis_server.url, prefix) as engine:
        first = await engine(Enqueue(job=new(1, key="k", priority=7)))
    async with journaled_at(redis_server.url, tmp_path, prefix) as service:
        again = await service(Enqueue(job=new(2, key="k")))
        assert (again.id, again.created, again.priority) == (first.id, False, 7)
        named = [new(3, key="k"), new(4, key="new"), new(5, key="new")]
        assert (await service(EnqueueMany(jobs=named))).created == 1
        other = await service(Enqueue(tenant="other", job=new(6, id=first.id)))
        assert (other.tenant, other.created) == ("other", True)


async def test_dependencies_delays_and_files_go_through(
    redis_server: Server, new_prefix: NewPrefix, tmp_path: Path
) -> None:
    async with journaled_at(redis_server.url, tmp_path, new_prefix()) as service:
        parent = await service(Enqueue(job=new(1)))
        child = await service(Enqueue(job=new(2, after=[parent.id])))
        late = await service(Enqueue(job=new(3, delay=60.0, files={"f": b"1"})))
        assert (child.state, child.waits_for, late.state) == (State.BLOCKED, [parent.id], State.SCHEDULED)
        assert (await service(Show(id=child.id))).waits_for == [parent.id]
        kept = await service(Show(id=late.id))
        assert kept.state is State.SCHEDULED
        assert kept.run_at is not None
        assert late.run_at is not None
        assert abs((kept.run_at - late.run_at).total_seconds()) < 30


# With the store down


async def test_new_jobs_are_accepted_and_everything_else_is_refused_at_once(
    start_server: StartServer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "windlass.journal")
    server = start_server("redis", fsync="always")
    async with journaled_at(server.url, tmp_path) as service:
        before = await service(Enqueue(job=new(0)))
        await service(Show(id=before.id))
        server.kill()
        await down(service)
        one = await service(Enqueue(job=new(1, key="k")))
        assert (one.created, one.reason, one.state) == (True, Reason.ACCEPTED, State.QUEUED)
        again = await service(Enqueue(job=new(9, key="k")))
        assert (again.created, again.id) == (False, one.id)
        many = await service(EnqueueMany(jobs=[new(2), new(3), new(9, key="k")]))
        assert many.created == 2
        shown = await service(Show(id=one.id, payload=True))
        assert (shown.reason, shown.state, number_of(draft(1))) == (Reason.ACCEPTED, State.QUEUED, 1)
        assert bytes(shown.payload) == bytes(draft(1).new.payload)  # type: ignore[arg-type]
        assert (await service(GetResult(id=one.id))).state is State.QUEUED
        with pytest.raises(Unavailable):
            await service(Show(tenant="other", id=one.id))
        health = await service(GetHealth(tenant="-"))
        assert health.journal is not None
        assert (health.store, health.journal.waiting, bool(health.journal.fault)) == (None, 3, True)
        assert await service(GetHealth()) == Health()
        for operation in (GetStats(), GetQuota(), List(), Show(id=before.id), Claim(worker="w")):
            with pytest.raises(Unavailable):
                await service(operation)
        server.start()
        await up(service)
        assert (await service(Show(id=one.id))).reason is None
        health = await service(GetHealth(tenant="-"))
        assert health.store is not None
        assert health.journal == JournalHealth(waiting=0)
        assert await in_order(service) == [0, 1, 2, 3]
        assert "the store is back; 3 jobs waited for it" in caplog.text


async def test_a_store_that_hangs_is_taken_for_down(
    redis_server: Server, new_prefix: NewPrefix, tmp_path: Path
) -> None:
    with Wire(redis_server.port) as wire:
        async with journaled_at(f"redis://127.0.0.1:{wire.port}/0", tmp_path, new_prefix()) as service:
            await service(Enqueue(job=new(0)))
            await service(Count())
            wire.cut()
            await down(service)
            async with asyncio.timeout(PATIENCE):  # no caller waits as long as a store may take to answer: 19 times 5 s
                for number in range(1, 20):
                    assert (await service(Enqueue(job=new(number)))).reason is Reason.ACCEPTED
                    with pytest.raises(Unavailable):
                        await service(Count())
            wire.mend()
            await up(service)
            assert await in_order(service) == list(range(20))


def test_python_code_goes_on_while_the_store_is_down(start_server: StartServer, tmp_path: Path) -> None:
    server = start_server("redis", fsync="always")
    app = Windlass(server.url, journal=str(tmp_path))
    add = app.task(name="add")(_add)
    try:
        jobs = [add.enqueue(0)]
        server.kill()
        jobs += [add.enqueue(number) for number in range(1, 20)]
        assert jobs[-1].refresh().reason is Reason.ACCEPTED
        with pytest.raises(Unavailable):
            jobs[-1].cancel()
        server.start()
        await_("all are there", lambda: app.link.ask(Count()).count == 20 if _answers(app) else False)
        assert jobs[-1].refresh().reason is None
    finally:
        app.close()


def _add(number: int) -> int:
    raise NotImplementedError


def _answers(app: Windlass) -> bool:
    try:
        app.link.ask(GetStats())
    except Unavailable:
        return False
    return True


async def test_a_job_that_waited_for_the_store_does_not_wait_its_delay_again(
    start_server: StartServer, tmp_path: Path
) -> None:
    server = start_server("redis", fsync="always")
    async with journaled_at(server.url, tmp_path) as service:
        server.kill()
        await down(service)
        late = await service(Enqueue(job=new(1, delay=60.0)))
        await asyncio.sleep(3)
        server.start()
        await up(service)
        job = await service(Show(id=late.id))
        assert job.run_at is not None
        assert late.run_at is not None
        assert abs((job.run_at - late.run_at).total_seconds()) < 2


async def test_jobs_of_a_server_that_was_killed_are_drained_by_the_next(
    start_server: StartServer, tmp_path: Path
) -> None:
    server = start_server("redis", fsync="always")
    async with engine_at(server.url) as engine:
        left = taken(tmp_path / "1")
        await left.accept([draft(number) for number in range(5)])
        await left.close()
        async with open_journaled(engine, tmp_path, CLOCK) as service:

            async def all_there() -> bool:
                return (await service(Count())).count == 5

            await until(all_there)


async def test_what_was_left_is_drained_also_if_the_disk_fails_once(
    start_server: StartServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server, failed = start_server("redis", fsync="always"), list[int]()
    read = JournalFile.read

    def read_or_fail(file: JournalFile, after: int) -> list[Row]:
        rows = read(file, after)
        if rows and file.path.parent.name == "1" and len(failed) < 2:
            failed.append(after)
            if len(failed) == 2:  # the first time is when it is opened
                raise Unavailable("the disk failed once")
        return rows

    async with engine_at(server.url) as engine:
        left = taken(tmp_path / "1")
        await left.accept([draft(1)])
        await left.close()
        monkeypatch.setattr(JournalFile, "read", read_or_fail)
        async with open_journaled(engine, tmp_path, CLOCK) as service:

            async def all_there() -> bool:
                return (await service(Count())).count == 1

            await until(all_there)
    assert len(failed) == 2


async def test_several_processes_have_a_journal_each(
    redis_server: Server, new_prefix: NewPrefix, tmp_path: Path
) -> None:
    prefix = new_prefix()
    async with (
        journaled_at(redis_server.url, tmp_path, prefix) as one,
        journaled_at(redis_server.url, tmp_path, prefix) as two,
    ):
        await asyncio.gather(one(Enqueue(job=new(1))), two(Enqueue(job=new(2))))
        assert one._journal.folder != two._journal.folder
        await up(two)
        assert (await one(Count())).count == 2


# When replies or jobs are lost


async def test_s3_item_7_a_crash_between_the_store_and_the_commit_makes_one_job(
    redis_server: Server, new_prefix: NewPrefix, tmp_path: Path
) -> None:
    async with engine_at(redis_server.url, new_prefix()) as engine:
        store = redis_of(engine)
        journal = taken(tmp_path)
        drafts = [draft(number) for number in range(10)]
        await journal.accept(drafts)
        await journal_of(store).drain(
            DrainRequest(journal.id.hex(), 0, 0, 6, drafts[:6])
        )  # and the process died before it noted that
        await journal.close()
        assert await drained(tmp_path, engine) == 6
        assert await in_order(engine) == list(range(10))


async def test_lost_replies_make_no_duplicates_and_lose_nothing(start_server: StartServer, tmp_path: Path) -> None:
    server = start_server("redis")
    with Relay(server.port, loss=0.0, seed=3) as relay:
        async with journaled_at(f"redis://127.0.0.1:{relay.port}/0", tmp_path) as service:
            relay._loss = 0.2
            for start in range(0, 600, 3):
                await asyncio.gather(*(service(Enqueue(job=new(start + one))) for one in range(3)))
                await asyncio.sleep(0.01)
            relay._loss = 0.0
            await up(service)
            assert relay.lost > 4
    async with engine_at(server.url) as engine:
        found = await in_order(engine)
        assert sorted(found) == list(range(600))
        assert [number // 3 for number in found] == [number // 3 for number in range(600)], "in order of acceptance"


async def test_a_store_that_has_lost_its_newest_jobs_is_given_exactly_those_again(
    server: Server, new_prefix: NewPrefix, tmp_path: Path
) -> None:
    """What a failover leaves behind: an earlier state of everything, the mark included."""
    prefix = new_prefix()
    async with journaled_at(server.url, tmp_path, prefix) as service, engine_at(server.url, prefix) as engine:
        store = redis_of(engine)
        for number in range(10):
            await service(Enqueue(job=new(number, queue=f"q{number % 3}")))
        await up(service)
        await service(Count())
        drained = service._journal.drained

        async def checked() -> bool:
            journal = service._journal.id.hex()
            marks = [
                (await journal_of(store).drain(DrainRequest(journal, one, -1, 0, []))).mark
                for one in range(journal_of(store).partition_count)
            ]
            return set(marks) == {drained}

        await until(checked)
        await lose(server, prefix)

        async def back() -> bool:
            return (await engine(Count())).count == 10

        await until(back)
        assert not await scrub(store)


async def test_a_record_that_this_program_cannot_read_is_put_aside_and_the_rest_goes_on(
    redis_server: Server, new_prefix: NewPrefix, tmp_path: Path
) -> None:
    async with engine_at(redis_server.url, new_prefix()) as engine:
        journal = taken(tmp_path)
        await journal.accept([draft(0)])
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(encoding, "pack_terms", lambda _: b"\xc1")
            await journal.accept([draft(1)])
        await journal.accept([draft(2)])
        await journal.close()
        await drained(tmp_path, engine)
        assert await in_order(engine) == [0, 2]
        (line,) = (tmp_path / "rejected").read_text().splitlines()
        assert line.startswith("2 "), "its number"
        assert draft(1).id.replace("-", "") in line, "its id is in what was put aside"


async def test_jobs_that_were_lost_do_not_wait_to_be_drained(
    redis_server: Server, new_prefix: NewPrefix, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "windlass.journal")
    await filled(tmp_path, 60, size=1000)
    path = journal_file(tmp_path)
    overwrite(path, pages_of_batches(path)[1])
    async with engine_at(redis_server.url, new_prefix()) as engine:
        assert await drain_folder(engine, tmp_path, CLOCK) == 56
        assert len(await in_order(engine)) == 56
    assert "journal: 56 jobs wait to be drained" in caplog.text
