"""A cached value is looked up now and then, and holds up no caller that can use the old one."""

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest

from tests.support.patience import PATIENCE
from tests.support.stores import VirtualClock
from windlass.cached import TRY_AGAIN, CachedValue
from windlass.model.errors import Unavailable


class Oracle:
    """Says how often it was asked, when it is let."""

    def __init__(self) -> None:
        self.asked = 0
        self.may_answer = asyncio.Event()
        self.may_answer.set()
        self.answered = asyncio.Event()
        self.away = False

    async def __call__(self) -> int:
        self.asked += 1
        number = self.asked
        await self.may_answer.wait()
        if self.away:
            raise Unavailable("the store does not answer")
        self.answered.set()
        return number


def at_once(asked: Coroutine[Any, Any, int]) -> int | None:
    """What is answered without waiting; null = it would have to wait."""
    try:
        asked.send(None)
    except StopIteration as answered:
        found: int = answered.value
        return found
    asked.close()
    return None


@pytest.fixture
def oracle() -> Oracle:
    return Oracle()


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock()


async def test_one_look_is_shared_and_good_for_a_while(oracle: Oracle, clock: VirtualClock) -> None:
    cached = CachedValue(oracle, clock, remember=1.0)
    assert await asyncio.gather(*(cached.known() for _ in range(5))) == [1] * 5
    clock.advance(0.9)
    assert await cached.known() == 1
    clock.advance(0.1)
    assert await cached.known() == 2


async def test_a_look_that_takes_long_holds_up_only_who_came_with_it(oracle: Oracle, clock: VirtualClock) -> None:
    cached = CachedValue(oracle, clock, remember=1.0, patience=0.2)
    await cached.known()
    oracle.may_answer.clear()
    oracle.answered.clear()
    clock.advance(1.0)
    with_it = [asyncio.ensure_future(cached.known()) for _ in range(3)]
    await asyncio.sleep(0)
    assert not any(one.done() for one in with_it), "they wait for the look"
    assert await asyncio.gather(*with_it) == [1] * 3, "not until it is over"
    assert [at_once(cached.known()) for _ in range(100)] == [1] * 100, "no other caller waits for what is late"
    oracle.may_answer.set()
    await oracle.answered.wait()
    assert await cached.known() == 2
    assert oracle.asked == 2, "it went on all the time"
    clock.advance(1.0)
    assert await cached.known() == 3, "and the next is waited for again"


async def test_what_was_known_last_counts_while_looks_are_in_vain(oracle: Oracle, clock: VirtualClock) -> None:
    cached = CachedValue(oracle, clock, remember=1.0)
    await cached.known()
    oracle.away = True
    clock.advance(1.0)
    assert [await cached.known() for _ in range(10)] == [1] * 10
    assert oracle.asked == 2, "one in vain is enough for a while"
    oracle.away = False
    clock.advance(TRY_AGAIN)
    assert await cached.known() == 3


async def test_while_nothing_is_known_every_caller_gets_the_error(oracle: Oracle, clock: VirtualClock) -> None:
    cached = CachedValue(oracle, clock, remember=1.0, patience=0.0)
    oracle.away = True
    answers = await asyncio.gather(*(cached.known() for _ in range(3)), return_exceptions=True)
    assert [type(one) for one in answers] == [Unavailable] * 3
    oracle.away = False
    assert await cached.known() == 2, "and the next one asks again"


async def test_while_nothing_is_known_a_silent_store_holds_up_only_the_first_callers(
    oracle: Oracle, clock: VirtualClock
) -> None:
    """As a server that has never reached its store, which takes jobs all the same."""
    cached = CachedValue(oracle, clock, remember=1.0, patience=0.01)
    oracle.away = True
    with pytest.raises(Unavailable):
        await cached.known()
    oracle.may_answer.clear()
    for _ in range(3):
        with pytest.raises(Unavailable, match="the store does not answer"):
            await asyncio.wait_for(cached.known(), PATIENCE)
    assert oracle.asked == 2, "one look goes on"
    oracle.away = False
    oracle.may_answer.set()
    await oracle.answered.wait()
    assert await cached.known() == 2


async def test_who_gives_up_does_not_end_the_look_of_others(oracle: Oracle, clock: VirtualClock) -> None:
    cached = CachedValue(oracle, clock, remember=1.0)
    oracle.may_answer.clear()
    first, second = asyncio.ensure_future(cached.known()), asyncio.ensure_future(cached.known())
    await asyncio.sleep(0)
    first.cancel()
    await asyncio.sleep(0)
    oracle.may_answer.set()
    assert await second == 1
    assert oracle.asked == 1
