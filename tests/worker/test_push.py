"""Workers that have jobs sent to them."""

import asyncio
from typing import Any

import pytest

from tests.support.engines import packed
from tests.support.patience import PATIENCE
from tests.support.push_servers import HERE, OK, Answer, Receiver, Sent, Station, always, receiver, station, until
from windlass.engine import push_workers
from windlass.model import push, wire
from windlass.model.errors import Invalid, Unavailable
from windlass.model.job import JSON, MSGPACK, Job, Reason, State
from windlass.model.limit import NewLimit, Which
from windlass.model.match import Match
from windlass.model.operations import (
    Cancel,
    ChangeQueue,
    Finish,
    Finished,
    GetResult,
    PutLimit,
    Register,
    Registered,
    Renew,
    Unregister,
    Workers,
)
from windlass.model.outcome import Verdict
from windlass.model.push import read_url
from windlass.model.queue import QueueChange, Tier
from windlass.model.worker import NewWorker
from windlass.server.openapi import document
from windlass.store.protocol import Store
from windlass.worker import push as sending


async def finish(hub: Station, worker: Receiver, sent: Sent, outcome: Verdict = Verdict.OK, **more: Any) -> list[str]:
    assert worker.registered is not None
    report = Finished(id=sent.claimed.job.id, token=sent.claimed.token, outcome=outcome, **more)
    return (await hub.client(Finish(worker=worker.registered.worker, jobs=[report]))).applied


async def test_a_worker_that_answers_at_once_has_done_the_job(hub: Station) -> None:
    async with receiver(OK) as worker:
        await hub.register(worker)
        job = await hub.enqueue(value={"scene": 7})
        ended = await hub.ended(job)
    (sent,) = worker.sent
    assert (ended.state, ended.attempt) == (State.SUCCEEDED, 1)
    assert worker.registered is not None
    assert ended.worker == worker.registered.worker
    assert wire.value(sent.claimed.payload, sent.claimed.job.content_type) == {"scene": 7}
    assert bytes((await hub.client(GetResult(id=job.id))).result) == wire.encode(7)  # type: ignore[arg-type]


async def test_an_outage_of_the_store_is_logged_once(
    hub: Station, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    asked = 0

    async def secrets(_: object) -> dict[str, str]:
        nonlocal asked
        asked += 1
        if asked != 10:
            raise Unavailable("the store does not answer")
        return {}

    monkeypatch.setattr(sending, "CHECK_EVERY_IF_NONE", 0.001)
    monkeypatch.setattr(push_workers.PushWorkers, "secrets", secrets)
    hub.push._changed.set()

    async def often() -> bool:
        return asked > 20

    await until(often)
    assert caplog.messages.count("cannot list workers: the store does not answer") == 2, "one for each outage"


async def test_the_events_of_a_pushed_job_are_published(hub: Station) -> None:
    async with receiver(OK) as worker, hub.engine.watching("default", Match()) as watcher:
        await hub.register(worker)
        job = await hub.enqueue()
        names: list[str] = []
        async with asyncio.timeout(PATIENCE):
            while "succeeded" not in names:
                names += [event.name for event in await watcher.take(10) if event.job and event.job.id == job.id]
    assert names == ["queued", "started", "succeeded"]


async def test_what_is_sent_is_signed_and_says_of_which_run_it_is(hub: Station) -> None:
    async with receiver(OK) as worker:
        await hub.register(worker)
        job = await hub.enqueue()
        await hub.ended(job)
    (sent,) = worker.sent
    assert worker.is_signed(sent)
    assert (sent.headers[push.ID], sent.headers[push.ATTEMPT]) == (job.id, "1")
    assert not worker.is_signed(Sent(sent.headers, sent.body + b" ", sent.claimed))


async def test_a_worker_that_speaks_json_is_sent_json(hub: Station) -> None:
    async with receiver(always(200, {"outcome": "ok", "result": {"a": [1]}}), format="json") as worker:
        await hub.register(worker)
        job = await hub.enqueue(value={"b": 2})
        await hub.ended(job)
    assert bytes(worker.sent[0].claimed.payload) == b'{"b":2}'
    result = await hub.client(GetResult(id=job.id))
    assert wire.value(result.result, result.content_type) == {"a": [1]}  # type: ignore[arg-type]


async def test_a_worker_that_accepts_a_job_tells_of_it_later_and_only_once(hub: Station) -> None:
    """S2 25 and 26: 202, and a second report."""
    async with receiver(always(202)) as worker:
        await hub.register(worker)
        job = await hub.enqueue()
        (sent,) = await worker.has(1)
        await until(lambda: _has_begun(hub, job))
        assert await finish(hub, worker, sent, result=packed("done")) == [job.id]
        assert await finish(hub, worker, sent, Verdict.FAILED) == []
        assert (await hub.ended(job)).state is State.SUCCEEDED


async def _has_begun(hub: Station, job: Job) -> bool:
    return (await hub.shown(job)).pid is not None


async def test_a_worker_never_has_more_jobs_than_slots(hub: Station) -> None:
    """S2 24."""
    async with receiver(always(202)) as worker:
        await hub.register(worker, slots=3)
        jobs = [await hub.enqueue() for _ in range(8)]
        done = 0
        while done < len(jobs):
            sent = (await worker.has(done + 1))[done]
            assert len(worker.sent) - done <= 3
            await finish(hub, worker, sent)
            done += 1
        for job in jobs:
            assert (await hub.ended(job)).attempt == 1
        assert len(worker.sent) == len(jobs)


async def test_a_task_that_a_worker_does_not_know_goes_to_another_and_uses_no_attempt(hub: Station) -> None:
    """S2 25: 404."""

    async def only_known(sent: Sent) -> Answer:
        return (404, None) if sent.task == "strange" else (200, {"outcome": "ok"})

    async with receiver(only_known) as first:
        await hub.register(first, slots=4)
        strange = [await hub.enqueue("strange") for _ in range(3)]
        known = await hub.enqueue("known")
        assert (await hub.ended(known)).state is State.SUCCEEDED
        await until(lambda: _all_queued(hub, strange))
        offered = len(first.sent)
        assert offered <= len(strange) + 1
        async with receiver(OK) as second:
            await hub.register(second)
            for job in strange:
                ended = await hub.ended(job)
                assert (ended.state, ended.attempt, ended.errors) == (State.SUCCEEDED, 1, [])
        assert len(first.sent) == offered


async def _all_queued(hub: Station, jobs: list[Job]) -> bool:
    return all([(await hub.shown(job)).state is State.QUEUED for job in jobs])


@pytest.mark.parametrize(
    "answer",
    [
        pytest.param(always(500), id="an error"),
        pytest.param(always(400), id="a refusal"),
        pytest.param(always(302, {"location": "http://127.0.0.1:9/"}), id="a redirect"),
        pytest.param(always(200, b"\xc1"), id="no outcome"),
        pytest.param(always(200, {"outcome": "splendid"}), id="an unknown outcome"),
        pytest.param(always(200, {"outcome": "ok", "code": 500}), id="a contradiction"),
        pytest.param(always(200, b"\xc4" + b"x" * (2 << 20)), id="too much"),
    ],
)
async def test_a_failed_delivery_uses_no_attempt_and_is_tried_again_after_growing_pauses(
    real_store: Store, answer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S2 25: 400 and 5xx."""
    monkeypatch.setattr(sending, "PAUSES", (0.1, 0.2, 0.4))
    async with station(real_store) as hub, receiver(answer) as worker:
        await hub.register(worker, slots=2)
        job = await hub.enqueue()
        await worker.has(3)
        worker.answer = OK
        ended = await hub.ended(job)
    assert (ended.state, ended.attempt, ended.errors) == (State.SUCCEEDED, 1, [])
    first, second, third, fourth = worker.times[:4]
    assert second - first >= 0.1
    assert third - second >= 0.2
    assert fourth - third >= 0.4


async def test_a_worker_that_fails_now_and_then_gets_everything_done_in_the_end(
    real_store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sending, "PAUSES", (0.001,))

    async def sometimes(sent: Sent) -> Answer:
        return (200, {"outcome": "ok"}) if len(worker.sent) % 3 else (503, None)

    async with station(real_store, lease=PATIENCE) as hub, receiver(sometimes) as worker:
        await hub.register(worker, slots=4)
        for job in [await hub.enqueue() for _ in range(40)]:
            ended = await hub.ended(job)
            assert (ended.state, ended.attempt) == (State.SUCCEEDED, 1)
        assert worker.most_at_once <= 4


async def test_a_worker_that_cannot_be_reached_loses_its_jobs_to_others_at_once(hub: Station) -> None:
    """S2 25: refused."""
    async with receiver(OK) as gone, receiver(OK) as there:
        pass
    await hub.register(gone)
    job = await hub.enqueue()
    async with receiver(OK) as there:
        await asyncio.sleep(0.1)
        await hub.register(there)
        assert (await hub.ended(job)).attempt == 1
    assert len(there.sent) == 1


async def test_a_worker_that_does_not_answer_is_waited_for_so_long_and_its_late_answer_is_refused(
    real_store: Store,
) -> None:
    async def never(sent: Sent) -> Answer:
        await asyncio.sleep(30)
        return 200, {"outcome": "ok"}

    async with station(real_store, network=HERE._replace(answer_within=0.3)) as hub, receiver(never) as worker:
        await hub.register(worker)
        job = await hub.enqueue()
        (first, *_) = await worker.has(2)
        assert await finish(hub, worker, first) == []
        worker.answer = OK
        assert (await hub.ended(job)).attempt == 1


async def test_a_job_that_may_not_run_twice_is_not_sent_again_if_its_worker_does_not_answer(real_store: Store) -> None:
    async def never(sent: Sent) -> Answer:
        await asyncio.sleep(30)
        return 200, {"outcome": "ok"}

    async with station(real_store, network=HERE._replace(answer_within=0.3)) as hub, receiver(never) as worker:
        await hub.register(worker)
        job = await hub.ended(await hub.enqueue(on_lost="fail"))
        assert (job.state, job.reason, len(worker.sent)) == (State.FAILED, Reason.LOST, 1)
        assert job.errors[-1].message == "no answer within 0.3 s"


async def test_a_job_that_may_not_run_twice_is_sent_again_if_it_was_refused(hub: Station) -> None:
    answers = iter([(503, None), (404, None)])

    async def refuse(sent: Sent) -> Answer:
        return next(answers, (200, {"outcome": "ok"}))

    async with receiver(refuse) as worker, receiver(OK) as other:
        await hub.register(worker)
        job = await hub.enqueue(on_lost="fail")
        await worker.has(2)
        await hub.register(other)
        ended = await hub.ended(job)
        assert (ended.state, ended.attempt, ended.errors) == (State.SUCCEEDED, 1, [])


async def test_a_job_that_runs_too_long_is_ended_though_its_worker_is_silent_and_a_late_finish_changes_nothing(
    hub: Station,
) -> None:
    async with receiver(always(202)) as worker:
        await hub.register(worker)
        job = await hub.enqueue(timeout=0.5)
        (sent,) = await worker.has(1)
        ended = await hub.ended(job)
        assert (ended.state, ended.reason, ended.attempt) == (State.FAILED, Reason.TIMEOUT, 1)
        assert await finish(hub, worker, sent) == []
        assert (await hub.shown(job)).state is State.FAILED


async def test_jobs_of_a_worker_that_renews_stay_its_own_longer_than_a_lease(brief_hub: Station) -> None:
    async with receiver(always(202)) as worker:
        registered = await brief_hub.register(worker)
        job = await brief_hub.enqueue()
        (sent,) = await worker.has(1)
        for _ in range(9):
            await asyncio.sleep(0.5)
            await brief_hub.renew(registered.worker)
        assert await finish(brief_hub, worker, sent) == [job.id]
    ended = await brief_hub.ended(job)
    assert (ended.state, ended.losses) == (State.SUCCEEDED, 0)


async def test_a_silent_worker_is_dropped_and_its_jobs_go_to_one_that_lives(brief_hub: Station) -> None:
    """S2 27."""
    async with receiver(always(202)) as silent, receiver(OK) as living:
        await brief_hub.register(silent, slots=2)  # with a slot left, so that it is claimed for to the last
        job = await brief_hub.enqueue()
        await silent.has(1)
        registered = await brief_hub.register(living)
        while not living.sent:
            await brief_hub.renew(registered.worker)
            await asyncio.sleep(0.3)
            assert len(silent.sent) == 1
        ended = await brief_hub.ended(job)
        assert (ended.state, ended.losses, ended.worker) == (State.SUCCEEDED, 1, registered.worker)
        assert [worker.id for worker in await brief_hub.client(Workers())] == [registered.worker]


@pytest.mark.parametrize("leaves", [False, True], ids=["silent", "leaves"])
async def test_jobs_of_a_worker_that_is_gone_move_on_at_once_not_a_lease_later(real_store: Store, leaves: bool) -> None:
    """S2 27. A lease of an hour: whoever waited for one to run out would wait too long."""
    async with station(real_store, lease=3600.0) as hub, receiver(always(202)) as gone, receiver(OK) as living:
        first = await hub.register(gone, slots=2, lease=None if leaves else 1.0)
        assert first.lease == (3600.0 if leaves else 1.0)
        job = await hub.enqueue()
        await gone.has(1)
        registered = await hub.register(living)
        if leaves:
            await hub.client(Unregister(worker=first.worker))
        await living.has(1)
        ended = await hub.ended(job)
        assert (ended.state, ended.losses, ended.worker) == (State.SUCCEEDED, 1, registered.worker)


async def test_a_worker_learns_of_a_cancelled_job_when_it_renews(hub: Station) -> None:
    async with receiver(always(202)) as worker:
        registered = await hub.register(worker)
        job = await hub.enqueue()
        (sent,) = await worker.has(1)
        await hub.client(Cancel(ids=[job.id]))
        held: Any = [{"id": job.id, "token": sent.claimed.token}]
        renewed = await hub.client(wire.decode(wire.encode({"worker": registered.worker, "jobs": held}), Renew))
        assert [(order.id, order.order) for order in renewed.orders] == [(job.id, "cancel")]
        await finish(hub, worker, sent, Verdict.FAILED)
        assert (await hub.ended(job)).state is State.CANCELLED


async def test_a_job_cancelled_while_the_worker_is_asked_is_over_at_once(hub: Station) -> None:
    async def never(sent: Sent) -> Answer:
        await asyncio.sleep(4)
        return 200, {"outcome": "ok"}

    async with receiver(never) as worker:
        await hub.register(worker)
        job = await hub.enqueue()
        await worker.has(1)
        await hub.client(Cancel(ids=[job.id]))
        assert (await hub.ended(job)).state is State.CANCELLED


async def test_nothing_is_sent_to_a_worker_that_has_taken_its_leave(hub: Station) -> None:
    async with receiver(OK) as worker:
        registered = await hub.register(worker)
        await hub.ended(await hub.enqueue())
        await hub.client(Unregister(worker=registered.worker))
        await until(lambda: _is_idle(hub))
        job = await hub.enqueue()
        async with receiver(OK) as other:
            await hub.register(other)
            await hub.ended(job)
        assert len(worker.sent) == 1


async def _is_idle(hub: Station) -> bool:
    return not hub.push._dispatchers


@pytest.mark.parametrize("graceful", [True, False])
async def test_two_servers_send_no_more_than_the_slots_and_one_goes_on_where_the_other_stopped(
    real_store: Store, monkeypatch: pytest.MonkeyPatch, *, graceful: bool
) -> None:
    monkeypatch.setattr(sending, "CHECK_EVERY_IF_NONE", 0.1)
    if not graceful:
        monkeypatch.setattr(push_workers.PushWorkers, "give_up_turn", _nothing)
    async with station(real_store) as second, receiver(always(202)) as worker:
        async with station(real_store) as first:
            registered = await first.register(worker, slots=2)
            jobs = [await first.enqueue() for _ in range(4)]
            await worker.has(2)
            await until(lambda: _has_begun(first, jobs[1]))
            turn = await _turn(real_store, registered)
            while await _turn(real_store, registered) == turn:  # until it is renewed, the other server looks around
                assert not second.push._dispatchers
                await asyncio.sleep(0.1)
            assert not second.push._dispatchers
            assert len(worker.sent) == 2
        await second.renew(registered.worker)
        await until(lambda: _sends(second))
        assert len(worker.sent) == 2
        for number in range(4):
            sent = (await worker.has(number + 1))[number]
            assert await finish(second, worker, sent) == [sent.claimed.job.id]
        for job in jobs:
            assert ((await second.ended(job)).attempt, (await second.shown(job)).losses) == (1, 0)


async def _turn(store: Store, worker: Registered) -> bytes:
    return (await store.records.list(push_workers.TURNS))[worker.worker]


async def _nothing(*_: object) -> None:
    pass


async def _sends(hub: Station) -> bool:
    return bool(hub.push._dispatchers)


async def test_the_side_of_the_worker_is_described(hub: Station) -> None:
    async with receiver(OK) as worker:
        await hub.register(worker)
        await hub.ended(await hub.enqueue())
    described = document("test")
    (called,) = described["paths"]["/v1/{tenant}/workers"]["post"]["callbacks"]["job"].values()
    delivery = called["post"]
    sent = {name for name in worker.sent[0].headers if name.startswith("windlass-")}
    assert sent == {one["name"] for one in delivery["parameters"]}
    assert {"200", "202", "404", "default"} == delivery["responses"].keys()
    for media in (JSON, MSGPACK):
        schema = delivery["responses"]["200"]["content"][media]["schema"]
        outcome = described["components"]["schemas"][schema["$ref"].rpartition("/")[2]]
        assert outcome["properties"].keys() == {*Finished.__struct_fields__} - {"id", "token", "tenant"}


async def test_an_address_is_looked_at_when_a_worker_registers(hub: Station) -> None:
    with pytest.raises(Invalid) as fault:
        await hub.client(Register(worker=NewWorker(name="w", url="ftp://example.org/")))
    assert fault.value.at == "worker.url"


@pytest.mark.parametrize(
    "url",
    [
        "ftp://example.org/",
        "example.org",
        "http://",
        "http:///jobs",
        "http://user@example.org/",
        "http://user:word@example.org/",
        "http://example.org/#part",
        "http://example.org:0/",
        "http://example.org:70000/",
        "http://example.org\\@evil.example/",
        "http://exa mple.org/",
        "http://example.org/a\r\nhost: evil",
        "http://①②⑦.⓪.⓪.①/",
        "http://ex\u00e4mple.org/",
        f"http://example.org/{'x' * 2000}",
    ],
)
def test_an_address_that_is_none_is_refused(url: str) -> None:
    with pytest.raises(Invalid):
        read_url(url)


@pytest.mark.parametrize(
    ("url", "parts"),
    [
        ("http://example.org", ("http", "example.org", 80, "/")),
        ("HTTPS://Example.org./a/b?c=d%20e", ("https", "example.org.", 443, "/a/b?c=d%20e")),
        ("http://[2001:DB8::1]:8080/x", ("http", "2001:db8::1", 8080, "/x")),
    ],
)
def test_an_address_is_read_in_one_way(url: str, parts: tuple[object, ...]) -> None:
    assert read_url(url) == parts


async def test_limits_and_tiers_hold_for_jobs_that_are_sent(hub: Station) -> None:
    tiers = [Tier(name="fast", seconds=1), Tier(name="slow", seconds=30, cap=1)]
    await hub.client(PutLimit(name="one", limit=NewLimit(match=Which(task="alone"), running=1)))
    await hub.client(ChangeQueue(queue="default", change=QueueChange(tiers=tiers)))
    async with receiver(always(202)) as worker:
        await hub.register(worker, slots=4)
        fast = await hub.enqueue(tier="fast")
        alone = [await hub.enqueue("alone", tier="fast") for _ in range(2)]
        first = await hub.ended(fast)
        assert first.error is not None
        assert (first.reason, first.error.message) == (Reason.TIMEOUT, "ran longer than its time limit of 1 s")
        one, two = [await hub.ended(job) for job in alone]
        assert one.started_at is not None
        assert two.started_at is not None
        assert (two.started_at - one.started_at).total_seconds() >= 1, "one after the other"


async def test_a_job_that_was_sent_and_loses_time_to_others_is_stopped_earlier_not_sent_again(hub: Station) -> None:
    tiers = [Tier(name="fast", seconds=1), Tier(name="slow", seconds=30, cap=1)]
    await hub.client(ChangeQueue(queue="default", change=QueueChange(tiers=tiers)))
    async with receiver(always(202)) as worker:
        await hub.register(worker, slots=1)
        flexible = await hub.enqueue()
        await worker.has(1)
        assert (await hub.shown(flexible)).assigned == "slow"
        await hub.enqueue("next", tier="fast")
        ended = await hub.ended(flexible)
        await worker.has(2)
    assert ended.error is not None
    assert (ended.reason, ended.attempt) == (Reason.TIMEOUT, 1)
    assert ended.error.message.startswith("ran longer than its time limit of 1 s: it was shortened to tier fast")
    assert [sent.task for sent in worker.sent] == ["work", "next"]
