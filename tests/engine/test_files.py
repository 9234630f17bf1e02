"""Files with a job, through the engine: handed to the worker with the payload, and bounded."""

import pytest
from msgspec import Raw

from tests.support.engines import enqueue, finish, register, take
from windlass.engine import Engine
from windlass.model import wire
from windlass.model.errors import Invalid, TooLarge, WindlassError
from windlass.model.job import NewJob
from windlass.model.operations import Count, Show
from windlass.model.wire import MOST_PAYLOAD
from windlass.server import bodies


async def test_a_worker_gets_the_files_and_nobody_else_sees_them(engine: Engine) -> None:
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
