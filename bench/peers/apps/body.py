"""What the tasks of every system do, and their arguments. Runs in each peer's environment: standard library only."""

import asyncio
import os
import time

URL = os.environ["BENCH_URL"]
SAFE = "BENCH_SAFE" in os.environ
"""Whether a killed worker's jobs matter more than speed: short leases, late acknowledgements."""
SLOTS = int(os.environ.get("BENCH_SLOTS", "100"))
"""Jobs at once, for systems that take it from code."""

SIZE = 100
NAP = 0.05

_notes = os.open(os.environ["BENCH_NOTES"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)


def quicken() -> None:
    """Let asyncio run on uvloop, as Windlass's worker does."""
    import uvloop  # noqa: PLC0415 - some have no use for it

    asyncio.set_event_loop_policy(uvloop.EventLoopPolicy())


def argument(first: object) -> str:
    """An argument of a hundred bytes whose first word is given."""
    return f"{first} ".ljust(SIZE, "x")


def stamp(text: str) -> None:
    """Note when the job was queued and when it started."""
    now = time.time_ns()
    os.write(_notes, f"{text.split(maxsplit=1)[0]} {now}\n".encode())


def tick(text: str) -> None:
    """Note that the job of this number was done."""
    os.write(_notes, f"{text.split(maxsplit=1)[0]}\n".encode())
