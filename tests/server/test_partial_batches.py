"""Many jobs in one body, refused in the middle: all or nothing, or the answer says exactly which were accepted."""

from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.support.http_servers import Web, decoded, served, web
from tests.support.stores import VirtualClock
from windlass.engine import Engine
from windlass.engine.journal import open_journaled
from windlass.model.errors import Full, JournalFull, Unavailable, WindlassError
from windlass.model.job import JSON
from windlass.model.match import Match
from windlass.model.operations import Count, List, PutQuota
from windlass.model.quota import Quota
from windlass.server.filters import QuotaFilter
from windlass.store.data import Added, Draft
from windlass.system import SystemClock

NDJSON = "application/x-ndjson"
LINES = 3000


@pytest.fixture
async def metered(engine: Engine, clock: VirtualClock) -> AsyncIterator[Web]:
    async with served(engine, clock, service=QuotaFilter(engine, clock)) as site, web(site) as client:
        yield Web(client)


def body(number: int = LINES, queues: int = 1) -> bytes:
    """So many jobs, with an empty line before each."""
    lines = [b'\n{"task": "a", "queue": "q%d", "payload": %d}\n' % (n % queues, n) for n in range(number)]
    return b"".join(lines)


async def kept(engine: Engine) -> set[str]:
    found: set[str] = set()
    after: str | None = None
    while True:
        page = await engine(List(limit=1000, after=after, match=Match()))
        found |= {job.id for job in page.jobs}
        if (after := page.next) is None:
            return found


def failing(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, fault: Callable[[], WindlassError], *, at: int, after: bool = False
) -> None:
    """Let the store refuse the batch with this number (from 1), before or after it has kept it."""
    store, calls = engine.context.store, 0
    add = store.jobs.add

    async def refusing(drafts: Sequence[Draft], **options: Any) -> list[Added]:
        nonlocal calls
        calls += 1
        if calls != at:
            return await add(drafts, **options)
        if after:
            await add(drafts)
        raise fault()

    monkeypatch.setattr(store.jobs, "add", refusing)


QUOTAS = [Quota(stored_jobs=1500), Quota(stored_jobs=LINES - 1), Quota(jobs_per_second=1500)]


@pytest.mark.parametrize("quota", QUOTAS)
async def test_more_lines_than_the_quota_has_room_for_keep_none(quota: Quota, engine: Engine, metered: Web) -> None:
    await engine(PutQuota(quota=quota))
    refused = await metered.send("POST", "/jobs/batch", body(), form=NDJSON)
    assert refused.status_code == 429
    assert "accepted" not in decoded(refused)
    assert (await engine(Count())).count == 0
    taken = await metered.send("POST", "/jobs/batch", body(1500), form=NDJSON)
    assert (taken.status_code, decoded(taken)["created"]) == (201, 1500)


@pytest.mark.parametrize(("fault", "status"), [(Unavailable, 503), (Full, 507)])
async def test_a_refusal_in_the_middle_lists_the_accepted_jobs(
    fault: type[WindlassError], status: int, engine: Engine, metered: Web, monkeypatch: pytest.MonkeyPatch
) -> None:
    failing(engine, monkeypatch, lambda: fault("not now"), at=3)
    refused = await metered.send("POST", "/jobs/batch", body(), form=NDJSON)
    assert refused.status_code == status
    answer = decoded(refused)
    assert len(answer["accepted"]) == 2000
    assert set(answer["accepted"]) == await kept(engine)
    assert answer["line"] == 4002, "each job has an empty line before it"
    assert len(answer.get("unsure", [])) == (1000 if status == 503 else 0)


async def test_what_may_have_been_accepted_is_queued_once_when_it_is_sent_again(
    engine: Engine, metered: Web, monkeypatch: pytest.MonkeyPatch
) -> None:
    failing(engine, monkeypatch, lambda: Unavailable("the answer was lost"), at=2, after=True)
    found = decoded(await metered.send("POST", "/jobs/batch", body(2000), form=NDJSON))
    assert (len(found["accepted"]), len(found["unsure"]), found["line"]) == (1000, 1000, 2002)
    again = b"".join(b'{"task": "a", "queue": "q0", "id": "%s"}\n' % id.encode() for id in found["unsure"])
    answer = decoded(await metered.send("POST", "/jobs/batch", again, form=NDJSON))
    assert (answer["ids"], answer["created"]) == (found["unsure"], 0)
    assert (await engine(Count())).count == 2000


@pytest.mark.parametrize("kind", ["cluster"], indirect=True)
async def test_a_store_that_is_full_in_part_is_reported(
    engine: Engine, metered: Web, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a batch has in another part of the store may be there."""
    partitions, calls = engine.context.store.partitions, 0  # type: ignore[attr-defined]
    call = partitions.call

    async def refusing(script: str, *about: object) -> object:
        nonlocal calls
        calls += script == "add"
        if script == "add" and calls == 2:
            raise Full("no room")
        return await call(script, *about)

    monkeypatch.setattr(partitions, "call", refusing)
    answer = decoded(await metered.send("POST", "/jobs/batch", body(100, queues=5), form=NDJSON))
    there = await kept(engine)
    assert 0 < len(there) < 100
    assert "accepted" not in answer
    assert there < set(answer["unsure"])
    assert len(answer["unsure"]) == 100


@pytest.mark.parametrize("kind", ["sqlite", "redis"], indirect=True)
@pytest.mark.parametrize("form", [JSON, "text/plain"])
async def test_so_do_other_bodies_of_many_jobs(
    form: str, engine: Engine, metered: Web, monkeypatch: pytest.MonkeyPatch
) -> None:
    failing(engine, monkeypatch, lambda: Unavailable("not now"), at=1 if form == JSON else 2)
    if form == JSON:
        refused = await metered.send("POST", "/jobs/batch", [{"task": "a"}] * 10)
    else:
        refused = await metered.send("POST", "/tasks/a/jobs", b"x\n" * 1010, form=form)
    answer = decoded(refused)
    assert (refused.status_code, len(answer["unsure"])) == (503, 10)
    assert set(answer.get("accepted", [])) == await kept(engine)
    assert len(answer.get("accepted", [])) == (0 if form == JSON else 1000)


@pytest.mark.parametrize("kind", ["sqlite"], indirect=True)
async def test_a_line_with_an_unknown_tier_is_refused_before_any_is_stored(engine: Engine, metered: Web) -> None:
    lines = body(1500) + b'{"task": "a", "tier": "high"}\n'
    refused = await metered.send("POST", "/jobs/batch", lines, form=NDJSON)
    assert (refused.status_code, decoded(refused)["at"]) == (400, "line 3001.tier")
    assert (await engine(Count())).count == 0


@pytest.mark.parametrize("kind", ["redis"], indirect=True)
async def test_so_does_a_journal_that_has_no_more_room(
    engine: Engine, clock: VirtualClock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with (
        open_journaled(engine, tmp_path, SystemClock()) as service,
        served(engine, clock, service=service) as site,
        web(site) as client,
    ):
        journal, calls = service._journal, 0
        accept = journal.accept

        async def refusing(drafts: Sequence[Draft]) -> int:
            nonlocal calls
            calls += 1
            if calls == 3:
                raise JournalFull("no room")
            return await accept(drafts)

        monkeypatch.setattr(journal, "accept", refusing)
        refused = await Web(client).send("POST", "/jobs/batch", body(), form=NDJSON)
        told = decoded(refused)
        assert (refused.status_code, told["code"], told["line"]) == (507, "journal_full", 4002)
        assert (len(told["accepted"]), "unsure" in told) == (2000, False)
        count = await service(Count())
        assert count.count == 2000
        assert set(told["accepted"]) == await kept(engine)
