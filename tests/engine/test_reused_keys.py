"""A key whose job ends at the very moment when it is sent again."""

from tests.support.engines import enqueue
from windlass.engine import Engine
from windlass.model.job import Reason, State
from windlass.model.new_job import NewJob
from windlass.model.operations import Count, Delete, Enqueue


async def test_a_key_whose_job_ends_without_a_record_as_it_is_sent_again_is_a_new_job(engine: Engine) -> None:
    parent = await enqueue(engine)
    await enqueue(engine, key="k", after=[parent.id], keep_failure=0.0)
    await engine(Delete(ids=[parent.id]))
    again = Enqueue(job=NewJob(task="work", key="k", after=[parent.id]))
    first = await engine(again)
    assert (first.created, first.state, first.reason) == (True, State.CANCELLED, Reason.DEPENDENCY)
    assert not (await engine(again)).created
    assert (await engine(Count())).count == 1
