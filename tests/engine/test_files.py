"""Files with a job, through the engine: handed to the worker with the payload, and bounded."""

import hashlib

import pytest
from msgspec import Raw

from tests.support.engines import enqueue, finish, packed, register, take
from tests.support.stores import VirtualClock
from windlass.engine import Engine
from windlass.engine.files import KEPT_FOR
from windlass.model import wire
from windlass.model.errors import FilesMissing, Invalid, Missing, TooLarge, WindlassError
from windlass.model.new_job import JobOptions, NewJob
from windlass.model.operations import (
    Began,
    Begin,
    ChangeQueue,
    Count,
    Delete,
    EnqueueLines,
    EnqueueMany,
    GetFile,
    GetFiles,
    PutFile,
    Rerun,
    Show,
)
from windlass.model.outcome import Verdict
from windlass.model.queue import QueueChange
from windlass.model.wire import MOST_PAYLOAD
from windlass.server import bodies


async def test_a_worker_gets_the_files_and_no_other_caller_does(engine: Engine) -> None:
    job = await enqueue(engine, files={"scene.txt": b"cube"})
    await enqueue(engine)
    assert not hasattr(await engine(Show(id=job.id, payload=True)), "files")
    worker = await register(engine)
    assert (await take(engine, worker)).files == {"scene.txt": b"cube"}
    assert (await take(engine, worker)).files == {}


async def test_a_made_job_may_have_files(engine: Engine) -> None:
    await enqueue(engine)
    worker = await register(engine)
    await finish(engine, worker, await take(engine, worker), jobs=[NewJob(task="child", files={"f": b"1"})])
    assert (await take(engine, worker)).files == {"f": b"1"}


async def test_files_may_be_as_large_as_a_payload(engine: Engine) -> None:
    files = {"a": b"x" * (MOST_PAYLOAD - 11), "b": b"y" * 10}
    await enqueue(engine, files=files)
    assert (await take(engine, await register(engine))).files == files


FAULTS: list[tuple[dict[str, bytes], type[WindlassError]]] = [
    ({"a/b": b""}, Invalid),
    ({"a\0": b""}, Invalid),
    ({"a\nb": b""}, Invalid),
    ({"\u00fc" * 128: b""}, Invalid),
    ({".": b""}, Invalid),
    ({"..": b""}, Invalid),
    ({"": b""}, Invalid),
    ({"x" * 256: b""}, Invalid),
    ({str(n): b"" for n in range(33)}, Invalid),
    ({"a": "text"}, Invalid),  # type: ignore[dict-item]
    ({"a": b"x" * (MOST_PAYLOAD - 10), "b": b"y" * 10}, TooLarge),
]


@pytest.mark.parametrize("kind", ["sqlite"], indirect=True)
@pytest.mark.parametrize(("files", "fault"), FAULTS, ids=range(len(FAULTS)))
async def test_bad_files_are_refused_by_name(
    engine: Engine, files: dict[str, bytes], fault: type[WindlassError]
) -> None:
    with pytest.raises(fault) as refused:
        await enqueue(engine, files=files)
    assert refused.value.at.startswith("job.files")
    assert (await engine(Count())).count == 0


@pytest.mark.parametrize("form", ["json", "msgpack"])
def test_files_are_sent_in_either_format(form: wire.Format) -> None:
    new = NewJob(task="a", payload=Raw(wire.encode(None, form)), files={"f": b"\x00\xff"})
    assert bodies.decode(wire.encode(new, form), NewJob, form).files == new.files


# Bounds of queues


async def test_a_payload_of_a_mebibyte_passes_and_one_byte_more_is_refused_with_the_bound(engine: Engine) -> None:
    """S1 11."""
    await enqueue(engine, payload=packed(b"x" * (MOST_PAYLOAD - 5)))
    assert len(bytes((await take(engine, await register(engine))).payload)) == MOST_PAYLOAD
    with pytest.raises(TooLarge, match="1048576"):
        await enqueue(engine, payload=packed(b"x" * (MOST_PAYLOAD - 4)))


async def test_a_queue_bounds_payloads_and_files_of_its_own(engine: Engine) -> None:
    await engine(ChangeQueue(queue="small", change=QueueChange(most_payload=100, most_files=10)))
    await enqueue(engine, queue="small", payload=packed(b"x" * 98), files={"a": b"x" * 5, "b": b"y" * 5})
    with pytest.raises(TooLarge, match="101 bytes, at most 100 are allowed in queue small") as refused:
        await enqueue(engine, queue="small", payload=packed(b"x" * 99))
    assert refused.value.at == "job.payload"
    with pytest.raises(TooLarge, match="11 bytes of files, at most 10 are allowed in queue small") as refused:
        await enqueue(engine, queue="small", files={"a": b"x" * 11})
    assert refused.value.at == "job.files"
    with pytest.raises(TooLarge, match=r"jobs\[1\].payload"):
        await engine(EnqueueMany(jobs=[NewJob(task="a"), NewJob(task="a", queue="small", payload=packed(b"x" * 99))]))
    with pytest.raises(TooLarge, match="a line of 101 bytes"):
        await engine(EnqueueLines(task="a", text="x\n" + "y" * 101, options=JobOptions(queue="small")))
    assert (await engine(Count())).count == 1
    await engine(ChangeQueue(queue="small", change=QueueChange(clear=["most_payload"], most_files=None)))
    await enqueue(engine, queue="small", payload=packed(b"x" * 99), files={"a": b"x" * 11})


# Files that runs leave


async def test_files_of_a_run_can_be_fetched_also_if_it_failed_and_a_later_run_replaces_them(engine: Engine) -> None:
    job = await enqueue(engine, max_retry=0)
    worker = await register(engine)
    await finish(engine, worker, await take(engine, worker), Verdict.ERROR, files={"log": b"1", "b": b""})
    assert {one.name: one.size for one in await engine(GetFiles(id=job.id))} == {"b": 0, "log": 1}
    await engine(Rerun(ids=[job.id]))
    claimed = await take(engine, worker)
    await finish(engine, worker, claimed, files={"log": b"two"})
    assert await engine(GetFile(id=job.id, name="log")) == b"two"
    assert not (await finish(engine, worker, claimed, files={"log": b"late"})).applied
    assert await engine(GetFile(id=job.id, name="log")) == b"two"


async def test_what_a_run_leaves_is_bounded_and_safely_named(engine: Engine) -> None:
    await engine(ChangeQueue(queue="small", change=QueueChange(most_files=10)))
    await enqueue(engine, queue="small")
    worker = await register(engine, "small")
    claimed = await take(engine, worker)
    with pytest.raises(TooLarge, match="11 bytes of files, at most 10"):
        await finish(engine, worker, claimed, files={"a": b"x" * 11})
    with pytest.raises(Invalid):
        await finish(engine, worker, claimed, files={"../a": b"x"})
    assert (await finish(engine, worker, claimed, files={"a": b"x" * 10})).applied


async def test_files_of_a_run_go_with_its_record(engine: Engine) -> None:
    job = await enqueue(engine)
    worker = await register(engine)
    await finish(engine, worker, await take(engine, worker), files={"a": b"x"})
    await engine(Delete(ids=[job.id]))
    with pytest.raises(Missing):
        await engine(GetFiles(id=job.id))


# Files that were sent before


async def test_one_tenant_cannot_find_out_whether_another_has_sent_a_file(engine: Engine) -> None:
    sent = hashlib.sha256(b"secret").hexdigest()
    await engine(PutFile(tenant="a", hash=sent, data=b"secret"))
    await enqueue(engine, tenant="a", hashes={"f": sent})
    with pytest.raises(FilesMissing) as refused:
        await enqueue(engine, tenant="b", hashes={"f": sent})
    assert refused.value.missing == [sent]


async def test_a_file_that_is_used_stays_and_one_that_is_not_expires(engine: Engine, clock: VirtualClock) -> None:
    used, unused = hashlib.sha256(b"used").hexdigest(), hashlib.sha256(b"unused").hexdigest()
    await engine(PutFile(hash=used, data=b"used"))
    await engine(PutFile(hash=unused, data=b"unused"))
    clock.advance(KEPT_FOR - 1)
    await enqueue(engine, hashes={"f": used})
    clock.advance(2)
    with pytest.raises(FilesMissing) as refused:
        await enqueue(engine, hashes={"f": used, "g": unused})
    assert refused.value.missing == [unused]


async def test_jobs_that_others_bring_about_cannot_name_files_by_hash(engine: Engine) -> None:
    sent = hashlib.sha256(b"x").hexdigest()
    with pytest.raises(Invalid, match="hashes"):
        await enqueue(engine, then=NewJob(task="b", hashes={"f": sent}))
    with pytest.raises(Invalid, match="64 hexadecimal digits"):
        await enqueue(engine, hashes={"f": "x"})
    with pytest.raises(FilesMissing):
        await engine(EnqueueMany(jobs=[NewJob(task="a"), NewJob(task="a", hashes={"f": sent})]))
    assert (await engine(Count())).count == 0


async def test_files_are_gone_from_the_store_once_their_only_run_has_loaded_them(engine: Engine) -> None:
    """S0 30."""
    job = await enqueue(engine, files={"f": b"1"}, on_lost="fail")
    other = await enqueue(engine, files={"f": b"1"})
    worker = await register(engine)
    one, two = await take(engine, worker), await take(engine, worker)
    assert one.files == two.files == {"f": b"1"}
    begun = [Began(id=job.id, token=one.token, pid=7, files_loaded=True), Began(id=other.id, token=two.token, pid=7)]
    await engine(Begin(worker=worker, jobs=begun))
    for claimed in (one, two):
        await finish(engine, worker, claimed, Verdict.ERROR)
    await engine(Rerun(ids=[job.id, other.id]))
    again = {claimed.job.id: claimed.files for claimed in (await take(engine, worker), await take(engine, worker))}
    assert again == {job.id: {}, other.id: {"f": b"1"}}
