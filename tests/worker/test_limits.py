"""Limits with real workers, on each kind of store: a task that is refused elsewhere lets its key rest."""

import time

from tests.support.worker_harness import WorkerHarness, tell, until
from windlass.model.job import State
from windlass.model.limit import NewLimit, Which
from windlass.model.operations import GetLimit, PutLimit

REST = 3.0


def test_a_task_that_raises_rate_limited_lets_its_key_rest_and_other_keys_go_on(harness: WorkerHarness) -> None:
    limit = NewLimit(match=Which(task="call"), running=5, key="payload.customer")
    harness.app.ask(PutLimit(name="api", limit=limit))
    harness.start("-c", "4")
    call = harness.tasks.call
    began = time.monotonic()
    refused = call.enqueue(customer=1, refused_for=REST)
    harness.noted("refused")
    until(lambda: refused.state is State.QUEUED)
    same, *others = [call.enqueue(customer=customer) for customer in (1, 2, 3)]
    for job in others:
        assert harness.ended(job).state is State.SUCCEEDED
    passed = time.monotonic() - began
    assert [job.state for job in (refused, same)] == [State.QUEUED] * 2, "other customers did not wait"
    assert same.estimate().name == "api"
    (resting,) = [one for one in harness.app.ask(GetLimit(name="api")).buckets if one.waiting]
    assert (resting.key, resting.waiting, resting.running) == ("1", 2, 0)
    for job in (refused, same):
        record = harness.ended(job)
        assert (record.state, record.attempt) == (State.SUCCEEDED, 1), "the refused run does not count"
    assert sorted(harness.notes("called")[:2]) == ["2", "3"]
    assert time.monotonic() - began >= REST
    tell(f"other customers after {passed:.2f} s, the refused one after {time.monotonic() - began:.2f} s")
