"""What is learned from what came: how long jobs ran, and how right it was what they were told of their wait.

Run times are learned from what this engine hands out and gets back, and are shared by way of the shelf. Some of what
was foretold is held against what became of it; how wrong that was is kept for each queue.
"""

import statistics

import msgspec

from windlass.engine.desk import Desk
from windlass.engine.experience import MOST_TASKS
from windlass.engine.forecasts import RUN_TIMES, decoded, time
from windlass.model.job import State
from windlass.policy.learning import RunTimes, learn, merge, pack

ERRORS = "estimate.error"
"""A kind of records on the shelf: by queue."""

MOST_WRITTEN = 100
"""Tasks whose run times are written down in one step."""

MOST_ERRORS = 100
"""The newest errors of a queue's estimates that count."""

LEAST_WAIT = 0.1
"""Seconds: of a shorter wait an estimate is not taken to be wrong by more than its whole."""

_errors = msgspec.msgpack.Decoder(list[float])
_pack = msgspec.msgpack.Encoder().encode


async def learn_run_times(desk: Desk) -> int:
    """Write down how long jobs ran."""
    experience = desk.experience
    if not experience.fresh:
        return 0
    kept = decoded(await desk.shelf.shelved(RUN_TIMES))
    for task in list(experience.fresh)[:MOST_WRITTEN]:
        runs = experience.fresh.pop(task)
        if task in kept or len(kept) < MOST_TASKS:
            kept[task] = merge(kept.get(task, RunTimes()), learn(RunTimes(), runs))
            await desk.shelf.put(RUN_TIMES, task, pack(kept[task]))
    experience.times, experience.times_at = kept, time()
    return 0


async def keep_promises(desk: Desk) -> int:
    """Hold what was foretold against what has come, and write down how wrong it was."""
    experience = desk.experience
    if not experience.promises:
        return 0
    keys = list(experience.promises)  # others come while these are looked up
    reading = await desk.store.read(keys)
    for key, record in zip(keys, reading.records, strict=True):
        if record is not None and record.job.state is State.QUEUED:
            continue
        promise = experience.promises.pop(key, None)
        if promise is None:
            continue
        began = record.job.started_at if record is not None else None
        if began is not None and began >= promise.at:
            experience.errors.setdefault(promise.queue, []).append(
                wrong_by(promise.seconds, (began - promise.at).total_seconds())
            )
    if experience.errors:
        await _write_errors(desk)
    return 0


def wrong_by(told: float, real: float) -> float:
    """By which part of the real wait an estimate was wrong."""
    return abs(told - real) / max(real, LEAST_WAIT)


async def _write_errors(desk: Desk) -> None:
    kept = await desk.shelf.shelved(ERRORS)
    for queue, fresh in list(desk.experience.errors.items()):
        before = _errors.decode(kept[queue]) if queue in kept else []
        await desk.shelf.put(ERRORS, queue, _pack([*before, *fresh][-MOST_ERRORS:]))
        del desk.experience.errors[queue]


async def usual_errors(desk: Desk) -> dict[str, float]:
    """By which part of the real wait estimates were wrong lately, by queue: the median."""
    kept = await desk.shelf.shelved(ERRORS)
    found = {queue: _errors.decode(data) for queue, data in kept.items()}
    return {queue: statistics.median(errors) for queue, errors in found.items() if errors}
