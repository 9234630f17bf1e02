"""An engine over each kind of store, and short ways to say what a test asks of it."""

from typing import Any

import pytest
from msgspec import Raw

from tests.support.stores import SeededChance
from windlass.engine import Engine
from windlass.model import wire
from windlass.model.job import Job, State
from windlass.model.new_job import NewJob
from windlass.model.operations import Accepted, Applied, Claim, Claimed, Enqueue, Finish, Finished, Register, Show
from windlass.model.outcome import Verdict
from windlass.model.worker import NewWorker
from windlass.store.protocol import Store


@pytest.fixture
def engine(store: Store, chance: SeededChance) -> Engine:
    return Engine(store, chance)


def packed(value: object) -> Raw:
    return Raw(wire.encode(value))


async def enqueue(engine: Engine, task: str = "work", *, tenant: str = "default", **terms: Any) -> Job:
    return taken_in(await engine(Enqueue(tenant=tenant, job=NewJob(task=task, **terms))))


def taken_in(accepted: Accepted) -> Job:
    """The job itself, without the word on whether it was new."""
    return Job(**{name: getattr(accepted, name) for name in Job.__struct_fields__})


async def register(engine: Engine, *queues: str, tenant: str = "default", **more: Any) -> str:
    new = NewWorker(name="w", queues=list(queues) or ["default"], **more)
    return (await engine(Register(tenant=tenant, worker=new))).worker


async def take(engine: Engine, worker: str, tenant: str = "default") -> Claimed:
    (claimed,) = await engine(Claim(tenant=tenant, worker=worker))
    return claimed


async def finish(engine: Engine, worker: str, claimed: Claimed, outcome: Verdict = Verdict.OK, **more: Any) -> Applied:
    item = Finished(id=claimed.job.id, token=claimed.token, outcome=outcome, **more)
    return await engine(Finish(worker=worker, jobs=[item]))


async def state(engine: Engine, id: str) -> State:
    return (await engine(Show(id=id))).state
