"""Where a run took place, as both stores keep it: the machine, and of a handler's code its sandbox and version.

One text, because it is written at each claim and read by nobody but `read`. What is added to it says of which run it
is true, since the claim overwrites the machine.
"""

from functools import lru_cache

from windlass.model.job import NO_HANDLER, HandlerRun
from windlass.model.worker import Worker

BETWEEN = "\x1f"


def written(worker: Worker) -> str:
    return worker.node.replace(BETWEEN, " ")


@lru_cache(maxsize=1024)
def added(ran: HandlerRun) -> str:
    """What stands behind the machine; empty = nothing is known."""
    if ran == NO_HANDLER:
        return ""
    return f"{BETWEEN}{ran.sandbox or ''}{BETWEEN}{ran.handler_version or ''}"


@lru_cache(maxsize=1024)
def read(place: str) -> tuple[str | None, HandlerRun]:
    """The machine, and what ran there, as far as they are known."""
    node, _, rest = place.partition(BETWEEN)
    sandbox, _, version = rest.partition(BETWEEN)
    return node or None, HandlerRun(sandbox or None, int(version) if version else None)
