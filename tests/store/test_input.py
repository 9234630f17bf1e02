"""What every store promises of messages to jobs: in order, bounded, gone with the run they were for."""

import pytest

from tests.support.stores import WITH_MODEL, World
from windlass.model.job import State
from windlass.model.lifecycle import cancel, delete, finish, lose, release
from windlass.model.names import DEFAULT_TENANT, JobKey
from windlass.model.outcome import Outcome, Verdict
from windlass.model.output import MOST_INPUT, MOST_MESSAGE, MOST_MESSAGES
from windlass.store.data import Heartbeat, Overdue, Posted, Record, Sweep

pytestmark = pytest.mark.parametrize("kind", WITH_MODEL, indirect=True)

NOBODY = "00000000-0000-7000-8000-0000000000df"


async def post(world: World, id: str, *data: bytes) -> list[Posted]:
    return [await world.store.jobs.post(JobKey(id, DEFAULT_TENANT), one) for one in data]


async def collect(world: World, record: Record, after: int = 0, fence: bytes | None = None) -> list[tuple[int, bytes]]:
    beat = Heartbeat(record.job.id, record.job.tenant, fence or record.token or b"", messages_after=after)
    (reply,) = await world.store.jobs.heartbeat([beat], 5.0)
    return [(message.n, message.data) for message in reply.messages]


async def test_messages_are_handed_out_in_order_until_their_reader_has_them(world: World) -> None:
    id = await world.add()
    taken = await world.take()
    assert await collect(world, taken) == []
    assert set(await post(world, id, b"one", b"\x00\xff", b"")) == {Posted.KEPT}
    assert await collect(world, taken) == [(1, b"one"), (2, b"\x00\xff"), (3, b"")]
    assert await collect(world, taken) == [(1, b"one"), (2, b"\x00\xff"), (3, b"")], "an answer may be lost"
    assert await collect(world, taken, after=2) == [(3, b"")]
    await post(world, id, b"four")
    assert await collect(world, taken, after=3) == [(4, b"four")]
    assert await collect(world, taken, after=4) == []
    await post(world, id, b"five")
    assert await collect(world, taken, after=4) == [(5, b"five")], "numbers go on when all were taken"
    assert await collect(world, taken, after=1) == [(5, b"five")], "what was taken does not come back"


async def test_a_run_gets_no_more_in_all_than_its_job_allows(world: World) -> None:
    id = await world.add(max_retry=1)
    taken = await world.take()
    key = JobKey(id, DEFAULT_TENANT)
    assert [await world.store.jobs.post(key, b"four", 10) for _ in range(3)] == [Posted.KEPT, Posted.KEPT, Posted.OVER]
    assert len(await collect(world, taken, after=2)) == 0
    assert await world.store.jobs.post(key, b"abc", 10) is Posted.OVER, "what was read counts"
    assert await world.store.jobs.post(key, b"ab", 10) is Posted.KEPT
    assert await world.store.jobs.post(key, b"a", 0) is Posted.OVER
    assert await collect(world, taken, after=2) == [(3, b"ab")]


async def test_messages_are_for_the_holder_of_the_job(world: World) -> None:
    id = await world.add()
    taken = await world.take()
    await post(world, id, b"secret")
    assert await collect(world, taken, after=1, fence=b"stranger") == []
    assert await collect(world, taken) == [(1, b"secret")], "a stranger takes nothing away"


async def test_a_reader_who_claims_more_than_was_sent_loses_nothing_later(world: World) -> None:
    id = await world.add()
    taken = await world.take()
    await post(world, id, b"one", b"two")
    assert await collect(world, taken, after=9) == []
    await post(world, id, b"three")
    assert await collect(world, taken, after=2) == [(3, b"three")]


async def test_what_is_sent_to_a_waiting_job_is_for_its_next_run(world: World) -> None:
    id = await world.add(delay=5.0)
    assert await post(world, id, b"early") == [Posted.KEPT]
    world.clock.advance(5)
    await world.store.jobs.sweep(Sweep.PROMOTE, 10)
    assert await post(world, id, b"later") == [Posted.KEPT]
    assert await collect(world, await world.take()) == [(1, b"early"), (2, b"later")]


async def test_no_more_waits_than_is_allowed(world: World) -> None:
    many, much = await world.add(), await world.add()
    assert set(await post(world, many, *[b""] * MOST_MESSAGES)) == {Posted.KEPT}
    assert await post(world, many, b"") == [Posted.FULL]
    whole = MOST_INPUT // MOST_MESSAGE
    assert set(await post(world, much, *[b"x" * MOST_MESSAGE] * whole)) == {Posted.KEPT}
    assert await post(world, much, b"x") == [Posted.FULL]
    assert await post(world, much, b"") == [Posted.KEPT], "it is full of bytes, not of messages"
    first, second = await world.take(), await world.take()
    assert len(await collect(world, first)) == MOST_MESSAGES
    assert await post(world, many, b"") == [Posted.FULL], "not before its reader has them"
    assert len(await collect(world, first, after=1)) == MOST_MESSAGES - 1
    assert await post(world, many, b"", b"") == [Posted.KEPT, Posted.FULL]
    assert [n for n, _ in await collect(world, second, after=1)] == list(range(2, whole + 2))
    assert await post(world, much, b"x" * MOST_MESSAGE, b"x") == [Posted.KEPT, Posted.FULL]


@pytest.mark.parametrize("end", ["error", "lost", "released"])
async def test_the_next_run_begins_with_an_empty_box(world: World, end: str) -> None:
    id = await world.add(max_retry=3)
    taken = await world.take(lease=5)
    await post(world, id, b"one", b"two")
    await collect(world, taken, after=1)
    now = world.clock.now()
    match end:
        case "error":
            await world.apply(finish(taken.job, Outcome(verdict=Verdict.ERROR, delay=0.0), now, 0.0), taken)
        case "released":
            await world.apply(release(taken.job, now, None), taken)
        case _:
            world.clock.advance(6)
            (late,) = (await world.store.jobs.overdue(Overdue.LEASE, 10)).records
            assert late is not None
            await world.apply(lose(late.job, world.clock.now()), late)
    world.clock.advance(100)
    await world.store.jobs.sweep(Sweep.PROMOTE, 10)
    await post(world, id, b"for the next")
    again = await world.take()
    assert await collect(world, taken, after=2) == [], "the late run hears nothing"
    assert await collect(world, again) == [(1, b"for the next")]


@pytest.mark.parametrize("end", ["succeeded", "failed", "cancelled", "deleted", "gone at once"])
async def test_a_job_that_has_ended_takes_nothing_and_keeps_nothing(world: World, end: str) -> None:
    id = await world.add(keep_success=0 if end == "gone at once" else 60.0)
    await post(world, id, b"one")
    match end:
        case "failed":
            taken = await world.take()
            await world.apply(finish(taken.job, Outcome(verdict=Verdict.FAILED), world.clock.now(), 0.0), taken)
        case "cancelled":
            await world.apply(cancel(await world.job(id)))
        case "deleted":
            await world.apply(delete(await world.job(id)))
        case _:
            await world.succeed(await world.take())
    assert await post(world, id, b"late") == [Posted.ENDED]
    if end not in ("deleted", "gone at once"):
        assert (await world.job(id)).state is State(end)


async def test_a_message_to_an_unknown_job_is_refused(world: World) -> None:
    assert await post(world, NOBODY, b"x") == [Posted.ENDED]


async def test_input_does_not_change_the_record_of_a_job(world: World) -> None:
    id = await world.add(files={"a": b"1"}, timeout=5.0)
    before = await world.record(id)
    await post(world, id, b"x")
    assert await world.record(id) == before
    taken = await world.take()
    assert taken.files == {"a": b"1"}
    await post(world, id, b"y")
    assert await world.job(id) == taken.job
