"""The figures as Markdown: bars, workers, producers, killed workers; and what could not be measured, and why."""

import platform
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime

import psutil

from bench.peers.figures import BARS, Contender, Figures, Verdict, judge
from bench.peers.measures import (
    BULK,
    CROWD,
    DRAIN,
    DRAIN_TWO,
    IDLE,
    ONE,
    ONE_FILE,
    P50,
    P99,
    PSS,
    RSS,
    TURN_P50,
    TURN_P99,
)
from bench.peers.systems import System

WORKERS = (DRAIN, DRAIN_TWO, P50, P99, RSS, PSS, IDLE)
PRODUCERS = (ONE, BULK, CROWD, ONE_FILE)
VERDICTS = {True: "met", False: "**missed**", None: "–"}


def markdown(figures: Figures, command: str, redis: str, systems: Sequence[System]) -> str:
    parts = [
        "# Windlass and its peers",
        _made(command, redis),
        "Versions: " + "; ".join(figures.versions[one.name] for one in systems if one.name in figures.versions) + ".",
        "## Bars",
        _bars([judge(figures, bar) for bar in BARS]),
        "## Workers",
        _figures("worker", WORKERS, figures),
        "## Starts in turn, the others held still",
        _figures("worker", (TURN_P50, TURN_P99), figures),
        "## Producers",
        _figures("producer", PRODUCERS, figures),
        "## A worker killed with `kill -9`, another one started",
        _aftermaths(figures),
    ]
    if figures.faults:
        parts += ["## Not measured", "\n".join(f"- {who}: {reason}" for who, reason in figures.faults.items())]
    return "\n\n".join(parts) + "\n"


def _made(command: str, redis: str) -> str:
    return (
        f"Made by `{command}` on {datetime.now(UTC):%Y-%m-%d}: {_machine()}, Redis {redis} without persistence.\n"
        "The best of all rounds, and beside it the ratio of the medians; a no-op task with an argument of 100 bytes;\n"
        "results off where that helps."
    )


def _bars(verdicts: Iterable[Verdict]) -> str:
    rows = []
    for verdict in verdicts:
        bar = verdict.bar
        sign = "≤" if bar.most else "≥"
        wanted = f"{sign} {bar.bar:g} %" if bar.absolute else f"{sign} {bar.bar:g} ×"
        ratio = "–" if verdict.ratio is None else f"{verdict.ratio:.2f} ×"
        figures = [number(verdict.ours), number(verdict.theirs), verdict.best or "–"]
        medians = "–" if verdict.of_medians is None else f"{verdict.of_medians:.2f} ×"
        rows.append([bar.name, *figures, ratio, wanted, VERDICTS[verdict.met], medians])
    return table(["measure", "windlass", "best peer", "which", "ratio", "bar", "", "of medians"], rows)


def _figures(what: str, measures: Sequence[str], figures: Figures) -> str:
    rows = [
        [str(one), *(number(figures.get(one, measure)) for measure in measures)] for one in figures.contenders(measures)
    ]
    return table([what, *measures], rows)


def _aftermaths(figures: Figures) -> str:
    rows = [
        [
            str(Contender(system, system.safe)),
            str(after.lost),
            str(after.late),
            str(after.repeated),
            f"{after.seconds:.1f}",
        ]
        for system, after in figures.aftermaths.items()
    ]
    return table(["worker", "lost", "late", "repeated", "s from the kill to the last job"], rows)


def table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = ["| " + " | ".join(heads) + " |", "|---|" + "---:|" * (len(heads) - 1)]
    lines += ["| " + " | ".join(row) + " |" for row in rows]
    return "\n".join(lines)


def number(figure: float | None) -> str:
    if figure is None:
        return "–"
    return f"{figure:,.0f}" if figure >= 100 else f"{figure:.2f}"


def _machine() -> str:
    memory = psutil.virtual_memory().total / 1e9
    return f"{psutil.cpu_count()} processors, {memory:.0f} GB, Python {platform.python_version()}"
