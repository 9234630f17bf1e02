"""Fewer contexts than are wanted: warm ones go on for a while, and nobody waits for long."""

import asyncio

from tests.support.function_harness import Heard, bench, handler, jobs
from tests.support.patience import PATIENCE
from windlass.worker.functions.pool import (
    LEAD,
    MOST_LEAD,
    ContextKey,
    IdleContext,
    WaitingBatch,
    lead,
    may_go_on,
    may_open,
    to_make_way,
)

ECHO = "def run(payload):\n    return payload"


def key(task: str) -> ContextKey:
    return ContextKey("acme", "python", None, task, 1, 1, network=False)


def waits(task: str, since: float = 0.0) -> WaitingBatch[str]:
    return WaitingBatch(key(task), since + LEAD)


def rests(task: str, since: float = 0.0, *, dead: bool = False) -> IdleContext:
    return IdleContext(key(task), since, dead)


LATER = LEAD + 0.01


def test_work_for_a_warm_context_goes_before_what_waits_for_one_until_that_has_waited_long_enough() -> None:
    cold, warm = waits("cold"), waits("warm", 0.1)
    assert may_go_on(warm, [cold, warm], LEAD / 2)
    assert not may_go_on(warm, [cold, warm], LATER)
    assert may_go_on(cold, [cold, warm], LATER)


def test_the_lead_grows_with_what_a_start_takes_within_bounds() -> None:
    assert [lead(0.01), lead(0.3), lead(60)] == [LEAD, 1.5, MOST_LEAD]


def test_work_of_one_kind_is_not_in_its_own_way() -> None:
    first, second = waits("same"), waits("same", 0.1)
    assert may_open(second, [first, second], LATER)


def test_while_room_is_made_for_one_the_others_go_on_but_the_room_is_its_own() -> None:
    cold, warm = waits("cold"), waits("warm", 0.1)
    cold.room = "a context that ends"
    assert may_go_on(warm, [cold, warm], LATER)
    assert not may_open(warm, [cold, warm], LATER)


def test_a_context_that_was_at_work_just_now_is_spared_for_a_while() -> None:
    cold = waits("cold", since=1.0)
    idle = {"busy": rests("other", since=0.9)}
    assert to_make_way(cold, [cold], idle, 1.0) is None
    assert to_make_way(cold, [cold], idle, 1.0 + LATER) == "busy"


def test_a_context_that_was_not_used_for_long_makes_way_at_once() -> None:
    cold = waits("cold", since=9.0)
    assert to_make_way(cold, [cold], {"old": rests("other"), "new": rests("other", 8.9)}, 9.0) == "old"
    assert to_make_way(cold, [cold], {"dead": rests("other", 9.0, dead=True)}, 9.0) == "dead"


def test_a_context_that_a_job_waits_for_is_the_last_to_make_way() -> None:
    cold, warm = waits("cold"), waits("warm")
    idle = {"wanted": rests("warm"), "spare": rests("other", since=LATER)}
    assert to_make_way(cold, [cold, warm], idle, LATER) == "spare"
    assert to_make_way(cold, [cold, warm], {"wanted": idle["wanted"]}, LATER) == "wanted"


class Streams:
    """Batches of several handlers, one after the other in each stream, until each handler has had its share."""

    def __init__(self, handlers: int, share: int) -> None:
        self.pids: set[int | None] = set()
        self.batches = dict.fromkeys((f"t{at}" for at in range(handlers)), 0)
        self._share = share

    @property
    def enough(self) -> bool:
        return min(self.batches.values()) >= self._share


async def streams(share: int, handlers: int, contexts: int, pause: float) -> Streams:
    """Two streams for each handler; `pause` is what a worker takes to come with the next batch."""
    seen = Streams(handlers, share)
    async with bench(contexts=contexts) as shop:

        async def stream(task: str) -> None:
            kind = handler("python", ECHO, task=task, tenant=task, recycle=None)
            while not seen.enough:
                heard = Heard()
                await shop.functions.run(kind, jobs(*[b"x"] * 10, tenant=task), heard)
                assert heard.codes == [200] * 10, heard.outcomes
                seen.pids |= set(heard.pids.values())
                seen.batches[task] += 1
                await asyncio.sleep(pause)

        async with asyncio.timeout(PATIENCE):
            await asyncio.gather(*(stream(task) for _ in range(2) for task in seen.batches))
    return seen


async def test_three_handlers_on_two_contexts_do_not_start_one_for_each_batch() -> None:
    seen = await streams(30, handlers=3, contexts=2, pause=0.005)
    batches = sum(seen.batches.values())
    assert len(seen.pids) < batches / 2, f"{len(seen.pids)} contexts were started for {batches} batches"


async def test_no_handler_waits_for_as_long_as_others_have_work() -> None:
    seen = await streams(100, handlers=2, contexts=1, pause=0.0)
    assert min(seen.batches.values()) * 50 > max(seen.batches.values()), seen.batches
