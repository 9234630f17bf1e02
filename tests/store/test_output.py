"""What every store promises of output: the newest of it is kept, numbered for the job's whole life."""

from datetime import timedelta

import pytest

from tests.support.stores import WITH_MODEL, World, token
from windlass.model.lifecycle import delete, finish, lose, rerun
from windlass.model.outcome import Outcome, Verdict
from windlass.model.output import MOST_CHUNK, MOST_CHUNKS, MOST_KEPT, MOST_OUTPUT, Chunk, NewChunk, Stream
from windlass.store.data import Heartbeat, Overdue, Record, Sweep

pytestmark = pytest.mark.parametrize("kind", WITH_MODEL, indirect=True)


def said(data: bytes, stream: Stream = "stdout") -> NewChunk:
    return NewChunk(stream=stream, data=data)


async def put(world: World, record: Record, *data: bytes) -> bool:
    return (await world.touch(record, output=[said(piece) for piece in data])).held


async def output(world: World, id: str, after: int = 0, limit: int = MOST_CHUNKS) -> list[tuple[int, bytes]]:
    return [(chunk.n, chunk.data) for chunk in await world.output(id, after, limit)]


async def test_a_job_that_put_nothing_out_has_no_output(world: World) -> None:
    id = await world.add()
    await world.touch(await world.take())
    assert await world.output(id, 0, 10) == []
    assert await world.output("00000000-0000-7000-8000-0000000000df", 0, 10) == []


async def test_output_is_kept_with_its_stream_its_run_and_its_time(world: World) -> None:
    id = await world.add()
    taken = await world.take()
    start = world.clock.now()
    await world.touch(taken, output=[said(b"one\x00\xff"), said(b"two", "stderr")])
    world.clock.advance(1)
    await world.touch(taken, output=[said(b"", "log")])
    assert await world.output(id, 0, 10) == [
        Chunk(n=1, stream="stdout", data=b"one\x00\xff", attempt=1, at=start),
        Chunk(n=2, stream="stderr", data=b"two", attempt=1, at=start),
        Chunk(n=3, stream="log", data=b"", attempt=1, at=start + timedelta(seconds=1)),
    ]


async def test_output_changes_nothing_but_the_lease(world: World) -> None:
    await world.add(timeout=5.0)
    taken = await world.take(lease=10)
    world.clock.advance(9)
    assert await put(world, taken, b"alive")
    assert await world.record(taken.job.id) == Record(taken.job, taken.token)
    world.clock.advance(9)
    assert (await world.store.jobs.overdue(Overdue.LEASE, 10)).records == []


async def test_output_is_read_a_page_at_a_time(world: World) -> None:
    id = await world.add()
    await put(world, await world.take(), *[b"%d" % n for n in range(1, 8)])
    assert await output(world, id, 0, 3) == [(1, b"1"), (2, b"2"), (3, b"3")]
    assert await output(world, id, 3, 3) == [(4, b"4"), (5, b"5"), (6, b"6")]
    assert await output(world, id, 6, 3) == [(7, b"7")]
    assert await output(world, id, 7, 3) == []
    assert await output(world, id, 100, 3) == []


async def test_of_many_pieces_the_newest_are_kept(world: World) -> None:
    id = await world.add()
    taken = await world.take()
    for start in range(0, MOST_KEPT, MOST_CHUNKS):
        await put(world, taken, *[b"a"] * min(MOST_CHUNKS, MOST_KEPT - start))
    assert len(await output(world, id, 0, 2 * MOST_KEPT)) == MOST_KEPT
    await put(world, taken, b"b", b"c")
    kept = await output(world, id, 0, 2 * MOST_KEPT)
    assert [n for n, _ in kept] == list(range(3, MOST_KEPT + 3))
    assert kept[-2:] == [(MOST_KEPT + 1, b"b"), (MOST_KEPT + 2, b"c")]
    assert await output(world, id, 1, 1) == [(3, b"a")], "what follows a piece that is gone is the oldest that is kept"


async def test_of_many_bytes_the_newest_are_kept(world: World) -> None:
    id = await world.add()
    taken = await world.take()
    large, most = b"x" * MOST_CHUNK, MOST_OUTPUT // MOST_CHUNK
    await put(world, taken, b"first", *[large] * (most - 1))
    assert len(await output(world, id)) == most
    await put(world, taken, b"y" * (MOST_CHUNK - 5))
    assert [n for n, _ in await output(world, id)] == list(range(1, most + 2)), "all that is allowed is kept"
    await put(world, taken, b"z")
    kept = await output(world, id)
    assert [n for n, _ in kept] == list(range(2, most + 3))
    await put(world, taken, *[large] * most)
    kept = await output(world, id)
    assert [n for n, _ in kept] == list(range(most + 3, 2 * most + 3))
    assert sum(len(data) for _, data in kept) == MOST_OUTPUT


async def test_output_is_kept_from_one_run_to_the_next(world: World) -> None:
    id = await world.add(max_retry=1)
    first = await world.take()
    await put(world, first, b"one")
    retried = finish(first.job, Outcome(verdict=Verdict.ERROR, delay=0), world.clock.now(), 0.0)
    assert await world.apply(retried, first)
    await world.store.jobs.sweep(Sweep.PROMOTE, 10)
    second = await world.take()
    await put(world, second, b"two")
    assert await world.succeed(second)
    kept = await world.output(id, 0, 10)
    assert [(chunk.n, chunk.data, chunk.attempt) for chunk in kept] == [(1, b"one", 1), (2, b"two", 2)]


async def test_a_job_that_is_run_again_has_no_output_but_its_numbers_go_on(world: World) -> None:
    id = await world.add()
    for earlier in (0, 2):
        taken = await world.take()
        await put(world, taken, b"one", b"two")
        assert await output(world, id) == [(earlier + 1, b"one"), (earlier + 2, b"two")]
        assert await world.succeed(taken)
        assert await world.apply(rerun(await world.job(id)))
        assert await output(world, id) == []
    taken = await world.take()
    await put(world, taken, *[b"x" * MOST_CHUNK] * 4)
    assert [n for n, _ in await output(world, id)] == [5, 6, 7, 8]


async def test_a_job_without_output_that_is_run_again_has_none(world: World) -> None:
    id = await world.add()
    assert await world.succeed(await world.take())
    assert await world.apply(rerun(await world.job(id)))
    await put(world, await world.take(), b"one")
    assert await output(world, id) == [(1, b"one")]


@pytest.mark.parametrize("how", ["purged", "deleted", "not kept"])
async def test_output_goes_with_its_job(world: World, how: str) -> None:
    id = await world.add(keep_success=0 if how == "not kept" else 10)
    taken = await world.take()
    await put(world, taken, b"one")
    assert await world.succeed(taken)
    if how == "deleted":
        assert await world.apply(delete(await world.job(id)))
    world.clock.advance(10)
    await world.store.jobs.sweep(Sweep.PURGE, 10)
    assert await world.gone(id)
    assert await output(world, id) == []
    assert await world.store.jobs.add([world.draft(id=id)]) == [True]
    await put(world, await world.take(), b"another life")
    assert await output(world, id) == [(1, b"another life")]


async def test_a_lost_lease_fences_off_late_output(world: World) -> None:
    id = await world.add(max_retry=5)
    old = await world.take(world.worker(id="w1"), lease=10)
    world.clock.advance(10)
    assert await world.apply(lose(old.job, world.clock.now()), old)
    assert not await put(world, old, b"late")
    new = await world.take(world.worker(id="w2"))
    assert not await put(world, old, b"later")
    assert await put(world, new, b"good")
    assert await output(world, id) == [(1, b"good")]
    assert await world.succeed(new)
    assert not await put(world, new, b"after the end")
    assert await output(world, id) == [(1, b"good")]


async def test_each_sign_of_life_has_its_own_output(world: World) -> None:
    ids = [await world.add(queue=queue) for queue in ("a", "b", "c")]
    taken = await world.claim(world.worker("a", "b", "c"), 3)
    lie = b"\0" * 8
    touches = [
        Heartbeat(taken[0].job.id, taken[0].job.tenant, token(taken[0]), output=[said(b"a1"), said(b"a2")]),
        Heartbeat(taken[1].job.id, taken[1].job.tenant, lie, output=[said(b"lie")]),
        Heartbeat(taken[2].job.id, taken[2].job.tenant, token(taken[2]), pid=3),
        Heartbeat(taken[0].job.id, taken[0].job.tenant, token(taken[0]), output=[said(b"a3")]),
    ]
    assert [answer.held for answer in await world.store.jobs.heartbeat(touches, 10)] == [True, False, True, True]
    assert await output(world, ids[0]) == [(1, b"a1"), (2, b"a2"), (3, b"a3")]
    assert await output(world, ids[1]) == await output(world, ids[2]) == []
    assert (await world.job(ids[2])).pid == 3
