"""`./dev bench peers`: Windlass and other queues, on the same Redis, in the same run, one after the other.

Each peer is installed from its registry, in its newest version, into an environment of its own in the user's cache. A
peer that cannot be installed or run is shown with the reason; the others go on. Ctrl-C ends it with what was measured
until then.
"""

import argparse
import logging
import shlex
import signal
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

from bench.peers import measures
from bench.peers.environments import NotInstalled, programs_of, version_of
from bench.peers.figures import Contender, Figures
from bench.peers.ground import Ground, NotRun, Stand, private_redis
from bench.peers.measures import Sizes
from bench.peers.report import markdown
from bench.peers.starts import in_turn
from bench.peers.systems import PEERS, WINDLASS, System

USUAL = Sizes(jobs=20_000, single=2000, latency=6, idle=5, naps=1000, again=3, turns=12)
QUICK = Sizes(jobs=2000, single=500, latency=2, idle=2, naps=100, again=1, turns=2)

MOST_ENTRANTS = 4
"""Windlass and the peers whose starts are measured in turn."""


class Run:
    """One comparison: the systems that are there, the ground, and the figures so far."""

    def __init__(self, ground: Ground, sizes: Sizes) -> None:
        self.ground = ground
        self.sizes = sizes
        self.figures = Figures()
        self.stands: list[Stand] = []

    def install(self, systems: list[System], *, fresh: bool) -> None:
        for system in systems:
            try:
                programs = programs_of(system, fresh=fresh)
            except NotInstalled as fault:
                self.figures.faults[system.name] = f"not installed: {fault}"
                continue
            self.stands.append(Stand(self.ground, system, programs))
            self.figures.versions[system.name] = version_of(system, programs)

    def round(self, *, first: bool) -> None:
        """Rates in each round, so that those compared are close in time; how a worker waits in the first one only."""
        for stand in self.stands:
            self._try(Contender(stand.system), partial(measures.enqueue, stand, self.sizes))
        for stand in self.stands:  # one right after the other: a disk changes its speed, too
            if stand.system.file:
                file = stand._replace(ground=Ground(self.ground.folder, str(self.ground.folder / "jobs.db"), None))
                self._try(Contender(stand.system), partial(measures.enqueue_on_file, file, self.sizes))
        for stand in self.stands:
            for setting in stand.system.settings:
                work = partial(measures.one_worker, stand, setting, self.sizes, rates_only=not first)
                self._try(Contender(stand.system, setting), work)
            best = self.figures.quickest(stand.system)
            if best is not None and best.setting is not None:
                self._try(best, partial(measures.two_workers, stand, best.setting, self.sizes))

    def start(self) -> None:
        """Those that start jobs soonest, in turn."""
        entrants = self.figures.soonest(MOST_ENTRANTS)
        if not entrants:
            return
        stands = {stand.system: stand for stand in self.stands}
        lanes = [(stands[one.system], one.setting) for one in entrants if one.setting is not None]
        try:
            found = in_turn(lanes, self.sizes.turns)
        except NotRun as fault:
            self.figures.faults["starts in turn"] = str(fault)
            return
        for contender, (p50, p99) in zip(entrants, found, strict=True):
            say(f"  {contender}: {p50:.2f} and {p99:.2f} ms")
            self.figures.put(contender, measures.TURN_P50, p50)
            self.figures.put(contender, measures.TURN_P99, p99)

    def kill(self) -> None:
        for stand in self.stands:
            self._try(Contender(stand.system, stand.system.safe), partial(self._kill, stand))

    def _kill(self, stand: Stand, _: measures.Put) -> None:
        after = measures.killed(stand, self.sizes.naps)
        self.figures.aftermaths[stand.system] = after
        say(f"  {stand.system.name}: {after}")

    def _try(self, contender: Contender, measure: Callable[[measures.Put], None]) -> None:
        def put(what: str, figure: float) -> None:
            say(f"  {contender}: {what}: {figure:,.2f}")
            self.figures.put(contender, what, figure)

        try:
            measure(put)
        except NotRun as fault:
            say(f"  {contender}: {fault}")
            self.figures.faults[str(contender)] = str(fault)


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def main(arguments: list[str]) -> int:
    options = _parser().parse_args(arguments)
    logging.getLogger("windlass").setLevel(logging.ERROR)  # it warns of a server that keeps nothing: ours is meant to
    sizes = QUICK if options.quick else USUAL
    if options.jobs:
        sizes = sizes._replace(jobs=options.jobs)
    names = {name for name in options.only.split(",") if name}
    if unknown := names - {peer.name for peer in PEERS}:
        print(f"no such peer: {', '.join(sorted(unknown))}", file=sys.stderr)
        return 2
    systems = [WINDLASS, *(peer for peer in PEERS if not names or peer.name in names)]
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # as with Ctrl-C, all that was started is ended
    try:
        page = compare(systems, sizes, options, shlex.join(["./dev", "bench", "peers", *arguments]))
    except KeyboardInterrupt:
        say("interrupted")
        return 130
    print(page)
    if options.write:
        options.write.write_text(page)
    return 0


def compare(systems: list[System], sizes: Sizes, options: argparse.Namespace, command: str) -> str:
    """The page that says it all."""
    with tempfile.TemporaryDirectory(prefix="windlass-bench-") as folder, private_redis(Path(folder)) as server:
        run = Run(Ground(Path(folder), server.url, server), sizes)
        run.install(systems, fresh=options.upgrade)
        try:
            measure(run, options)
        except KeyboardInterrupt:
            if not run.figures:
                raise
            run.figures.faults["the rest"] = "interrupted"
        redis = server.ask("INFO", "server").split("redis_version:")[1].split("\r")[0]
    return markdown(run.figures, command, redis, systems)


def measure(run: Run, options: argparse.Namespace) -> None:
    for number in range(options.rounds or (1 if options.quick else 3)):
        say(f"round {number + 1}")
        run.round(first=not number)
    say("starts in turn")
    run.start()
    if not options.no_kill:
        say("killed workers")
        run.kill()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="./dev bench peers", description=__doc__)
    parser.add_argument("--only", default="", metavar="A,B", help="these peers; Windlass always runs")
    parser.add_argument("--rounds", type=int, metavar="N", help="rounds of all systems in turn (3)")
    parser.add_argument(
        "--jobs", type=int, metavar="N", help=f"jobs in a backlog, times each one's share ({USUAL.jobs})"
    )
    parser.add_argument("--quick", action="store_true", help="one short round: shows that all works, proves nothing")
    parser.add_argument("--no-kill", action="store_true", help="leave out the killed workers")
    parser.add_argument("--upgrade", action="store_true", help="install the peers again")
    parser.add_argument("--write", type=Path, metavar="FILE", help="write the page there too")
    return parser
