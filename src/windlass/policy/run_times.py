"""Learned run times: a small histogram in which older runs weigh less.

Buckets grow by a fixed ratio, so that a millisecond and a day are equally precise. Half of the weight belongs to the
newest `HALF` runs. Pure data: histograms of several engines can be merged, and stored as bytes.
"""

import math
from collections.abc import Iterable

import msgspec
from msgspec import Struct

PER_OCTAVE = 4
"""Buckets from one duration to its double: a quantile is right within a tenth."""

HALF = 500.0
"""Runs after which a run weighs half."""

SHORTEST, LONGEST = 1e-4, 1e8
"""Seconds; durations are clamped to these."""

LEAST = 1e-3
"""A bucket with less weight than this is dropped."""


class RunTimes(Struct, frozen=True, array_like=True):
    """A weighted histogram of durations."""

    weight: float = 0.0
    """Weighted number of runs."""
    seconds: float = 0.0
    """Weighted sum of their durations."""
    buckets: dict[int, float] = {}
    """Weight of the runs in each bucket."""


def learn(times: RunTimes, durations: Iterable[float]) -> RunTimes:
    """With more runs, oldest first."""
    buckets, weight, seconds = dict(times.buckets), times.weight, times.seconds
    growth, unit = 0.5 ** (-1 / HALF), 1.0
    for duration in durations:
        # Weights of new runs grow, which equals decaying the old ones but touches only one bucket.
        unit *= growth
        bounded = min(max(duration, SHORTEST), LONGEST)
        number = _bucket(bounded)
        buckets[number] = buckets.get(number, 0.0) + unit
        weight += unit
        seconds += unit * bounded
    return _scaled(RunTimes(weight, seconds, buckets), 1 / unit)


def merge(older: RunTimes, newer: RunTimes) -> RunTimes:
    """Both together, the older one decayed by the newer runs."""
    faded = _scaled(older, 0.5 ** (newer.weight / HALF))
    buckets = dict(faded.buckets)
    for number, weight in newer.buckets.items():
        buckets[number] = buckets.get(number, 0.0) + weight
    return RunTimes(faded.weight + newer.weight, faded.seconds + newer.seconds, buckets)


def mean(times: RunTimes) -> float | None:
    """The mean duration; null = unknown."""
    return times.seconds / times.weight if times.weight else None


def quantile(times: RunTimes, share: float) -> float | None:
    """The duration within which that share of the runs ended; null = unknown."""
    rest = share * sum(times.buckets.values())
    for number, weight in sorted(times.buckets.items()):
        rest -= weight
        if rest <= 0:
            return _middle(number)
    return _middle(max(times.buckets)) if times.buckets else None


def remaining(times: RunTimes, elapsed: float) -> float | None:
    """The median remaining time of a run that has lasted so long; null = unknown.

    The median, because a job waits for the first of several runs to end, which is sooner than their mean.
    """
    longer = {number: weight for number, weight in times.buckets.items() if _middle(number) > elapsed}
    end = quantile(RunTimes(buckets=longer), 0.5)
    if end is not None:
        return end - elapsed
    # It has lasted longer than any known run: what has lasted long will last.
    return elapsed / 2 if times.buckets else None


pack = msgspec.msgpack.Encoder().encode

unpack = msgspec.msgpack.Decoder(RunTimes).decode
"""Raises `msgspec.ValidationError` if the bytes are not run times."""


def _bucket(seconds: float) -> int:
    return math.floor(math.log2(seconds) * PER_OCTAVE)


def _middle(number: int) -> float:
    return float(2 ** ((number + 0.5) / PER_OCTAVE))


def _scaled(times: RunTimes, factor: float) -> RunTimes:
    buckets = {number: weight * factor for number, weight in times.buckets.items() if weight * factor >= LEAST}
    return RunTimes(times.weight * factor, times.seconds * factor, buckets)
