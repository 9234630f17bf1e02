"""A program that has used an app ends without a word, however it ends."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.patience import PATIENCE
from tests.support.servers import StartServer

HEAD = """
import asyncio, sys
from windlass import Windlass
app = Windlass(sys.argv[1], **({"journal": sys.argv[2]} if sys.argv[2:] else {}))

@app.task()
def noop(text: str) -> None: ...

async def alone():
    await noop.aenqueue("x")

async def tidy():
    await noop.aenqueue("x")
    await app.aclose()

def waits():
    try:
        noop.enqueue("x").result(timeout=0.1)
    except TimeoutError:
        pass
"""

ENDS = {
    "a loop ends": "asyncio.run(alone())",
    "a loop lets go first": "asyncio.run(tidy())",
    "several loops": "asyncio.run(alone()); asyncio.run(alone())",
    "no loop, closed": "waits(); app.close()",
    "no loop, not closed": "waits()",
}


@pytest.mark.parametrize("end", ENDS.values(), ids=ENDS.keys())
@pytest.mark.parametrize("kind", ["file", "redis", "journal"])
def test_nothing_is_said_at_the_end(kind: str, end: str, tmp_path: Path, start_server: StartServer) -> None:
    address = str(tmp_path / "jobs.db") if kind == "file" else start_server("redis").url
    more = [str(tmp_path / "journal")] if kind == "journal" else []
    done = subprocess.run(
        [sys.executable, "-c", HEAD + end, address, *more],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
