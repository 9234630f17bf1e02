"""What becomes of a job that waits for others when those end: `lifecycle` for dependencies.

Decides by the job's `after_failure` and makes `Move`s; knows neither a store nor a clock.
"""

from collections.abc import Iterator, Mapping
from datetime import datetime

from msgspec.structs import replace

from windlass.model.job import FINISHED, Error, Job, Reason, State
from windlass.model.lifecycle import Move, Step, make_move
from windlass.model.outcome import error_entry

NEVER = {State.FAILED: "has failed", State.CANCELLED: "was cancelled", None: "is not there"}
"""Why a job that ended so, or was deleted (null), will not succeed."""


def unblock(job: Job, parents: Mapping[str, State | None], now: datetime) -> Move | None:
    """What becomes of a blocked job when those that it waits for stand like this (null = there is no such job).

    Parents that are not named are still pending, as far as is known.
    """
    ended = {id: state for id, state in parents.items() if state is None or state in FINISHED}
    if job.after_failure != "run":
        for id in job.waits_for:
            if id in ended and (state := ended[id]) in NEVER:
                return _end(job, Error(message=f"job {id}, which it waited for, {NEVER[state]}"), now)
    rest = [id for id in job.waits_for if id not in ended]
    if not rest:
        return make_move(job, Step.UNBLOCK)
    return replace(make_move(job, Step.MEET), waits_for=rest) if rest != job.waits_for else None


def _end(job: Job, error: Error, now: datetime) -> Move:
    """One of those that it waits for did not succeed, and it does not run without."""
    step = Step.MISS if job.after_failure == "fail" else Step.CANCEL
    return make_move(job, step, Reason.DEPENDENCY, error_entry(job, error, Reason.DEPENDENCY, now))


def find_cycle(waits: Mapping[str, list[str]]) -> list[str]:
    """Jobs that wait for each other in a circle, from one of them to the same again; empty = there is none."""
    done: set[str] = set()
    for start in waits:
        path: dict[str, Iterator[str]] = {}
        here: str | None = start
        while here is not None:
            if here in path:
                ids = list(path)
                return [*ids[ids.index(here) :], here]
            if here not in done and here in waits:
                path[here] = iter(waits[here])
            here = _next_step(path, done)
    return []


def _next_step(path: dict[str, Iterator[str]], done: set[str]) -> str | None:
    """The next job to look at on a way along those that wait; the ends of the way that lead nowhere are done."""
    while path:
        last = next(reversed(path))
        for parent in path[last]:
            if parent not in done:
                return parent
        done.add(last)
        del path[last]
    return None
