"""Figures of all rounds, and what they say: the best of each, the best peer, the bars that Windlass has to clear.

The best and not the median: processors that others share run at half their speed for seconds at a time, so a median
shows who had the better seconds. The medians of both stand beside.
"""

import statistics
from collections.abc import Iterable
from typing import NamedTuple

from bench.peers.measures import (
    BULK,
    CROWD,
    DRAIN,
    DRAIN_TWO,
    IDLE,
    ONE,
    ONE_FILE,
    P50,
    SMALL_IS_GOOD,
    TURN_P50,
    TURN_P99,
    Aftermath,
)
from bench.peers.systems import WINDLASS, Setting, System


class Contender(NamedTuple):
    """A system in one of its settings; without one, for what does not depend on it."""

    system: System
    setting: Setting | None = None

    @property
    def ours(self) -> bool:
        return self.system is WINDLASS

    @property
    def isolated(self) -> bool:
        return self.setting is not None and self.setting.isolated

    @property
    def default(self) -> bool:
        return self.setting is not None and self.setting.default

    def __str__(self) -> str:
        return f"{self.system.name} {self.setting.label}" if self.setting else self.system.name


class Figures:
    """What was measured, and what could not be."""

    def __init__(self) -> None:
        self.versions: dict[str, str] = {}
        self.faults: dict[str, str] = {}
        self.aftermaths: dict[System, Aftermath] = {}
        self._samples: dict[str, dict[Contender, list[float]]] = {}

    def __bool__(self) -> bool:
        return bool(self._samples)

    def put(self, contender: Contender, what: str, figure: float) -> None:
        self._samples.setdefault(what, {}).setdefault(contender, []).append(figure)

    def get(self, contender: Contender, what: str) -> float | None:
        return self.of(what).get(contender)

    def of(self, what: str) -> dict[Contender, float]:
        """The best that each has reached."""
        best = min if what in SMALL_IS_GOOD else max
        return {contender: best(samples) for contender, samples in self._samples.get(what, {}).items()}

    def median(self, contender: Contender, what: str) -> float:
        return statistics.median(self._samples[what][contender])

    def contenders(self, measures: Iterable[str]) -> list[Contender]:
        """Those with one of these figures, in the order of the first."""
        return list(dict.fromkeys(contender for what in measures for contender in self._samples.get(what, {})))

    def quickest(self, system: System) -> Contender | None:
        """The setting in which one worker of a system does the most."""
        rates = {one: rate for one, rate in self.of(DRAIN).items() if one.system is system and not one.isolated}
        return max(rates, key=rates.__getitem__, default=None)

    def soonest(self, most: int) -> list[Contender]:
        """Windlass as it drains best, and the peers that start jobs soonest, in their best settings."""
        ours = self.quickest(WINDLASS)
        latencies = self.of(P50)
        peers = sorted((one for one in latencies if not one.ours and not one.system.node), key=latencies.__getitem__)
        best = {one.system: one for one in reversed(peers)}
        chosen = [one for one in peers if best[one.system] is one]
        return [] if ours is None else [ours, *chosen[: most - 1]]


class Bar(NamedTuple):
    """What Windlass must reach: so many times the best peer, or if `most`, no more than that."""

    name: str
    what: str
    bar: float
    most: bool = False
    against: str = ""
    """The peers' measure, if it is another."""
    isolated: bool = False
    absolute: bool = False
    """Whether the bar is a figure of its own and no ratio."""
    node: bool = False
    """Against the queues of Node, not those of Python."""
    default: bool = False
    """Among workers that were started without any setting."""


BARS = (
    Bar("drain, one worker", DRAIN, 7),
    Bar("drain, two workers", DRAIN_TWO, 5),
    Bar("drain, one worker, against Node", DRAIN, 1.5, node=True),
    Bar("drain, one worker, all at their defaults", DRAIN, 4, default=True),
    Bar("isolated jobs, one worker", DRAIN, 5, isolated=True),
    Bar("enqueue in bulk", BULK, 5),
    Bar("enqueue one by one", ONE, 0.9),
    Bar("enqueue one by one, on a synced file", ONE_FILE, 0.8),
    Bar("enqueue by 64 callers : one by one", CROWD, 4, against=ONE),
    Bar("start latency p50, in turn", TURN_P50, 1.25, most=True),
    Bar("start latency p99, in turn", TURN_P99, 2, most=True),
    Bar("idle, % of a core", IDLE, 1, most=True, absolute=True),
)


class Verdict(NamedTuple):
    """How Windlass did at one bar."""

    bar: Bar
    ours: float | None = None
    theirs: float | None = None
    best: str = ""
    """The peer that is the best."""
    ratio: float | None = None
    of_medians: float | None = None
    """The ratio again, of the same two, by their medians."""
    met: bool | None = None


def judge(figures: Figures, bar: Bar) -> Verdict:
    ours, theirs = _ours(figures, bar), _best_peer(figures, bar)
    figure = figures.get(ours, bar.what) if ours else None
    if ours is None or figure is None:
        return Verdict(bar)
    against = bar.against or bar.what
    other = figures.get(theirs, against) if theirs else None
    ratio = of_medians = None
    if theirs and other:
        ratio = figure / other
        of_medians = figures.median(ours, bar.what) / figures.median(theirs, against)
    measured = figure if bar.absolute else ratio
    met = None if measured is None else measured <= bar.bar if bar.most else measured >= bar.bar
    return Verdict(bar, figure, other, str(theirs or ""), ratio, of_medians, met)


def _best_peer(figures: Figures, bar: Bar) -> Contender | None:
    peers = {
        one: figure
        for one, figure in figures.of(bar.against or bar.what).items()
        if not one.ours and one.system.node == bar.node and (one.isolated or not bar.isolated)
        if one.default or not bar.default
    }
    choose = min if bar.most else max
    return choose(peers, key=peers.__getitem__, default=None)


def _ours(figures: Figures, bar: Bar) -> Contender | None:
    if bar.most:
        # What is small in one setting may cost another figure: it counts for the one that drains best.
        return figures.quickest(WINDLASS)
    ours = {
        one: figure
        for one, figure in figures.of(bar.what).items()
        if one.ours and one.isolated == bar.isolated and (one.default or not bar.default)
    }
    return max(ours, key=ours.__getitem__, default=None)
