"""Output of jobs, through the engine: sent by the worker that holds the job, read in pages."""

import pytest

from tests.support.engines import enqueue, finish, register, take
from tests.support.stores import VirtualClock
from windlass.engine import Engine, upkeep
from windlass.model.errors import Conflict, Invalid, Missing, TooLarge
from windlass.model.operations import Alive, Claimed, GetOutput, Output, OutputPage, Renew, Renewed
from windlass.model.output import MOST_CHUNK, MOST_OUTPUT, NewChunk

NO_SUCH_ID = "00000000-0000-7000-8000-0000000000df"
TOKEN = "0123456789abcdef"  # noqa: S105 - of no job


def printed(claimed: Claimed, data: bytes, *, tenant: str = "default", token: str | None = None) -> Output:
    given = claimed.token if token is None else token
    return Output(tenant=tenant, id=claimed.job.id, token=given, stream="stdout", data=data)


async def text(engine: Engine, id: str) -> bytes:
    return b"".join(chunk.data for chunk in (await engine(GetOutput(id=id))).chunks)


async def test_output_is_sent_alone_or_with_a_renewal(engine: Engine, clock: VirtualClock) -> None:
    job = await enqueue(engine)
    worker = await register(engine)
    claimed = await take(engine, worker)
    assert await engine(GetOutput(id=job.id)) == OutputPage(chunks=[], next=0, ended=False)
    await engine(printed(claimed, b"one "))
    chunks = [NewChunk(stream="log", data=b"two "), NewChunk(stream="stderr", data=b"three")]
    alive = Alive(id=job.id, token=claimed.token, output=chunks)
    assert await engine(Renew(worker=worker, jobs=[alive])) == Renewed()
    page = await engine(GetOutput(id=job.id, limit=2))
    assert [(chunk.n, chunk.stream, chunk.data) for chunk in page.chunks] == [
        (1, "stdout", b"one "),
        (2, "log", b"two "),
    ]
    assert (page.next, page.ended) == (2, False)
    page = await engine(GetOutput(id=job.id, after=page.next))
    assert [(chunk.n, chunk.attempt, chunk.at) for chunk in page.chunks] == [(3, 1, clock.now())]
    assert (page.next, page.ended) == (3, False)
    await finish(engine, worker, claimed)
    assert await engine(GetOutput(id=job.id, after=3)) == OutputPage(chunks=[], next=3, ended=True)


async def test_output_is_a_sign_of_life(engine: Engine, clock: VirtualClock) -> None:
    await enqueue(engine)
    claimed = await take(engine, await register(engine))
    clock.advance(10)
    await engine(printed(claimed, b"alive"))
    clock.advance(10)
    assert await upkeep.reclaim(engine) == 0
    clock.advance(5)
    assert await upkeep.reclaim(engine) == 1


@pytest.mark.parametrize("lie", [TOKEN, "", "no token", "00"])
async def test_output_without_the_token_is_refused(engine: Engine, lie: str) -> None:
    job = await enqueue(engine)
    claimed = await take(engine, await register(engine))
    with pytest.raises(Conflict) as fault:
        await engine(printed(claimed, b"lie", token=lie))
    assert fault.value.at == "token"
    assert await text(engine, job.id) == b""


async def test_output_after_the_lease_was_lost_is_refused(engine: Engine, clock: VirtualClock) -> None:
    job = await enqueue(engine, max_retry=3)
    worker = await register(engine)
    late = await take(engine, worker)
    clock.advance(15)
    assert await upkeep.reclaim(engine) == 1
    with pytest.raises(Conflict):
        await engine(printed(late, b"late"))
    worker = await register(engine)
    claimed = await take(engine, worker)
    with pytest.raises(Conflict):
        await engine(printed(late, b"late"))
    alive = Alive(id=job.id, token=late.token, output=[NewChunk(stream="log", data=b"late")])
    assert await engine(Renew(worker=worker, jobs=[alive])) == Renewed(lost=[job.id])
    await engine(printed(claimed, b"good"))
    assert await text(engine, job.id) == b"good"


async def test_the_output_of_another_tenants_job_is_not_there(engine: Engine) -> None:
    job = await enqueue(engine)
    claimed = await take(engine, await register(engine))
    await engine(printed(claimed, b"mine"))
    for operation in (
        GetOutput(tenant="acme", id=job.id),
        printed(claimed, b"x", tenant="acme"),
        GetOutput(id=NO_SUCH_ID),
    ):
        with pytest.raises(Missing):
            await engine(operation)
    assert [chunk.data for chunk in (await engine(GetOutput(tenant="-", id=job.id))).chunks] == [b"mine"]


@pytest.mark.parametrize("kind", ["sqlite"], indirect=True)
async def test_output_that_is_too_large_is_refused_by_name(engine: Engine) -> None:
    job = await enqueue(engine)
    worker = await register(engine)
    claimed = await take(engine, worker)
    with pytest.raises(Invalid) as fault:
        await engine(printed(claimed, b"x" * (MOST_CHUNK + 1)))
    assert fault.value.at == "data"
    large = NewChunk(stream="log", data=b"x" * MOST_CHUNK)
    most = MOST_OUTPUT // MOST_CHUNK
    much = Alive(id=job.id, token=claimed.token, output=[large] * most)
    await engine(Renew(worker=worker, jobs=[much]))
    with pytest.raises(TooLarge) as crowded:
        await engine(Renew(worker=worker, jobs=[much] * 3))
    assert crowded.value.at == "jobs"
    more = Alive(id=job.id, token=claimed.token, output=[large] * (most + 1))
    with pytest.raises(TooLarge) as fault_of_one:
        await engine(Renew(worker=worker, jobs=[much, more]))
    assert fault_of_one.value.at == "jobs[1].output"
    assert len(await text(engine, job.id)) == MOST_OUTPUT


@pytest.mark.parametrize("kind", ["sqlite"], indirect=True)
async def test_a_stream_that_there_is_not_is_refused(engine: Engine) -> None:
    with pytest.raises(Invalid) as fault:
        await engine(Output(id=NO_SUCH_ID, token=TOKEN, stream="stdin", data=b""))  # type: ignore[arg-type]
    assert fault.value.at == "stream"
    for operation, at in ((GetOutput(id=NO_SUCH_ID, limit=0), "limit"), (GetOutput(id=NO_SUCH_ID, after=-1), "after")):
        with pytest.raises(Invalid) as fault:
            await engine(operation)
        assert fault.value.at == at
