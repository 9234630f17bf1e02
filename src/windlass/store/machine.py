"""The machine's own time, where no other will do: it spaces questions to the outside and names pipes.

Nothing of a job is decided by it: what is due is judged by the clock that a store was opened with.
"""

import time

monotonic = time.monotonic
"""Seconds that never go back, for callers without an event loop too."""


def nanoseconds() -> int:
    """What the file system stamps its files with."""
    return time.time_ns()
