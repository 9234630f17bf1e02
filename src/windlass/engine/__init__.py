"""The engine: answers operations in process, over a store.

Combines the pure rooms with a store; knows neither SQL nor keys nor HTTP. `Engine` is a `Service`: whoever
holds one need not know whether it sits beside the store or across the network.
"""

from collections.abc import Awaitable, Callable
from typing import Any, cast

from windlass.engine import handlers, jobs, output, quotas, tokens, work
from windlass.engine.desk import Desk, Settings
from windlass.engine.sound import sound
from windlass.model.operations import A, Operation
from windlass.model.ports import Chance
from windlass.store import Store

__all__ = ["ANSWERS", "Engine", "Settings"]

ANSWERS: dict[type[Operation[Any]], Callable[[Desk, Any], Awaitable[Any]]] = (
    jobs.ANSWERS | work.ANSWERS | output.ANSWERS | tokens.ANSWERS | quotas.ANSWERS | handlers.ANSWERS
)


class Engine:
    """Answers operations over a store."""

    def __init__(self, store: Store, chance: Chance, settings: Settings | None = None) -> None:
        self.desk = Desk(store, chance, settings or Settings())

    async def __call__(self, operation: Operation[A], /) -> A:
        answer = await ANSWERS[type(operation)](self.desk, sound(operation))
        return cast("A", answer)
