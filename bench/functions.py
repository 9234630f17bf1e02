"""`./dev bench functions`: what running uploaded code costs, without the queue.

Jobs a second through one warm context of each language, in batches, against a bare loop in that language that reads a
line of JSON from a pipe and writes it back (for `sh`: that starts a shell for each line); and the time from nothing to
the first answer, by language and sandbox tier. Before that `bench journal`: what accepting jobs costs.
"""

import argparse
import asyncio
import shutil
import statistics
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any, NamedTuple, get_args

from bench import journal
from bench.table import Table
from windlass.model.handler import Handler, HandlerOptions, Language
from windlass.model.job import JSON
from windlass.model.output import Stream
from windlass.system import SystemClock, SystemRandomness
from windlass.worker.functions import FunctionJob, FunctionOptions, FunctionOutcome, Tier
from windlass.worker.functions.pool import Functions
from windlass.worker.network import Network, read_allowed

BATCH = 100
BARE = 2
"""JobBatch through the bare loop for each job: both are measured for about as long."""
BAR = 0.3
"""Of the bare loop's speed."""

LINE = b'"' + b"x" * 98 + b'"'


NODE = """
const lines = require("readline").createInterface({input: process.stdin});
lines.on("line", (line) => console.log(JSON.stringify(JSON.parse(line))));
"""


class Tongue(NamedTuple):
    """One language: the function, and the bare loop."""

    lang: Language
    body: str
    loop: list[str]


TONGUES = [
    Tongue(
        "python",
        "def run(payload):\n    return payload\n",
        ["python3", "-c", "import json, sys\nfor line in sys.stdin: print(json.dumps(json.loads(line)), flush=True)"],
    ),
    Tongue(
        "node",
        "run = (payload) => payload",
        ["node", "-e", NODE],
    ),
    Tongue(
        "php",
        "function run($payload) { return $payload; }",
        ["php", "-r", 'while (($line = fgets(STDIN)) !== false) { echo json_encode(json_decode($line)), "\\n"; }'],
    ),
    Tongue("sh", "cat", ["sh", "-c", "while read -r line; do printf '%s\\n' \"$line\" | sh -c cat; done"]),
]


class Listener:
    """Counts what ended well."""

    def __init__(self) -> None:
        self.ended_well = 0
        self.faults: list[str] = []

    def began(self, id: str, pid: int | None, tier: Tier | None) -> None:
        pass

    def printed(self, id: str, stream: Stream, data: bytes) -> None:
        pass

    def ended(self, outcome: FunctionOutcome) -> None:
        if outcome.code == 200:
            self.ended_well += 1
        else:
            self.faults.append(f"{outcome.code} {outcome.message}")


def handler(tongue: Tongue) -> Handler:
    options = HandlerOptions(batch=BATCH, recycle=None)
    now = datetime.now(UTC)
    return Handler(
        lang=tongue.lang, body=tongue.body, options=options, tenant="t", task="t", version=1, digest="0", created_at=now
    )


def functions(tier: Tier) -> Functions:
    options = FunctionOptions(tier=tier, contexts=1)
    return Functions(options, Network(read_allowed(())), chance=SystemRandomness())


async def run(running: Functions, tongue: Tongue, jobs: int) -> float:
    """Run so many in batches; the seconds that took."""
    ear, kind, clock = Listener(), handler(tongue), SystemClock()
    began = clock.monotonic()
    for start in range(0, jobs, BATCH):
        some = range(start, min(start + BATCH, jobs))
        batch = [FunctionJob(id=str(n), tenant="t", payload=LINE, content_type=JSON) for n in some]
        await running.run(kind, batch, ear)
    took = clock.monotonic() - began
    if ear.ended_well != jobs:
        raise SystemExit(f"{tongue.lang}: {ear.faults[:3]}")
    return took


@contextmanager
def loop(tongue: Tongue) -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(tongue.loop, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        yield child
        assert child.stdin is not None
        child.stdin.close()


def echo(child: subprocess.Popen[bytes], jobs: int) -> float:
    """The same lines through the bare loop."""
    assert child.stdin is not None
    assert child.stdout is not None
    clock = SystemClock()
    began = clock.monotonic()
    for start in range(0, jobs, BATCH):
        number = min(BATCH, jobs - start)
        child.stdin.write((LINE + b"\n") * number)
        child.stdin.flush()
        for _ in range(number):
            child.stdout.readline()
    return clock.monotonic() - began


async def warm(tongue: Tongue, jobs: int, rounds: int, table: Table) -> bool:
    """Both in turn, and the best of each: what else the machine does strikes now the one, now the other."""
    ours, bare = [], []
    running = functions("confined")
    with loop(tongue) as child:
        await run(running, tongue, BATCH)
        echo(child, BATCH)
        for _ in range(rounds):
            ours.append(await run(running, tongue, jobs))
            bare.append(echo(child, BARE * jobs) / BARE)
    await running.close()
    ratio = min(bare) / min(ours)
    table.put(tongue.lang, jobs, "jobs/s", jobs / min(ours))
    table.put(tongue.lang, jobs, "bare loop, lines/s", jobs / min(bare))
    table.put(tongue.lang, jobs, "ratio", ratio)
    return ratio >= BAR


async def cold(tongue: Tongue, jobs: int, rounds: int, table: Table) -> None:
    for tier in get_args(Tier):
        times = []
        for _ in range(rounds):
            running = functions(tier)
            if running.refusal(handler(tongue)) is not None:
                break
            times.append(await run(running, tongue, 1))
            await running.close()
        if times:
            table.put(tongue.lang, jobs, f"first answer, {tier}, ms", 1000 * statistics.median(times))


async def measure(jobs: int, rounds: int) -> int:
    table, well = Table(), True
    for tongue in TONGUES:
        if shutil.which(tongue.loop[0]) is None:
            sys.stderr.write(f"  no {tongue.loop[0]}\n")
            continue
        sys.stderr.write(f"  {tongue.lang}\n")
        number = jobs if tongue.lang != "sh" else max(BATCH, jobs // 20)
        well &= await warm(tongue, number, rounds, table)
        await cold(tongue, number, rounds, table)
    sys.stdout.write(table.markdown() + "\n")
    if not well:
        sys.stderr.write(f"below {BAR} of the bare loop\n")
    return 0 if well else 1


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="./dev bench functions", description=__doc__)
    parser.add_argument("--jobs", type=int, default=2000, help="a round (2000; of sh a twentieth)")
    parser.add_argument("--rounds", type=int, default=10)
    said: Any = parser.parse_args(argv)
    sys.stderr.write("  the journal\n")
    journal.main([])
    return asyncio.run(measure(said.jobs, said.rounds))
