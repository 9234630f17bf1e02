"""A bridge to the keys of Blueque, a queue of very long tasks whose only interface is its keys in Redis.

A client written for it submits a task and reads its status, result, node and process in those keys, and in the lists of
its queue. The bridge is a listener of that protocol: it takes tasks that a worker of ours has a free slot for, makes a
job of each, and writes down what becomes of the job. Knows those keys and their meaning; the job's life is not its own.

What a bridge has taken and not yet reported stands in a hash of its own, `blueque_bridge_NODE`, task by task with the
job's id. So a bridge that was killed goes on where it stopped: a task is in the pending list or in a reserved one, and
the job's key is the task's id, so that it is made once.
"""

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import Any, Literal, cast

from msgspec import UNSET, Raw, Struct
from msgspec.structs import replace

from windlass.model import wire
from windlass.model.duration import DAY
from windlass.model.errors import Busy, Conflict, Invalid, Missing, TooLarge, Unavailable, WindlassError
from windlass.model.events import EventSource
from windlass.model.job import FINISHED, TEXT, Job, State
from windlass.model.match import Match
from windlass.model.names import is_name
from windlass.model.new_job import NewJob
from windlass.model.operations import Cancel, Enqueue, FailByHand, FinishByHand, GetResult, Service, Show, Workers
from windlass.model.ports import Clock
from windlass.model.worker import Worker, counted_slots
from windlass.store.redis.connection import Channel, own_errors
from windlass.store.redis.urls import Argument, ServerAddress, read_url

log = logging.getLogger("windlass.bridge")

TAG = "blueque"
"""Of all jobs that bridges make."""
TASK_ID = "blueque-task"
"""The header of a job that names its task."""
SUBMISSION = "windlass_submission"
"""The field of a task that counts how often it was taken from the pending list: each time is a job of its own."""

KEEP = 30 * DAY
"""Seconds that a job's record outlives its end, and so how long a bridge may be away."""

POLL = 1.0
"""Seconds after which free slots, queues, due tasks and tasks ended by hand are looked for again; a new task is heard
of at once."""
SWEEP = 10.0
"""Seconds after which all open tasks are looked at again, should an event have been lost."""
LOCK = 15
"""Seconds that the name of a bridge stays taken after its last sign of life."""
ANSWER_WITHIN = 5.0
MOST_AT_ONCE = 100
"""Tasks of one step."""
MOST_MESSAGE = 2000
"""Characters of an error that a client wrote, in the record of the job."""

ATOMICALLY = """
local at, reply = 1, false
while at <= #ARGV do
  local size = tonumber(ARGV[at])
  reply = redis.call(unpack(ARGV, at + 1, at + size))
  at = at + size + 1
end
return reply
"""
"""Runs commands in one step. Each is preceded by the number of its words."""

IF_HELD = """
local status = redis.call('HGET', KEYS[1], 'status')
if status ~= 'reserved' and status ~= 'started' then return status or '' end
""" + ATOMICALLY.removesuffix("return reply\n")
"""The same for a task that was taken and has not ended; answers the status of any other, and leaves that alone."""

STATUSES = """
local found = {}
for place, id in ipairs(ARGV) do found[place] = redis.call('HGET', KEYS[1] .. id, 'status') or '' end
return found
"""

KEEP_NAME = "return redis.call('GET', KEYS[1]) == ARGV[1] and redis.call('EXPIRE', KEYS[1], ARGV[2])"
GIVE_NAME_BACK = "return redis.call('GET', KEYS[1]) == ARGV[1] and redis.call('DEL', KEYS[1])"

MAKE_DUE = """
local due = redis.call('ZRANGE', KEYS[1], '-inf', ARGV[1], 'BYSCORE', 'LIMIT', 0, ARGV[2])
for _, id in ipairs(due) do
  redis.call('ZREM', KEYS[1], id)
  redis.call('HSET', ARGV[3] .. id, 'status', 'pending', 'updated', ARGV[1])
  redis.call('LPUSH', KEYS[2], id)
end
return #due
"""

ADD_TO_ALL = """
local added = 0
for place = #ARGV, 2, -1 do
  local id = ARGV[place]
  if redis.call('EXISTS', ARGV[1] .. id) == 1 and not redis.call('LPOS', KEYS[1], id) then
    added = redis.call('LPUSH', KEYS[1], id)
  end
end
return added
"""
"""Enters tasks, the newest first, in the list of all; answers whether one was not there."""

FORGET_DELETED = """
local gone = 0
for _, id in ipairs(redis.call('LRANGE', KEYS[1], ARGV[1], ARGV[1] + ARGV[2] - 1)) do
  if redis.call('EXISTS', ARGV[3] .. id) == 0 then gone = gone + redis.call('LREM', KEYS[1], 1, id) end
end
return redis.call('LLEN', KEYS[1]) > ARGV[1] + ARGV[2] - gone and ARGV[1] + ARGV[2] - gone or 0
"""
"""Takes tasks whose clients have deleted them from the list of all; answers where to go on."""

LISTEN = """
if redis.call('SADD', KEYS[1], ARGV[1]) == 1 then redis.call('ZINCRBY', KEYS[2], 1, ARGV[2]) end
redis.call('SADD', KEYS[3], ARGV[1] .. ' ' .. ARGV[2])
"""
LEAVE = """
if redis.call('SREM', KEYS[1], ARGV[1]) == 1 then redis.call('ZINCRBY', KEYS[2], -1, ARGV[2]) end
redis.call('SREM', KEYS[3], ARGV[1] .. ' ' .. ARGV[2])
"""
"""A listener comes and goes: the score of a queue is the number of its listeners."""


Step = Callable[[], Awaitable[object]]


class BridgeOptions(Struct, frozen=True, kw_only=True):
    """What one bridge serves."""

    url: str
    """The Redis server that the clients use."""
    node: str
    """The name under which it reserves tasks; no two bridges on a server have the same."""
    queues: tuple[str, ...] = ()
    """Their queues; empty = all that clients name."""
    task: str | None = None
    """The task of ours that runs them; null = the one that is called as the queue."""


class OpenTask(Struct, frozen=True):
    """A task that was taken and has not ended, and what its keys say of it so far."""

    id: str
    queue: str
    job: str = ""
    """The id of its job; empty = not made yet."""
    node: str = ""
    """The node whose reserved list names it."""
    pid: int = 0
    """Its process, as the keys name it; 0 = not started."""
    worker: str | None = None
    """The worker of ours that holds it, as far as is known."""


async def run(service: Service, tenant: str, options: BridgeOptions, clock: Clock, stop: asyncio.Event) -> None:
    """Until it is stopped: taken tasks stay with their jobs, and the next bridge of this name goes on with them."""
    target = read_url(options.url)
    if target.cluster or target.group is not None:
        raise Invalid("Blueque's keys are on a single server: give redis://, rediss:// or unix://", at="redis")
    for queue in options.queues:
        _check_name(queue)
    bridge = _Bridge(service, tenant, options, clock, target.address)
    async with bridge.opened():
        running, stopping = asyncio.create_task(bridge.run()), asyncio.create_task(stop.wait())
        await asyncio.wait([running, stopping], return_when=asyncio.FIRST_COMPLETED)
        stopping.cancel()
        running.cancel()
        try:
            await running
        except* asyncio.CancelledError:
            pass
        except* WindlassError as faults:
            raise faults.exceptions[0] from None


def _check_name(queue: str) -> None:
    if not is_name(queue):
        raise Invalid(f"{queue!r} is no name of a queue: letters, digits, '_', '.' and '-'", at="queue")


class _Bridge:
    """One bridge, with its connections and the tasks that it has taken."""

    def __init__(
        self, service: Service, tenant: str, options: BridgeOptions, clock: Clock, address: ServerAddress
    ) -> None:
        self._service = service
        self._tenant = tenant
        self._options = options
        self._clock = clock
        self._address = address
        self._redis = Channel(address, ANSWER_WITHIN)
        self._own = f"blueque_bridge_{options.node}"
        self._open: dict[str, OpenTask] = {}
        self._workers: dict[str, list[Worker]] = {}
        """The workers that take each queue."""
        self._serving: set[str] = set()
        self._tidied: dict[str, int] = {}
        """How far the list of all tasks of each queue was gone through."""
        self._seen: dict[str, frozenset[bytes]] = {}
        """What was at the head of each list, and in the sets of started tasks, at the last look."""
        self._scheduled: dict[str, int] = {}
        """How far the scheduled tasks of each queue were gone through."""
        self._changed = asyncio.Event()
        """A task has ended, or workers have come or gone: there may be a free slot."""
        self._changing = asyncio.Lock()
        """Locked while a task's keys and what is known of them change together."""
        self._mark = ""
        self._waits = False

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[None]:
        """Take its name, and give it back at the end."""
        mark = str(self._clock.now().timestamp())
        await self._take_name(mark)
        log.info("%s serves %s", self._options.node, ", ".join(self._options.queues) or "all queues")
        self._mark = mark
        try:
            yield
        finally:
            with suppress(WindlassError):
                for listener, queue in await self._announced():
                    await self._announce(LEAVE, listener, queue)
                await self._ask("EVAL", GIVE_NAME_BACK, 1, f"{self._own}_lock", mark)
            await self._redis.close()

    async def _take_name(self, mark: str) -> None:
        """One that was killed keeps its name for some seconds."""
        until = self._clock.monotonic() + LOCK + POLL
        while not await self._ask("SET", f"{self._own}_lock", mark, "NX", "EX", LOCK):
            if self._clock.monotonic() > until:
                raise Conflict(f"a bridge named {self._options.node} is running; --node names this one", at="node")
            await self._clock.sleep(POLL)

    async def _keep_name(self) -> None:
        if not await self._ask("EVAL", KEEP_NAME, 1, f"{self._own}_lock", self._mark, LOCK):
            raise Conflict(f"another bridge has taken the name {self._options.node}", at="node")

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            await self._patiently(self._recover)
            group.create_task(self._forever(0, self._follow))
            group.create_task(self._forever(LOCK / 3, self._keep_name))
            group.create_task(self._forever(SWEEP, self._sweep))
            group.create_task(self._forever(POLL, partial(self._look_around, group)))
            group.create_task(self._forever(POLL, self._look_for_ends_by_hand))

    async def _forever(self, seconds: float, step: Step) -> None:
        while True:
            await self._patiently(step)
            await self._clock.sleep(seconds)

    async def _patiently(self, step: Step) -> None:
        """Do it, as often as it takes: neither the server nor the queue need to be there all the time."""
        while True:
            try:
                await step()
            except (Unavailable, Busy) as fault:
                if not self._waits:
                    log.warning("waits: %s", fault)
                self._waits = True
                await self._clock.sleep(POLL)
            else:
                if self._waits:
                    log.info("goes on")
                self._waits = False
                return

    # The server

    async def _ask(self, *command: Argument) -> Any:
        with own_errors():
            return await self._redis.ask(*command)

    async def _atomically(self, *commands: Sequence[Argument]) -> Any:
        words = [word for command in commands for word in (len(command), *command)]
        return await self._ask("EVAL", ATOMICALLY, 0, *words)

    async def _if_held(self, task: OpenTask, *commands: Sequence[Argument]) -> bool:
        """Do this in one step unless a client has ended the task by hand; then that is seen to."""
        words = [word for command in commands for word in (len(command), *command)]
        status = await self._ask("EVAL", IF_HELD, 1, f"blueque_task_{task.id}", *words)
        if status is not None:
            await self._end_as_written(task, status.decode())
        return status is None

    def _now(self) -> str:
        return f"{self._clock.now().timestamp():.6f}"

    def _set(self, task: str, *fields: Argument) -> tuple[Argument, ...]:
        """The command that changes fields of a task; every one says when."""
        return ("HSET", f"blueque_task_{task}", *fields, "updated", self._now())

    # Workers and queues

    async def _look_around(self, group: asyncio.TaskGroup) -> None:
        """Queues that have come, listeners that have come or gone, tasks that are new or whose time has come."""
        for queue in self._options.queues or await self._named_queues():
            if queue not in self._serving:
                self._serving.add(queue)
                group.create_task(self._serve(queue))
        workers = await self._service(Workers(tenant=self._tenant))
        self._workers = {queue: [one for one in workers if self._takes(one, queue)] for queue in self._serving}
        self._changed.set()
        await self._announce_listeners()
        for queue in self._serving:
            key, pending = f"blueque_scheduled_tasks_{queue}", f"blueque_pending_tasks_{queue}"
            while await self._ask("EVAL", MAKE_DUE, 2, key, pending, self._now(), MOST_AT_ONCE, "blueque_task_"):
                pass
            await self._look_for_new(queue)

    async def _look_for_new(self, queue: str) -> None:
        """Clients do not enter their tasks in the list of all, nor do other listeners those that they take."""
        for kind in ("pending", "complete", "failed"):
            await self._look_through(queue, f"blueque_{kind}_tasks_{queue}")
        started = f"blueque_started_tasks_{queue}"
        await self._enter(queue, started, [one.rpartition(b" ")[2] for one in await self._ask("SMEMBERS", started)])
        first = self._scheduled.get(queue, 0)
        page = await self._page("ZRANGE", f"blueque_scheduled_tasks_{queue}", first)
        await self._add_to_all(queue, page)
        self._scheduled[queue] = first + MOST_AT_ONCE if len(page) == MOST_AT_ONCE else 0

    async def _look_through(self, queue: str, key: str) -> None:
        """A list with the newest first: as far as there are tasks that were not in the list of all."""
        first = MOST_AT_ONCE
        if await self._enter(queue, key, await self._page("LRANGE", key, 0)):
            while await self._add_to_all(queue, await self._page("LRANGE", key, first)):
                first += MOST_AT_ONCE

    async def _enter(self, queue: str, key: str, ids: Sequence[bytes]) -> bool:
        """Enter those that were not there at the last look; whether one was not in the list of all."""
        before = self._seen.get(key, frozenset())
        new = [id for id in ids if id not in before]
        entered = bool(new) and await self._add_to_all(queue, new)
        self._seen[key] = frozenset(ids)
        return entered

    async def _page(self, command: str, key: str, first: int) -> list[bytes]:
        page: list[bytes] = await self._ask(command, key, first, first + MOST_AT_ONCE - 1)
        return page

    async def _add_to_all(self, queue: str, ids: Sequence[Argument]) -> bool:
        return bool(await self._ask("EVAL", ADD_TO_ALL, 1, f"blueque_tasks_{queue}", "blueque_task_", *ids))

    async def _named_queues(self) -> list[str]:
        names = [name.decode(errors="replace") for name in await self._ask("ZRANGE", "blueque_queues", 0, -1)]
        return [name for name in names if is_name(name)]

    def _takes(self, worker: Worker, queue: str) -> bool:
        task = self._options.task or queue
        return queue in worker.queues and (worker.tasks is None or task in worker.tasks or worker.handlers)

    async def _announce_listeners(self) -> None:
        here = {(listener(one), queue) for queue, workers in self._workers.items() for one in workers}
        there = await self._announced()
        for name, queue in here:  # also of those that are there: another bridge that leaves takes them away
            await self._announce(LISTEN, name, queue)
        for name, queue in there - here:
            await self._announce(LEAVE, name, queue)

    async def _announced(self) -> set[tuple[str, str]]:
        """The listeners that this bridge has announced, also in an earlier life, each with its queue."""
        pairs = [pair.decode().rpartition(" ") for pair in await self._ask("SMEMBERS", f"{self._own}_listeners")]
        return {(name, queue) for name, _, queue in pairs}

    async def _announce(self, script: str, name: str, queue: str) -> None:
        listeners, announced = f"blueque_listeners_{queue}", f"{self._own}_listeners"
        await self._ask("EVAL", script, 3, listeners, "blueque_queues", announced, name, queue)

    # Taking tasks

    async def _serve(self, queue: str) -> None:
        """Take tasks in the order in which they were sent, no more than workers can run."""
        waiting = Channel(self._address, ANSWER_WITHIN + POLL)
        try:
            while True:
                self._changed.clear()
                if self._has_slot(queue):
                    await self._patiently(partial(self._take_next, queue, waiting))
                else:
                    await self._changed.wait()
        finally:
            await waiting.close()

    def _has_slot(self, queue: str) -> bool:
        slots = sum(counted_slots(worker) for worker in self._workers.get(queue, ()))
        return sum(task.queue == queue for task in self._open.values()) < slots

    async def _take_next(self, queue: str, waiting: Channel) -> None:
        source, reserved = f"blueque_pending_tasks_{queue}", _reserved(queue, self._options.node)
        with own_errors():
            id = await waiting.ask("BLMOVE", source, reserved, "RIGHT", "LEFT", str(POLL))
        if id is not None:
            await self._patiently(partial(self._take, id.decode(), queue))

    async def _take(self, id: str, queue: str) -> None:
        """Make a job of a reserved task, unless that is done already."""
        async with self._changing:
            status = await self._ask("HGET", f"blueque_task_{id}", "status")
            listed = await self._ask("LPOS", _reserved(queue, self._options.node), id) is not None
            known = self._open.get(id)
            if known is not None and known.job:
                if not listed or status != b"pending":
                    return
                await self._end_as_written(known, "pending")
            elif not listed:  # it has ended meanwhile
                await self._ask("HDEL", self._own, id)
                return
            task = self._open[id] = OpenTask(id, queue, node=self._options.node)
            await self._atomically(
                ("HSETNX", f"blueque_task_{id}", "created", self._now()),
                ("HINCRBY", f"blueque_task_{id}", SUBMISSION, int(status != b"reserved")),
                self._set(id, "status", "reserved", "node", self._options.node, "queue", queue),
                ("HSET", self._own, id, f"{queue} "),
            )
            await self._add_to_all(queue, [id])
            await self._make_job(task)

    async def _make_job(self, task: OpenTask) -> None:
        parameters, submission = await self._ask("HMGET", f"blueque_task_{task.id}", "parameters", SUBMISSION)
        if parameters is None:
            await self._end(task, "failed", "error", "the task has no parameters")
            return
        new = NewJob(
            task=self._options.task or task.queue,
            queue=task.queue,
            key=f"{TAG}:{task.id}:{submission.decode()}",
            tags=[TAG],
            headers={TASK_ID: task.id},
            content_type=TEXT,
            payload=Raw(parameters),
            isolate=True,
            on_lost="adopt",
            keep_success=KEEP,
            keep_failure=KEEP,
        )
        try:
            job = await self._service(Enqueue(tenant=self._tenant, job=new))
        except (Invalid, TooLarge, Conflict) as refused:
            await self._end(task, "failed", "error", str(refused))
            return
        await self._ask("HSET", self._own, task.id, f"{task.queue} {job.id}")
        task = self._open[task.id] = replace(task, job=job.id)
        await self._write_down(task, job)

    # Writing down what becomes of them

    async def _follow(self) -> None:
        events = cast("EventSource", self._service)  # every service has them
        async for event in events.watch(self._tenant, Match(tag=[TAG])):
            if event.job is not None:
                await self._report(event.job)
            elif event.gone is not None or event.name == "gap":
                await self._sweep()

    async def _sweep(self) -> None:
        """Look at all that is open, should an event or an answer have been lost."""
        for task in [task for task in self._open.values() if task.job]:
            try:
                await self._report(await self._service(Show(tenant=self._tenant, id=task.job)))
            except Missing:
                async with self._changing:
                    await self._end(task, "failed", "error", "its job was deleted")
        for queue in self._serving:
            names, place = f"blueque_tasks_{queue}", self._tidied.get(queue, 0)
            step = await self._ask("EVAL", FORGET_DELETED, 1, names, place, MOST_AT_ONCE, "blueque_task_")
            self._tidied[queue] = step
            for raw in await self._ask("LRANGE", _reserved(queue, self._options.node), 0, -1):
                await self._take(raw.decode(), queue)

    async def _report(self, job: Job) -> None:
        async with self._changing:
            task = self._open.get(job.headers.get(TASK_ID, ""))
            if task is not None and task.job == job.id:
                await self._write_down(task, job)

    async def _write_down(self, task: OpenTask, job: Job) -> None:
        if job.pid is not None and (job.pid != task.pid or job.worker != task.worker):
            task = await self._start(task, job)
            if task.id not in self._open:
                return
        if job.state is State.SUCCEEDED:
            await self._end(task, "complete", "result", await self._result(job))
        elif job.state in FINISHED:
            message = job.error.message if job.error is not None else ""
            await self._end(task, "failed", "error", message or str(job.reason or job.state))

    async def _listener_of(self, job: Job) -> str:
        """The listener that runs a job, which may have come a moment ago."""
        for workers in (self._workers.get(job.queue, ()), await self._service(Workers(tenant=self._tenant))):
            for worker in workers:
                if worker.id == job.worker:
                    return listener(worker)
        return job.node or self._options.node

    async def _start(self, task: OpenTask, job: Job) -> OpenTask:
        """It has started, or another worker goes on with it."""
        started = replace(task, node=await self._listener_of(job), pid=job.pid or 0, worker=job.worker)
        reclaimed = ("reclaimed_node", started.node) if job.adopted_by is not None else ()
        held = await self._if_held(
            task,
            ("LREM", _reserved(task.queue, task.node), 0, task.id),
            ("LPUSH", _reserved(task.queue, started.node), task.id),
            ("SREM", f"blueque_started_tasks_{task.queue}", _running(task)),
            ("SADD", f"blueque_started_tasks_{task.queue}", _running(started)),
            self._set(task.id, "status", "started", "node", started.node, "pid", started.pid, *reclaimed),
        )
        if held:
            self._open[task.id] = started
        return started

    async def _end(self, task: OpenTask, status: Literal["complete", "failed"], field: str, text: str | bytes) -> None:
        held = await self._if_held(
            task,
            ("LREM", _reserved(task.queue, task.node), 0, task.id),
            ("SREM", f"blueque_started_tasks_{task.queue}", _running(task)),
            ("HDEL", f"blueque_task_{task.id}", "result", "error"),
            self._set(task.id, "status", status, field, text),
            ("LPUSH", f"blueque_{status}_tasks_{task.queue}", task.id),
            ("HDEL", self._own, task.id),
        )
        if held:
            self._drop(task)

    def _drop(self, task: OpenTask) -> None:
        self._open.pop(task.id, None)
        self._changed.set()

    async def _result(self, job: Job) -> str | bytes:
        """A text as it is, anything else as JSON."""
        answer = await self._service(GetResult(tenant=self._tenant, id=job.id))
        value = None if answer.result is UNSET else wire.value(answer.result, answer.content_type)
        return value if isinstance(value, str | bytes) else json.dumps(value, default=str)

    # Tasks that clients end in the place of their processes

    async def _look_for_ends_by_hand(self) -> None:
        ids = list(self._open)
        for first in range(0, len(ids), MOST_AT_ONCE):
            some = ids[first : first + MOST_AT_ONCE]
            async with self._changing:
                statuses = await self._ask("EVAL", STATUSES, 1, "blueque_task_", *some)
                for id, status in zip(some, statuses, strict=True):
                    task = self._open.get(id)
                    if task is not None and task.job and status not in (b"reserved", b"started"):
                        await self._end_as_written(task, status.decode())

    async def _end_as_written(self, task: OpenTask, status: str) -> None:
        """What a client wrote stands: the job ends by hand as the task says, or stops if the task waits again."""
        log.info("task %s was ended by a client: %s", task.id, status or "deleted")
        if task.job:
            with suppress(Missing):
                await self._end_job(task, status)
        # One that waits again may be in our list again.
        again = status == "pending" and task.node == self._options.node
        await self._atomically(
            *([] if again else [("LREM", _reserved(task.queue, task.node), 0, task.id)]),
            ("SREM", f"blueque_started_tasks_{task.queue}", _running(task)),
            ("HDEL", self._own, task.id),
        )
        self._drop(task)

    async def _end_job(self, task: OpenTask, status: str) -> None:
        """By hand, if it runs; otherwise it is cancelled."""
        result, error = await self._ask("HMGET", f"blueque_task_{task.id}", "result", "error")
        with suppress(Conflict):
            if status == "failed":
                message = (error or b"").decode(errors="replace")[:MOST_MESSAGE]
                await self._service(FailByHand(tenant=self._tenant, id=task.job, message=message))
                return
            if status == "complete":
                finish = FinishByHand(tenant=self._tenant, id=task.job, result=Raw(result or b""), content_type=TEXT)
                try:
                    await self._service(finish)
                except TooLarge:
                    await self._service(replace(finish, result=UNSET))
                return
        await self._service(Cancel(tenant=self._tenant, ids=[task.job]))

    # After a restart

    async def _recover(self) -> None:
        """Take up what an earlier life of this bridge has left open."""
        words = [word.decode() for word in await self._ask("HGETALL", self._own)]
        for id, note in zip(words[::2], words[1::2], strict=True):
            queue, _, job = note.partition(" ")
            node, pid = await self._ask("HMGET", f"blueque_task_{id}", "node", "pid")
            if job:
                reserved_by = node.decode() if node else self._options.node
                self._open[id] = OpenTask(id, queue, job, reserved_by, int(pid or 0))
            else:
                await self._take(id, queue)
        await self._sweep()


def listener(worker: Worker) -> str:
    """How the keys name a worker."""
    return f"{worker.node}_{worker.pid}"


def _reserved(queue: str, node: str) -> str:
    return f"blueque_reserved_tasks_{queue}_{node}"


def _running(task: OpenTask) -> str:
    return f"{task.node} {task.pid} {task.id}"
