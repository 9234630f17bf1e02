"""A random walk in lockstep: one engine over the model, one over a real store, the same operations to both.

Both have the same clock and the same seed, so every answer must be the same, and after every step so must everything
that can be seen of the store: all jobs with all fields and tokens, results, counts, workers. The scrubber looks at what
cannot be seen. Answers get lost on the way: an operation is then sent again as it was, and must change nothing.

A failure prints the steps that led to it, and a `@reproduce_failure` line that walks them again.
"""

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import AsyncExitStack
from datetime import timedelta
from typing import Any, TypeAlias, TypeVar
from unittest import mock

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.internal.conjecture.engine import ConjectureRunner
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    initialize,
    invariant,
    multiple,
    rule,
    run_state_machine_as_test,
)
from msgspec import UNSET, Raw, Struct
from msgspec.structs import replace

from tests.store.model_flow import buckets_of, name_of
from tests.store.model_store import ModelStore
from tests.support.servers import StartServer
from tests.support.stores import SeededChance, StoreKind, VirtualClock, opened, scrub
from windlass.engine import Engine, upkeep
from windlass.model import wire
from windlass.model.errors import WindlassError
from windlass.model.job import PENDING, Error, Job, Reason, State
from windlass.model.match import Match
from windlass.model.names import fresh_id, key_of, keyed_id, marked_id
from windlass.model.new_job import NewJob
from windlass.model.operations import (
    Accepted,
    Adopt,
    Alive,
    Applied,
    Began,
    Begin,
    Cancel,
    Changed,
    Claim,
    Count,
    Delete,
    Edit,
    Enqueue,
    EnqueueMany,
    Finish,
    Finished,
    GetOutput,
    GetResult,
    GetStats,
    List,
    Operation,
    Orphan,
    Output,
    Register,
    Release,
    Released,
    Renew,
    Rerun,
    Send,
    Show,
    Unregister,
    Workers,
)
from windlass.model.outcome import CODES, Verdict
from windlass.model.output import MOST_CHUNK, MOST_MESSAGE, Chunk, NewChunk, Progress, RunUsage
from windlass.model.retry import FROM_START, UNTIL_DEADLINE
from windlass.model.retry import RetryPolicy as Policy
from windlass.model.worker import NewWorker
from windlass.store.data import StoredResult
from windlass.store.flow import LimitRule, Regroup, Rules
from windlass.store.protocol import FlowStore, Store

A = TypeVar("A")

MATERIAL = settings(
    stateful_step_count=50,
    deadline=None,  # one example opens a store and walks fifty steps, on a machine that may be busy
    derandomize=False,
    print_blob=True,
    report_multiple_bugs=False,  # one failure made small is worth more than three
    suppress_health_check=[HealthCheck.too_slow],  # each step asks a real server a dozen questions
)

WALKS: dict[StoreKind, int] = {"sqlite": 16, "redis": 6, "valkey": 2, "cluster": 3}
"""How many walks each store is taken on in each run. They differ from run to run."""

LONG_WALKS: dict[StoreKind, int] = {"sqlite": 2000, "redis": 1000, "valkey": 500, "cluster": 500}

TENANTS = ("default", "acme")
QUEUES = ("default", "a", "a.b", "a-b")
TASKS = ("x", "x.y")
RETRIES = (
    Policy(base=1, jitter=0.5, deadline=30),
    Policy(base=2, factor=3, jitter=0, anchor="start"),
    FROM_START,
    UNTIL_DEADLINE,
)
PAYLOADS = ({"n": 1}, {"n": True}, {"n": {"m": "x"}}, None, "text", b"\x00\xff")

some_of = st.sampled_from


def seldom(*values: Any) -> st.SearchStrategy[Any]:
    """One of these now and then, else nothing said."""
    return some_of((*[None] * 2 * len(values), *values))


UNIQUE = st.fixed_dictionaries(
    {
        "unique": some_of(("pending", "queued", 1.0, 10.0)),
        "unique_key": some_of((None, "u", "u", "u")),
        "on_duplicate": some_of(("join", "replace", "reject")),
    }
)
"""How a job is unique."""

TERMS = st.fixed_dictionaries(
    {
        "task": some_of(TASKS),
        "queue": some_of(QUEUES),
        "payload": some_of(PAYLOADS),
        "delay": seldom(0.0, 0.5, 1.0, 30.0),
        "expires": seldom(0.0, 10.0, 100.0),
        "owner_timeout": seldom(1.0, 10.0, 60.0),
        "sole": st.none() | st.none() | UNIQUE,
    },
    optional={
        "priority": some_of((-(2**31), -1, 1, 2**31 - 1)),
        "timeout": some_of((5.0, 1 / 3)),
        "max_retry": some_of((1, 3, None)),
        "retry": some_of(RETRIES),
        "keep_result": some_of(("once", "none")),
        "keep_result_for": some_of((0.0, 1.0, 9.0, 10.0)),
        "keep_success": some_of((None, 0.0, 10.0)),
        "keep_failure": some_of((None, 0.0, 10.0)),
        "on_failure": some_of(TASKS),
        "tags": some_of((["t"], ["t", "u"])),
        "headers": st.just({"trace": "1"}),
        "isolate": st.just(True),
        "input": st.just(True),
        "then": some_of(
            (
                NewJob(task="x"),
                NewJob(task="x.y", queue="a", payload=Raw(b"\x01"), keep_success=0.0),
                NewJob(task="x", queue="a.b", delay=1.0, then=NewJob(task="x.y", key="k2")),
                NewJob(task="x", queue="a", unique="pending", unique_key="u", on_duplicate="reject"),
                NewJob(task="x", unique="pending", unique_key="u", on_duplicate="replace"),
            )
        ),
        "files": some_of(({"a.txt": b"a"}, {"ü": b"", "b": b"\x00\xff"})),
    },
)
"""What is asked for one job."""

NAMED = st.none() | some_of(("k1", "k2")) | st.binary(min_size=16, max_size=16) | st.integers(0, 8)
"""How a job is named: not at all, by a key, by an id made of these bytes, or by the id of another tenant's job."""

BATCH = st.lists(st.tuples(TERMS, NAMED), min_size=1, max_size=4)

MATCHES = st.builds(
    Match,
    state=some_of(([], ["pending"], ["finished"], ["queued"], ["running", "failed"])),
    task=seldom(*TASKS),
    queue=seldom(*QUEUES),
    tag=some_of(([], [], ["t"], ["u", "t"])),
    reason=seldom(Reason.ERROR, Reason.CANCELLED),
    payload=some_of(({}, {}, {}, {"n": 1}, {"n": True}, {"n.m": "x"})),
    text=seldom("broke"),
)

ASKING = some_of((*TENANTS, "-"))
"""Who asks."""

LIES = some_of((*[None] * 12, "0000000000000000", "not a token", ""))
"""What is said instead of the token, if anything."""


WHICH = st.lists(st.integers(0, 5), min_size=1, max_size=3, unique=True)
"""Of the jobs that run, these."""

PRINTS = st.lists(st.tuples(some_of(("stdout", "stderr", "log")), some_of((0, 1, 2, MOST_CHUNK))), max_size=4)
"""What a job puts out: streams, and how many bytes."""

HEARD = some_of((None, 0, 1, 2, 5))
"""The last message that a job has."""

USES = seldom(RunUsage(memory=2**30, cpu=0.5), RunUsage(output=7))

ENDS = st.fixed_dictionaries(
    {
        "outcome": some_of((*Verdict, Verdict.OK, Verdict.OK)),
        "reason": seldom(Reason.TIMEOUT, Reason.CRASHED),
        "delay": seldom(0.0, 5.0),
        "result": some_of((None, {"r": 1}, b"\xff")),
        "ago": seldom(1.5),
        "jobs": st.just([]) | st.lists(st.tuples(some_of(TASKS), some_of(QUEUES), seldom(1.0)), max_size=2),
    }
)
"""How a run ends."""

GROUPS = {"default": ("", "|-/one", "|-/one=k|-/two"), "a": ("", "|-/three")}
"""Who is bound by what, by queue. `test_store_flow_walk` looks closer at limits; here they meet whatever happens."""

ALLOWANCES = st.dictionaries(some_of(("-/one", "-/two", "-/three")), some_of((None, 1, 2)))
"""How many may run at once."""

SHUT = st.dictionaries(some_of(("acme,*,*", "*,default,x", "*,a,*")), some_of((5.0, 86400.0)), max_size=1)
"""Lanes, and for how many seconds."""

DUTIES = (
    upkeep.promote,
    upkeep.reclaim,
    upkeep.expire,
    upkeep.abandon,
    upkeep.resolve_dependencies,
    upkeep.recheck_blocked,
    upkeep.purge,
)

Selecting: TypeAlias = Cancel | Rerun | Delete


class Hold(Struct, frozen=True):
    """That a worker was once given a job; whether it still has it is for the engine to say."""

    worker: str
    id: str
    tenant: str
    token: str


class Walk(RuleBasedStateMachine):
    jobs = Bundle("jobs")
    holds = Bundle("holds")

    def __init__(self, kind: StoreKind, address: str, clean: Callable[[], object]) -> None:
        super().__init__()
        clean()
        self.clock = VirtualClock()
        self.loop = asyncio.new_event_loop()
        self.open = AsyncExitStack()
        self.kind = kind
        self.store = self.run(self.open.enter_async_context(opened(kind, address, self.clock, "walk")))
        self.real = Engine(self.store, SeededChance(1))
        self.specification = ModelStore(self.clock)
        self.model = Engine(self.specification, SeededChance(1))
        self.tenants: dict[str, str] = {}
        self.everyman = self.register("-", list(QUEUES), None, "north")

    def teardown(self) -> None:
        try:
            self.scrub()
        finally:
            self.run(self.open.aclose())
            self.run(self.loop.shutdown_asyncgens())
            self.loop.close()

    # Saying the same to both

    def run(self, work: Coroutine[Any, Any, A]) -> A:
        return self.loop.run_until_complete(work)

    def both(self, ask: Callable[[Engine], Coroutine[Any, Any, A]]) -> A:
        """What both engines answer, which must be the same."""
        expected = self.run(ask(self.model))
        found = self.run(ask(self.real))
        same(plain(found), plain(expected))
        return expected

    def ask(self, operation: Operation[A]) -> A | WindlassError:
        async def answer(engine: Engine) -> A | WindlassError:
            try:
                found = await engine(operation)
            except WindlassError as error:
                return error
            if isinstance(operation, Claim) and isinstance(
                found, list
            ):  # where tenants take turns, jobs come in any order
                found.sort(key=lambda one: (one.job.id, one.job.tenant))
            return found

        return self.both(answer)

    def send(self, operation: Operation[A], *, lost: bool) -> tuple[A | WindlassError, A | WindlassError | None]:
        """The answer; and where it was lost, the answer to the same operation sent again, which changes nothing."""
        first = self.ask(operation)
        if not lost:
            return first, None
        before = self.run(everything(self.model))
        second = self.ask(operation)
        assert self.run(everything(self.model)) == before, "an operation sent again has changed something"
        return first, second

    # Jobs

    def named(self, tenant: str, terms: dict[str, Any], name: str | bytes | int | None) -> NewJob:
        payload = Raw(wire.encode(terms["payload"]))
        new = NewJob(**{name: value for name, value in terms.items() if name != "sole"} | {"payload": payload})
        if terms["sole"]:
            queue = {"a.b": "a", "a-b": "default"}.get(new.queue, new.queue)
            new = replace(new, task="x", queue=queue, keep_success=20.0, **terms["sole"])
        if new.keep_failure == 0:
            new = replace(new, on_failure=None)  # there would be no record to pass on
        if isinstance(name, bytes):
            return replace(new, id=fresh_id(name, new.queue))
        if isinstance(name, int):
            others = [entry.job for entry in self.specification.entries(*State) if entry.job.tenant != tenant]
            others = [
                job for job in others if job.id == marked_id(job.id, job.queue)
            ]  # it was not moved to a far queue
            if name < len(others):
                return replace(new, queue=others[name].queue, id=others[name].id)
            (other,) = {*TENANTS} - {tenant}
            return replace(new, id=keyed_id(other, new.queue, "k1"))  # before it comes, or after it has gone
        return replace(new, key=name)

    @rule(
        target=jobs,
        tenant=some_of(TENANTS),
        terms=TERMS,
        name=NAMED,
        due=seldom(-1.0, 0.0, 0.000001, 20.0),
        lost=st.booleans(),
    )
    def enqueue(self, tenant: str, terms: dict[str, Any], name: Any, due: float | None, lost: bool) -> Any:
        return self.send_in(tenant, self.named(tenant, terms, name), due, lost)

    @rule(
        target=jobs,
        tenant=some_of((*TENANTS, "default", "default")),
        terms=TERMS,
        name=NAMED,
        parent=jobs,
        places=st.lists(st.integers(0, 8), max_size=2),
        lost=st.booleans(),
    )
    def enqueue_after(self, tenant: str, terms: dict[str, Any], name: Any, lost: bool, **others: Any) -> Any:
        """A job that waits for one that once was, and for others of the tenant's."""
        own = [entry.job.id for entry in self.specification.entries(*State) if entry.job.tenant == tenant]
        named = [own[place] for place in others["places"] if place < len(own)] or [others["parent"]]
        new = self.named(tenant, terms | {"delay": None}, name)
        return self.send_in(tenant, replace(new, after=list(dict.fromkeys(named))), None, lost)

    def send_in(self, tenant: str, new: NewJob, due: float | None, lost: bool) -> Any:
        name = new.id or new.key
        if due is not None:
            new = replace(new, delay=None, run_at=self.clock.now() + timedelta(seconds=due))
        repeatable = name is not None and new.on_duplicate != "replace"  # each time it is sent it arrives again
        job, again = self.send(Enqueue(tenant=tenant, job=new), lost=lost and repeatable)
        assert again is None or plain(_as_new(again)) == plain(_as_new(job))
        return multiple() if isinstance(job, WindlassError) else multiple(job.id)

    @initialize(target=jobs, tenant=some_of(TENANTS), batch=BATCH)
    def some_jobs(self, tenant: str, batch: list[tuple[dict[str, Any], Any]]) -> Any:
        return self.enqueue_many(tenant, batch, lost=False)

    def enqueue_many(self, tenant: str, batch: list[tuple[dict[str, Any], Any]], lost: bool) -> Any:
        named = all(name is not None for _, name in batch)
        news = [never_rejected(self.named(tenant, terms, name)) for terms, name in batch]
        repeatable = named and all(new.on_duplicate != "replace" for new in news)
        first, again = self.send(EnqueueMany(tenant=tenant, jobs=news), lost=lost and repeatable)
        assert not isinstance(first, WindlassError)
        if again is not None:
            assert not isinstance(again, WindlassError)
            assert again.created == 0
            # One that was joined to an older job is now joined to the one that the batch has added since.
            assert again.ids == first.ids or any(new.unique is not None for new in news)
        return multiple(*first.ids)

    @rule(id=jobs, tenant=ASKING, size=some_of((0, 1, MOST_MESSAGE)))
    def talk(self, id: str, tenant: str, size: int) -> None:
        self.ask(Send(tenant=tenant, id=id, data=b"m" * size))

    @rule(id=jobs, tenant=ASKING, annotations=st.dictionaries(some_of("ab"), some_of((None, "", "☃")), min_size=1))
    def edit(self, id: str, tenant: str, annotations: dict[str, str | None]) -> None:
        self.ask(Edit(tenant=tenant, id=id, annotations=annotations))

    @rule(
        id=jobs,
        tenant=ASKING,
        priority=some_of((None, -1, 0, 1)),
        payload=some_of((None, "a", "b", "x" * 2000)),
        tags=some_of((None, [], ["t"])),
        delay=some_of((None, None, 0.0, 5.0)),
        queue=seldom(*QUEUES),
    )
    def edit_waiting(self, id: str, tenant: str, payload: str | None, queue: str | None, **changes: Any) -> None:
        if self.kind != "cluster":  # there, a queue in another partition is refused
            changes["queue"] = queue
        encoded = UNSET if payload is None else Raw(wire.encode(payload))
        self.ask(Edit(tenant=tenant, id=id, payload=encoded, **changes))

    @rule(id=jobs, match=MATCHES, tenant=ASKING, limit=some_of((1, 3, 100)))
    def look(self, id: str, match: Match, tenant: str, limit: int) -> None:
        async def ids(engine: Engine) -> list[str]:
            return [job.id for job in await listed(engine, List(tenant=tenant, match=match, limit=limit))]

        self.ask(Show(tenant=tenant, id=id, payload=True))
        self.ask(GetResult(tenant=tenant, id=id))
        self.ask(GetStats(tenant=tenant))
        self.ask(GetOutput(tenant=tenant, id=id, after=limit, limit=limit))
        found = self.both(ids)
        counted = self.ask(Count(tenant=tenant, match=match))
        assert not isinstance(counted, WindlassError)
        assert counted.count == len(found)

    @rule(
        action=some_of((Cancel, Rerun, Rerun, Delete)),
        id=jobs,
        place=st.integers(0, 20),
        match=st.none() | MATCHES,
        tenant=ASKING,
        lost=st.booleans(),
    )
    def act_on_some(self, action: type[Selecting], match: Match | None, tenant: str, lost: bool, **named: Any) -> None:
        if match:
            self.act(action(tenant=tenant, match=match), lost)
            return
        there = [entry.job.id for entry in self.specification.entries(*State)]
        ids = {named["id"], *there[named["place"] : named["place"] + 1]}
        self.act(action(tenant=tenant, ids=sorted(ids)), lost)

    def order_to_stop(self, action: type[Selecting], which: int, lost: bool) -> None:
        for held in self.held_now(which):
            self.act(action(tenant="-", ids=[held.id]), lost)

    def act(self, operation: Selecting, lost: bool) -> None:
        planned = self.ask(replace(operation, dry_run=True))
        changed, again = self.send(operation, lost=lost)
        assert plain(changed) == plain(planned), "a dry run tells what will be changed"
        assert again is None or isinstance(again, WindlassError) or again == Changed(changed=0)

    # Work

    def register(self, tenant: str, queues: list[str], tasks: list[str] | None, node: str) -> str:
        new = NewWorker(name="w", node=node, queues=queues, tasks=tasks)
        registered = self.ask(Register(tenant=tenant, worker=new))
        assert not isinstance(registered, WindlassError)
        self.tenants[registered.worker] = tenant
        return registered.worker

    @rule(
        target=holds,
        tenant=ASKING,
        queues=st.lists(some_of(QUEUES), min_size=1, max_size=3, unique=True),
        tasks=some_of((None, None, ["x"], ["x.y", "nothing"], ["x", "x.y"])),
        slots=some_of((1, 2, 5)),
        leaves=seldom(True),
    )
    def another_worker(self, tenant: str, queues: list[str], tasks: Any, slots: int, leaves: bool | None) -> Any:
        """Comes, takes what it knows, and may leave at once, without a word about what it took."""
        worker = self.register(tenant, queues, tasks, "")
        held = self.claim(worker, slots, 0, lost=False)
        self.ask(Renew(tenant=tenant, worker=worker))
        if leaves:
            self.ask(Unregister(tenant=tenant, worker=worker))
        return held

    @rule(
        target=holds,
        more=BATCH,
        slots=some_of((1, 2, 5, 100)),
        stop=seldom((Cancel, 0), (Delete, 0), (Delete, 1)),
        which=WHICH,
        ends=st.lists(ENDS, min_size=1, max_size=3),
        lie=LIES,
        lost=st.booleans(),
    )
    def shift(self, more: list[Any], slots: int, stop: Any, lost: bool, **report: Any) -> Any:
        """A worker's day in one step: jobs come and are claimed, one is asked to stop, some end, the rest is left."""
        self.enqueue_many("default", more, lost)
        held = self.claim(self.everyman, slots, slots % 4, lost)
        self.both_hold_the_same()
        if stop:
            action, place = stop
            self.order_to_stop(action, place, lost)
            self.both_hold_the_same()
        self.finish(lost=lost, **report)
        return held

    def claim(self, worker: str, slots: int, number: int, lost: bool) -> Any:
        # A nonce may come back after its jobs have ended: then it is as good as new.
        nonce = f"{number:016x}" if number else None
        claim = Claim(tenant=self.tenants[worker], worker=worker, slots=slots, nonce=nonce)
        first, again = self.send(claim, lost=lost and nonce is not None)
        if isinstance(first, WindlassError):
            return multiple()
        assert again is None or plain(again) == plain(first)
        return multiple(*(Hold(worker, claimed.job.id, claimed.job.tenant, claimed.token) for claimed in first))

    def whose(self, held: Hold, worker: str) -> str | None:
        """The tenant as the worker names it: of one tenant, not at all."""
        return held.tenant if self.tenants[worker] == "-" else None

    def held_now(self, *which: int) -> list[Hold]:
        """Of the jobs that run, the ones with these numbers."""
        running = [(entry.job, entry.token) for entry in self.specification.entries(State.RUNNING)]
        held = [Hold(job.worker, job.id, job.tenant, token.hex()) for job, token in running if job.worker and token]
        return [held[number] for number in which if number < len(held)]

    @rule(
        old=holds,
        which=WHICH,
        lie=LIES,
        says=st.tuples(seldom(1, 2**32 - 1), seldom(Progress(done=0.5, total=2, note="half")), PRINTS, HEARD, USES),
        lost=st.booleans(),
    )
    def show_life(self, old: Hold, which: list[int], lie: str | None, says: tuple[Any, ...], lost: bool) -> None:
        pid, progress, prints, heard, usage = says
        output = [NewChunk(stream=stream, data=b"\xff" * size) for stream, size in prints]
        holds = [*self.held_now(*which), old]
        worker, tenant = holds[0].worker, self.tenants[holds[0].worker]
        began = [
            Began(id=held.id, token=said(held, lie), tenant=self.whose(held, worker), pid=pid or 7) for held in holds
        ]
        news = {"progress": progress, "output": output, "heard": heard, "usage": usage}
        alive = [Alive(id=held.id, token=said(held, lie), tenant=self.whose(held, worker), **news) for held in holds]
        for operation in (
            Renew(tenant=tenant, worker=worker, jobs=alive),
            *([Begin(tenant=tenant, worker=worker, jobs=began)] if pid else []),
        ):
            first, again = self.send(operation, lost=lost and not output)  # output is kept as often as it is sent
            assert again is None or plain(again) == plain(first)
        for chunk in output[:1]:
            tokens = {"id": old.id, "token": said(old, lie)}
            self.ask(Output(tenant=tenant, stream=chunk.stream, data=chunk.data, **tokens))

    @rule(which=WHICH, late=holds, lie=LIES, number=some_of((10, 11)), lease=seldom(1.0, 60.0), lost=st.booleans())
    def adopt(self, which: list[int], late: Hold, lie: str | None, number: int, lost: bool, **more: Any) -> None:
        """A worker of all tenants takes runs over, under one token: those of jobs that run, and one that may not."""
        orphans = [
            Orphan(id=held.id, token=said(held, lie), tenant=held.tenant, nonce=f"{number:016x}", **more)
            for held in {(one.id, one.tenant): one for one in [late, *self.held_now(*which)]}.values()
        ]
        first, again = self.send(Adopt(tenant="-", worker=self.everyman, jobs=orphans), lost=lost)
        assert again is None or plain(again) == plain(first)

    def finish(self, which: list[int], ends: list[dict[str, Any]], lie: Any, lost: bool) -> None:
        holds = self.held_now(*which)
        finished = [
            Finished(
                id=held.id,
                token=said(held, lie),
                tenant=self.whose(held, holds[0].worker),
                outcome=end["outcome"],
                code=CODES[end["outcome"]] + 3 if end["reason"] else None,
                result=UNSET if end["result"] is None else Raw(wire.encode(end["result"])),
                message="it broke",
                error=Error(type="E", traceback="here") if end["reason"] else None,
                reason=end["reason"],
                delay=end["delay"],
                finished_at=None if end["ago"] is None else self.clock.now() - timedelta(seconds=end["ago"]),
                jobs=made(end),
            )
            for held, end in zip(holds, ends, strict=False)
        ]
        if finished:
            worker = holds[0].worker
            self.report(Finish(tenant=self.tenants[worker], worker=worker, jobs=finished), lost)

    @rule(late=holds, end=ENDS, lost=st.booleans())
    def finish_late(self, late: Hold, end: dict[str, Any], lost: bool) -> None:
        tenant = self.whose(late, late.worker)
        item = Finished(id=late.id, token=late.token, tenant=tenant, outcome=end["outcome"], delay=end["delay"])
        self.report(Finish(tenant=self.tenants[late.worker], worker=late.worker, jobs=[item]), lost)

    @rule(which=WHICH, late=holds, delay=seldom(0.0, 5.0), lie=LIES, lost=st.booleans())
    def release(self, which: list[int], late: Hold, delay: float | None, lie: str | None, lost: bool) -> None:
        holds = [*self.held_now(*which[:1]), late]
        worker = holds[0].worker
        unrun = [
            Released(id=held.id, token=said(held, lie), tenant=self.whose(held, worker), delay=delay) for held in holds
        ]
        self.report(Release(tenant=self.tenants[worker], worker=worker, jobs=unrun), lost)

    def report(self, operation: Finish | Release, lost: bool) -> None:
        first, again = self.send(operation, lost=lost)
        if isinstance(first, Applied):
            assert sorted(first.applied + first.refused) == sorted(item.id for item in operation.jobs)
        if isinstance(again, Applied):
            assert again == Applied(refused=[item.id for item in operation.jobs]), "a report counts once"

    # Flow

    @rule(
        bounds=st.none() | st.tuples(ALLOWANCES, SHUT),
        places=st.lists(st.integers(0, 20), max_size=6),
        group=st.integers(0, 2),
    )
    def bound(self, bounds: Any, places: list[int], group: int) -> None:
        """Some jobs are to be bound by other limits than before, and the limits are others, or just as they were."""
        pending = [entry for entry in self.specification.entries(*PENDING) if entry.job.queue in GROUPS]
        chosen = [pending[place] for place in places if place < len(pending)]
        changes = [
            Regroup(entry.job.id, entry.job.tenant, entry.group, groups[group % len(groups)])
            for entry in chosen
            if (groups := GROUPS[entry.job.queue])
        ]
        self.both(lambda engine: flow(engine).regroup(changes))
        if bounds is not None:
            self.set_rules(*bounds)

    def set_rules(self, running: dict[str, int | None], shut: dict[str, float]) -> None:
        now, before = self.clock.now(), self.run(self.specification.flow.rules())
        queues = {"-/one": "default", "-/two": "default", "-/three": "a"}
        rules = Rules(
            version=before.version + 1,
            limit_rules={name: LimitRule(running=most, queue=queues[name]) for name, most in running.items()},
            paused_until={pattern: now + timedelta(seconds=seconds) for pattern, seconds in shut.items()},
        )
        assert self.both(lambda engine: flow(engine).set_rules(rules))

    @invariant()
    def no_place_is_left_behind(self) -> None:
        held = [bucket for entry in self.specification.entries(State.RUNNING) for bucket in buckets_of(entry.group)]
        for name in self.run(self.specification.flow.rules()).limit_rules:
            found = {one.bucket: one.running for one in self.run(flow(self.real).usage(name, 100)) if one.running}
            assert found == {bucket: held.count(bucket) for bucket in held if name_of(bucket) == name}

    # Time

    @rule(
        seconds=some_of((0.0, 0.000001, 0.5, 1.0, 5.0, 10.0, 14.999999, 15.0, 31.0, 3600.0, 86400.0)),
        duties=st.permutations(DUTIES),
        some=st.integers(0, len(DUTIES)),
    )
    def time_passes(self, seconds: float, duties: list[upkeep.Duty], some: int) -> None:
        """And house is kept, or some of it."""

        async def done(engine: Engine) -> list[int]:
            return [await duty(engine) for duty in duties[:some]]

        self.clock.advance(seconds)
        self.both(done)

    # After every step

    @invariant()
    def both_hold_the_same(self) -> None:
        expected = self.run(everything(self.model))
        found = self.run(everything(self.real))
        for part in expected:
            same(found[part], expected[part], part)

    @invariant()
    def the_store_is_sound(self) -> None:
        self.scrub()

    def scrub(self) -> None:
        jobs = [entry.job for entry in self.specification.entries(*State)]
        readable = [key_of(job) for job in jobs if job.keep_result != "once"]

        async def results(store: Store) -> list[StoredResult | None]:
            return await store.jobs.results(readable)

        noisy = [key_of(entry.job) for entry in self.specification.entries(*State) if entry.put_out]

        async def outputs(store: Store) -> list[list[Chunk]]:
            return [await store.jobs.output(key, 0, 2000) for key in noisy]

        same(self.run(results(self.store)), self.run(results(self.specification)), "results")
        same(self.run(outputs(self.store)), self.run(outputs(self.specification)), "output")
        assert self.run(scrub(self.store)) == []


def flow(engine: Engine) -> FlowStore:
    return engine.context.store.flow


def never_rejected(new: NewJob) -> NewJob:
    """The same for a batch, which may go to several partitions: a rejection is of one of them."""
    if new.on_duplicate == "replace":
        return replace(new, unique="queued")
    return replace(new, on_duplicate="join")


def said(held: Hold, lie: str | None) -> str:
    return held.token if lie is None else lie


def made(end: dict[str, Any]) -> list[NewJob]:
    """The jobs that come with this end."""
    if end["outcome"] is not Verdict.OK:
        return []
    return [NewJob(task=task, queue=queue, delay=delay) for task, queue, delay in end["jobs"]]


def _as_new(answer: Any) -> Any:
    """A job sent again is the same but for one word: that it is not new."""
    return replace(answer, created=True) if isinstance(answer, Accepted) else answer


def plain(answer: object) -> object:
    """An answer as maps and lists, so that two can be compared and a difference can be read."""
    if isinstance(answer, WindlassError):
        return {"error": answer.code, "detail": answer.detail, "at": answer.at}
    if isinstance(answer, Struct):
        # An estimate is what one engine has seen recently: two need not say the same.
        return {name: plain(getattr(answer, name)) for name in answer.__struct_fields__ if name != "estimate"}
    if isinstance(answer, list):
        return [plain(item) for item in answer]
    return bytes(answer) if isinstance(answer, Raw) else answer


def same(found: object, expected: object, part: str = "answer") -> None:
    assert found == expected, f"the {part} of the store and of the model differ:\n{found}\n{expected}"


async def listed(engine: Engine, operation: List) -> list[Job]:
    """All pages of a listing."""
    found: list[Job] = []
    while True:
        page = await engine(operation)
        found += page.jobs
        if page.next is None:
            return found
        operation = replace(operation, after=page.next)


async def everything(engine: Engine) -> dict[str, object]:
    """All that can be seen of a store without changing it."""
    store = engine.context.store
    jobs = await listed(engine, List(tenant="-", limit=50))
    records = (await store.jobs.read([key_of(job) for job in jobs], payload=True)).records
    return {
        "jobs": {key_of(job): job for job in jobs},
        "order": [key_of(job) for job in jobs],
        "tokens and payloads": [record and (key_of(record.job), record.token, record.payload) for record in records],
        "groups": [record and record.group for record in records],
        "counts": plain(await engine(GetStats(tenant="-"))),
        "workers": plain(await engine(Workers(tenant="-"))),
    }


def walk(kind: StoreKind, start_server: StartServer, how: settings) -> None:
    address: str = ":memory:"
    clean: Callable[[], object] = list
    if kind in ("redis", "valkey", "cluster"):
        # A server of its own, emptied for each walk: the scrubber reads all that is there, after every step. Without
        # its library too, which remembers the time.
        server = start_server(kind)
        address, clean = server.url, lambda: (server.ask("FLUSHALL"), server.ask("FUNCTION", "FLUSH"))

    class Here(Walk):
        def __init__(self) -> None:
            super().__init__(kind, address, clean)

    # Hypothesis follows each new walk with five near copies of it. Steps that cost milliseconds are better spent on new
    # walks: without this, planted faults stay unfound.
    with mock.patch.object(ConjectureRunner, "generate_mutations_from"):
        run_state_machine_as_test(Here, settings=how)


@pytest.mark.timeout(600)  # seconds, but a failure is then made small, which may take five
@pytest.mark.parametrize("kind", WALKS)
def test_a_store_and_the_model_agree(kind: StoreKind, start_server: StartServer) -> None:
    walk(kind, start_server, settings(MATERIAL, max_examples=WALKS[kind]))


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("kind", LONG_WALKS)
def test_a_store_and_the_model_agree_for_long(kind: StoreKind, start_server: StartServer) -> None:
    walk(kind, start_server, settings(MATERIAL, max_examples=LONG_WALKS[kind]))
