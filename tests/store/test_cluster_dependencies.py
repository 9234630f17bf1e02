"""What has ripened in one part of a cluster does not keep off what has ripened in another."""

from typing import cast

import pytest

from tests.support.stores import World
from windlass.model.lifecycle import cancel
from windlass.store.data import Dependency
from windlass.store.redis import RedisStore

NOBODY = "00000000-0000-7000-8000-0000000000df"


@pytest.mark.parametrize("kind", ["cluster"], indirect=True)
async def test_completed_parents_of_all_partitions_are_handed_out_by_turns(world: World) -> None:
    part = cast("RedisStore", world.store).partitions.of_queue
    other = next(name for name in "bcdefgh" if part(name) != part("a"))
    many, one = await world.add_many(6, queue="a"), await world.add(queue=other)
    for id in (*many, one):
        await world.store.jobs.add_dependencies([Dependency(id, "default", NOBODY)])
        assert await world.apply(cancel(await world.job(id)))
    told = [completed.id for completed in await world.store.jobs.completed_parents([], 4)]
    assert len(told) == 4
    assert one in told
    assert [id for id in told if id != one] == many[:3]
