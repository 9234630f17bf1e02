"""What every store promises of files: they go to the worker with the payload, at each run, and vanish with the job."""

from typing import Any

import pytest

from tests.support.stores import WITH_MODEL, World
from windlass.model.lifecycle import delete, release, rerun
from windlass.model.output import NewChunk
from windlass.store.data import Record, Sweep

pytestmark = pytest.mark.parametrize("kind", WITH_MODEL, indirect=True)

FILES = {"b.txt": b"two", "a": b"", "ü \n.bin": bytes(range(256)) * 100}


async def test_files_come_with_a_claim_and_only_there(world: World) -> None:
    id = await world.add(files=FILES, payload=b"\x01")
    plain = await world.add()
    assert await world.record(id, payload=True) == Record(await world.job(id), None, b"\x01")
    first, second = await world.claim(slots=2)
    assert (first.job.id, first.payload, first.files) == (id, b"\x01", FILES)
    assert (second.job.id, second.files) == (plain, {})
    assert first.job.size == 1
    assert await world.record(id, payload=True) == Record(first.job, first.token, b"\x01")
    assert (await world.jobs())[0] == first.job


async def test_a_claim_sent_again_answers_the_same_files(world: World) -> None:
    await world.add(files=FILES)
    await world.add()
    nonce = b"12345678"
    first = await world.claim(slots=2, nonce=nonce)
    await world.touch(first[1], output=[NewChunk(stream="log", data=b"x")])
    again = await world.claim(slots=2, nonce=nonce)
    assert [record.files for record in again] == [FILES, {}]


async def test_each_job_of_a_batch_has_its_own_files(world: World) -> None:
    given: list[dict[str, Any]] = [{}, {"files": {"f": b"1"}}, {}, {"files": {"f": b"2"}}, {"files": {"g": b"3"}}]
    drafts = [world.draft(**fields) for fields in given]
    assert await world.store.jobs.add([*drafts, drafts[1]]) == [True] * 5 + [False]
    assert await world.store.jobs.add([world.draft(id=drafts[1].id, files={"f": b"other"})]) == [False]
    taken = await world.claim(slots=9)
    assert [record.files for record in taken] == [{}, {"f": b"1"}, {}, {"f": b"2"}, {"g": b"3"}]


async def test_files_are_there_at_each_run(world: World) -> None:
    id = await world.add(files=FILES)
    taken = await world.take()
    await world.touch(taken, output=[NewChunk(stream="log", data=b"x")])
    assert await world.apply(release(taken.job, world.clock.now()), taken)
    taken = await world.take()
    assert taken.files == FILES
    assert await world.succeed(taken)
    assert await world.apply(rerun(await world.job(id)))
    assert (await world.take()).files == FILES


async def test_a_job_with_output_but_without_files_has_none(world: World) -> None:
    await world.add()
    taken = await world.take()
    await world.touch(taken, output=[NewChunk(stream="log", data=b"x")])
    assert await world.apply(release(taken.job, world.clock.now()), taken)
    assert (await world.take()).files == {}


async def test_files_that_a_run_has_loaded_for_good_are_gone_from_the_store(world: World) -> None:
    id = await world.add(files=FILES)
    await world.add(files=FILES)
    taken, other = await world.claim(slots=2)
    assert (await world.touch(taken, files_loaded=True)).held
    assert await world.apply(release(taken.job, world.clock.now()), taken)
    assert await world.apply(release(other.job, world.clock.now()), other)
    again = {record.job.id: record.files for record in await world.claim(slots=2)}
    assert again == {id: {}, other.job.id: FILES}


@pytest.mark.parametrize("how", ["purged", "deleted", "not kept"])
async def test_files_go_with_their_job(world: World, how: str) -> None:
    id = await world.add(files=FILES, keep_success=0 if how == "not kept" else 10)
    if how == "deleted":
        assert await world.apply(delete(await world.job(id)))
    else:
        assert await world.succeed(await world.take())
    world.clock.advance(10)
    await world.store.jobs.sweep(Sweep.PURGE, 10)
    assert await world.gone(id)
    assert await world.store.jobs.add([world.draft(id=id)]) == [True]
    assert (await world.take()).files == {}
