"""What every store promises of what running jobs use: it is kept as last reported, and gone when the run ends."""

from collections.abc import Awaitable, Callable

import pytest

from tests.support.stores import WITH_MODEL, World, scrub, token
from windlass.model.handler import HandlerRun
from windlass.model.lifecycle import adopt, lose, release
from windlass.model.names import key_of
from windlass.model.output import Progress, RunUsage
from windlass.model.worker import Adopter
from windlass.store.data import Record

pytestmark = pytest.mark.parametrize("kind", WITH_MODEL, indirect=True)

USED = RunUsage(memory=2**40, cpu=1.25, output=3)
SHARED = RunUsage(output=2**40)


async def test_it_is_kept_as_last_reported_and_changes_nothing_else(world: World) -> None:
    id = await world.add()
    taken = await world.take()
    assert taken.job.usage is None
    before = await world.job(id)
    world.clock.advance(5)
    await world.touch(taken, usage=USED)
    after = await world.job(id)
    assert (after.usage, after.updated_at, after.node) == (USED, before.updated_at, before.node)
    await world.touch(taken)
    await world.touch(taken, pid=7, progress=Progress(done=1))
    assert (await world.job(id)).usage == USED
    await world.touch(taken, usage=SHARED)
    found = await world.job(id)
    assert (found.usage, found.pid) == (SHARED, 7)
    assert await scrub(world.store) == []


async def test_it_stands_beside_what_ran_the_job(world: World) -> None:
    await world.add()
    taken = await world.take()
    ran = HandlerRun("confined", 3)
    await world.touch(taken, usage=SHARED)
    await world.touch(taken, pid=7, ran=ran)
    await world.touch(taken, usage=USED)
    await world.touch(taken, pid=8, ran=ran)
    found = await world.job(taken.job.id)
    assert (found.usage, found.sandbox, found.handler_version) == (USED, "confined", 3)
    await world.touch(taken, usage=SHARED, ran=HandlerRun("isolated", 4))
    found = await world.job(taken.job.id)
    assert (found.usage, found.sandbox, found.handler_version) == (SHARED, "isolated", 4)
    assert await world.succeed(taken, ran=HandlerRun("limits", 5))
    found = await world.job(taken.job.id)
    assert (found.usage, found.node, found.sandbox, found.handler_version) == (None, taken.job.node, "limits", 5)


@pytest.mark.parametrize("used", [USED, SHARED], ids=["alone", "shared"])
async def test_what_ran_the_job_may_be_said_first_when_it_ends(world: World, used: RunUsage) -> None:
    await world.add()
    taken = await world.take()
    await world.touch(taken, usage=used)
    assert await world.succeed(taken, ran=HandlerRun("confined", 3))
    found = await world.job(taken.job.id)
    assert (found.usage, found.node, found.sandbox, found.handler_version) == (None, taken.job.node, "confined", 3)


async def succeed(world: World, run: Record) -> bool:
    return await world.succeed(run)


async def give_back(world: World, run: Record) -> bool:
    return await world.apply(release(run.job, world.clock.now()), run)


async def let_lapse(world: World, run: Record) -> bool:
    world.clock.advance(60)
    return await world.apply(lose(run.job, world.clock.now()), run)


@pytest.mark.parametrize("end", [succeed, give_back, let_lapse])
async def test_it_is_gone_when_the_run_ends(world: World, end: Callable[[World, Record], Awaitable[bool]]) -> None:
    await world.add()
    taken = await world.take()
    await world.touch(taken, usage=USED)
    assert await end(world, taken)
    ended = await world.job(taken.job.id)
    assert (ended.usage, ended.node) == (None, taken.job.node)
    for again in await world.claim():
        assert again.job.usage is None
        assert (await world.job(again.job.id)).usage is None


async def test_a_worker_that_adopts_a_run_reports_it_itself(world: World) -> None:
    await world.add()
    taken = await world.take()
    await world.touch(taken, usage=USED)
    adopter = Adopter("w2", "elsewhere", b"87654321", 60.0, world.clock.now())
    assert await world.apply(adopt(taken.job, adopter), taken)
    found = await world.job(taken.job.id)
    assert (found.usage, found.adopted_by) == (None, "w2")
    (record,) = (await world.store.jobs.read([key_of(found)])).records
    assert record is not None
    await world.touch(record, usage=USED)
    found = await world.job(taken.job.id)
    assert (found.usage, found.adopted_by, found.node) == (USED, "w2", "elsewhere")


async def test_only_the_holder_reports_it(world: World) -> None:
    await world.add()
    taken = await world.take()
    stranger = Record(taken.job, bytes(reversed(token(taken))))
    assert not (await world.touch(stranger, usage=USED)).held
    assert (await world.job(taken.job.id)).usage is None


async def test_a_node_cannot_name_itself_so_that_its_jobs_seem_to_use_something(world: World) -> None:
    await world.add()
    taken = await world.take(world.worker(node="n\x1e1\x1f2\x1f3"))
    await world.touch(taken, pid=7)
    assert (await world.job(taken.job.id)).usage is None
