"""What every store promises of durable steps: kept under the token of a run, in order, bounded, gone with their job."""

import pytest

from tests.support.stores import STORES, World, token
from windlass.model.lifecycle import release
from windlass.model.names import JobKey, key_of
from windlass.model.steps import MOST_STEP_BYTES, MOST_STEPS
from windlass.store.data import JobStep, Record, StepSaved, Sweep
from windlass.store.optional import StepStore

pytestmark = pytest.mark.parametrize("kind", STORES, indirect=True)


def steps_of(world: World) -> StepStore:
    assert world.store.steps is not None
    return world.store.steps


def step(record: Record, name: str, result: bytes = b"", *, tenant: str | None = None) -> JobStep:
    return JobStep(record.job.id, tenant or record.job.tenant, token(record), name, result)


async def names(world: World, key: JobKey) -> list[str]:
    return [one.name for one in (await steps_of(world).list(key)).steps]


async def test_steps_are_kept_in_order_for_the_next_run_and_vanish_with_their_job(world: World) -> None:
    id = await world.add(files={"in": b"1"}, keep_success=10)
    first = await world.take()
    key = key_of(first.job)
    assert await names(world, key) == []
    assert await steps_of(world).save([step(first, "z", b"1"), step(first, "\u00fc", b"")]) == [StepSaved.KEPT] * 2
    saved_at = world.clock.now()
    world.clock.advance(5)
    assert await steps_of(world).save([step(first, "a", b"x" * 70_000)]) == [StepSaved.KEPT]
    assert await world.apply(release(first.job, world.clock.now()), first)
    second = await world.take()
    assert second.files == {"in": b"1"}
    kept = await steps_of(world).list(key)
    assert [(one.name, one.result) for one in kept.steps] == [("z", b"1"), ("\u00fc", b""), ("a", b"x" * 70_000)]
    assert kept.steps[0].finished_at == saved_at
    assert kept.now == world.clock.now()
    assert await world.succeed(second)
    assert await names(world, key) == ["z", "\u00fc", "a"]
    world.clock.advance(11)
    await world.store.jobs.sweep(Sweep.PURGE, 10)
    assert await names(world, key) == []
    assert await world.gone(id)


async def test_only_the_current_run_may_save_a_step(world: World) -> None:
    await world.add()
    first = await world.take()
    key = key_of(first.job)
    assert await world.apply(release(first.job, world.clock.now()), first)
    assert await steps_of(world).save([step(first, "a")]) == [StepSaved.LOST]
    second = await world.take()
    late = [step(first, "a"), step(second, "b"), step(second, "b", tenant="other")]
    assert await steps_of(world).save(late) == [StepSaved.LOST, StepSaved.KEPT, StepSaved.LOST]
    assert await names(world, key) == ["b"]


async def test_a_step_that_is_saved_again_stays_as_it_is(world: World) -> None:
    await world.add()
    record = await world.take()
    assert await steps_of(world).save([step(record, "a", b"1")]) == [StepSaved.KEPT]
    world.clock.advance(5)
    assert await steps_of(world).save([step(record, "a", b"2")]) == [StepSaved.KEPT]
    kept = await steps_of(world).list(key_of(record.job))
    (only,) = kept.steps
    assert only.result == b"1"
    assert (kept.now - only.finished_at).total_seconds() == 5


async def test_steps_are_bounded_in_number_and_in_bytes(world: World) -> None:
    await world.add()
    await world.add()
    many, large = await world.take(), await world.take()
    for start in range(0, MOST_STEPS, 100):
        saved = await steps_of(world).save([step(many, f"step {n}") for n in range(start, start + 100)])
        assert saved == [StepSaved.KEPT] * 100
    assert await steps_of(world).save([step(many, "one more"), step(many, "step 0")]) == [
        StepSaved.FULL,
        StepSaved.KEPT,
    ]
    assert await names(world, key_of(many.job)) == [f"step {n}" for n in range(MOST_STEPS)]
    half = bytes(MOST_STEP_BYTES // 2)
    assert await steps_of(world).save([step(large, "a", half), step(large, "b", half)]) == [StepSaved.KEPT] * 2
    assert await steps_of(world).save([step(large, "c", b"1"), step(large, "d")]) == [StepSaved.FULL, StepSaved.KEPT]


async def test_steps_and_the_files_that_a_run_leaves_are_apart(world: World) -> None:
    await world.add()
    record = await world.take()
    key, files = key_of(record.job), world.store.files
    assert files is not None
    assert await steps_of(world).save([step(record, "a", b"step")]) == [StepSaved.KEPT]
    assert await files.attach(key, token(record), {"a": b"file"})
    assert await files.attach(key, token(record), {"b": b"file"})
    assert await files.left(key) == {"b": 4}
    assert await files.read(key, "a") is None
    assert await names(world, key) == ["a"]
