"""Durable steps of jobs: their results are kept beside the job, under the token of the run that has finished them."""

from collections.abc import Awaitable, Callable
from typing import Any

from windlass.engine.context import EngineContext, fence, known_worker
from windlass.engine.reports import run_of, tenants_of
from windlass.model.errors import Invalid, TooLarge
from windlass.model.names import key_of
from windlass.model.operations import (
    Applied,
    GetSteps,
    JobSteps,
    LoadedStep,
    LoadSteps,
    Operation,
    SaveSteps,
)
from windlass.model.steps import MOST_STEP_BYTES, MOST_STEPS, StepEntry
from windlass.store.data import JobStep, StepSaved
from windlass.store.optional import StepStore


def step_store(context: EngineContext) -> StepStore:
    if context.store.steps is None:
        raise Invalid("this store keeps no steps", at="steps")
    return context.store.steps


async def save_steps(context: EngineContext, operation: SaveSteps) -> Applied:
    await known_worker(context, operation.worker, operation.tenant)
    reported = list(zip(operation.jobs, await tenants_of(context, operation), strict=True))
    steps = [JobStep(item.id, tenant, fence(item.token), item.name, item.result) for item, tenant in reported]
    saved = await step_store(context).save(steps)
    for place, (item, one) in enumerate(zip(operation.jobs, saved, strict=True)):
        if one is StepSaved.FULL:
            bounds = f"{MOST_STEPS} steps with {MOST_STEP_BYTES >> 20} MiB of results"
            raise TooLarge(
                f"there is no room for step {item.name!r}: a job may have {bounds}; keep large results elsewhere",
                at=f"jobs[{place}].result",
            )
    held = {run_of(*item) for item, one in zip(reported, saved, strict=True) if one is StepSaved.KEPT}
    return Applied(
        applied=[item.id for item, tenant in reported if run_of(item, tenant) in held],
        refused=[item.id for item, tenant in reported if run_of(item, tenant) not in held],
    )


async def load_steps(context: EngineContext, operation: LoadSteps) -> list[JobSteps]:
    await known_worker(context, operation.worker, operation.tenant)
    runs = [run_of(*item) for item in zip(operation.jobs, await tenants_of(context, operation), strict=True)]
    records = (await context.store.jobs.read([key for key, _ in runs])).records
    found: list[JobSteps] = []
    for (key, token), record in zip(runs, records, strict=True):
        if record is None or record.token != token:
            continue
        kept = await step_store(context).list(key)
        ages = [max(0.0, (kept.now - one.finished_at).total_seconds()) for one in kept.steps]
        steps = [
            LoadedStep(name=one.name, result=one.result, age=age) for one, age in zip(kept.steps, ages, strict=True)
        ]
        found.append(JobSteps(id=key.id, steps=steps))
    return found


async def get_steps(context: EngineContext, operation: GetSteps) -> list[StepEntry]:
    job = (await context.find(operation.id, operation.tenant)).job
    if context.store.steps is None:
        return []
    kept = await context.store.steps.list(key_of(job))
    return [StepEntry(name=one.name, finished_at=one.finished_at, size=len(one.result)) for one in kept.steps]


ANSWERS: dict[type[Operation[Any]], Callable[[EngineContext, Any], Awaitable[Any]]] = {
    SaveSteps: save_steps,
    LoadSteps: load_steps,
    GetSteps: get_steps,
}
