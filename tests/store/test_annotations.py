"""What every store promises of annotations: they change in any state, and stay with the job as long as its record."""

import asyncio

import pytest

from tests.support.stores import WITH_MODEL, World, scrub
from windlass.model.edit import JobEdit
from windlass.model.editing import edit
from windlass.model.job import State
from windlass.model.lifecycle import cancel, delete, rerun
from windlass.model.operations import MOST_ANNOTATED
from windlass.store.data import Sweep

pytestmark = pytest.mark.parametrize("kind", WITH_MODEL, indirect=True)

LARGE = {"a": "x" * (MOST_ANNOTATED - 1)}


async def annotate(world: World, id: str, after: dict[str, str], number: int | None = None) -> bool:
    """Give a job these annotations, if it was edited so often before; null = as often as it was."""
    record = await world.record(id)
    assert record is not None
    change = JobEdit(number=record.job.edits if number is None else number, annotations=after)
    return await world.apply(edit(record.job, change), by=record if record.token else None)


async def annotations(world: World, id: str) -> dict[str, str]:
    return (await world.job(id)).annotations


async def test_they_are_kept_through_every_state_a_retry_and_another_run(world: World) -> None:
    id = await world.add(delay=5.0, max_retry=3)
    notes: dict[str, str] = {}

    async def add(name: str) -> None:
        after = {**notes, name: "☃ =\n"}
        assert await annotate(world, id, after)
        notes.update(after)
        assert await annotations(world, id) == notes
        assert await scrub(world.store) == []

    await add("scheduled")
    world.clock.advance(5)
    await world.store.jobs.sweep(Sweep.PROMOTE, 10)
    await add("queued")
    taken = await world.take()
    assert taken.job.annotations == notes
    await add("running")
    assert await world.succeed(taken)
    await add("succeeded")
    assert await world.apply(rerun(await world.job(id)))
    assert (await world.take()).job.annotations == notes
    assert await annotations(world, id) == notes


async def test_they_change_nothing_but_the_time_of_the_last_change(world: World) -> None:
    id = await world.add("work")
    await world.add("work")
    taken = await world.take()
    world.clock.advance(1)
    assert await annotate(world, id, LARGE)
    record = await world.record(id)
    assert record is not None
    assert (record.job.annotations, record.job.updated_at, record.token) == (LARGE, world.clock.now(), taken.token)
    assert (record.job.state, record.job.started_at) == (State.RUNNING, taken.job.started_at)
    assert await annotate(world, id, {})
    assert await annotations(world, id) == {}
    assert await world.succeed(taken)
    assert await scrub(world.store) == []


async def test_a_job_that_has_ended_is_kept_no_longer_for_them(world: World) -> None:
    """The record of a success whose result goes first is kept from its end on, not from the last note about it."""
    with_result, read, without = [
        await world.add(keep_result_for=5, keep_success=10, keep_result=keep) for keep in ("keep", "once", "keep")
    ]
    for _ in range(3):
        taken = await world.take()
        assert await world.succeed(taken, None if taken.job.id == without else b"42")
    ended = world.clock.now()
    assert await world.result(read) is not None
    for seconds, left in ((4, 3), (4, 3), (2, 0)):
        world.clock.advance(seconds)
        for id in (with_result, read, without):
            assert await annotate(world, id, {"after": str(seconds)})
            assert (await world.job(id)).updated_at == ended
        assert await scrub(world.store) == []
        await world.store.jobs.sweep(Sweep.PURGE, 10)
        assert len(await world.jobs()) == left


async def test_of_two_changes_at_once_one_is_refused(world: World) -> None:
    id = await world.add()
    done = await asyncio.gather(*(annotate(world, id, {"by": name}, 0) for name in "ab"))
    assert sorted(done) == [False, True]
    assert not await annotate(world, id, {"late": "x"}, 0)
    job = await world.job(id)
    assert (job.edits, job.annotations) == (1, {"by": "ab"[done.index(True)]})


async def test_they_vanish_with_the_job(world: World) -> None:
    gone, kept = await world.add(), await world.add()
    for id in (gone, kept):
        assert await annotate(world, id, {"a": "b"})
    assert await world.apply(delete(await world.job(gone)))
    assert await world.gone(gone)
    assert await world.apply(cancel(await world.job(kept)))
    assert await annotations(world, kept) == {"a": "b"}
    assert await scrub(world.store) == []


async def test_a_claim_that_is_sent_again_answers_them_too(world: World) -> None:
    id, nonce = await world.add(files={"f": b"1"}), world.chance.token()
    assert await annotate(world, id, {"a": "b"})
    for _ in range(2):
        (record,) = await world.claim(nonce=nonce)
        assert (record.job.annotations, record.files) == ({"a": "b"}, {"f": b"1"})


async def test_a_job_that_waits_for_others_has_its_own(world: World) -> None:
    parent = await world.add("parent")
    id = await world.add(files={"f": b"1"}, after=[parent])
    assert await annotate(world, id, {"a": "b"})
    job = await world.job(id)
    assert (job.waits_for, job.annotations) == ([parent], {"a": "b"})
    assert {one.id: one.annotations for one in await world.jobs()} == {parent: {}, id: {"a": "b"}}
