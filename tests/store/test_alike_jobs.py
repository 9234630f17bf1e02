"""Jobs of one request that differ in nothing but their ids and payloads: worked out once, and yet each is its own."""

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from msgspec import Raw
from msgspec.structs import replace

from tests.support.engines import packed, register
from tests.support.faulty_disk import contents, draft, number_of, opened, records_in
from windlass.engine import Engine
from windlass.engine.journal.batch import LEAST_SHARED
from windlass.model.errors import WindlassError
from windlass.model.job import State
from windlass.model.names import fresh_id, key_of
from windlass.model.new_job import NOTHING, NewJob
from windlass.model.operations import Claim, Count, EnqueueMany, Show
from windlass.model.wire import MOST_PAYLOAD
from windlass.server.requests import ApiRequest
from windlass.store.data import Draft
from windlass.store.encoding import alike

LARGE = b"\xc5\x10\x00" + b"x" * 4096

OPTIONS: list[dict[str, Any]] = [
    {},
    {"priority": 5},
    {"queue": "other"},
    {"tags": ["a"], "timeout": 3.0},
    {"delay": 60.0},
    {"expires": 60.0},
    {"files": {"a.txt": b"one"}},
    {"then": NewJob(task="after", payload=packed(1))},
]


def sent() -> list[NewJob]:
    """Each kind beside each other kind, alone and in pairs; some of them large."""
    kinds = [options for one in OPTIONS for other in OPTIONS for options in (one, other, other)]
    return [
        NewJob(task="work", payload=packed(number) if number % 5 else Raw(LARGE), **options)
        for number, options in enumerate(kinds)
    ]


async def test_each_of_many_jobs_is_kept_as_it_was_sent_whatever_its_neighbours_are(engine: Engine) -> None:
    news = sent()
    answer = await engine(EnqueueMany(jobs=news))
    assert (answer.created, len(set(answer.ids))) == (len(news), len(news))
    for id, new in zip(answer.ids, news, strict=True):
        job = await engine(Show(id=id, payload=True))
        assert bytes(job.payload) == bytes(new.payload)  # type: ignore[arg-type]
        assert (job.queue, job.priority, job.tags, job.timeout) == (new.queue, new.priority, new.tags, new.timeout)
        assert job.state is (State.SCHEDULED if new.delay else State.QUEUED)
        assert job.expires == new.expires


async def test_many_jobs_are_handed_out_in_the_order_they_were_sent_with_what_they_brought(engine: Engine) -> None:
    news = sent()
    ids = (await engine(EnqueueMany(jobs=news))).ids
    worker = await register(engine, "default", slots=1000)
    claimed = await engine(Claim(worker=worker, slots=1000))
    queued = [(id, new) for id, new in zip(ids, news, strict=True) if new.queue == "default" and not new.delay]
    expected = sorted(queued, key=lambda pair: pair[1].priority)
    assert [one.job.id for one in claimed] == [id for id, _ in expected]
    assert [(bytes(one.payload), one.files) for one in claimed] == [
        (bytes(new.payload), new.files) for _, new in expected
    ]


FAULTS: list[tuple[NewJob, str]] = [
    (NewJob(task="work", payload=Raw(b"x" * (MOST_PAYLOAD + 1))), "jobs[7].payload"),
    (NewJob(task="work", files={"a": b"x" * MOST_PAYLOAD, "b": b"x"}), "jobs[7].files"),
    (NewJob(task="work", id="x"), "jobs[7].id"),
    (NewJob(task="work", priority=2**31), "jobs[7].priority"),
    (NewJob(task="no name"), "jobs[7].task"),
]


@pytest.mark.parametrize(("new", "at"), FAULTS, ids=[at for _, at in FAULTS])
@pytest.mark.parametrize("kind", ["sqlite"], indirect=True)
async def test_one_bad_job_among_many_that_are_alike_is_named_by_its_place(
    engine: Engine, new: NewJob, at: str
) -> None:
    good = [NewJob(task="work")] * 7
    with pytest.raises(WindlassError) as fault:
        await engine(EnqueueMany(jobs=[*good, new, *good]))
    assert fault.value.at == at
    assert (await engine(Count())).count == 0


@pytest.mark.parametrize("kind", ["sqlite"], indirect=True)
async def test_jobs_with_ids_of_their_own_keep_them_among_others(engine: Engine) -> None:
    own = fresh_id(bytes(range(16)), "default")
    news = [NewJob(task="work"), NewJob(task="work", id=own), NewJob(task="work"), NewJob(task="work", id=own)]
    answer = await engine(EnqueueMany(jobs=news))
    assert (answer.ids[1], answer.ids[3], answer.created) == (own, own, 3)


def test_neighbours_that_are_alike_are_together_and_all_are_in_order() -> None:
    drafts = [Draft("default", f"id-{number}", new) for number, new in enumerate(sent())]
    runs = list(alike(drafts))
    assert [one for run in runs for one in run] == drafts
    shared = [[replace(one.new, payload=NOTHING) for one in run] for run in runs]
    assert all(one == run[0] for run in shared for one in run)
    assert all(run[0] != other[0] for run, other in pairwise(shared))
    assert list(alike([])) == []


# In a journal


def made(number: int, **terms: Any) -> list[Draft]:
    """Jobs that are alike, with ascending ids, as a request brings them."""
    raws = (number.to_bytes(6) + bytes(10) for number in range(number))
    return [replace(draft(n, **terms), id=fresh_id(raw, "default")) for n, raw in enumerate(raws)]


async def test_many_jobs_that_are_alike_are_one_record_and_each_is_found_and_read_again(tmp_path: Path) -> None:
    drafts = made(500, priority=3)
    journal = opened(tmp_path)
    assert await journal.accept(drafts) == 500
    found = [await journal.find(key_of(one)) for one in drafts]
    assert [number_of(one.draft) for one in found if one is not None] == list(range(500))
    await journal.close()
    assert records_in(tmp_path) == [500]
    again = opened(tmp_path)
    assert await contents(again) == list(range(500))
    entry = await again.find(key_of(drafts[77]))
    assert entry is not None
    assert entry.draft == drafts[77]
    await again.close()


async def test_jobs_that_differ_are_few_or_do_not_ascend_are_records_of_their_own(tmp_path: Path) -> None:
    journal = opened(tmp_path)
    few, backwards = made(LEAST_SHARED - 1), made(LEAST_SHARED)[::-1]
    different = [replace(one, new=replace(one.new, priority=place)) for place, one in enumerate(made(LEAST_SHARED))]
    for some in (few, backwards, different):
        await journal.accept(some)
    assert await contents(journal) == [number_of(one) for some in (few, backwards, different) for one in some]
    await journal.close()
    assert set(records_in(tmp_path)) == {1}


# Heads


def test_of_several_headers_of_one_name_the_first_counts() -> None:
    said = [(b"authorization", b"Bearer one"), (b"host", b"localhost"), (b"authorization", b"Bearer two")]
    headers = ApiRequest({"type": "http", "headers": said}).headers
    assert (headers["authorization"], headers.get("accept")) == ("Bearer one", None)
