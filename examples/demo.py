"""A queue in one file: jobs go in, a worker takes them, one fails and is run again.

Run it with `./dev`. There is no server and nothing to install: the jobs live in a SQLite file that is gone afterwards.
"""

import asyncio
import tempfile
from pathlib import Path

import msgspec
from msgspec import Raw

from windlass.daemon import open_engine
from windlass.engine import Engine
from windlass.engine.upkeep import keep_house
from windlass.model.job import NewJob
from windlass.model.lifecycle import Verdict
from windlass.model.operations import Claim, EnqueueMany, Finish, Finished, GetResult, GetStats, List, Register
from windlass.model.retry import Retry
from windlass.model.worker import NewWorker
from windlass.system import SystemClock


def render(scene: int, attempt: int) -> str:
    """The work: scene 3 breaks the first time."""
    if scene == 3 and attempt == 1:
        raise OSError("no space left on the render disk")
    return f"scene-{scene}.png"


async def submit(engine: Engine) -> list[str]:
    jobs = [
        NewJob(
            task="render",
            payload=Raw(msgspec.msgpack.encode(scene)),
            priority=-1 if scene == 5 else 0,
            max_retry=2,
            retry=Retry(base=0.2),
        )
        for scene in range(1, 6)
    ]
    return (await engine(EnqueueMany(jobs=jobs))).ids


async def work(engine: Engine) -> None:
    """A worker: claim, run, report, until nothing is left to do."""
    me = (await engine(Register(worker=NewWorker(name="demo", slots=2)))).worker
    while True:
        claimed = await engine(Claim(worker=me, slots=2, wait=1))
        if not claimed:
            return
        reports = []
        for one in claimed:
            scene = msgspec.msgpack.decode(one.payload, type=int)
            try:
                result = msgspec.msgpack.encode(render(scene, one.job.attempt))
                report = Finished(id=one.job.id, token=one.token, outcome=Verdict.OK, result=Raw(result))
            except OSError as error:
                report = Finished(id=one.job.id, token=one.token, outcome=Verdict.ERROR, message=str(error))
            print(f"  scene {scene}, attempt {one.job.attempt}: {report.outcome} {report.message}")
            reports.append(report)
        await engine(Finish(worker=me, jobs=reports))


async def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        async with open_engine(str(Path(folder) / "demo.db")) as engine:
            ids = await submit(engine)
            print(f"queued {len(ids)} jobs; the one with the lowest priority number goes first")
            upkeep = asyncio.create_task(keep_house(engine, SystemClock()))  # queues the re-run when its time has come
            await work(engine)
            upkeep.cancel()
            for queue in (await engine(GetStats())).queues:
                print("in the end:", ", ".join(f"{count} {state}" for state, count in queue.states.items()))
            for job in (await engine(List())).jobs:
                answer = await engine(GetResult(id=job.id))
                value = msgspec.msgpack.decode(answer.result) if answer.result else None
                print(f"  {job.id}  {job.state:10} {value}  {'; '.join(error.message for error in job.errors)}")


if __name__ == "__main__":
    asyncio.run(main())
