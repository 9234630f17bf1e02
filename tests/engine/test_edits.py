"""Edits of jobs that wait, through the engine: checked as a new job is, and noted without the payload."""

from datetime import timedelta

import pytest
from msgspec import Raw

from tests.support.engines import enqueue, register, take
from tests.support.stores import StoreKind
from windlass.engine import Engine
from windlass.model import wire
from windlass.model.errors import Conflict, Invalid, TooLarge
from windlass.model.job import State
from windlass.model.limit import NewLimit
from windlass.model.operations import Audit, Cancel, Edit, PutLimit, Show


async def test_all_fields_at_once(engine: Engine) -> None:
    job = await enqueue(engine, payload=Raw(b"\x01"), tags=["a"])
    edited = await engine(
        Edit(
            id=job.id,
            payload=Raw(wire.encode("secret")),
            priority=-1,
            tags=["b"],
            delay=60.0,
            annotations={"why": "asked"},
        )
    )
    assert (edited.priority, edited.tags, edited.state) == (-1, ["b"], State.SCHEDULED)
    assert (edited.annotations, edited.created_at) == ({"why": "asked"}, job.created_at)
    assert edited.run_at is not None
    shown = await engine(Show(id=job.id, payload=True))
    assert isinstance(shown.payload, Raw)
    assert bytes(shown.payload) == wire.encode("secret")
    now = await engine(Edit(id=job.id, delay=0.0))
    assert now.state is State.QUEUED
    taken = await take(engine, await register(engine))
    assert (taken.job.id, bytes(taken.payload)) == (job.id, wire.encode("secret"))
    lines = (await engine(Audit())).entries
    assert [line.action for line in lines] == ["edit", "edit"]
    said = sorted(line.details for line in lines)
    assert said == sorted(
        [
            '{"annotations":{"why":"asked"},"changed":["priority","tags","delay","payload"]}',
            '{"changed":["delay"]}',
        ]
    )


async def test_what_has_started_is_refused_with_what_to_do(engine: Engine) -> None:
    job = await enqueue(engine)
    await take(engine, await register(engine))
    with pytest.raises(Conflict, match="is running: only a job that waits can be edited; cancel it, and run a copy"):
        await engine(Edit(id=job.id, priority=1))
    other = await enqueue(engine)
    await engine(Cancel(ids=[other.id]))
    with pytest.raises(Conflict, match="is cancelled: only a job that waits can be edited; run a copy"):
        await engine(Edit(id=other.id, tags=[]))
    assert (await engine(Edit(id=job.id, annotations={"a": "b"}))).annotations == {"a": "b"}


async def test_it_is_bounded_as_a_new_job_is(engine: Engine) -> None:
    job = await enqueue(engine)
    with pytest.raises(TooLarge) as large:
        await engine(Edit(id=job.id, payload=Raw(wire.encode(b"x" * (engine.context.settings.most_payload + 1)))))
    assert large.value.at == "payload"
    with pytest.raises(Invalid, match="not both"):
        await engine(Edit(id=job.id, delay=1.0, run_at=job.created_at))
    with pytest.raises(Invalid) as many:
        await engine(Edit(id=job.id, tags=[""]))
    assert many.value.at == "tags[0]"
    child = await enqueue(engine, after=[job.id])
    with pytest.raises(Invalid, match="it waits for other jobs"):
        await engine(Edit(id=child.id, run_at=job.created_at + timedelta(days=1)))
    assert (await engine(Edit(id=child.id, priority=3))).priority == 3


async def test_its_limit_key_follows_the_payload(engine: Engine) -> None:
    await engine(PutLimit(name="one", limit=NewLimit(running=1, key="payload.customer")))
    first = await enqueue(engine, payload=Raw(wire.encode({"customer": "a"})))
    second = await enqueue(engine, payload=Raw(wire.encode({"customer": "a"})))
    worker = await register(engine, slots=5)
    taken = await take(engine, worker)
    assert taken.job.id == first.id
    await engine(Edit(id=second.id, payload=Raw(wire.encode({"customer": "b"}))))
    assert (await take(engine, worker)).job.id == second.id


async def test_in_another_queue_that_queues_workers_take_it(engine: Engine, kind: StoreKind) -> None:
    job = await enqueue(engine, unique="pending")
    if kind == "cluster":
        with pytest.raises(Invalid, match="another partition"):
            await engine(Edit(id=job.id, queue="mail"))
        return
    assert (await engine(Edit(id=job.id, queue="mail"))).queue == "mail"
    assert (await enqueue(engine, unique="pending", queue="mail")).id == job.id
    assert (await enqueue(engine, unique="pending")).id != job.id
    assert (await take(engine, await register(engine, "mail"))).job.id == job.id
    with pytest.raises(Invalid):
        await engine(Edit(id=job.id, queue="a b"))
