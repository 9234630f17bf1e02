"""Jobs that get the results of those they wait for, and what becomes of a workflow whatever becomes of its members."""

import random
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import pytest
from msgspec import UNSET, Raw
from msgspec.structs import replace

from tests.support.engines import enqueue, finish, packed, register, take
from tests.support.http_servers import Web
from tests.support.stores import EVERY_RUN, STORES, StoreKind, VirtualClock, with_long
from windlass.engine import Engine, upkeep
from windlass.model.errors import Missing, Unavailable
from windlass.model.job import FINISHED, JSON, TEXT, Job, Reason, State
from windlass.model.names import fresh_id
from windlass.model.new_job import AfterFailure, NewJob
from windlass.model.operations import (
    Cancel,
    Claim,
    Claimed,
    Delete,
    EnqueueMany,
    Finish,
    Finished,
    GetResult,
    Show,
)
from windlass.model.outcome import Verdict

QUEUES = ("a", "b", "default")


@pytest.fixture(params=with_long(STORES, every_run=(*EVERY_RUN, "cluster")))
def kind(request: pytest.FixtureRequest) -> StoreKind:
    """On a cluster each time too: a job may wait for one that lies on another server."""
    found: StoreKind = request.param
    return found


async def resolve(engine: Engine) -> None:
    while await upkeep.resolve_dependencies(engine):
        pass


async def ended(engine: Engine, queue: str, outcome: Verdict = Verdict.OK, **more: Any) -> Job:
    """A job that has ended so."""
    job = await enqueue(engine, queue=queue, **more.pop("terms", {}))
    worker = await register(engine, queue)
    await finish(engine, worker, await take(engine, worker), outcome, **more)
    return job


async def claim_all(engine: Engine) -> list[Claimed]:
    return await engine(Claim(worker=await register(engine, *QUEUES, slots=100), slots=100))


# Results


async def test_a_claim_brings_the_results_in_the_order_of_the_parents(engine: Engine) -> None:
    first = await ended(engine, "b", result=packed({"n": 1}))
    second = await ended(engine, "a", result=Raw(b"[2]"), content_type=JSON)
    third = await ended(engine, "default", result=Raw(b"three"), content_type=TEXT)
    fourth = await ended(engine, "a")
    after = [third.id, first.id, fourth.id, second.id]
    job = await enqueue(engine, "merge", after=after, with_results="list", payload=packed({"x": 1}))
    (claimed,) = await claim_all(engine)
    assert (claimed.job.id, claimed.results) == (job.id, [b"three", {"n": 1}, None, [2]])
    assert bytes(claimed.payload) == bytes(packed({"x": 1})), "its own payload is as it was sent"
    assert claimed.job.with_results == "list"


async def test_one_that_does_not_ask_for_results_gets_none(engine: Engine) -> None:
    parent = await ended(engine, "a", result=packed(1))
    await enqueue(engine, after=[parent.id])
    (claimed,) = await claim_all(engine)
    assert claimed.results == []


async def test_without_parents_the_list_of_results_is_empty(engine: Engine) -> None:
    await enqueue(engine, with_results="list")
    (claimed,) = await claim_all(engine)
    assert claimed.results == []


async def test_a_second_run_gets_the_results_again(engine: Engine) -> None:
    parent = await ended(engine, "a", result=packed(1))
    await enqueue(engine, after=[parent.id], with_results="one", max_retry=1)
    worker = await register(engine)
    claimed = await take(engine, worker)
    await finish(engine, worker, claimed, Verdict.RETRY, delay=0.0)
    await upkeep.promote(engine)
    assert (await take(engine, worker)).results == [1]


async def test_a_result_that_is_kept_for_one_reading_is_still_there_for_that(engine: Engine) -> None:
    parent = await ended(engine, "a", result=packed(1), terms={"keep_result": "once"})
    other = await ended(engine, "a", result=packed(2), terms={"keep_result": "once"})
    for after in ([parent.id], [parent.id, other.id]):
        await enqueue(engine, after=after, with_results="list")
        (claimed,) = await claim_all(engine)
        assert claimed.results == [1, 2][: len(after)]
    assert [(await engine(GetResult(id=parent.id))).result for _ in range(2)] == [packed(1), UNSET]


async def test_a_parent_that_did_not_succeed_has_no_result(engine: Engine) -> None:
    good, bad = await ended(engine, "a", result=packed(1)), await ended(engine, "b", Verdict.FAILED)
    gone = await enqueue(engine, queue="a")
    await engine(Delete(ids=[gone.id]))
    after = [bad.id, good.id, gone.id]
    await enqueue(engine, after=after, after_failure="run", with_results="list")
    (claimed,) = await claim_all(engine)
    assert claimed.results == [None, 1, None]


@pytest.mark.parametrize("how", ["deleted", "purged", "dropped"])
async def test_a_job_fails_whose_results_are_no_longer_kept(engine: Engine, clock: VirtualClock, how: str) -> None:
    terms = {"deleted": {}, "purged": {"keep_success": 5.0}, "dropped": {"keep_result_for": 5.0}}[how]
    parent = await ended(engine, "a", result=packed(1), terms=terms)
    job = await enqueue(engine, after=[parent.id], with_results="one")
    other = await enqueue(engine)
    if how == "deleted":
        await engine(Delete(ids=[parent.id]))
    clock.advance(5)
    await upkeep.purge(engine)
    assert [claimed.job.id for claimed in await claim_all(engine)] == [other.id], "the others are not held up"
    found = await engine(Show(id=job.id))
    assert (found.state, found.reason, found.attempt) == (State.FAILED, Reason.DEPENDENCY, 1)
    assert found.error is not None
    assert found.error.message == f"the result of job {parent.id}, which it waited for, is no longer kept"


async def test_a_job_fails_whose_results_are_too_large_together(engine: Engine) -> None:
    engine.context.settings = replace(engine.context.settings, most_result=100)
    parents = [await ended(engine, "a", result=packed(b"x" * 60)) for _ in range(2)]
    job = await enqueue(engine, after=[one.id for one in parents], with_results="list")
    assert await claim_all(engine) == []
    found = await engine(Show(id=job.id))
    assert found.error is not None
    assert "have more than 100 bytes of results" in found.error.message


async def test_over_http_results_stand_beside_the_payload(page: Web, engine: Engine) -> None:
    worker = (await page.send("POST", "/workers", {"name": "w", "slots": 2})).json()["worker"]
    parent = (await page.send("POST", "/jobs", {"task": "a"})).json()
    (claimed,) = (await page.send("POST", f"/workers/{worker}/claim", {"slots": 1})).json()
    report = [{"id": parent["id"], "token": claimed["token"], "outcome": "ok", "result": {"order": [1, 2]}}]
    await page.send("POST", f"/workers/{worker}/finish", report)
    new = {"task": "b", "after": [parent["id"]], "with_results": "list", "payload": {"more": 1}}
    assert (await page.send("POST", "/jobs", new)).json()["with_results"] == "list"
    (following,) = (await page.send("POST", f"/workers/{worker}/claim", {"slots": 1})).json()
    assert (following["results"], following["payload"]) == ([{"order": [1, 2]}], {"more": 1})


# Cost


async def test_an_end_does_not_look_at_all_that_have_not_ended(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    members = [await enqueue(engine, queue=QUEUES[n % 3]) for n in range(20)]
    job = await enqueue(engine, "merge", queue="later", after=[one.id for one in members], with_results="list")
    asked: list[int] = []
    add_dependencies = engine.context.store.jobs.add_dependencies

    async def counted(edges: Sequence[Any]) -> list[State | None]:
        asked.append(len(edges))
        return await add_dependencies(edges)

    monkeypatch.setattr(engine.context.store.jobs, "add_dependencies", counted)
    worker = await register(engine, *QUEUES)
    for _ in members:
        await finish(engine, worker, await take(engine, worker))
        await resolve(engine)
    assert sum(asked) == 0, "all have succeeded"
    assert (await engine(Show(id=job.id))).state is State.QUEUED


# Whatever happens


class Walk:
    """Members end in all ways, while upkeep is done now and then, and dies in the middle of it now and then."""

    def __init__(self, engine: Engine, clock: VirtualClock, seed: int) -> None:
        self.engine, self.clock, self.chance = engine, clock, random.Random(seed)
        self.members: list[str] = []
        self.good: set[str] = set()
        """Those whose success was reported; all others end in another way."""
        self.children: dict[str, NewJob] = {}
        self.held: dict[str, Claimed] = {}
        self.ran: dict[str, list[list[Any]]] = {}
        """The results that each child got, each time that it was claimed."""
        self.worker = ""

    async def begin(self) -> None:
        self.worker = await register(self.engine, *QUEUES, slots=100)
        for _ in range(4):
            await self.add_group()

    async def add_group(self) -> None:
        chance = self.chance
        members = [self.member() for _ in range(chance.randint(1, 5))]
        shared = [id for id in self.members if await self.is_pending(id) and chance.random() < 0.2]
        ids = [new.id or "" for new in members]
        self.members += ids
        after = [*ids, *shared]
        chance.shuffle(after)
        rule: AfterFailure = chance.choice(("skip", "fail", "run"))
        queue = chance.choice(QUEUES)
        id = fresh_id(chance.randbytes(16), queue)
        child = NewJob(task="child", id=id, queue=queue, after=after, after_failure=rule, with_results="list")
        self.children[id] = child
        news = [*members, child]
        chance.shuffle(news)
        await self.engine(EnqueueMany(jobs=news))

    def member(self) -> NewJob:
        chance = self.chance
        queue = chance.choice(QUEUES)
        return NewJob(
            task="member",
            id=fresh_id(chance.randbytes(16), queue),
            queue=queue,
            expires=chance.choice((None, None, 20.0)),
            keep_success=chance.choice((0.0, 3.0, None, None)),
            keep_failure=chance.choice((0.0, 3.0, None)),
            max_retry=chance.choice((0, 1)),
            on_lost=chance.choice((None, "fail")),
        )

    async def is_pending(self, id: str) -> bool:
        found = await self.find(id)
        return found is not None and found.state not in FINISHED

    async def find(self, id: str) -> Job | None:
        try:
            return await self.engine(Show(id=id))
        except Missing:
            return None

    async def step(self) -> None:
        steps = (self.claim, self.claim, self.finish, self.finish, self.finish, self.cancel, self.delete, self.wait)
        await self.chance.choice(steps)()
        if self.chance.random() < 0.5:
            await self.follow()

    async def claim(self, slots: int = 3) -> None:
        for claimed in await self.engine(Claim(worker=self.worker, slots=slots)):
            if claimed.job.id in self.children:
                self.ran.setdefault(claimed.job.id, []).append(claimed.results)
            self.held[claimed.job.id] = claimed

    async def finish(self, outcome: Verdict | None = None) -> None:
        if not self.held:
            return
        id = self.chance.choice(sorted(self.held))
        if outcome is None or id in self.children:
            outcomes = (Verdict.OK, Verdict.OK, Verdict.FAILED, Verdict.ERROR)
            outcome = Verdict.OK if id in self.children else self.chance.choice(outcomes)
        result = packed(id) if outcome is Verdict.OK else UNSET
        item = Finished(id=id, token=self.held.pop(id).token, outcome=outcome, result=result)
        if (await self.engine(Finish(worker=self.worker, jobs=[item]))).applied and outcome is Verdict.OK:
            self.good.add(id)

    async def cancel(self) -> None:
        with suppress(Missing):
            await self.engine(Cancel(ids=[self.chance.choice(self.members)]))

    async def delete(self) -> None:
        with suppress(Missing):
            await self.engine(Delete(ids=[self.chance.choice(self.members)]))

    async def wait(self) -> None:
        """Time passes; sometimes so much that jobs expire, and that a worker counts as lost with all that it holds."""
        lost = self.chance.random() < 0.2
        self.clock.advance(20 if lost else 2)
        if lost:
            self.worker = await register(self.engine, *QUEUES, slots=100)
            children = set(self.held) & set(self.children)
            for id in children:  # they run again, which is as it should be
                self.ran[id].pop()
            self.held = {}
        for duty in (upkeep.expire, upkeep.reclaim, upkeep.promote, upkeep.purge):
            await duty(self.engine)

    async def follow(self) -> None:
        """A round of the duty; now and then its process dies before or after one of its steps."""
        jobs, broken = self.engine.context.store.jobs, self.chance.choice(("apply", "completed_parents", "read", ""))
        whole = getattr(jobs, broken or "read")
        first = broken != "completed_parents"

        async def dies(*args: Any, **more: Any) -> Any:
            nonlocal first
            if not first:
                first = True  # that only reads
                return await whole(*args, **more)
            if self.chance.random() < 0.5:
                await whole(*args, **more)
            raise Unavailable("the process has died")

        if broken:
            setattr(jobs, broken, dies)
        try:
            await upkeep.resolve_dependencies(self.engine)
        except Unavailable:
            pass
        finally:
            if broken:
                delattr(jobs, broken)

    async def end(self) -> None:
        """Everything that is left goes well."""
        for _ in range(100):
            await self.claim(100)
            while self.held:
                await self.finish(Verdict.OK)
            await resolve(self.engine)
            await upkeep.promote(self.engine)
            self.clock.advance(10)
            self.worker = await register(self.engine, *QUEUES, slots=100)
            if not [id for id in (*self.members, *self.children) if await self.is_pending(id)]:
                return
        raise AssertionError("something still waits")

    async def check(self) -> None:
        for id, child in self.children.items():
            found, ran = await self.engine(Show(id=id)), self.ran.get(id, [])
            bad = [one for one in child.after if one not in self.good]
            if child.after_failure == "run":
                assert len(ran) == 1, "it ran once"
                for parent, result in zip(child.after, ran[0], strict=True):
                    assert result == parent or (result is None and (parent in bad or not await self.is_kept(parent)))
                assert found.state is State.SUCCEEDED
            elif bad:
                assert not ran, "it never ran"
                assert found.state is (State.FAILED if child.after_failure == "fail" else State.CANCELLED)
                assert found.reason is Reason.DEPENDENCY
            elif ran:
                assert ran == [child.after], "it ran once, with all results in order"
                assert found.state is State.SUCCEEDED
            else:
                assert found.reason is Reason.DEPENDENCY
                assert found.error is not None
                assert "no longer kept" in found.error.message

    async def is_kept(self, id: str) -> bool:
        return await self.find(id) is not None


@pytest.mark.parametrize("seed", range(10))
async def test_whatever_becomes_of_members_what_waits_for_them_is_settled_once(
    engine: Engine, clock: VirtualClock, seed: int
) -> None:
    walk = Walk(engine, clock, seed)
    await walk.begin()
    for _ in range(60):
        await walk.step()
    await walk.end()
    await walk.check()
    assert await upkeep.resolve_dependencies(engine) == 0, "nothing is left to do"
