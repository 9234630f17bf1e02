"""When a job that did not succeed is run again: the policy, its presets and the arithmetic.

Counting is the lifecycle's business (`max_retry` belongs to the job); this file says only *when*.
"""

from typing import Annotated, Literal

from msgspec import Meta, Struct

from windlass.model.duration import LONGEST, Seconds


class RetryPolicy(Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """The n-th re-run (from 0) comes `min(cap, base * factor**n)` seconds after its anchor."""

    base: Seconds = 10.0
    """Seconds before the first re-run."""
    factor: Annotated[float, Meta(ge=1, le=100)] = 2.0
    """How much longer each wait is than the one before; 1 keeps it the same."""
    cap: Seconds = 3600.0
    """No wait is longer than this."""
    jitter: Annotated[float, Meta(ge=0, le=1)] = 0.1
    """Each wait is stretched by a random share of itself up to this, so that a crowd does not come back at once."""
    deadline: Seconds | None = None
    """Seconds after the job was created beyond which it is not run again; null = no such deadline."""
    anchor: Literal["end", "start"] = "end"
    """Whether a wait is counted from the end of the failed attempt or from its start."""


EXPONENTIAL = RetryPolicy()
"""The default: waits double, with some jitter."""

FROM_START = RetryPolicy(base=20.0, cap=LONGEST, jitter=0.0, anchor="start")
"""Attempt n+1 starts 20 * 2**n seconds after attempt n started: 20, 40, 80 … apart."""

UNTIL_DEADLINE = RetryPolicy(base=300.0, factor=1.0, jitter=0.0, deadline=6 * 3600.0)
"""Every five minutes until the job is six hours old; goes with `max_retry` null."""

PRESETS = {"exponential": EXPONENTIAL, "from-start": FROM_START, "until-deadline": UNTIL_DEADLINE}


def backoff(retry: RetryPolicy, rerun: int, chance: float) -> float:
    """Seconds between the anchor and re-run number `rerun` (from 0). `chance` is from [0, 1)."""
    try:
        wait = retry.base * retry.factor**rerun
    except OverflowError:
        wait = retry.cap if retry.base else 0.0
    return min(wait, retry.cap) * (1 + retry.jitter * chance)
