"""Where a run took place, as both stores keep it: the machine, and the sandbox that its worker has for uploaded code.

One text, because it is written at each claim and read by nobody but `read`.
"""

from functools import lru_cache

from windlass.model.worker import Worker

BETWEEN = "\x1f"


def written(worker: Worker) -> str:
    node = worker.node.replace(BETWEEN, " ")
    return node if worker.sandbox is None else f"{node}{BETWEEN}{worker.sandbox}"


@lru_cache(maxsize=1024)
def read(place: str) -> tuple[str | None, str | None]:
    """The machine and the sandbox, as far as they are known."""
    node, _, sandbox = place.partition(BETWEEN)
    return node or None, sandbox or None
