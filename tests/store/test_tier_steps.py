"""What every store promises of writes that hold only while they are needed: `FreeSlots` and `Room`."""

import asyncio
from collections.abc import Sequence

import pytest
from msgspec.structs import replace

from tests.store.test_flow_tiers import FAST, tiers
from tests.support.stores import EACH_CODE, World
from windlass.model.job import Reason, State
from windlass.model.lifecycle import Move, cancel, halt, shrink
from windlass.model.names import JobKey, key_of
from windlass.store.data import Added, Draft, Record
from windlass.store.flow import FreeSlots, NoFreeSlot, Room, RoomNeed, TierSlots

pytestmark = pytest.mark.parametrize("kind", EACH_CODE, indirect=True)


def slots(number: int) -> TierSlots:
    return TierSlots("default", "default", {"w1": number})


async def admit(world: World, number: int, *, free: int, ahead: int = 0) -> list[Added] | None:
    """Null = they are denied."""
    return await admit_these(world, *(world.draft(group="!") for _ in range(number)), free=free, ahead=ahead)


async def admit_these(world: World, *drafts: Draft, free: int, ahead: int = 0) -> list[Added] | None:
    try:
        return await world.store.jobs.add(drafts, slots=FreeSlots(slots(free), ahead))
    except NoFreeSlot:
        return None


async def make_room(
    world: World,
    *pairs: tuple[Move, RoomNeed],
    of: int,
    may_stop: Sequence[Record] = (),
    ahead: Sequence[JobKey] = (),
) -> list[bool]:
    keys = [key_of(record.job) for record in may_stop]
    room = Room(slots(of), [need for _, need in pairs], keys, ahead)
    return await world.store.jobs.apply([move for move, _ in pairs], room)


def fenced(move: Move, record: Record) -> Move:
    return replace(move, fence=record.token)


async def waiting(world: World, group: str = "=fast") -> JobKey:
    return JobKey(await world.add(group=group), "default")


async def test_yielding_jobs_are_admitted_while_a_slot_is_free_that_none_of_them_waits_for(world: World) -> None:
    await world.set_rules(tiers=tiers())
    assert await admit(world, 3, free=2) is None
    assert await admit(world, 1, free=2, ahead=2) is None
    assert await admit(world, 1, free=2, ahead=1) == [True]
    assert await admit(world, 2, free=2) is None
    assert await admit(world, 1, free=2) == [True]
    held = await world.claim(slots=2)
    assert [record.group for record in held] == ["!", "!"]
    assert await admit(world, 1, free=2) is None
    await world.succeed(held[0])
    answers = await asyncio.gather(*(admit(world, 1, free=2) for _ in range(5)))
    assert sorted(answers, key=str) == [None] * 4 + [[True]]


async def test_a_yielding_job_that_is_there_already_needs_no_slot(world: World) -> None:
    await world.set_rules(tiers=tiers())
    draft = world.draft(group="!")
    assert await admit_these(world, draft, free=1) == [True]
    assert await admit_these(world, draft, free=0) == [False]
    assert await admit_these(world, draft, world.draft(group="!"), free=1) is None


async def test_a_job_is_shrunk_while_the_tier_is_full_that_a_queued_job_wants(world: World) -> None:
    await world.set_rules(tiers=tiers(medium=2, slow=1))
    await world.add_many(2, group="~")
    slow, medium = await world.claim(slots=2)
    wants = await waiting(world, "=slow")
    need = RoomNeed(wants, "slow")
    other = (fenced(shrink(medium.job, "fast", FAST), medium), need)
    move = (fenced(shrink(slow.job, "fast", FAST), slow), need)
    gone = (move[0], replace(need, waiting=JobKey("00000000-0000-7000-8000-0000000000df", "default")))
    assert await make_room(world, gone, move, other, of=9) == [False, True, False]
    assert (await world.job(slow.job.id)).assigned == "fast"
    assert (await world.job(medium.job.id)).assigned == "medium"


async def test_a_job_is_halted_while_no_slot_is_free_or_will_be(world: World) -> None:
    await world.set_rules(tiers=tiers())
    await world.add_many(2, group="!")
    first, second = await world.claim(slots=2)
    both = [first, second]
    wants = await waiting(world)
    halts = [(fenced(halt(record.job), record), RoomNeed(wants)) for record in both]
    assert await make_room(world, *halts, of=3, may_stop=both) == [False, False]
    assert await make_room(world, *halts, of=2, may_stop=both) == [True, False]
    assert (await world.job(first.job.id)).reason is Reason.HALTED
    before = await waiting(world)
    move = (halts[1][0], RoomNeed(wants, ahead=1))
    assert await make_room(world, move, of=2, may_stop=both, ahead=[before]) == [True]


async def test_no_second_job_is_halted_for_one_when_the_one_before_it_has_started(world: World) -> None:
    """S0 16: two engines decide at the same time, one before and one after the first of two waiting jobs started."""
    await world.set_rules(tiers=tiers())
    await world.add_many(3, group="!")
    gone, other, third = yielding = await world.claim(slots=3)
    first, second = [await waiting(world) for _ in range(2)]
    halts = [fenced(halt(record.job), record) for record in yielding]
    early = [(halts[1], RoomNeed(first)), (halts[2], RoomNeed(second, ahead=1))]
    await world.succeed(gone)
    assert (await world.take()).job.id == first.id
    late = (halts[1], RoomNeed(second))
    assert await make_room(world, late, of=3, may_stop=yielding) == [True]
    assert await make_room(world, *early, of=3, may_stop=yielding, ahead=[first, second]) == [False, False]
    assert (await world.job(other.job.id)).reason is Reason.HALTED
    assert (await world.job(third.job.id)).reason is None


async def test_a_job_is_shrunk_for_a_denied_one_unless_enough_slots_became_free(world: World) -> None:
    await world.set_rules(tiers=tiers())
    await world.add(group="~")
    record = await world.take()
    before = await waiting(world)
    move = fenced(shrink(record.job, "fast", FAST), record)
    assert await make_room(world, (move, RoomNeed(None)), of=2) == [False]
    assert await make_room(world, (move, RoomNeed(None, slots=2)), of=3) == [False]
    assert await make_room(world, (move, RoomNeed(None, slots=2, ahead=1)), of=3, ahead=[before]) == [True]


async def test_a_job_is_not_halted_for_one_that_does_not_wait_any_more(world: World) -> None:
    await world.set_rules(tiers=tiers())
    await world.add(group="!")
    record = await world.take()
    wants = await waiting(world)
    await world.apply(cancel(await world.job(wants.id)))
    move = fenced(halt(record.job), record)
    assert await make_room(world, (move, RoomNeed(wants)), of=1, may_stop=[record]) == [False]
    assert (await world.job(record.job.id)).state is State.RUNNING
    assert (await world.job(record.job.id)).reason is None
