"""Results of up to 16 MiB are kept and handed out, whichever way they come; larger ones are refused with their size."""

from typing import Any

import pytest
from msgspec import Raw

from tests.support.http_servers import LOCAL, served
from tests.support.stores import VirtualClock
from windlass.client import Client
from windlass.engine import Engine, Settings
from windlass.engine.upkeep import resolve_dependencies
from windlass.model import wire
from windlass.model.errors import TooLarge
from windlass.model.job import MSGPACK, TEXT
from windlass.model.new_job import NewJob
from windlass.model.operations import Claim, Enqueue, Finish, Finished, GetResult, Register, Service, Show
from windlass.model.outcome import Verdict
from windlass.model.wire import MOST_RESULT
from windlass.model.worker import NewWorker
from windlass.store.protocol import Store
from windlass.system import SystemRandomness

pytestmark = pytest.mark.parametrize("kind", ["sqlite", "redis"], indirect=True)

SIXTEEN = 16 << 20


async def finish(service: Service, result: bytes, content_type: str = TEXT, then: NewJob | None = None) -> str:
    """The id of a job that ended with this."""
    job = await service(Enqueue(job=NewJob(task="big", then=then)))
    worker = (await service(Register(worker=NewWorker(name="w")))).worker
    (claimed,) = await service(Claim(worker=worker))
    report: dict[str, Any] = {"outcome": Verdict.OK, "result": Raw(result), "content_type": content_type}
    finished = Finished(id=job.id, token=claimed.token, **report)
    assert (await service(Finish(worker=worker, jobs=[finished]))).applied == [job.id]
    return job.id


@pytest.mark.parametrize("way", ["in process", "http"])
async def test_a_result_of_16_mib_is_kept_and_one_byte_more_is_refused(
    engine: Engine, clock: VirtualClock, way: str
) -> None:
    assert MOST_RESULT == SIXTEEN
    async with served(engine, clock) as address, Client(address, LOCAL) as client:
        service: Service = engine if way == "in process" else client
        largest = wire.encode("x" * (SIXTEEN - 5))
        id = await finish(service, largest, MSGPACK)
        found = await service(GetResult(id=id))
        assert (len(largest), bytes(found.result or b"")) == (SIXTEEN, largest)
        with pytest.raises(TooLarge, match=f"{SIXTEEN + 1} bytes, at most {SIXTEEN}"):
            await finish(service, wire.encode("x" * (SIXTEEN - 4)), MSGPACK)


async def test_how_large_a_result_may_be_can_be_chosen_apart_from_payloads(store: Store) -> None:
    engine = Engine(store, SystemRandomness(), Settings(most_payload=10, most_result=20))
    await finish(engine, b"x" * 20)
    with pytest.raises(TooLarge):
        await finish(engine, b"x" * 21)


async def test_a_job_that_follows_gets_a_large_result_as_its_payload(engine: Engine) -> None:
    id = await finish(engine, b"x" * (2 << 20), then=NewJob(task="next"))
    worker = (await engine(Register(worker=NewWorker(name="w")))).worker
    await resolve_dependencies(engine)
    (claimed,) = await engine(Claim(worker=worker))
    assert (claimed.job.task, len(bytes(claimed.payload))) == ("next", 2 << 20)
    assert (await engine(Show(id=id))).state == "succeeded"
