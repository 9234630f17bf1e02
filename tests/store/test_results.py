"""Results that have a time of their own: they go before their record does, in every kind of store."""

from typing import Any

import pytest
from msgspec.structs import replace

from tests.support.stores import EACH_CODE, World
from windlass.model.job import State
from windlass.model.lifecycle import delete, finish, rerun
from windlass.model.new_job import NewJob
from windlass.model.outcome import Outcome, Verdict
from windlass.store.data import DueJob, StoredResult, Sweep
from windlass.store.redis import RedisStore
from windlass.store.sqlite import SqliteStore

pytestmark = pytest.mark.parametrize("kind", EACH_CODE, indirect=True)

ANSWER = StoredResult(b"42", "text/plain")
THEN = NewJob(task="next")


async def succeeded(world: World, **terms: Any) -> str:
    id = await world.add(**terms)
    assert await world.succeed(await world.take(), b"42")
    return id


async def purge(world: World, limit: int = 10) -> list[DueJob]:
    return [*(await world.store.jobs.sweep(Sweep.PURGE, limit)).jobs]


async def held(world: World) -> int:
    """How many results the store holds, whether or not anybody may see them."""
    if isinstance(world.store, SqliteStore):
        return int((await world.store.examine(lambda tx: tx.column("SELECT count(*) FROM result")))[0])
    if not isinstance(world.store, RedisStore):
        return sum(entry.result is not None for entry in world.store.entries(*State))  # type: ignore[attr-defined]
    partitions, found = world.store.partitions, 0
    for number in range(partitions.number):
        key = partitions.key(number)
        for kind in ("r", "k"):
            cursor: Any = b"0"
            while True:
                cursor, names = await partitions.connection.ask(
                    key, "SCAN", cursor, "MATCH", f"{key}{kind}*", "COUNT", 1000
                )
                found += len(names)
                if cursor == b"0":
                    break
    return found


@pytest.mark.parametrize("keep_success", [100.0, None])
@pytest.mark.parametrize("keep_result", ["keep", "once"])
async def test_a_result_goes_at_its_time_and_its_record_at_its_own(
    world: World, keep_result: str, keep_success: float | None
) -> None:
    id = await succeeded(world, keep_result=keep_result, keep_result_for=10.5, keep_success=keep_success)
    before = await world.record(id)
    world.clock.advance(10.499999)
    assert await purge(world) == []
    assert await held(world) == 1
    world.clock.advance(0.000001)
    assert await world.result(id) is None, "it is not waited for the purge"
    assert await held(world) == 1
    assert await purge(world) == [DueJob(id, "default", "default", "work", State.SUCCEEDED, result_only=True)]
    assert await held(world) == 0
    assert await purge(world) == []
    assert await world.record(id) == before
    assert await world.result(id) is None

    world.clock.advance(89.499999)
    assert await purge(world) == []
    world.clock.advance(0.000001)
    assert await purge(world) == (
        [] if keep_success is None else [DueJob(id, "default", "default", "work", State.SUCCEEDED)]
    )
    assert await world.gone(id) == (keep_success is not None)


@pytest.mark.parametrize("keep_result", ["keep", "once"])
async def test_until_then_it_is_read_as_any_other(world: World, keep_result: str) -> None:
    id = await succeeded(world, keep_result=keep_result, keep_result_for=10)
    world.clock.advance(9)
    assert await world.result(id) == ANSWER
    assert await world.result(id) == (ANSWER if keep_result == "keep" else None)
    world.clock.advance(1)
    assert [one.result_only for one in await purge(world)] == [True]
    assert not await world.gone(id)


@pytest.mark.parametrize(
    "terms",
    [
        {"keep_result_for": 100.0, "keep_success": 10.0},
        {"keep_result_for": 10.0, "keep_success": 10.0},
        {"keep_result_for": 5.0, "keep_success": 10.0, "keep_result": "none"},
    ],
    ids=str,
)
async def test_a_record_that_goes_first_takes_its_result_along(world: World, terms: dict[str, Any]) -> None:
    id = await succeeded(world, **terms)
    world.clock.advance(9)
    assert await world.result(id) == (None if "keep_result" in terms else ANSWER)
    assert await purge(world) == []
    world.clock.advance(1)
    assert [one.result_only for one in await purge(world)] == [False]
    assert await world.gone(id)
    assert await held(world) == 0


async def test_a_purge_that_comes_too_late_for_both_drops_both(world: World) -> None:
    id = await succeeded(world, keep_result_for=5, keep_success=10)
    world.clock.advance(10)
    assert [one.result_only for one in await purge(world)] == [False]
    assert await world.gone(id)


@pytest.mark.parametrize("result", [None, b""])
async def test_where_there_is_no_result_the_record_alone_counts(world: World, result: bytes | None) -> None:
    await world.add(keep_result_for=5, keep_success=10)
    assert await world.succeed(await world.take(), result)
    world.clock.advance(5)
    assert len(await purge(world)) == (0 if result is None else 1)
    world.clock.advance(5)
    assert [one.result_only for one in await purge(world)] == [False]


async def test_a_failure_is_kept_for_its_own_time(world: World) -> None:
    id = await world.add(keep_result_for=1, keep_failure=10)
    taken = await world.take()
    failed = finish(taken.job, Outcome(verdict=Verdict.FAILED), world.clock.now(), 0.0)
    assert await world.apply(failed, taken)
    world.clock.advance(9)
    assert await purge(world) == []
    world.clock.advance(1)
    assert [one.result_only for one in await purge(world)] == [False]
    assert await world.gone(id)


async def test_a_job_that_failed_before_keeps_its_result_as_long(world: World) -> None:
    """Its last run ends another way than the first does."""
    id = await world.add(keep_result_for=5, max_retry=1)
    taken = await world.take()
    again = finish(taken.job, Outcome(verdict=Verdict.ERROR, delay=0.0), world.clock.now(), 0.0)
    assert await world.apply(again, taken)
    await world.store.jobs.sweep(Sweep.PROMOTE, 10)
    assert await world.succeed(await world.take(), b"42")
    assert await world.result(id) == ANSWER
    world.clock.advance(5)
    assert await world.result(id) is None
    assert [one.result_only for one in await purge(world)] == [True]


async def test_a_job_that_is_wanted_again_has_all_the_time_again(world: World) -> None:
    id = await succeeded(world, keep_result_for=10, keep_success=20)
    for passed, results in ((5, 1), (15, 0)):
        world.clock.advance(passed)
        if not results:
            assert [one.result_only for one in await purge(world)] == [True]
        assert await world.apply(rerun(await world.job(id)))
        assert await held(world) == 0
        assert await purge(world) == []
        assert await world.succeed(await world.take(), b"42")
        assert await world.result(id) == ANSWER
    world.clock.advance(10)
    assert await world.result(id) is None
    assert [one.result_only for one in await purge(world)] == [True]
    assert await world.apply(delete(await world.job(id)))
    assert await world.gone(id)


async def test_a_follow_up_gets_the_result_however_late(world: World) -> None:
    id = await succeeded(world, keep_result_for=5, then=THEN)
    world.clock.advance(5)
    for _ in range(2):
        (one,) = await world.store.jobs.completed_parents([], 10)
        assert (one.then, one.result) == (THEN, ANSWER)
        assert await world.result(id) is None
        await purge(world)
    assert await world.store.jobs.completed_parents([one], 10) == []
    assert await held(world) == 0


async def test_what_was_kept_for_a_follow_up_goes_with_the_record(world: World) -> None:
    await succeeded(world, keep_result_for=5, keep_success=10, then=THEN)
    world.clock.advance(5)
    assert [one.result_only for one in await purge(world)] == [True]
    world.clock.advance(5)
    assert [one.result_only for one in await purge(world)] == [False]
    (one,) = await world.store.jobs.completed_parents([], 10)
    assert (one.then, one.result) == (THEN, None)
    assert await held(world) == 0


async def test_a_purge_takes_no_more_than_asked_earliest_first(world: World) -> None:
    for number in range(20):
        terms = {"keep_result_for": 1 + number} if number % 2 else {"keep_success": 1 + number}
        await succeeded(world, **terms)
    world.clock.advance(20)
    steps = [await purge(world, 8) for _ in range(4)]
    assert [len(step) for step in steps] == [8, 8, 4, 0]
    assert [one.result_only for step in steps for one in step] == [False, True] * 10
    assert await held(world) == 0


async def test_many_of_a_batch_end_each_for_its_own_time(world: World) -> None:
    terms: list[dict[str, Any]] = [{}, {"keep_result_for": 1}, {"keep_result_for": 2, "keep_result": "once"}, {}] * 5
    drafts = [replace(world.draft(**one)) for one in terms]
    assert all(await world.store.jobs.add(drafts))
    for record in await world.claim(slots=20):
        await world.succeed(record, b"42")
    for seconds, left in ((1, 15), (1, 10), (10, 10)):
        world.clock.advance(seconds)
        found = [
            await world.result(draft.id) for draft, one in zip(drafts, terms, strict=True) if "keep_result" not in one
        ]
        assert found.count(ANSWER) == 10
        await purge(world, 100)
        assert await held(world) == left
