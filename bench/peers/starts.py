"""Start latencies in turn: workers of several systems are up at once, and each is measured for a second at a time while
the others are held still.

The processors of a shared machine change their speed for seconds at a time. Of two latencies that are measured minutes
apart, the smaller one had the better minute.
"""

import time
from collections.abc import Sequence
from contextlib import ExitStack

from bench.peers.ground import Stand
from bench.peers.measures import percentiles, waits
from bench.peers.systems import Setting
from bench.processes import Program

TURN = 1.0
"""Seconds of paced jobs in a turn."""
SETTLE = 0.4
"""Seconds for a worker that was held still to find its feet."""

Entrant = tuple[Stand, Setting]


def in_turn(entrants: Sequence[Entrant], turns: int) -> list[tuple[float, float]]:
    """Milliseconds of each: median, and 99 of 100, over all its turns."""
    found: list[list[float]] = [[] for _ in entrants]
    with ExitStack() as stack:
        entrants[0][0].ground.clear()
        workers = [_held_still(stack, entrant) for entrant in entrants]
        lanes = list(zip(entrants, workers, found, strict=True))
        for turn in range(turns):
            for (stand, setting), worker, ours in lanes if turn % 2 else lanes[::-1]:
                worker.resume()
                time.sleep(SETTLE)
                ours.extend(waits(stand, setting, TURN)[1:])  # the first of a producer is the first of its kind
                worker.pause()
    return [percentiles(ours) for ours in found]


def _held_still(stack: ExitStack, entrant: Entrant) -> Program:
    """A worker that has started jobs before, and waits for its first turn."""
    stand, setting = entrant
    (worker,) = stack.enter_context(stand.workers(setting, 1))
    stack.callback(worker.resume)  # what is held still cannot end by itself
    waits(stand, setting, TURN)
    worker.pause()
    return worker
