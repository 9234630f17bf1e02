"""What is learned of run times: a small histogram, in which what is older weighs less.

Buckets grow by a fixed ratio, so that a millisecond and a day are known equally well; half of the weight belongs to the
newest `HALF` runs. Pure data: it can be merged with what others have seen, and kept as bytes.
"""

import math
from collections.abc import Iterable

import msgspec
from msgspec import Struct

PER_OCTAVE = 4
"""Buckets from one length to its double: a quantile is right within a tenth."""

HALF = 500.0
"""Runs after which a run weighs half."""

SHORTEST, LONGEST = 1e-4, 1e8
"""Seconds; what lies beyond is taken for these."""

LEAST = 1e-3
"""A bucket with less weight than this is forgotten."""


class RunTimes(Struct, frozen=True, array_like=True):
    """How long runs have taken."""

    weight: float = 0.0
    """How many runs these are, by what each still counts."""
    seconds: float = 0.0
    """How long they took together, by the same weights."""
    buckets: dict[int, float] = {}
    """The weight of runs in each bucket."""


def learn(times: RunTimes, durations: Iterable[float]) -> RunTimes:
    """The same with some more runs, oldest first."""
    buckets, weight, seconds = dict(times.buckets), times.weight, times.seconds
    growth, unit = 0.5 ** (-1 / HALF), 1.0
    for duration in durations:
        # The new weigh more and more, which comes to the same as if the old weighed less, but touches only one bucket.
        unit *= growth
        bounded = min(max(duration, SHORTEST), LONGEST)
        number = _bucket(bounded)
        buckets[number] = buckets.get(number, 0.0) + unit
        weight += unit
        seconds += unit * bounded
    return _scaled(RunTimes(weight, seconds, buckets), 1 / unit)


def merge(older: RunTimes, newer: RunTimes) -> RunTimes:
    """Both together, the older as if the newer had come after them."""
    faded = _scaled(older, 0.5 ** (newer.weight / HALF))
    buckets = dict(faded.buckets)
    for number, weight in newer.buckets.items():
        buckets[number] = buckets.get(number, 0.0) + weight
    return RunTimes(faded.weight + newer.weight, faded.seconds + newer.seconds, buckets)


def mean(times: RunTimes) -> float | None:
    """How long a run takes on average; null = nothing is known."""
    return times.seconds / times.weight if times.weight else None


def quantile(times: RunTimes, share: float) -> float | None:
    """The time within which that share of the runs ended; null = nothing is known."""
    rest = share * sum(times.buckets.values())
    for number, weight in sorted(times.buckets.items()):
        rest -= weight
        if rest <= 0:
            return _middle(number)
    return _middle(max(times.buckets)) if times.buckets else None


def remaining(times: RunTimes, elapsed: float) -> float | None:
    """How much longer a run takes that has gone on for so long, with equal chances of less and more; null = unknown.

    Whoever waits for the first of several runs to end waits less than their average: so it is the median.
    """
    longer = {number: weight for number, weight in times.buckets.items() if _middle(number) > elapsed}
    end = quantile(RunTimes(buckets=longer), 0.5)
    if end is not None:
        return end - elapsed
    # It has outlived all that is known: what has lasted long will last.
    return elapsed / 2 if times.buckets else None


def pack(times: RunTimes) -> bytes:
    return _encode(times)


def unpack(data: bytes) -> RunTimes:
    """Raises `msgspec.ValidationError` for what is none."""
    return _decode(data)


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(RunTimes).decode


def _bucket(seconds: float) -> int:
    return math.floor(math.log2(seconds) * PER_OCTAVE)


def _middle(number: int) -> float:
    return float(2 ** ((number + 0.5) / PER_OCTAVE))


def _scaled(times: RunTimes, factor: float) -> RunTimes:
    buckets = {number: weight * factor for number, weight in times.buckets.items() if weight * factor >= LEAST}
    return RunTimes(times.weight * factor, times.seconds * factor, buckets)
