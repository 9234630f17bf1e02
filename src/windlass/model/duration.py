"""Durations and times. People write 90, "90s", "10m", "2h 30m", "7d", or a timedelta.

Inside the queue and on the wire a duration is always a number of seconds, and a time has its zone.
"""

import math
import re
from datetime import datetime, timedelta
from typing import Annotated

from msgspec import Meta

from windlass.model.errors import Invalid

UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0}

LONGEST = 100 * 365 * 86400.0
"""A hundred years: anything longer is a mistake, "never" is written as null."""

DAY = UNITS["d"]

Seconds = Annotated[float, Meta(ge=0, le=LONGEST)]

OwnLease = Annotated[float, Meta(ge=1, le=7 * DAY)]
"""Seconds of the lease of a run that may be without a worker for a while."""

Time = Annotated[datetime, Meta(tz=True)]
"""A time that a caller sends; it must name its time zone."""

_PART = re.compile(r"\s*(\d+(?:\.\d+)?)\s*(ms|s|m|h|d|w)")


def seconds(value: float | str | timedelta, *, at: str = "") -> float:
    """Read a duration; refuse what is negative, endless or unreadable, naming the field `at`."""
    if isinstance(value, timedelta):
        number = value.total_seconds()
    elif isinstance(value, str):
        number = _parse(value, at)
    else:
        number = float(value)
    if not 0 <= number <= LONGEST or math.isnan(number):
        raise Invalid(f"a duration is between 0 and {LONGEST:.0f} seconds, not {value!r}", at=at)
    return number


def _parse(text: str, at: str) -> float:
    total, position = 0.0, 0
    while part := _PART.match(text, position):
        total += float(part[1]) * UNITS[part[2]]
        position = part.end()
    if position and not text[position:].strip():
        return total
    try:
        return float(text)
    except ValueError:
        raise Invalid(f"{text!r} is not a duration: write 90, '90s', '10m', '2h 30m' or '7d'", at=at) from None
