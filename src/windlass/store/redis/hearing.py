"""When scripts were last told that a worker was heard of: they need not look again and again within a moment.

Knows the machine's own time alone; what is written of a worker, and when, the scripts decide.
"""

from windlass.store import SEEN_EVERY, machine

TELL_EVERY = SEEN_EVERY / 4

MOST_KNOWN = 1000


class Hearing:
    """What one store object has told. Where time is virtual, it tells always."""

    def __init__(self, *, virtual: bool) -> None:
        self._virtual = virtual
        self._told: dict[str, float] = {}

    def is_to_be_told(self, worker: str) -> bool:
        """Whether a script is to be told of a worker now; then it counts as told."""
        now = machine.monotonic()
        if not self._virtual and now - self._told.get(worker, -TELL_EVERY) < TELL_EVERY:
            return False
        if len(self._told) >= MOST_KNOWN:
            self._told.clear()
        self._told[worker] = now
        return True
