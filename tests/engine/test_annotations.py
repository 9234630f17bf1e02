"""Annotations of a job, through the engine: merged, bounded, noted in the audit log."""

import asyncio

import pytest

from tests.support.engines import enqueue, register, take
from windlass.engine import Engine
from windlass.model.errors import Invalid, Missing, TooLarge
from windlass.model.operations import MOST_ANNOTATED, MOST_ANNOTATIONS, Audit, Cancel, Delete, Edit, Rerun, Show


async def annotate(engine: Engine, id: str, **annotations: str | None) -> dict[str, str]:
    return (await engine(Edit(id=id, annotations=annotations))).annotations


async def test_a_subsystem_adds_fields_to_a_job_at_any_time_and_they_are_kept(engine: Engine) -> None:
    """S1 35: on the native interface, where the fields are annotations."""
    job = await enqueue(engine)
    assert await annotate(engine, job.id, ticket="OPS-7", owner="ann") == {"ticket": "OPS-7", "owner": "ann"}
    await take(engine, await register(engine))
    assert await annotate(engine, job.id, owner="bob", place="north ☃") == {
        "ticket": "OPS-7",
        "owner": "bob",
        "place": "north ☃",
    }
    assert await annotate(engine, job.id, owner=None, none=None) == {"ticket": "OPS-7", "place": "north ☃"}
    assert (await engine(Show(id=job.id))).annotations == {"ticket": "OPS-7", "place": "north ☃"}
    actions = [(line.action, line.ids) for line in (await engine(Audit())).entries]
    assert actions == [("edit", [job.id])] * 3


async def test_a_finished_job_keeps_them_and_they_are_gone_with_it(engine: Engine) -> None:
    job = await enqueue(engine)
    await annotate(engine, job.id, before="1")
    await engine(Cancel(ids=[job.id]))
    assert await annotate(engine, job.id, after="2") == {"before": "1", "after": "2"}
    await engine(Rerun(ids=[job.id]))
    assert (await engine(Show(id=job.id))).annotations == {"before": "1", "after": "2"}
    await engine(Delete(ids=[job.id]))
    with pytest.raises(Missing):
        await annotate(engine, job.id, late="3")


async def test_there_are_only_so_many_of_so_many_bytes(engine: Engine) -> None:
    job = await enqueue(engine)
    many: dict[str, str | None] = {f"n{number}": "" for number in range(MOST_ANNOTATIONS)}
    assert await annotate(engine, job.id, **many) == many
    with pytest.raises(TooLarge, match="65 annotations, at most 64 are kept"):
        await annotate(engine, job.id, more="x")
    assert "more" in await annotate(engine, job.id, n0=None, more="x")
    large = await enqueue(engine)
    await annotate(engine, large.id, a="x" * (MOST_ANNOTATED - 3))
    with pytest.raises(TooLarge, match="16386 bytes of annotations, at most 16384 are kept"):
        await annotate(engine, large.id, b="☃")
    await annotate(engine, large.id, b="x")


@pytest.mark.parametrize("name", ["", "a=b", "a\nb", "a\n", "\x7f", "x" * 129])
async def test_a_name_that_a_command_line_cannot_write_is_refused(engine: Engine, name: str) -> None:
    job = await enqueue(engine)
    with pytest.raises(Invalid):
        await annotate(engine, job.id, **{name: "x"})
    assert (await engine(Show(id=job.id))).annotations == {}


async def test_callers_that_annotate_at_once_lose_nothing(engine: Engine) -> None:
    job = await enqueue(engine)
    await asyncio.gather(*(annotate(engine, job.id, **{name: name}) for name in "abcdef"))
    assert (await engine(Show(id=job.id))).annotations == dict(zip("abcdef", "abcdef", strict=True))
