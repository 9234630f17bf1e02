"""Each management operation leaves a line in the audit log: who, what, which jobs, how many."""

import logging
from collections.abc import Sequence
from typing import Any

import pytest

from tests.support.engines import enqueue, register, take
from tests.support.stores import SeededChance, VirtualClock
from windlass.engine import Engine
from windlass.engine.audit import ACTIONS, AUDITED
from windlass.model.audit import MOST_DETAILS, AuditEntry, Caller, caller
from windlass.model.errors import Invalid, Missing, Unavailable
from windlass.model.handler import NewHandler
from windlass.model.limit import NewLimit, Pause, Which
from windlass.model.match import Match
from windlass.model.names import EVERY_TENANT
from windlass.model.operations import (
    AddToken,
    Audit,
    Cancel,
    ChangeQueue,
    Delete,
    Edit,
    List,
    Operation,
    PauseLimit,
    PauseTask,
    PauseWorker,
    PutHandler,
    PutLimit,
    PutQuota,
    RemoveHandler,
    RemoveLimit,
    RemoveToken,
    Rerun,
    Send,
    Show,
    StopWorker,
)
from windlass.model.queue import QueueChange
from windlass.model.quota import Quota
from windlass.store.optional import AuditRows
from windlass.store.protocol import Store


async def lines(engine: Engine, tenant: str = "default") -> list[AuditEntry]:
    """Oldest first."""
    return (await engine(Audit(tenant=tenant))).entries[::-1]


def told(entry: AuditEntry) -> tuple[Any, ...]:
    return entry.action, entry.name or entry.ids or entry.match, entry.count


async def test_what_changes_jobs_is_noted_with_ids_match_and_number(engine: Engine) -> None:
    first, second = (await enqueue(engine, "work")).id, (await enqueue(engine, "other")).id
    await engine(Cancel(ids=[first]))
    await engine(Cancel(match=Match(task="other")))
    await engine(Rerun(ids=[first, second]))
    await engine(Delete(match=Match()))
    noted = await lines(engine)
    assert list(map(told, noted)) == [
        ("cancel", [first], 1),
        ("cancel", Match(task="other"), 1),
        ("retry", [first, second], 2),
        ("delete", Match(), 2),
    ]
    assert {entry.by for entry in noted} == {"user"}


async def test_what_changes_settings_is_noted_with_its_name_and_details(engine: Engine) -> None:
    issued = await engine(AddToken(scopes=["read"], note="for reading"))
    await register(engine)
    changes: Sequence[Operation[Any]] = [
        ChangeQueue(queue="mail", change=QueueChange(paused=True, why="moved")),
        PauseTask(task="work", pause=Pause(paused=True)),
        PutLimit(name="api", limit=NewLimit(running=3, match=Which(queue="mail"))),
        PauseLimit(name="api", pause=Pause(paused=True)),
        RemoveLimit(name="api"),
        PauseWorker(worker="w", pause=Pause(paused=True)),
        StopWorker(worker="w"),
        PutHandler(task="job", handler=NewHandler(lang="sh", body="cat # private")),
        RemoveHandler(task="job"),
        PutQuota(quota=Quota(stored_jobs=5)),
        RemoveToken(key=issued.key),
    ]
    for change in changes:
        await engine(change)
    noted = await lines(engine)
    assert [(entry.action, entry.name) for entry in noted] == [
        ("add-token", issued.key),
        ("change-queue", "mail"),
        ("pause-task", "work"),
        ("put-limit", "api"),
        ("pause-limit", "api"),
        ("remove-limit", "api"),
        ("pause-worker", "w"),
        ("stop-worker", "w"),
        ("put-handler", "job"),
        ("remove-handler", "job"),
        ("put-quota", ""),
        ("remove-token", issued.key),
    ]
    assert '"why":"moved"' in noted[1].details
    assert '"running":3' in noted[3].details
    text = repr(noted)
    assert issued.token not in text
    assert issued.token.rpartition("_")[2] not in text
    assert "private" not in text


async def test_what_changes_nothing_or_is_refused_leaves_no_line(engine: Engine) -> None:
    job = await enqueue(engine, input=True)
    worker = await register(engine)
    await take(engine, worker)
    await engine(Send(id=job.id, data=b"x"))
    await engine(Show(id=job.id))
    await engine(List())
    await engine(Cancel(match=Match(), dry_run=True))
    with pytest.raises(Missing):
        await engine(RemoveLimit(name="none"))
    assert await lines(engine) == []


async def test_a_line_names_who_asks_and_belongs_to_the_tenant(engine: Engine) -> None:
    job = await enqueue(engine, tenant="acme")
    token = caller.set(Caller("token abc", "night shift"))
    try:
        await engine(Cancel(tenant="acme", ids=[job.id]))
        await engine(Cancel(tenant=EVERY_TENANT, match=Match()))
    finally:
        caller.reset(token)
    await engine(PauseTask(tenant="shop", task="a", pause=Pause(paused=True)))
    (own,) = await lines(engine, "acme")
    assert (own.by, own.note, own.tenant) == ("token abc", "night shift", "acme")
    assert [entry.tenant for entry in await lines(engine, EVERY_TENANT)] == ["acme", EVERY_TENANT, "shop"]
    assert await lines(engine) == []


async def test_pages_follow_each_other(engine: Engine) -> None:
    for number in range(5):
        await engine(PauseTask(task=f"t{number}", pause=Pause(paused=True)))
    found, after = [], None
    while True:
        page = await engine(Audit(limit=2, after=after))
        found += [entry.name for entry in page.entries]
        if (after := page.next) is None:
            break
    assert found == ["t4", "t3", "t2", "t1", "t0"]


async def test_what_was_done_to_one_job_is_found_among_the_rest(
    engine: Engine, clock: VirtualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("windlass.engine.audit.MOST_AT_ONCE", 2)  # the lines of one reading
    await engine(PauseTask(task="before", pause=Pause(paused=True)))
    clock.advance(1)
    job, other = (await enqueue(engine)).id, (await enqueue(engine)).id
    await engine(Edit(id=job, annotations={"ticket": other}))
    for id in (other, job, other):
        await engine(Edit(id=id, annotations={"ticket": job}))
    await engine(Cancel(ids=[other, job]))
    await engine(Cancel(match=Match()))
    page = await engine(Audit(job=job))
    assert [entry.action for entry in page.entries] == ["cancel", "edit", "edit"]
    assert page.next is None
    assert len((await engine(Audit(job=job, limit=1))).entries) == 1
    assert (await engine(Audit(tenant="other", job=job))).entries == []
    assert len((await engine(Audit(tenant=EVERY_TENANT, job=job))).entries) == 3
    asked: list[str | None] = []
    kept = engine.context.store.audit
    assert kept is not None
    read = kept.list

    async def noted(tenant: str, after: str | None, limit: int) -> AuditRows:
        asked.append(after)
        return await read(tenant, after, limit)

    monkeypatch.setattr(kept, "list", noted)
    clock.advance(1)
    newest = (await enqueue(engine)).id
    assert (await engine(Audit(job=newest))).entries == []
    assert len(asked) == 1, "what is older than the job cannot name it"
    await engine(Delete(ids=[job]))
    assert [entry.action for entry in (await engine(Audit(job=job))).entries] == ["delete", "cancel", "edit", "edit"]
    with pytest.raises(Invalid, match="job"):
        await engine(Audit(job="x"))


async def test_long_requests_are_cut(engine: Engine) -> None:
    await engine(ChangeQueue(queue="mail", change=QueueChange(paused=True, why="é" * 500)))
    ids = [(await enqueue(engine)).id for _ in range(12)]
    await engine(Cancel(ids=ids))
    settings, cancelled = await lines(engine)
    assert len(settings.details) == MOST_DETAILS + 1
    assert (cancelled.ids, cancelled.count) == (ids[:10], 12)


async def test_an_operation_that_the_store_cut_short_is_noted_with_its_error(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = await enqueue(engine)

    async def away(*_: object) -> list[bool]:
        raise Unavailable("the store is away")

    monkeypatch.setattr(engine.context.writes, "apply", away)
    with pytest.raises(Unavailable):
        await engine(Cancel(ids=[job.id]))
    (entry,) = await lines(engine)
    assert (entry.count, entry.error) == (None, "the store is away")


async def test_without_its_line_an_operation_stands_and_the_line_is_logged(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    job = await enqueue(engine)

    async def away(*_: object) -> None:
        raise Unavailable("the store is away")

    assert engine.context.store.audit is not None
    monkeypatch.setattr(engine.context.store.audit, "add", away)
    with caplog.at_level(logging.WARNING, "windlass.audit"):
        assert (await engine(Cancel(ids=[job.id]))).changed == 1
    assert job.id in caplog.text
    assert "the store is away" in caplog.text


async def test_a_store_without_an_audit_log_leaves_the_lines_to_the_log_of_the_process(
    store: Store, chance: SeededChance, caplog: pytest.LogCaptureFixture
) -> None:
    engine = Engine(store, chance)
    store.audit = None
    with caplog.at_level(logging.WARNING, "windlass.audit"):
        await engine(PauseTask(task="work", pause=Pause(paused=True)))
    assert "pause-task" in caplog.text
    assert await lines(engine) == []


def test_every_operation_that_manages_is_audited() -> None:
    assert set(ACTIONS.values()) == {
        "cancel", "retry", "delete", "finish", "fail",
        "change-queue", "pause-task", "put-limit", "pause-limit", "remove-limit",
        "put-handler", "remove-handler", "add-token", "remove-token", "put-quota",
        "edit", "put-schedule", "pause-schedule", "run-schedule", "remove-schedule", "lower-timeout",
        "pause-worker", "stop-worker",
    }  # fmt: skip
    assert Send not in AUDITED
