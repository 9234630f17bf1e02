"""What every store promises of files that runs leave, and of uploaded ones: bounded, apart by tenant, gone in time."""

import pytest

from tests.support.stores import STORES, World, token
from windlass.model.lifecycle import release
from windlass.model.names import JobKey
from windlass.store.data import Sweep
from windlass.store.optional import FileStore

pytestmark = pytest.mark.parametrize("kind", STORES, indirect=True)

KIB = 1024


def files_of(world: World) -> FileStore:
    assert world.store.files is not None
    return world.store.files


async def test_what_a_run_leaves_is_kept_with_its_job_and_vanishes_with_it(world: World) -> None:
    id = await world.add(files={"in": b"1"}, keep_success=10)
    taken, files = await world.take(), files_of(world)
    key = JobKey(id, taken.job.tenant)
    assert await files.left(key) == {}
    assert await files.attach(key, token(taken), {"b": b"22", "a": b"", "\u00fc.svg": b"x" * 70_000})
    assert await files.left(key) == {"a": 0, "b": 2, "\u00fc.svg": 70_000}
    assert await world.succeed(taken)
    assert await files.read(key, "b") == b"22"
    assert await files.read(key, "in") is None
    world.clock.advance(11)
    await world.store.jobs.sweep(Sweep.PURGE, 10)
    assert await files.left(key) == {}
    assert await world.gone(id)


async def test_a_later_run_replaces_what_the_one_before_has_left(world: World) -> None:
    id = await world.add()
    first, files = await world.take(), files_of(world)
    key = JobKey(id, first.job.tenant)
    assert await files.attach(key, token(first), {"a": b"1", "b": b"2"})
    assert await world.apply(release(first.job, world.clock.now()), first)
    assert await files.left(key) == {"a": 1, "b": 1}
    second = await world.take()
    assert await files.attach(key, token(second), {"c": b"3"})
    assert await files.left(key) == {"c": 1}


async def test_only_the_current_run_may_leave_files(world: World) -> None:
    id = await world.add()
    files = files_of(world)
    first = await world.take()
    key = JobKey(id, first.job.tenant)
    assert await world.apply(release(first.job, world.clock.now()), first)
    assert not await files.attach(key, token(first), {"a": b"1"})
    second = await world.take()
    assert not await files.attach(key, token(first), {"a": b"1"})
    assert not await files.attach(JobKey(id, "other"), token(second), {"a": b"1"})
    assert await files.left(key) == {}


async def test_uploads_are_known_to_their_tenant_alone_until_they_expire(world: World) -> None:
    files, one, two = files_of(world), b"1" * 32, b"2" * 32
    await files.upload("a", one, b"one", seconds=10, most=KIB * KIB)
    assert await files.uploaded("a", [one, two], 10) == {one: b"one"}
    assert await files.uploaded("b", [one, two], 10) == {}
    world.clock.advance(9)
    assert await files.uploaded("a", [one], 10) == {one: b"one"}
    world.clock.advance(9)
    assert await files.uploaded("a", [one], 10) == {one: b"one"}
    world.clock.advance(11)
    assert await files.uploaded("a", [one], 10) == {}
    await files.upload("a", one, b"one", seconds=10, most=KIB * KIB)
    assert await files.uploaded("a", [one], 10) == {one: b"one"}


async def test_a_tenants_uploads_are_bounded_and_the_longest_unused_makes_room(world: World) -> None:
    files, digests = files_of(world), [bytes([n]) * 32 for n in range(5)]
    for digest in digests[:4]:
        await files.upload("a", digest, b"x" * 10 * KIB, seconds=10, most=40 * KIB)
        world.clock.advance(1)
    await files.uploaded("a", digests[:1], 10)
    await files.upload("b", digests[1], b"of b", seconds=10, most=40 * KIB)
    await files.upload("a", digests[4], b"x" * 10 * KIB, seconds=10, most=40 * KIB)
    assert set(await files.uploaded("a", digests, 10)) == {digests[0], *digests[2:]}
    assert set(await files.uploaded("b", digests, 10)) == {digests[1]}
