"""Learns from what happened: how long jobs ran, and how accurate estimates were.

Each engine learns from the jobs that it hands out and that end; all engines share the result as records.
"""

import asyncio
import statistics
from collections.abc import Mapping

import msgspec
from msgspec import ValidationError

from windlass.engine.context import EngineContext
from windlass.engine.estimate.stats import MOST_TASKS
from windlass.model.job import State
from windlass.policy.run_times import RunTimes, learn, merge, pack, unpack
from windlass.store.data import ANYTHING

RUN_TIMES, ERRORS = "runtime", "estimate.error"
"""Kinds of records: by `TENANT,TASK`, and by queue."""

MOST_WRITTEN = 100
"""Tasks whose run times are stored in one step."""

MOST_ERRORS = 100
"""The newest errors of a queue's estimates that count."""

LEAST_WAIT = 0.1
"""Seconds: the error of an estimate is relative to a wait of at least so long."""

_errors = msgspec.msgpack.Decoder(list[float])
_pack = msgspec.msgpack.Encoder().encode


async def read_run_times(context: EngineContext) -> dict[str, RunTimes]:
    """The run times of all engines, at most a second old."""
    stats = context.stats
    if loop_time() - stats.times_at > 1.0:
        stats.times = _decoded(await context.store.records.list(RUN_TIMES))
        stats.times_at = loop_time()
    return stats.times


async def learn_run_times(context: EngineContext) -> int:
    """Store the run times that this engine has seen."""
    stats = context.stats
    if not stats.fresh:
        return 0
    stored = _decoded(await context.store.records.list(RUN_TIMES))
    for task in list(stats.fresh)[:MOST_WRITTEN]:
        runs = stats.fresh.pop(task)
        if task in stored or len(stored) < MOST_TASKS:
            stored[task] = merge(stored.get(task, RunTimes()), learn(RunTimes(), runs))
            await context.store.records.swap(RUN_TIMES, task, ANYTHING, pack(stored[task]))
    stats.times, stats.times_at = stored, loop_time()
    return 0


def _decoded(stored: Mapping[str, bytes]) -> dict[str, RunTimes]:
    found = {}
    for name, data in stored.items():
        try:
            found[name] = unpack(data)
        except ValidationError:
            continue  # an older format: learned again
    return found


def loop_time() -> float:
    return asyncio.get_running_loop().time()


# Accuracy


async def measure_accuracy(context: EngineContext) -> int:
    """Compare estimates with the actual waits, and store the errors."""
    stats = context.stats
    if not stats.predictions:
        return 0
    keys = list(stats.predictions)  # more may be added during the read
    reading = await context.store.jobs.read(keys)
    for key, record in zip(keys, reading.records, strict=True):
        if record is not None and record.job.state is State.QUEUED:
            continue
        prediction = stats.predictions.pop(key, None)
        if prediction is None:
            continue
        began = record.job.started_at if record is not None else None
        if began is not None and began >= prediction.at:
            error = relative_error(prediction.seconds, (began - prediction.at).total_seconds())
            stats.errors.setdefault(prediction.queue, []).append(error)
    if stats.errors:
        await _store_errors(context)
    return 0


def relative_error(estimated: float, actual: float) -> float:
    """The error of an estimate as a share of the actual wait."""
    return abs(estimated - actual) / max(actual, LEAST_WAIT)


async def _store_errors(context: EngineContext) -> None:
    stored = await context.store.records.list(ERRORS)
    for queue, fresh in list(context.stats.errors.items()):
        before = _errors.decode(stored[queue]) if queue in stored else []
        await context.store.records.swap(ERRORS, queue, ANYTHING, _pack([*before, *fresh][-MOST_ERRORS:]))
        del context.stats.errors[queue]


async def median_errors(context: EngineContext) -> dict[str, float]:
    """The median error of recent estimates, by queue."""
    stored = await context.store.records.list(ERRORS)
    found = {queue: _errors.decode(data) for queue, data in stored.items()}
    return {queue: statistics.median(errors) for queue, errors in found.items() if errors}
