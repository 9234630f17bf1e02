"""A job whose group changes while it runs gives back what it holds."""

from tests.support.stores import World
from windlass.model.names import DEFAULT_TENANT
from windlass.store.flow import LimitRule, Regroup, TierRule


async def test_a_job_that_loses_its_tiers_while_it_runs_gives_its_place_at_one_back(world: World) -> None:
    tiers = {"default,default": [TierRule(name="fast", seconds=3, cap=9), TierRule(name="slow", seconds=30, cap=1)]}
    await world.set_rules(tiers=tiers, limit_rules={"default/x": LimitRule(queue="default", running=5)})
    first = await world.add(group="~|default/x")
    taken = await world.take()
    assert taken.job.assigned == "slow"
    assert await world.flow.regroup([Regroup(first, DEFAULT_TENANT, "~|default/x", "|default/x")]) == [True]
    assert await world.succeed(taken)
    await world.add(group="~|default/x")
    assert (await world.take()).job.assigned == "slow", "its place is free again"
