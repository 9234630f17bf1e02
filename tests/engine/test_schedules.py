"""Schedules: one job for each tick, whoever makes it, and what becomes of ticks that cannot be kept."""

import asyncio
from datetime import timedelta
from typing import Any

import pytest
from msgspec import Raw

from tests.support.engines import enqueue, finish, packed, register, take
from tests.support.stores import EPOCH, SeededChance, VirtualClock
from windlass.engine import Engine
from windlass.engine.schedules import LOOK_EVERY, Scheduler
from windlass.model import wire
from windlass.model.errors import Conflict, Invalid, Missing
from windlass.model.job import JSON, Job, State
from windlass.model.limit import Pause
from windlass.model.match import Match
from windlass.model.new_job import JobOptions, NewJob
from windlass.model.operations import (
    Cancel,
    Delete,
    GetSchedule,
    List,
    PauseSchedule,
    PutSchedule,
    Register,
    RemoveSchedule,
    RunSchedule,
    Schedules,
    Show,
)
from windlass.model.schedule import NewSchedule, ScheduleCard, ScheduleRun
from windlass.model.worker import NewWorker
from windlass.store.protocol import Store


async def put(engine: Engine, name: str = "s", *, job: NewJob | None = None, **more: Any) -> ScheduleCard:
    more = {"every": 60.0, **more} if "cron" not in more else more
    return await engine(PutSchedule(name=name, schedule=NewSchedule(job=job or NewJob(task="work"), **more)))


async def card(engine: Engine, name: str = "s") -> ScheduleCard:
    return await engine(GetSchedule(name=name))


async def made(engine: Engine, **match: Any) -> list[Job]:
    return (await engine(List(match=Match(**match), limit=1000))).jobs


async def end_all(engine: Engine) -> None:
    for job in await made(engine, state=["pending"]):
        await engine(Cancel(ids=[job.id]))


def ticks_of(jobs: list[Job]) -> list[str]:
    return sorted(job.key.rpartition(":00:")[2] if job.key else "" for job in jobs)


async def test_each_tick_makes_one_job_however_many_processes_make_it(
    engine: Engine, clock: VirtualClock, store: Store, chance: SeededChance
) -> None:
    """R3."""
    await put(engine, overlap="queue", catch_up="all", job=NewJob(task="report", payload=packed([7]), queue="night"))
    engines = [engine, Engine(store, chance), Engine(store, chance)]
    schedulers = [Scheduler() for _ in engines]
    for _ in range(40):
        clock.advance(15)
        await asyncio.gather(*(one(own) for one, own in zip(schedulers, engines, strict=True)))
        if chance.fraction() < 0.3:
            schedulers[0] = Scheduler()  # its process was killed, and another one came
    jobs = await made(engine)
    wanted = [EPOCH + timedelta(minutes=number) for number in range(1, 11)]
    assert sorted(job.key or "" for job in jobs) == [f"schedule:s:{tick:%Y-%m-%dT%H:%M:%S.%fZ}" for tick in wanted]
    assert {(job.task, job.queue, job.headers["schedule"]) for job in jobs} == {("report", "night", "s")}
    shown = await card(engine)
    assert shown.next[:2] == [EPOCH + timedelta(minutes=11), EPOCH + timedelta(minutes=12)]
    assert [run.tick for run in shown.runs] == wanted[::-1]
    assert {run.state for run in shown.runs} == {State.QUEUED}


async def test_a_killed_process_between_job_and_note_makes_no_second_job(engine: Engine, clock: VirtualClock) -> None:
    await put(engine, overlap="queue")
    clock.advance(60)
    records = engine.context.store.records

    class Killed(BaseException):
        pass

    class Dying:
        async def list(self, kind: str, names: Any = None) -> Any:
            return await records.list(kind, names)

        async def swap(self, *_: Any) -> bool:
            raise Killed

    engine.context.store.records = Dying()
    with pytest.raises(Killed):
        await Scheduler()(engine)
    engine.context.store.records = records
    assert len(await made(engine)) == 1
    await Scheduler()(engine)
    assert len(await made(engine)) == 1
    assert len((await card(engine)).runs) == 1


@pytest.mark.parametrize(("overlap", "states"), [("skip", ["queued"]), ("queue", ["queued"] * 3), ("replace", None)])
async def test_what_a_tick_does_while_an_earlier_job_is_pending(
    engine: Engine, clock: VirtualClock, overlap: Any, states: list[str] | None
) -> None:
    await put(engine, overlap=overlap)
    scheduler = Scheduler()
    for _ in range(3):
        clock.advance(60)
        await scheduler(engine)
    found = sorted(job.state for job in await made(engine))
    assert found == (states or ["cancelled", "cancelled", "queued"])
    shown = await card(engine)
    assert shown.skipped == (2 if overlap == "skip" else 0)
    assert ("pending" in shown.runs[0].note) == (overlap == "skip")
    await end_all(engine)
    clock.advance(60)
    await scheduler(engine)
    assert len(await made(engine, state=["pending"])) == 1


@pytest.mark.parametrize(("catch_up", "count"), [("skip", 0), ("once", 1), ("all", 5)])
async def test_ticks_that_no_process_was_there_for(
    engine: Engine, clock: VirtualClock, catch_up: Any, count: int
) -> None:
    await put(engine, every=3600.0, overlap="queue", catch_up=catch_up)
    clock.advance(5.5 * 3600)
    await Scheduler()(engine)
    jobs = await made(engine)
    assert len(jobs) == count
    if catch_up == "once":
        assert (jobs[0].key or "").endswith("T05:00:00.000000Z")
    clock.advance(1800)
    await Scheduler()(engine)
    assert len(await made(engine)) == count + 1


async def test_a_tick_a_moment_late_is_not_missed(engine: Engine, clock: VirtualClock) -> None:
    await put(engine, every=3600.0, catch_up="skip")
    clock.advance(3600 + 59)
    await Scheduler()(engine)
    assert len(await made(engine)) == 1


async def test_a_pause_makes_no_jobs_and_its_ticks_are_not_made_up_for(engine: Engine, clock: VirtualClock) -> None:
    await put(engine, catch_up="all", overlap="queue")
    scheduler = Scheduler()
    paused = await engine(PauseSchedule(name="s", pause=Pause(paused=True, why="the bank is down")))
    assert (paused.paused, paused.why, paused.next) == (True, "the bank is down", [])
    clock.advance(300)
    await scheduler(engine)
    await engine(PauseSchedule(name="s", pause=Pause()))
    await scheduler(engine)
    assert await made(engine) == []
    clock.advance(60)
    await scheduler(engine)
    assert len(await made(engine)) == 1
    until = clock.now() + timedelta(seconds=150)
    shown = await engine(PauseSchedule(name="s", pause=Pause(paused=True, until=until)))
    assert shown.next[0] > until
    clock.advance(200)
    await scheduler(engine)
    assert len(await made(engine)) == 2


async def test_a_change_at_run_time_is_in_force_in_every_process(engine: Engine, clock: VirtualClock) -> None:
    scheduler = Scheduler()
    await scheduler(engine)
    await put(engine)
    clock.advance(60)
    await scheduler(engine)
    await put(engine, every=3600.0, overlap="queue", job=NewJob(task="other"))
    clock.advance(600)
    await scheduler(engine)
    assert [job.task for job in await made(engine)] == ["work"]
    clock.advance(3000)
    await scheduler(engine)
    assert [job.task for job in await made(engine)] == ["work", "other"]
    await engine(RemoveSchedule(name="s"))
    clock.advance(7200)
    await scheduler(engine)
    assert len(await made(engine)) == 2
    with pytest.raises(Missing):
        await card(engine)


async def test_jitter_starts_each_job_after_its_tick(engine: Engine, clock: VirtualClock) -> None:
    for name in ("a", "b", "c"):
        await put(engine, name, jitter=50.0)
    clock.advance(60)
    await Scheduler()(engine)
    starts = [(job.run_at - clock.now()).total_seconds() for job in await made(engine) if job.run_at is not None]
    assert len(set(starts)) == 3
    assert 0 < min(starts) < max(starts) < 50


async def test_a_schedule_runs_by_hand_beside_its_ticks(engine: Engine, clock: VirtualClock) -> None:
    await put(engine, job=NewJob(task="work", payload=packed({"n": 1})))
    accepted = await engine(RunSchedule(name="s"))
    assert wire.decode((await engine(Show(id=accepted.id, payload=True))).payload, object) == {"n": 1}  # type: ignore[arg-type]
    (run,) = (await card(engine)).runs
    assert (run.job, run.note) == (accepted.id, "run by hand")
    clock.advance(60)
    worker = await register(engine)
    await finish(engine, worker, await take(engine, worker))
    await Scheduler()(engine)
    assert len(await made(engine)) == 2


async def test_a_job_that_comes_by_name_takes_the_options_of_its_task(engine: Engine, clock: VirtualClock) -> None:
    options = {"work": JobOptions(max_retry=4, queue="slow")}
    await engine(Register(worker=NewWorker(name="w", tasks=["work"], options=options)))
    await put(engine)
    await put(engine, "exactly", exact=True)
    clock.advance(60)
    await Scheduler()(engine)
    assert sorted((job.queue, job.max_retry) for job in await made(engine)) == [("default", 0), ("slow", 4)]


async def test_what_an_app_declares_comes_changes_and_is_retired_with_its_workers(
    engine: Engine, clock: VirtualClock
) -> None:
    def new(every: float) -> NewSchedule:
        return NewSchedule(every=every, job=NewJob(task="work"), exact=True)

    async def deploy(app: str, **schedules: NewSchedule) -> None:
        await engine(Register(worker=NewWorker(name="w", tasks=["work"], app=app, schedules=schedules)))

    async def there() -> dict[str, tuple[float | None, bool]]:
        return {one.name: (one.every, one.edited) for one in await engine(Schedules())}

    await deploy("shop:app", a=new(60), b=new(60))
    await deploy("other:app", c=new(60))
    await put(engine, "by-hand")
    assert await there() == {"a": (60, False), "b": (60, False), "c": (60, False), "by-hand": (60, False)}
    with pytest.raises(Conflict, match="shop:app declares it"):
        await engine(RemoveSchedule(name="a"))
    await put(engine, "a", every=90.0)
    await deploy("shop:app", a=new(30), b=new(120))
    assert await there() == {"a": (90, True), "b": (120, False), "c": (60, False), "by-hand": (60, False)}
    await engine(RemoveSchedule(name="a"))
    assert (await there())["a"] == (30, False)
    await deploy("shop:app", a=new(30), **{"by-hand": new(1)})
    assert await there() == {"a": (30, False), "c": (60, False), "by-hand": (60, False)}
    await engine(PauseSchedule(name="a", pause=Pause(paused=True)))
    await deploy("shop:app", a=new(30))
    assert (await card(engine, "a")).paused


async def test_what_cannot_be_a_schedule_is_refused_by_name(engine: Engine) -> None:
    async def refused(**more: Any) -> str:
        job = more.pop("job", NewJob(task="work"))
        with pytest.raises(Invalid) as fault:
            await engine(PutSchedule(name="s", schedule=NewSchedule(job=job, **more)))
        return str(fault.value)

    assert "either cron or every" in await refused()
    assert "either cron or every" in await refused(cron="0 3 * * *", every=5.0)
    assert "no cron expression" in await refused(cron="61 * * * *")
    assert "no time zone" in await refused(cron="0 3 * * *", tz="Nowhere")
    assert (
        await refused(every=5.0, job=NewJob(task="work", key="k")) == "job.key: the schedule decides this: leave it out"
    )
    assert "no tick in the future" in await refused(every=5.0, end=EPOCH - timedelta(days=1))
    assert "every" in await refused(every=0.1)
    assert await engine(Schedules()) == []


async def test_a_tick_that_joins_a_unique_job_shows_that_job(engine: Engine, clock: VirtualClock) -> None:
    unique = NewJob(task="index", unique="pending")
    there = await enqueue(engine, "index", unique="pending")
    await put(engine, "joins", job=unique, overlap="replace")
    await put(engine, "makes")
    scheduler = Scheduler()
    for _ in range(2):
        clock.advance(60)
        await scheduler(engine)
    shown = await card(engine, "joins")
    assert [(run.job, run.joined, run.state) for run in shown.runs] == [(there.id, True, State.QUEUED)] * 2
    assert "joined a unique job" in shown.runs[0].note
    assert shown.skipped == 0
    assert not (await card(engine, "makes")).runs[-1].joined
    by_hand = await engine(RunSchedule(name="joins"))
    assert (by_hand.id, by_hand.created) == (there.id, False)
    assert (await card(engine, "joins")).runs[0].joined
    await engine(Cancel(ids=[there.id]))
    clock.advance(60)
    await scheduler(engine)
    own = (await card(engine, "joins")).runs[0]
    assert (own.job != there.id, own.joined, own.state) == (True, False, State.QUEUED)
    clock.advance(60)
    await scheduler(engine)
    newest, before = (await card(engine, "joins")).runs[:2]
    assert (before.job, before.state, newest.joined) == (own.job, State.CANCELLED, False), "it replaces only its own"


async def test_a_schedule_whose_job_is_refused_does_not_hold_up_the_others(engine: Engine, clock: VirtualClock) -> None:
    await put(engine, "bad", job=NewJob(task="work", tier="fast"))
    await put(engine, "good")
    clock.advance(60)
    await Scheduler()(engine)
    assert [job.headers["schedule"] for job in await made(engine)] == ["good"]
    assert "no tiers" in (await card(engine, "bad")).runs[0].note


@pytest.mark.parametrize("many", [300, pytest.param(9_999, marks=pytest.mark.long)])
async def test_a_round_costs_what_is_due_however_many_schedules_there_are(
    engine: Engine, clock: VirtualClock, many: int
) -> None:
    for number in range(many):
        await put(engine, f"s{number}", every=86_400.0)
    await put(engine, "due")
    scheduler = Scheduler()
    await scheduler(engine)
    asked: list[tuple[str, Any]] = []
    records = engine.context.store.records

    class Watched:
        async def list(self, kind: str, names: Any = None) -> Any:
            asked.append((kind, names))
            return await records.list(kind, names)

        async def swap(self, *words: Any) -> bool:
            return await records.swap(*words)

    engine.context.store.records = Watched()
    clock.advance(60)
    assert await scheduler(engine) == 1
    engine.context.store.records = records
    assert {kind: names for kind, names in asked if kind != "task-options"} == {
        "schedule-changes": [""],
        "schedule-state": ["default/due"],
    }
    assert scheduler.pause <= LOOK_EVERY


async def test_a_payload_of_another_format_stays_as_it_was_sent(engine: Engine, clock: VirtualClock) -> None:
    await put(engine, job=NewJob(task="work", payload=Raw(b'{"a": 1}'), content_type=JSON))
    assert bytes((await card(engine)).job.payload) == b'{"a": 1}'
    clock.advance(60)
    await Scheduler()(engine)
    (job,) = await made(engine)
    shown = await engine(Show(id=job.id, payload=True))
    assert (bytes(shown.payload), shown.content_type) == (b'{"a": 1}', JSON)  # type: ignore[arg-type]
    await enqueue(engine)


@pytest.mark.parametrize("overlap", ["skip", "queue"])
async def test_a_run_says_how_late_it_was_also_after_its_record_has_gone(
    engine: Engine, clock: VirtualClock, overlap: Any
) -> None:
    await put(engine, overlap=overlap)
    scheduler = Scheduler()
    clock.advance(60)
    await scheduler(engine)
    clock.advance(3)
    worker = await register(engine)
    run = await take(engine, worker)
    clock.advance(4)
    await finish(engine, worker, run)

    def told(one: ScheduleRun) -> tuple[Any, ...]:
        assert one.started_at is not None
        assert one.finished_at is not None
        late, took = one.started_at - one.tick, one.finished_at - one.started_at
        return one.state, one.attempt, late.total_seconds(), took.total_seconds(), one.gone

    (first,) = (await card(engine)).runs
    assert told(first) == (State.SUCCEEDED, 1, 3, 4, False)
    clock.advance(53)
    await scheduler(engine)  # the next tick, which notes how it ended
    worker = await register(engine)
    second = await take(engine, worker)
    await finish(engine, worker, second)
    await engine(Delete(ids=[run.job.id, second.job.id]))
    unnoted, noted = (await card(engine)).runs
    assert told(noted) == (State.SUCCEEDED, 1, 3, 4, True)
    assert (unnoted.job, unnoted.state, unnoted.gone) == (second.job.id, None, True)


async def test_a_schedule_shows_its_last_fifteen_runs(engine: Engine, clock: VirtualClock) -> None:
    await put(engine, overlap="queue")
    scheduler = Scheduler()
    for _ in range(17):
        clock.advance(60)
        await scheduler(engine)
    assert [run.tick for run in (await card(engine)).runs] == [
        EPOCH + timedelta(minutes=number) for number in range(17, 2, -1)
    ]
