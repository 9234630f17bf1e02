"""An app whose tasks run durable steps and stop once where a test says: before, in and after each of them."""

import asyncio
import os
import signal
import time
from pathlib import Path

from windlass import Windlass, current, step

app = Windlass(tenant=os.environ["HARNESS_TENANT"])

HERE = Path(__file__).parent


def note(*words: object) -> None:
    """Written at once and whole, whatever happens next."""
    file = os.open(HERE / "notes", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(file, (" ".join(map(str, words)) + "\n").encode())
    os.close(file)


def has_stopped(stop: str, place: str) -> bool:
    """Whether the job is to stop here, and has not done so before; a job that kills its process is dead by then."""
    mark = HERE / f"{current.job.id}.stopped"
    if place != stop.removeprefix("killed ") or mark.exists():
        return False
    mark.touch()
    note("stopped", current.job.id)
    if stop.startswith("killed "):
        os.kill(os.getpid(), signal.SIGKILL)
    return True


def pause(stop: str, place: str) -> None:
    while has_stopped(stop, place) or (HERE / f"{current.job.id}.waits").exists():
        (HERE / f"{current.job.id}.waits").touch()
        time.sleep(0.01)


async def apause(stop: str, place: str) -> None:
    while has_stopped(stop, place) or (HERE / f"{current.job.id}.waits").exists():
        (HERE / f"{current.job.id}.waits").touch()
        await asyncio.sleep(0.01)


def work(name: str, stop: str, before: int) -> int:
    note("begun", current.job.id, name)
    pause(stop, f"in {name}")
    note("done", current.job.id, name)
    return before + 1


async def awork(name: str, stop: str, before: int) -> int:
    note("begun", current.job.id, name)
    await apause(stop, f"in {name}")
    note("done", current.job.id, name)
    return before + 1


@app.task(max_retry=3, retry={"base": 0.01})
def plain(stop: str = "") -> int:
    value = 0
    for name in "abc":
        pause(stop, f"before {name}")
        value = step.sync(name, work, name, stop, value)
        pause(stop, f"after {name}")
    return value


@app.task(isolate=True, max_retry=3, retry={"base": 0.01})
def alone(stop: str = "") -> int:
    value = 0
    for name in "abc":
        pause(stop, f"before {name}")
        value = step.sync(name, work, name, stop, value)
        pause(stop, f"after {name}")
    return value


@app.task(max_retry=3, retry={"base": 0.01})
async def co(stop: str = "") -> int:
    value = 0
    for name in "abc":
        await apause(stop, f"before {name}")
        value = await step(name, awork, name, stop, value)
        await apause(stop, f"after {name}")
    return value


@app.task(isolate=True, max_retry=3, retry={"base": 0.01})
async def alone_co(stop: str = "") -> int:
    value = 0
    for name in "abc":
        await apause(stop, f"before {name}")
        value = await step(name, awork, name, stop, value)
        await apause(stop, f"after {name}")
    return value


@app.task(isolate=True, on_lost="adopt")
def adopted(gate: str) -> int:
    """Each of its steps waits for a file."""
    note("start", os.getpid())
    value = 0
    for name in "abc":
        note("begun", current.job.id, name)
        while not (HERE / f"{gate} {name}").exists():
            time.sleep(0.01)
        value = step.sync(name, work, name, "", value)
    return value


def reserved(order: str) -> dict[str, int]:
    note("reserved", order)
    return {order: current.job.attempt}


@app.task(max_retry=1, retry={"base": 0.01})
async def sleeps(order: str, duration: float) -> dict[str, int]:
    note("run", current.job.attempt)
    kept = await step("reserve", reserved, order)
    await step.sleep(duration)
    note("slept", current.job.attempt)
    if current.job.attempt == 1:
        raise ValueError("once")
    return kept


@app.task(isolate=True)
def naps(duration: float) -> list[int]:
    note("run", current.job.attempt)
    step.sync.sleep(duration, name="nap")
    return [current.job.attempt]


@app.task(max_retry=5, retry={"base": 0.01})
def large(size: int) -> int:
    note("run", current.job.attempt)
    return len(step.sync("large", large_result, size))


def large_result(size: int) -> bytes:
    note("made", size)
    return bytes(size)


@app.task
def waits() -> None:
    """Its first run has lost its lease when it saves its step; the second waits until that is known."""
    first = not (HERE / "first").exists()
    (HERE / "first").touch()
    note("run", os.getpid())
    step.sync("early", note, "early")
    note("passed")
    while first and not (HERE / "go first").exists():
        time.sleep(0.01)
    while not first and not (HERE / "go second").exists():
        time.sleep(0.01)
    step.sync("late", note, "late")
    note("went on")
