"""The scrubbers see what is broken: each test breaks one thing by hand."""

from pathlib import Path

import apsw
import pytest
import redis
from msgspec import Raw

from tests.support.servers import NewPrefix, Server
from tests.support.stores import SeededChance, VirtualClock
from windlass.engine import Engine
from windlass.model.names import fresh_id
from windlass.model.new_job import NewJob
from windlass.model.operations import Alive, Claim, Enqueue, EnqueueMany, Finish, Finished, Register, Renew
from windlass.model.outcome import Verdict
from windlass.model.output import NewChunk
from windlass.model.worker import NewWorker, Worker
from windlass.store.data import ClaimRequest, Draft
from windlass.store.flow import LimitRule, Rules, TierRule
from windlass.store.protocol import Store
from windlass.store.redis import RedisStore
from windlass.store.redis.scrub import scrub as scrub_redis
from windlass.store.sqlite import SqliteStore
from windlass.store.sqlite.scrub import scrub as scrub_sqlite


async def furnish(store: Store) -> None:
    """Some jobs in every state that matters."""
    engine = Engine(store, SeededChance())
    await engine(
        EnqueueMany(
            jobs=[
                *[NewJob(task="a", max_retry=1, files={"f": b"1"}, keep_result_for=60)] * 6,
                NewJob(task="b", delay=60, expires=90),
            ]
        )
    )
    parent = await engine(Enqueue(job=NewJob(task="p", queue="busy", then=NewJob(task="c"))))
    await engine(Enqueue(job=NewJob(task="c", after=[parent.id])))
    worker = (await engine(Register(worker=NewWorker(name="w", slots=9)))).worker
    first, second, *_ = await engine(Claim(worker=worker, slots=4))
    chunk = NewChunk(stream="log", data=b"hello")
    await engine(Renew(worker=worker, jobs=[Alive(id=first.job.id, token=first.token, output=[chunk] * 3)]))
    outcomes = [(first, Verdict.OK), (second, Verdict.ERROR)]
    reports = [
        Finished(id=one.job.id, token=one.token, outcome=outcome, result=Raw(b"\x01")) for one, outcome in outcomes
    ]
    await engine(Finish(worker=worker, jobs=reports))
    await add_dependencies(store)


async def add_dependencies(store: Store) -> None:
    """Some jobs that run under rules, and some that these hold up."""
    flow, chance = store.flow, SeededChance(1)
    rules = Rules(
        version=1,
        limit_rules={"default/x": LimitRule(queue="bound", running=1)},
        tiers={"default,bound": [TierRule(name="fast", seconds=3, cap=1), TierRule(name="slow", seconds=30, cap=1)]},
        fair_queues={"bound": {}},
        fair_tenant_queues={"*,bound": {}},
    )
    assert await flow.set_rules(rules)
    groups = ["~|default/x", "=slow|default/x", "=slow", "~"]
    drafts = [
        Draft("default", fresh_id(chance.uuid7(), "bound"), NewJob(task=task, queue="bound"), group)
        for group in groups
        for task in ("a", "b")
    ]
    await store.jobs.add(drafts)
    now = VirtualClock().now()
    worker = Worker(id="w", name="w", tenant="default", queues=["bound"], registered_at=now, seen_at=now)
    assert len(await store.jobs.claim(ClaimRequest(worker, b"12345678", 2, 60.0))) == 2


REDIS_DAMAGE = {
    "a lost lease": ("ZPOPMIN", "{0}:leases"),
    "a lost run": ("DEL", "{0}:runs"),
    "a lost counter": ("HINCRBY", "{0}:counts:default", "default,a,2", "1"),
    "a job missing from its lane": ("ZPOPMIN", "{0}:ready:default,default,a"),
    "a job in a wrong lane": ("ZADD", "{0}:ready:default,default,z", "0", "12345678" + "x" * 16),
    "a lost head": ("ZPOPMIN", "{0}:heads:default,default"),
    "a lost listing": ("DEL", "{0}:log:default,default:3:0"),
    "a lost due time": ("DEL", "{0}:due"),
    "a lost wait clock": ("DEL", "{0}:stale"),
    "a stray entry": ("ZADD", "{0}:gone", "1", "x" * 16),
    "a stray result": ("SET", "{0}r" + "x" * 16, "y"),
    "a lost index of blocked jobs": ("DEL", "{0}:blocked:default,default"),
    "a stray blocked job": ("ZADD", "{0}:blocked:default,default", "7", "x" * 16),
    "stray children": ("SADD", "{0}c" + "x" * 16, "y" * 16),
    "a stray follow-up": ("SET", "{0}t" + "x" * 16, "y"),
    "a stray list of parents": ("SET", "{0}a" + "x" * 16, "y" * 16),
    "a lost time of a result": ("DEL", "{0}:gone"),
    "a stray time of a result": ("SET", "{0}h" + "x" * 16, "y"),
    "stray files": ("SET", "{0}f" + "x" * 16, "y"),
    "stray output": ("RPUSH", "{0}o" + "x" * 16, "y" * 29),
    "lost places": ("DEL", "{0}:places:default/x"),
    "a stray place": ("SADD", "{0}:places:default/x", "x" * 16),
    "lost places at a tier": ("DEL", "{0}:levels:default,bound"),
    "lost tiers": ("DEL", "{0}:assigned"),
    "a lane missing from its plain lane": ("DEL", "{0}:heads:default,bound,a"),
    "a lost lane that was passed by": ("ZPOPMIN", "{0}:blocked_by:default/x"),
    "a lane that is passed by though there is room": ("HSET", "{0}:limit_rules", "default/x", "9 - - - -"),
    "a lost blocker": ("DEL", "{0}:blockers"),
    "a lost turn of a tenant": ("DEL", "{0}:tags:bound"),
    "a lost turn of a task": ("DEL", "{0}:tags:default,bound"),
}


@pytest.mark.parametrize("damage", REDIS_DAMAGE)
async def test_the_redis_scrubber_sees(damage: str, redis_server: Server, new_prefix: NewPrefix) -> None:
    prefix = f"scrub{new_prefix()}"
    store = await RedisStore.open(redis_server.url, prefix=prefix, clock=VirtualClock())
    await furnish(store)
    assert await scrub_redis(store) == []
    command, key, *rest = REDIS_DAMAGE[damage]
    with redis.Redis(port=redis_server.port) as server:
        server.execute_command(command, prefix + key, *rest)
    assert await scrub_redis(store) != []
    await store.close()


SQLITE_DAMAGE = {
    "a lost lease": "DELETE FROM lease WHERE job = (SELECT min(job) FROM lease)",
    "a stray lease": "INSERT INTO lease SELECT seq, 'w', x'0000000000000000', 1, NULL FROM job WHERE state = 2 LIMIT 1",
    "a lost counter": "UPDATE lane SET queued = queued + 1",
    "a stray payload": "INSERT INTO payload VALUES (999, x'00')",
    "a stray result": "INSERT INTO result VALUES (999, 0, 'x', x'00')",
    "stray output": "INSERT INTO output VALUES (999, 1, 0, 1, 'log', 1, x'00')",
    "a blocked job that waits for nothing": "UPDATE job SET waits = NULL WHERE state = 0",
    "stray children": "INSERT INTO dependency VALUES (x'00', x'01')",
    "a stray follow-up": "INSERT INTO follow_up VALUES (x'00', x'01')",
    "a spent result": "INSERT OR REPLACE INTO result SELECT seq, 1, 'x', x'00' FROM job WHERE state = 4 LIMIT 1",
    "stray files": "INSERT INTO file VALUES (999, 'f', x'00', 0)",
    "lost files": "DELETE FROM file WHERE job = (SELECT min(job) FROM file)",
    "lost output": "DELETE FROM output WHERE n = 2",
    "a keep clock on a waiting job": "UPDATE job SET purge_at = 1 WHERE state = 2",
    "a lost time of a result": "UPDATE job SET purge_at = NULL WHERE state = 4",
    "a scheduled job without a time": "UPDATE job SET run_at = NULL WHERE state = 1",
    "a job in a wrong state": "UPDATE job SET state = 3 WHERE state = 2",
    "a lost place": "UPDATE bucket SET running = running - 1 WHERE name = 'default/x'",
    "a stray place": "UPDATE bucket SET running = running + 1 WHERE name = 'default/x'",
    "a lost place at a tier": "UPDATE bucket SET running = 0 WHERE name = 'default,bound#2'",
    "a lost tier": "UPDATE job SET assigned = NULL, seconds = NULL WHERE assigned = 'slow'",
    "a lane that is blocked for nothing": "UPDATE lane SET blocker = 'default/y' WHERE limit_keys = '~'",
    "a lane without its first job": "UPDATE lane SET arrival = NULL WHERE blocker = 'default/x'",
    "a lost turn of a tenant": "UPDATE tenant_queue SET priority = NULL, arrival = NULL WHERE queue = 'bound'",
    "a lost turn of a task": "DELETE FROM turn WHERE task = 'a'",
}


@pytest.mark.parametrize("damage", SQLITE_DAMAGE)
async def test_the_sqlite_scrubber_sees(damage: str, tmp_path: Path) -> None:
    store = SqliteStore.open(tmp_path / "jobs.db", VirtualClock())
    await furnish(store)
    assert await scrub_sqlite(store) == []
    connection = apsw.Connection(str(tmp_path / "jobs.db"))
    connection.execute(SQLITE_DAMAGE[damage])
    connection.close()
    assert await scrub_sqlite(store) != []
    await store.close()
