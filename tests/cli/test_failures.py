"""`windlass failures`: groups are listed, shown, queued again and deleted."""

import asyncio
import json
from contextlib import AsyncExitStack

from tests.support.worker_harness import WorkerHarness
from windlass.addresses import enter_service
from windlass.model.new_job import NewJob
from windlass.model.operations import Claim, Enqueue, Finish, Finished, Register, Unregister
from windlass.model.outcome import Verdict
from windlass.model.worker import NewWorker


def test_a_group_of_failures_is_listed_shown_retried_and_deleted(harness: WorkerHarness) -> None:
    def ok(*words: str) -> str:
        done = harness.run(*words, "--tenant", harness.tenant)
        assert done.returncode == 0, done.stderr
        return done.stdout + done.stderr

    harness.tasks.add.enqueue(1, 2)
    assert "no failed jobs" in ok("failures", "ls")
    jobs = [harness.tasks.complain.enqueue(how) for how in ("fail", "fail", "error")]
    harness.burst()
    table = ok("failures", "ls")
    assert "never" in table
    assert "no good" in table
    (large, small) = [json.loads(line) for line in ok("failures", "ls", "--json").splitlines()]
    assert (large["count"], large["task"], small["count"], small["type"]) == (2, "complain", 1, "ValueError")
    assert large["sample"] in (jobs[0].id, jobs[1].id)
    shown = ok("failures", "show", small["fingerprint"])
    assert "complain: ValueError: no good" in shown
    assert "in complain, tasks.py" in shown
    assert "Traceback" in shown

    group = large["fingerprint"]
    assert "would queue again 2 jobs" in ok("failures", "retry", group, "--dry-run")
    assert "queued again 2 jobs" in ok("failures", "retry", group)
    assert json.loads(ok("jobs", "count", "--state", "queued", "--json")) == {"count": 2}
    gone = harness.run("failures", "rm", group, "--tenant", harness.tenant)
    assert gone.returncode == 3
    assert f"there is no failed job with the fingerprint {group}" in gone.stderr
    assert "would delete 1 job" in ok("failures", "rm", small["fingerprint"], "--dry-run")
    assert "deleted 1 job" in ok("failures", "rm", small["fingerprint"])
    assert "no failed jobs" in ok("failures", "ls")


async def fail_by_versions(harness: WorkerHarness, *versions: int) -> None:
    async with AsyncExitStack() as stack:
        service = await enter_service(stack, harness.store)
        worker = (await service(Register(tenant=harness.tenant, worker=NewWorker(name="w")))).worker
        for version in versions:
            await service(Enqueue(tenant=harness.tenant, job=NewJob(task="vat")))
            (run,) = await service(Claim(tenant=harness.tenant, worker=worker))
            failed = Finished(id=run.job.id, token=run.token, outcome=Verdict.FAILED, handler_version=version)
            await service(Finish(tenant=harness.tenant, worker=worker, jobs=[failed]))
        await service(Unregister(tenant=harness.tenant, worker=worker))


def test_a_group_names_the_versions_of_its_handler(harness: WorkerHarness) -> None:
    asyncio.run(fail_by_versions(harness, 2, 3, 3))
    group = json.loads(harness.run("failures", "ls", "--json", "--tenant", harness.tenant).stdout)
    assert group["versions"] == {"3": 2, "2": 1}
    shown = harness.run("failures", "show", group["fingerprint"], "--tenant", harness.tenant)
    assert "by the versions of its handler: version 3: 2, version 2: 1" in shown.stdout
