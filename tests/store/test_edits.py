"""What every store promises of edits of jobs that wait: all of one is written at once, or nothing of it."""

import asyncio
from datetime import timedelta
from typing import Any

import pytest
from msgspec import Raw
from msgspec.structs import replace

from tests.support.stores import WITH_MODEL, StoreKind, World, scrub
from windlass.model.edit import JobEdit
from windlass.model.editing import edit_waiting
from windlass.model.errors import Conflict, Invalid
from windlass.model.job import State
from windlass.model.lifecycle import finish
from windlass.model.new_job import NewJob, Terms
from windlass.model.outcome import Outcome, Verdict
from windlass.model.unique import identity_of
from windlass.store.data import Record, Sweep
from windlass.store.flow import StaleRules

pytestmark = pytest.mark.parametrize("kind", WITH_MODEL, indirect=True)

LARGE = b"\xc5\x10\x00" + b"x" * 4096


async def change(
    world: World,
    id: str,
    *,
    group: str | None = None,
    delay: float | None = None,
    seen: Record | None = None,
    **fields: Any,
) -> bool:
    """Edit a job as it was seen; null = as it is now."""
    record = seen or await world.record(id, payload=True)
    assert record is not None
    job = record.job
    new = NewJob(**{name: getattr(job, name) for name in Terms.__struct_fields__}, payload=Raw(record.payload or b""))
    new = replace(new, **fields)
    edit = JobEdit(
        number=job.edits,
        annotations=job.annotations,
        new=new,
        group=record.group if group is None else group,
        group_epoch=world.group_epoch,
        identity=b"" if new.unique is None else identity_of(job.tenant, new),
    )
    now = world.clock.now()
    due = job.run_at if job.state is State.SCHEDULED else None
    return await world.apply(edit_waiting(job, edit, due if delay is None else now + timedelta(seconds=delay), now))


async def test_the_next_run_gets_the_new_one_and_all_else_stays(world: World) -> None:
    parent = await world.add("parent")
    id = await world.add(files={"f": b"1"}, max_retry=3, tags=["old"], after=[parent])
    before = await world.job(id)
    world.clock.advance(1)
    assert await change(world, id, payload=Raw(LARGE), priority=7, tags=["new"])
    record = await world.record(id, payload=True)
    assert record is not None
    job = record.job
    assert (job.priority, job.tags, record.payload, job.size) == (7, ["new"], LARGE, len(LARGE))
    assert (job.state, job.waits_for, job.created_at) == (State.BLOCKED, [parent], before.created_at)
    assert (job.edits, job.updated_at) == (1, world.clock.now())
    assert await change(world, id, payload=Raw(b"\x01"))
    record = await world.record(id, payload=True)
    assert record is not None
    assert (record.payload, record.job.size) == (b"\x01", 1)
    assert await scrub(world.store) == []


async def test_it_keeps_its_attempts_errors_and_files(world: World) -> None:
    id = await world.add(files={"f": b"1"}, max_retry=3)
    taken = await world.take()
    failed = Outcome(verdict=Verdict.ERROR, delay=5.0)
    assert await world.apply(finish(taken.job, failed, world.clock.now(), 0.5), by=taken)
    before = await world.job(id)
    assert before.state is State.SCHEDULED
    assert await change(world, id, payload=Raw(b"\x07"), delay=0.0)
    again = await world.take()
    assert (again.job.attempt, again.job.errors, again.payload, again.files) == (2, before.errors, b"\x07", {"f": b"1"})
    assert await world.succeed(again)
    assert await scrub(world.store) == []


async def test_it_keeps_its_place_by_arrival(world: World) -> None:
    first, second, third = [await world.add(f"t{number}") for number in range(3)]
    assert await change(world, first, priority=5)
    assert await change(world, third, delay=60.0)
    assert (await world.job(third)).state is State.SCHEDULED
    assert [one.job.id for one in await world.claim(slots=1)] == [second]
    fourth = await world.add("t3")
    assert await change(world, first, priority=0)
    assert await change(world, third, delay=0.0)
    assert [one.job.id for one in await world.claim(slots=5)] == [first, third, fourth]
    assert await scrub(world.store) == []


async def test_its_time_is_set_earlier_and_later(world: World) -> None:
    id = await world.add(delay=60.0)
    assert await change(world, id, delay=5.0)
    assert (await world.job(id)).run_at == world.clock.now() + timedelta(seconds=5)
    world.clock.advance(5)
    await world.store.jobs.sweep(Sweep.PROMOTE, 10)
    assert (await world.job(id)).state is State.QUEUED
    assert await change(world, id, delay=10.0)
    assert await world.claim() == []
    world.clock.advance(10)
    await world.store.jobs.sweep(Sweep.PROMOTE, 10)
    assert (await world.take()).job.id == id


async def test_its_limits_follow(world: World) -> None:
    id = await world.add()
    assert await change(world, id, group="mail=a", payload=Raw(b"\x02"))
    record = await world.record(id)
    assert record is not None
    assert record.group == "mail=a"
    taken = await world.take()
    assert taken.group == "mail=a"
    assert await world.succeed(taken)
    assert await scrub(world.store) == []


@pytest.mark.parametrize("state", [State.BLOCKED, State.SCHEDULED, State.QUEUED])
async def test_in_another_queue_it_is_the_last_to_arrive(world: World, kind: StoreKind, state: State) -> None:
    parent = await world.add("parent", queue="default")
    terms: dict[State, dict[str, Any]] = {State.BLOCKED: {"after": [parent]}, State.SCHEDULED: {"delay": 60.0}}
    id = await world.add(payload=LARGE, files={"f": b"1"}, tags=["a"], **terms.get(state, {}))
    if kind == "cluster":
        with pytest.raises(Invalid, match="queue other is in another partition of the cluster: run a copy there"):
            await change(world, id, queue="other")
        assert (await world.job(id)).queue == "default"
        return
    others = [await world.add(queue="other", priority=priority) for priority in (0, 1)]
    before = await world.job(id)
    assert await change(world, id, queue="other")
    job = await world.job(id)
    assert (job.queue, job.state, job.waits_for, job.tags) == ("other", state, before.waits_for, ["a"])
    assert [one.id for one in await world.jobs(queue="other")] == [*others, id]
    assert [one.id for one in await world.jobs(queue="default")] == [parent]
    assert await scrub(world.store) == []
    if state is State.QUEUED:
        taken = await world.claim(world.worker("other"), slots=5)
        assert [one.job.id for one in taken] == [others[0], id, others[1]]
        assert (taken[1].payload, taken[1].files) == (LARGE, {"f": b"1"})


async def test_it_takes_its_errors_along_to_another_queue(world: World, kind: StoreKind) -> None:
    if kind == "cluster":
        pytest.skip("its queues are in different partitions")
    id = await world.add(files={"f": b"1"}, max_retry=3)
    taken = await world.take()
    failed = Outcome(verdict=Verdict.ERROR, delay=5.0)
    assert await world.apply(finish(taken.job, failed, world.clock.now(), 0.5), by=taken)
    before = await world.job(id)
    assert await change(world, id, queue="other", delay=0.0)
    again = await world.take(world.worker("other"))
    assert (again.job.attempt, again.job.errors, again.files) == (2, before.errors, {"f": b"1"})
    assert await world.succeed(again)
    assert await scrub(world.store) == []


async def test_one_made_under_other_rules_is_refused(world: World) -> None:
    id = await world.add()
    world.group_epoch += 1
    with pytest.raises(StaleRules):
        await change(world, id, priority=1)
    assert (await world.job(id)).edits == 0


async def test_its_identity_follows(world: World) -> None:
    id = await world.add(payload=b"\x01", unique="pending")
    other = await world.add(payload=b"\x02", unique="pending")
    with pytest.raises(Conflict, match=f"same as job {other}"):
        await change(world, id, payload=Raw(b"\x02"))
    assert (await world.job(id)).edits == 0
    assert await change(world, id, payload=Raw(b"\x03"))
    third = world.draft(payload=b"\x03", unique="pending")
    assert not (await world.store.jobs.add([third]))[0]
    assert await world.add(payload=b"\x01", unique="pending")
    assert await scrub(world.store) == []


async def test_a_claim_and_an_edit_at_once_give_the_old_one_or_the_new_one(world: World) -> None:
    old = new = 0
    for _ in range(30):
        id = await world.add(payload=b"\x01")
        seen = await world.record(id, payload=True)
        edited, taken = await asyncio.gather(change(world, id, seen=seen, payload=Raw(b"\x02")), world.claim())
        got = taken or await world.claim()
        assert [(one.job.id, one.payload) for one in got] == [(id, b"\x02" if edited else b"\x01")]
        old, new = old + (not edited), new + edited
    assert old + new == 30
    id = await world.add(payload=b"\x01")
    seen = await world.record(id, payload=True)
    await world.take()
    assert not await change(world, id, seen=seen, payload=Raw(b"\x02"))
    assert await scrub(world.store) == []
