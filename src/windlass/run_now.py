"""Run one job of an app at once, without a store: for a caller that waits while the queue is down.

The job runs in a process of its own, so that the server never runs user code: there it passes through the real engine
over a store in memory, as in `app.testing`, and its outcome is the answer.
"""

import asyncio
import os
import signal
import sys
from contextlib import suppress

import msgspec
from msgspec import Struct

from windlass.model.errors import Full
from windlass.model.job import FINISHED, Job, State
from windlass.model.new_job import NewJob
from windlass.model.operations import Enqueue, Show
from windlass.testing.engine import InMemoryEngine
from windlass.worker.contexts.zygote import load_app
from windlass.worker.linux import die_with_parent

MOST_AT_ONCE = 8
"""Processes that run such jobs at the same time; each imports the app."""

MOST_RUNS = 1000
"""Runs of a job and of the jobs that it makes."""


class Ended(Struct, frozen=True):
    """What the process of a job answers."""

    error: str | None


class RunNow:
    """Runs jobs of one app, a bounded number at a time."""

    def __init__(self, target: str, tenant: str) -> None:
        self.tenant = tenant
        self._target = target
        self._running = 0

    async def __call__(self, new: NewJob, within: float) -> str | None:
        """Run a job with a payload of JSON to its end; why it did not succeed."""
        if self._running >= MOST_AT_ONCE:
            raise Full(f"the queue is down and {MOST_AT_ONCE} jobs already run without it: send it again later")
        self._running += 1
        try:
            return (await self._run(msgspec.json.encode(new), within)).error
        finally:
            self._running -= 1

    async def _run(self, new: bytes, within: float) -> Ended:
        pipe = asyncio.subprocess.PIPE
        child = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "windlass.run_now", self._target, str(os.getpid())),
            stdin=pipe,
            stdout=pipe,
            start_new_session=True,
        )
        try:
            async with asyncio.timeout(within):
                answer, _ = await child.communicate(new)
        except TimeoutError:
            return Ended(f"timeout: the job did not end within {within:g} s")
        finally:
            with suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)  # also what the job started
            await child.wait()
        try:
            return msgspec.json.decode(answer, type=Ended)
        except msgspec.DecodeError:
            return Ended(f"crashed: the process of the job ended with status {child.returncode}")


def run(target: str, new: NewJob) -> Ended:
    """Run the job, and those that it makes, in this process."""
    app = load_app(target)
    engine = InMemoryEngine(app.tenant, app.tasks, app.settings, app.hooks)
    try:
        id = engine.ask(Enqueue(tenant=app.tenant, job=new, exact=True)).id
        for _ in range(MOST_RUNS):
            if (work := engine.claim()) is None:
                break
            engine.run(work)
        return Ended(_error(engine.ask(Show(tenant=app.tenant, id=id)), engine.jobs()))
    finally:
        engine.close()


def _error(job: Job, jobs: list[Job]) -> str | None:
    if job.state is not State.SUCCEEDED:
        return job.error.message if job.error else f"the job is {job.state}"
    left = sorted({one.task for one in jobs if one.state not in FINISHED})
    # Nothing will ever run these: the sender must learn that the work is not finished.
    return f"it queued jobs for later while the queue is down: {', '.join(left)}" if left else None


def main() -> None:
    target, parent = sys.argv[1:]
    die_with_parent(int(parent))
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what the job prints goes to the server's log
    sys.path.insert(0, "")
    try:
        ended = run(target, msgspec.json.decode(sys.stdin.buffer.read(), type=NewJob))
    except Exception as fault:  # noqa: BLE001 # an app that cannot be imported, above all
        ended = Ended(f"{type(fault).__name__}: {fault}")
    answers.write(msgspec.json.encode(ended))
    answers.flush()
    os._exit(0)  # threads that the job left must not keep the caller waiting


if __name__ == "__main__":
    main()
