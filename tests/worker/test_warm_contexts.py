"""A worker says what it has warm contexts for, and where turns are taken it is given such jobs a little earlier."""

from pathlib import Path

import pytest

from tests.support.engines import enqueue, register
from windlass.addresses import open_engine
from windlass.engine import Engine
from windlass.model.handler import NewHandler
from windlass.model.new_job import NewJob
from windlass.model.operations import (
    A,
    ChangeQueue,
    Claim,
    EnqueueMany,
    List,
    Operation,
    PutHandler,
    Service,
)
from windlass.model.queue import QueueChange
from windlass.system import SystemClock, SystemRandomness
from windlass.worker import WorkerOptions, supervisor
from windlass.worker.contexts.processes import ProcessManager
from windlass.worker.functions import FunctionOptions
from windlass.worker.supervisor import NO_APP, Supervisor

FAIR = ChangeQueue(queue="default", change=QueueChange(policy="fair"))


class Overheard:
    """A queue, and what was said with the claims."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self.warm: list[list[str]] = []
        self.taken: list[str] = []

    async def __call__(self, operation: Operation[A], /) -> A:
        answer = await self._service(operation)
        if isinstance(operation, Claim):
            self.warm.append(sorted(operation.warm))
            self.taken += [one.job.task for one in answer]  # type: ignore[attr-defined]
        return answer


@pytest.mark.parametrize("eid", [None, "shared"])
async def test_a_worker_says_which_tasks_have_a_context_waiting(
    tmp_path: Path, eid: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tasks of one engine (`eid`) share their contexts, and so their warmth."""
    monkeypatch.setattr(supervisor, "adopt_orphans", lambda: None)  # those of later tests are not for this process
    options = WorkerOptions(burst=True, slots=1, functions=FunctionOptions(contexts=2))
    async with open_engine(str(tmp_path / "queue.db")) as engine:
        await engine(FAIR)
        for task in ("x", "y", "z"):
            own = eid if task != "z" else None
            await engine(PutHandler(task=task, handler=NewHandler(lang="sh", body="true", eid=own)))
        await engine(EnqueueMany(jobs=[NewJob(task=task) for task in "xyz" for _ in range(4)]))
        heard = Overheard(engine)
        clock, chance = SystemClock(), SystemRandomness()
        await Supervisor(heard, ProcessManager(""), NO_APP, options, clock=clock, chance=chance).run()
        assert {job.state for job in (await engine(List())).jobs} == {"succeeded"}
    assert heard.warm[0] == []
    assert any("default/x" in said for said in heard.warm), "a job has ended, and its context waits for another"
    assert sorted(heard.taken) == sorted("xyz" * 4)
    if eid is not None:
        assert any({"default/x", "default/y"} <= set(said) for said in heard.warm)


async def test_a_claim_that_is_warm_for_a_task_gets_it_first(engine: Engine) -> None:
    await engine(FAIR)
    for task in "xy":
        for _ in range(4):
            await enqueue(engine, task)
    worker = await register(engine)
    taken = [await engine(Claim(worker=worker, warm=["default/y"])) for _ in range(5)]
    assert "".join(one.job.task for claimed in taken for one in claimed) == "yyxyx"
