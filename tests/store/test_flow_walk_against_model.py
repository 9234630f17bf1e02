"""A random walk through flow control: the model and a real store, side by side, without an engine between.

Jobs come in groups, rules change, time passes; every answer must be the same, and after every step so must all that can
be seen. Beyond that the walk counts for itself: no step fills a bucket or a tier beyond its bound, no place is left
behind, and a worker that takes all there is leaves nothing that could run.

A walk has either limits and tiers or turns: with both, which of two jobs goes first may depend on when one was found
full (`test_store_flow_turns` looks at what holds then).
"""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from contextlib import AsyncExitStack
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar
from unittest import mock

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.internal.conjecture.engine import ConjectureRunner
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test
from msgspec.structs import replace

from tests.store.model_flow import buckets_of, lane_of, name_of
from tests.store.model_store import Entry, ModelStore
from tests.support.servers import StartServer
from tests.support.stores import ALL, SeededChance, StoreKind, VirtualClock, World, ids, opened, scrub
from windlass.model.dependency import unblock
from windlass.model.job import FINISHED, Job, Reason, State
from windlass.model.lifecycle import (
    Move,
    abandon,
    cancel,
    delete,
    expire,
    finish,
    halt,
    lose,
    release,
    rerun,
    shrink,
)
from windlass.model.names import key_of
from windlass.model.outcome import Outcome, Verdict
from windlass.model.worker import Worker
from windlass.store.data import DueJob, ListScope, Overdue, Record, Sweep
from windlass.store.flow import FLEXIBLE, LimitRule, Regroup, Rules, TierRule

A = TypeVar("A")

WALKS: dict[StoreKind, int] = {"sqlite": 16, "redis": 8, "valkey": 2, "cluster": 4}
"""How many walks each store is taken on in each run. They differ from run to run."""

LONG_WALKS: dict[StoreKind, int] = {"sqlite": 1200, "redis": 600, "valkey": 200, "cluster": 300}

HOW = settings(
    stateful_step_count=30,
    deadline=None,  # one example opens a store and walks thirty steps, on a machine that may be busy
    print_blob=True,
    report_multiple_bugs=False,  # one failure made small is worth more than three
    suppress_health_check=[HealthCheck.too_slow],  # each step asks a real server a dozen questions
)

FOREVER = datetime(2200, 1, 1, tzinfo=UTC)
TENANTS, TASKS, QUEUES = ("a", "b"), ("x", "y"), ("default", "other")
GROUPS = {
    "default": [
        "",
        "~",
        "=slow",
        "=medium",
        "!",
        "~",
        "|a/run",
        "|a/run=k|a/pace",
        "|a/burst",
        "~|a/run|-/all",
        "|-/all",
    ],
    "other": ["", "|a/other", "~|a/other=k"],
}
FEW_LANES = 12
"""So many that are passed by come back at once, without being roused."""

some_of = st.sampled_from


def seldom(*values: Any) -> st.SearchStrategy[Any]:
    return some_of((*[None] * 2 * len(values), *values))


MOMENTS = some_of((*[None] * 12, 5.0, 20.0, "for ever"))
"""Seconds from now."""

LIMITS = st.fixed_dictionaries(
    {name: st.tuples(some_of((None, 1, 2)), MOMENTS) for name in ("a/pace", "a/burst")},
    optional={name: st.tuples(some_of((None, 1, 1, 2, 3)), MOMENTS) for name in ("a/run", "a/other", "-/all")},
)
"""Places, and until when it is closed; these two have rates as well, always the same."""

PACES: dict[str, dict[str, Any]] = {
    "a/pace": {"count": 2, "per": 10.0},
    "a/burst": {"count": 1, "per": 2.0, "burst": 2},
}

LEVELS = some_of(
    (
        [("fast", 3.0, 9), ("medium", 10.0, 2), ("slow", 30.0, 1)],
        [("fast", 3.0, 9), ("medium", 10.0, 1), ("slow", 30.0, 1)],
        [("fast", 3.0, 9), ("medium", 10.0, 3), ("slow", 30.0, 0)],
        [("short", 1.0, 9), ("slow", 30.0, 2)],
    )
)
TIERS: st.SearchStrategy[dict[str, Any]] = st.fixed_dictionaries(
    {"a,default": LEVELS}, optional={"b,default": LEVELS, "b,other": LEVELS}
) | st.just({})

WEIGHTS = st.dictionaries(some_of((*TENANTS, *TASKS)), some_of((0.25, 2.0, 3.0)))
TURNS = st.fixed_dictionaries(
    {"queues": some_of((("default",), ("default",), QUEUES, ())), "tenants": WEIGHTS},
    optional={"lines": st.dictionaries(some_of(("a", "b", "*")), WEIGHTS)},
)
"""Where turns are taken, and by which weights."""

SHUT: st.SearchStrategy[dict[str, Any]] = st.just({}) | st.dictionaries(
    some_of(("a,default,x", "*,default,y", "b,*,*", "*,other,*")), MOMENTS, max_size=2
)

LOTS = st.lists(
    st.fixed_dictionaries(
        {
            "tenant": some_of(TENANTS),
            "task": some_of(TASKS),
            "queue": some_of(("default", "default", "default", "other")),
            "group": st.integers(0, 10),
            "count": some_of((1, 2, 3)),
            "waits": seldom(True),
            "takes": some_of((False, True)),
        },
        optional={
            "priority": some_of((-1, 5)),
            "delay": seldom(1.0, 5.0),
            "expires": seldom(2.0, 20.0),
            "owner_timeout": seldom(2.0, 20.0),
            "timeout": some_of((2.0, 20.0)),
            "keep_success": st.just(0.0),
            "keep_failure": some_of((0.0, 5.0)),
        },
    ),
    min_size=1,
    max_size=4,
)
"""Jobs that come, some of each kind."""

WORKERS = st.fixed_dictionaries(
    {
        "tenant": some_of(("-", "-", *TENANTS)),
        "queues": some_of((("default",), ("default", "other"), ("other", "default"))),
        "tasks": some_of((None, None, ["x"], ["y", "z"], ["x", "b/y"])),
        "warm": some_of(((), (), ("b/x",), ("a/z", "b/y"))),
    }
)

ENDS: dict[str, Callable[[Job, datetime], Move]] = {
    "failed": lambda job, now: finish(job, Outcome(verdict=Verdict.FAILED), now, 0.5),
    "retried": lambda job, now: finish(job, Outcome(verdict=Verdict.RETRY, delay=3.0), now, 0.5),
    "crashed": lambda job, now: finish(job, Outcome(verdict=Verdict.ERROR, reason=Reason.CRASHED), now, 0.5),
    "released": release,
    "snoozed": lambda job, now: release(job, now, 3.0),
    "lost": lose,
}

HOW_RUNS_END = st.lists(st.tuples(st.integers(0, 40), some_of((*["succeeded"] * 4, *ENDS))), max_size=4)
"""Which of the running jobs, and how."""

SHRINKS = st.tuples(st.integers(0, 40), some_of((1, 1, 2)))
"""Which of the flexible jobs that run, and by how many tiers."""

ALL_KNOWING: dict[str, Any] = {"tenant": "-", "queues": QUEUES, "tasks": None, "warm": ()}


class FlowWalk(RuleBasedStateMachine):
    def __init__(self, kind: StoreKind, address: str, clean: Callable[[], object]) -> None:
        super().__init__()
        clean()
        self.clock = VirtualClock()
        self.loop = asyncio.new_event_loop()
        self.opened = AsyncExitStack()
        self.chance = SeededChance(1)
        store = self.run(self.opened.enter_async_context(opened(kind, address, self.clock, "walk")))
        self.specification = ModelStore(self.clock)
        self.real = World(store, self.clock, self.chance)
        self.model = World(self.specification, self.clock, self.chance)
        self.turns = False

    def teardown(self) -> None:
        try:
            assert self.run(scrub(self.real.store)) == []
        finally:
            self.run(self.opened.aclose())
            self.run(self.loop.shutdown_asyncgens())
            self.loop.close()

    def run(self, work: Coroutine[Any, Any, A]) -> A:
        return self.loop.run_until_complete(work)

    def both(self, ask: Callable[[World], Coroutine[Any, Any, A]]) -> A:
        """What both stores answer, which must be the same."""
        expected, found = self.run(ask(self.model)), self.run(ask(self.real))
        assert found == expected, f"the store and the model differ:\n{found}\n{expected}"
        return expected

    def entries(self, *states: State) -> list[Entry]:
        return self.specification.entries(*states)

    def pick(self, place: int, *states: State) -> Entry | None:
        found = self.entries(*states)
        return found[place % len(found)] if found else None

    # Rules

    @initialize(turns=st.booleans(), limits=LIMITS, tiers=TIERS, fair=TURNS, lots=LOTS)
    def first_rules(self, turns: bool, lots: list[dict[str, Any]], **rules: Any) -> None:
        self.turns = turns
        self.set_rules(**rules, shut={}, sorts=False)
        self.add(lots)

    @rule(limits=LIMITS, tiers=TIERS, fair=TURNS, shut=SHUT, sorts=st.booleans())
    def set_rules(self, limits: Any, tiers: Any, fair: Any, shut: Any, sorts: bool) -> None:
        before = self.run(self.model.flow.rules())
        rules = Rules(
            version=before.version + 1,
            group_epoch=before.group_epoch + sorts,
            paused_until={pattern: until for pattern, when in shut.items() if (until := self.moment(when))},
        )
        if self.turns:
            queues = dict.fromkeys(fair["queues"], fair["tenants"])
            lines = {f"{tenant},default": weights for tenant, weights in fair.get("lines", {}).items() if queues}
            rules = replace(rules, fair_queues=queues, fair_tenant_queues=lines)
        else:
            levels = {line: [TierRule(name=n, seconds=s, cap=c) for n, s, c in said] for line, said in tiers.items()}
            rules = replace(rules, tiers=levels, limit_rules={n: self.limit_rule(n, *one) for n, one in limits.items()})
        assert self.both(lambda world: world.flow.set_rules(rules))
        assert not self.both(lambda world: world.flow.set_rules(rules))
        self.real.group_epoch = self.model.group_epoch = rules.group_epoch

    def limit_rule(self, name: str, running: int | None, closed: Any) -> LimitRule:
        queue = "other" if name == "a/other" else "default"
        return LimitRule(queue=queue, running=running, closed_until=self.moment(closed), **PACES.get(name, {}))

    def moment(self, said: Any) -> datetime | None:
        if said is None:
            return None
        return FOREVER if said == "for ever" else self.clock.now() + timedelta(seconds=said)

    @rule(bucket=some_of(("a/run", "a/run=k", "a/pace", "-/all")), seconds=some_of((0.0, 1.0, 7.0)))
    def hold(self, bucket: str, seconds: float) -> None:
        self.both(lambda world: world.flow.hold(bucket, seconds))

    @rule(places=st.lists(st.integers(0, 40), min_size=1, max_size=4), group=st.integers(0, 10), wrong=seldom(True))
    def regroup(self, places: list[int], group: int, wrong: bool | None) -> None:
        entries = [entry for place in places if (entry := self.pick(place, *State))]
        changes = [
            Regroup(
                entry.job.id, entry.job.tenant, "|no/such" if wrong else entry.group, group_of(entry.job.queue, group)
            )
            for entry in entries
        ]
        self.both(lambda world: world.flow.regroup(changes))

    # Jobs

    def add(self, lots: list[dict[str, Any]]) -> None:
        drafts = []
        for lot in lots:
            terms = {"max_retry": 3} | lot
            count, waits, task = terms.pop("count"), terms.pop("waits"), terms.pop("task")
            taken = self.taken(lot["tenant"], lot["queue"]) if terms.pop("takes") else []
            terms["group"] = group_of(lot["queue"], lot["group"])
            if waits:
                terms |= {"after": [self.real.draft(queue=lot["queue"]).id], "delay": None}
            ids = [*taken[:count], *[None] * (count - len(taken[:count]))]
            drafts += [self.real.draft(task, id=id, **terms) for id in ids]
        drafts = list({key_of(draft): draft for draft in drafts}.values())
        assert all(self.both(lambda world: world.store.jobs.add(drafts)))
        assert not any(self.both(lambda world: world.store.jobs.add(drafts)))

    def taken(self, tenant: str, queue: str) -> list[str]:
        """Ids that other tenants have in a queue, and this one has not."""
        there = [entry.job for entry in self.entries(*State)]
        own = {job.id for job in there if job.tenant == tenant}
        return [job.id for job in there if job.queue == queue and job.id not in own]

    @rule(
        lots=LOTS,
        worker=WORKERS,
        slots=some_of((1, 2, 5)),
        again=st.booleans(),
        shrinks=st.none() | SHRINKS,
        ends=HOW_RUNS_END,
    )
    def shift(self, lots: list[dict[str, Any]], shrinks: Any, ends: list[tuple[int, str]], **claim: Any) -> None:
        """Jobs come, some are claimed, one gives way, some end."""
        self.add(lots)
        self.claim(**claim)
        self.both_hold_the_same()
        if shrinks:
            self.shrink(shrinks)
            self.both_hold_the_same()
        self.some_end(ends)

    @rule(worker=WORKERS, slots=some_of((1, 1, 2, 5)), again=st.booleans())
    def claim(self, worker: dict[str, Any], slots: int, again: bool) -> None:
        if len({lane_of(entry) for entry in self.entries(State.QUEUED)}) > FEW_LANES:
            self.unblock_ready()
        nonce = self.chance.token()
        taken = self.take(worker, slots, nonce)
        if taken and again:

            async def same_again(world: World) -> set[str]:
                return set(ids(await world.claim(self.worker(worker), slots, nonce=nonce)))

            assert self.both(same_again) == set(ids(taken))

    def worker(self, said: dict[str, Any]) -> Worker:
        return self.model.worker(*said["queues"], tenant=said["tenant"], tasks=said["tasks"])

    def take(self, worker: dict[str, Any], slots: int, nonce: bytes) -> list[Record]:
        before = self.fullness()
        expected, found = (
            self.run(one.claim(self.worker(worker), slots, nonce=nonce, warm=worker["warm"]))
            for one in (self.model, self.real)
        )
        assert list(map(brief, found)) == list(map(brief, expected))
        assert found == expected
        after = self.fullness()
        assert [what for what, (count, bound) in after.items() if count > max(bound, before[what][0])] == []
        return expected

    def fullness(self) -> dict[str, tuple[int, int]]:
        """How many places are taken of each bucket and tier, and how many there are; counted without the model."""
        rules, running = self.run(self.model.flow.rules()), self.entries(State.RUNNING)
        waiting = self.entries(State.QUEUED)
        found: dict[str, tuple[int, int]] = {}
        for bucket in {bucket for entry in (*running, *waiting) for bucket in buckets_of(entry.group)}:
            limit_rule = rules.limit_rules.get(name_of(bucket))
            if limit_rule and limit_rule.running is not None:
                found[bucket] = (sum(bucket in buckets_of(entry.group) for entry in running), limit_rule.running)
        for line, levels in rules.tiers.items():
            names = [entry.job.assigned for entry in running if f"{entry.job.tenant},{entry.job.queue}" == line]
            for place, level in enumerate(levels[1:], 1):
                longer = [one.name for one in levels[place:]]
                found[f"{line} {level.name}"] = (sum(name in longer for name in names), level.cap)
        return found

    @rule(ends=HOW_RUNS_END)
    def some_end(self, ends: list[tuple[int, str]]) -> None:
        for place, how in ends:
            self.end(place, how)

    def end(self, place: int, how: str) -> None:
        if (entry := self.pick(place, State.RUNNING)) is None:
            return
        record = entry.record()
        if how == "succeeded":
            assert self.both(lambda world: world.succeed(record))
            assert not self.both(lambda world: world.succeed(record))
            return
        move = ENDS[how](record.job, self.clock.now())
        self.both(lambda world: world.apply(move, record))
        self.both(lambda world: world.apply(move, record))

    @rule(place=st.integers(0, 40), how=some_of((cancel, delete, halt)))
    def want_gone(self, place: int, how: Callable[[Job], Move]) -> None:
        states = [State.RUNNING] if how is halt else set(State) - (FINISHED if how is cancel else set())
        if entry := self.pick(place, *states):
            record = entry.record()
            self.both(lambda world: world.apply(how(record.job), record if record.token else None))

    @rule(which=SHRINKS)
    def shrink(self, which: tuple[int, int]) -> None:
        """By one tier or more; and once more as if nothing had happened, which is refused."""
        place, step = which
        rules = self.run(self.model.flow.rules())
        flexible = [
            entry for entry in self.entries(State.RUNNING) if entry.job.assigned and entry.group[:1] == FLEXIBLE
        ]
        if not flexible:
            return
        record = flexible[place % len(flexible)].record()
        levels = rules.tiers.get(f"{record.job.tenant},{record.job.queue}", [])
        names = [level.name for level in levels]
        if record.job.assigned not in names[1:]:
            return
        shorter = levels[max(0, names.index(record.job.assigned) - step)]
        move = shrink(record.job, shorter.name, shorter.seconds)
        assert self.both(lambda world: world.apply(move, record))
        assert not self.both(lambda world: world.apply(move, record))
        self.both(lambda world: world.touch(record))

    @rule(place=st.integers(0, 40))
    def run_again(self, place: int) -> None:
        if entry := self.pick(place, *FINISHED):
            move = rerun(entry.record().job)
            self.both(lambda world: world.apply(move))

    @rule(place=st.integers(0, 40))
    def unblock(self, place: int) -> None:
        if entry := self.pick(place, State.BLOCKED):
            move = unblock(entry.record().job, dict.fromkeys(entry.job.after, State.SUCCEEDED), self.clock.now())
            assert move is not None
            assert self.both(lambda world: world.apply(move))

    # Time

    @rule(seconds=some_of((0.000001, 0.5, 1.0, 2.0, 4.999999, 5.0, 10.0, 61.0)), keeps_house=st.booleans())
    def time_passes(self, seconds: float, keeps_house: bool) -> None:
        self.clock.advance(seconds)
        if not keeps_house:
            return
        self.both(lambda world: swept(world, Sweep.PROMOTE))
        self.both(lambda world: swept(world, Sweep.PURGE))
        self.both(lambda world: give_up(world, Overdue.LEASE, lose))
        self.both(lambda world: give_up(world, Overdue.EXPIRY, expire))
        self.both(lambda world: give_up(world, Overdue.OWNER, lambda job, _: abandon(job)))
        self.unblock_ready()

    def unblock_ready(self) -> None:
        self.run(self.model.store.jobs.sweep(Sweep.UNBLOCK, 100))
        for _ in range(50):
            if not self.run(self.real.store.jobs.sweep(Sweep.UNBLOCK, 100)).count:
                return
        raise AssertionError("there is always something left to unblock_ready")

    @rule(lots=LOTS)
    def take_all_there_is(self, lots: list[dict[str, Any]]) -> None:
        """A worker for every task with slots for all jobs leaves nothing that could run."""
        self.add(lots)
        self.unblock_ready()
        self.take(ALL_KNOWING, 200, self.chance.token())
        assert self.take(ALL_KNOWING, 200, self.chance.token()) == []
        opening = self.run(self.model.store.jobs.next_due(Sweep.UNBLOCK, QUEUES))
        if opening is not None and opening < 1e6:
            sooner = self.run(self.real.store.jobs.next_due(Sweep.UNBLOCK, QUEUES))
            assert sooner is not None
            assert 0 < sooner <= opening + 0.000001

    # After every step

    @invariant()
    def both_hold_the_same(self) -> None:
        self.both(everything)

    @invariant()
    def the_store_is_sound(self) -> None:
        assert self.run(scrub(self.real.store)) == []

    @invariant()
    def no_place_is_left_behind(self) -> None:
        groups = [entry.group for entry in self.entries(State.RUNNING)]
        for name in self.run(self.model.flow.rules()).limit_rules:
            buckets = [bucket for group in groups for bucket in buckets_of(group) if name_of(bucket) == name]
            found = {one.bucket: one.running for one in self.run(self.real.flow.usage(name, 100)) if one.running}
            assert found == {bucket: buckets.count(bucket) for bucket in buckets}


def brief(record: Record) -> tuple[object, ...]:
    job = record.job
    return job.tenant, job.queue, job.task, record.group, job.priority, job.id


async def swept(world: World, sweep: Sweep) -> Sequence[DueJob]:
    """In order of ids: no order is promised for queues of different partitions, nor for jobs due at the same time."""
    return sorted((await world.store.jobs.sweep(sweep, 100)).jobs, key=lambda one: (one.tenant, one.id))


async def give_up(world: World, clock: Overdue, decide: Callable[[Job, datetime], Move]) -> list[bool]:
    """As upkeep does it with jobs whose clock has run out."""
    reading = await world.store.jobs.overdue(clock, 100)
    records = [record for record in reading.records if record]
    return [await world.apply(decide(one.job, reading.now), one if one.token else None) for one in records]


def group_of(queue: str, number: int) -> str:
    return GROUPS[queue][number % len(GROUPS[queue])]


async def everything(world: World) -> dict[str, object]:
    """All that can be seen of a store without changing it."""
    listed = (await world.store.jobs.list(ListScope("-", None, ALL), None, 1000)).records
    records = (await world.store.jobs.read([key_of(record.job) for record in listed])).records
    return {
        "jobs": [(record.job, record.token, record.group) for record in records if record],
        "counts": sorted(map(repr, (await world.store.jobs.counts("-")).jobs)),
        "rules": await world.flow.rules(),
        "waiting": [await waiting(world, queue) for queue in QUEUES],
    }


async def waiting(world: World, queue: str) -> Sequence[object]:
    found = await world.flow.backlog("-", queue, 3)
    return sorted((*lane_of_waiting(one), one.count, [(job[0], job[2]) for job in one.jobs]) for one in found)


def lane_of_waiting(one: Any) -> tuple[str, str, str, str]:
    return one.tenant, one.queue, one.task, one.group


def walk(kind: StoreKind, start_server: StartServer, how: settings) -> None:
    address: str = ":memory:"
    clean: Callable[[], object] = list
    if kind in ("redis", "valkey", "cluster"):
        # A server of its own, emptied for each walk: the scrubber reads all that is there, after every step. Without
        # its library too, which remembers the time.
        server = start_server(kind)
        address, clean = server.url, lambda: (server.ask("FLUSHALL"), server.ask("FUNCTION", "FLUSH"))

    class Here(FlowWalk):
        def __init__(self) -> None:
            super().__init__(kind, address, clean)

    # As in `test_walk_against_model`: new walks are worth more than near copies of old ones.
    with mock.patch.object(ConjectureRunner, "generate_mutations_from"):
        run_state_machine_as_test(Here, settings=how)


@pytest.mark.timeout(600)  # some seconds, but a failure is then made small, which may take five minutes
@pytest.mark.parametrize("kind", WALKS)
def test_a_store_and_the_model_agree_on_who_may_start(kind: StoreKind, start_server: StartServer) -> None:
    walk(kind, start_server, settings(HOW, max_examples=WALKS[kind]))


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("kind", LONG_WALKS)
def test_a_store_and_the_model_agree_on_who_may_start_for_long(kind: StoreKind, start_server: StartServer) -> None:
    walk(kind, start_server, settings(HOW, max_examples=LONG_WALKS[kind]))
