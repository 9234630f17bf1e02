"""An app whose tasks take several calls at once, as coroutines and in threads."""

import asyncio
import os
import signal
import time
from pathlib import Path

from windlass import Fail, Retry, Windlass, current

app = Windlass(tenant=os.environ["HARNESS_TENANT"])

HERE = Path(__file__).parent


def note(*words: object) -> None:
    """Written at once and whole, whatever happens next."""
    file = os.open(HERE / "notes", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(file, (" ".join(map(str, words)) + "\n").encode())
    os.close(file)


@app.task(batch=10, within="60s")
def full(ns: list[int]) -> list[int]:
    """It begins when it is full, or when no more can come."""
    note("batch", *ns)
    return [n * 2 for n in ns]


@app.task(batch=10, within="60s")
async def co_full(ns: list[int]) -> list[int]:
    note("batch", *ns)
    await asyncio.sleep(0)
    return [n * 2 for n in ns]


@app.task(batch=100, within="0.3s")
def soon(ns: list[int]) -> None:
    note("batch", *ns)


@app.task(batch=4, within="60s", max_retry=1, retry={"base": 0.01})
def mixed(words: list[str]) -> list[str | Exception]:
    """What is retried comes alone, and waits for no others: the test fills its batch up."""
    note("batch", *words)
    outcomes: dict[str, Exception] = {"retry": Retry("again"), "fail": Fail("no"), "error": ValueError("wrong")}
    return [
        outcomes.get(word, word) if job.attempt == 1 else word for word, job in zip(words, current.jobs, strict=True)
    ]


@app.task(batch=3, within="60s")
def held(ns: list[int]) -> list[int]:
    """Until a file lets it go on, or all its jobs are cancelled."""
    note("batch", *ns)
    current.log("for each of them")
    while not (HERE / "go").exists() and not current.cancelled:
        time.sleep(0.01)
    note("cancelled" if current.cancelled else "done", *ns)
    return ns


@app.task(batch=3, within="60s")
async def co_held(ns: list[int]) -> list[int]:
    note("batch", *ns)
    current.log("for each of them")
    try:
        while not (HERE / "go").exists():  # noqa: ASYNC110 - a file says so
            await asyncio.sleep(0.01)
    except asyncio.CancelledError:
        note("cancelled", *ns)
        raise
    note("done", *ns)
    return ns


@app.task(batch=3, within="2s", timeout="4s", max_retry=0)
def slow(ns: list[int]) -> None:
    note("batch", *ns)
    time.sleep(600)


@app.task(batch=3, within="60s", max_retry=2, retry={"base": 0.01})
def deadly(ns: list[int]) -> list[int]:
    """Its call with a -1 kills its process."""
    note("batch", *ns)
    if -1 in ns:
        os.kill(os.getpid(), signal.SIGKILL)
    return ns
