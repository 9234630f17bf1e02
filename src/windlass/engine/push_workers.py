"""Push workers: what servers that push jobs share through the store, and claims on a worker's behalf.

One server at a time pushes to a worker, so that its slots are counted in one place: it holds the worker's turn. A turn
is a record that must still stand a moment after it was written, and that expires unless it is renewed. Nothing here
counts as a heartbeat of the worker.
"""

import asyncio
from collections.abc import Collection, Mapping, Sequence
from datetime import datetime, timedelta

import msgspec
from msgspec import Struct

from windlass.engine.context import POLL_EVERY, EngineContext, fence, lease_of
from windlass.engine.dependencies import give_results
from windlass.engine.reports import claim_request, claimed, read_on_lost
from windlass.engine.work import renew_now
from windlass.engine.workers import SECRETS
from windlass.model import lifecycle
from windlass.model.job import State
from windlass.model.lifecycle import Move
from windlass.model.names import JobKey, key_of
from windlass.model.operations import MOST_AT_ONCE, Claim, Claimed, Renew, Renewed
from windlass.model.ports import Clock
from windlass.model.worker import Worker
from windlass.store.data import ANYTHING, Heartbeat, ListScope, Record

TURNS = "push.turn"

TURN = 6.0
"""Seconds that a turn lasts unless it is renewed."""

SETTLED = 0.5
"""Seconds after which every other server that wanted the same turn has written its record."""

NEW = 2.0
"""Seconds for which only the server that registered a new worker may take its turn."""


class PushTurn(Struct, frozen=True, array_like=True):
    """Which server pushes jobs to a worker, and until when."""

    server: str
    until: datetime


class PushWorkers:
    """The push workers as one server sees them."""

    def __init__(self, context: EngineContext, clock: Clock) -> None:
        self._context = context
        self._clock = clock
        self._server = context.chance.token().hex()

    @property
    def lease(self) -> float:
        return self._context.settings.lease

    async def secrets(self) -> Mapping[str, str]:
        """The secrets of all workers that have one, by worker."""
        return {worker: data.decode() for worker, data in (await self._context.store.records.list(SECRETS)).items()}

    async def take_turns(self, workers: Sequence[Worker], *, first: bool = False) -> set[str]:
        """Take or renew turns; the workers whose turn this server holds. `first`: they have just registered here."""
        if not workers:
            return set()
        now = await self._now()
        turns = await self._turns()
        free = [
            worker
            for worker in workers
            if first or self._is_mine(turns, worker) or self._is_free(turns.get(worker.id), worker, now)
        ]
        turn = msgspec.msgpack.encode(PushTurn(self._server, now + timedelta(seconds=TURN)))
        for worker in free:
            if not (self._is_mine(turns, worker) and turns[worker.id].until - now > timedelta(seconds=TURN / 2)):
                await self._context.store.records.swap(TURNS, worker.id, ANYTHING, turn)
        if not first and not all(self._is_mine(turns, worker) for worker in free):
            await self._clock.sleep(SETTLED)
            turns = await self._turns()
            free = [worker for worker in free if self._is_mine(turns, worker)]
        for worker in free:
            self._context.remember_worker(worker)
        return {worker.id for worker in free}

    def _is_mine(self, turns: Mapping[str, PushTurn], worker: Worker) -> bool:
        return worker.id in turns and turns[worker.id].server == self._server

    def _is_free(self, turn: PushTurn | None, worker: Worker, now: datetime) -> bool:
        return turn.until <= now if turn else worker.registered_at + timedelta(seconds=NEW) <= now

    async def give_up_turn(self, worker: str) -> None:
        if (turn := (await self._turns()).get(worker)) is not None and turn.server == self._server:
            ended = PushTurn(self._server, await self._now())
            await self._context.store.records.swap(TURNS, worker, ANYTHING, msgspec.msgpack.encode(ended))

    async def forget(self, workers: Collection[str]) -> None:
        """Delete the records of workers that are gone. Their ids are never reused."""
        for worker in workers:
            await self._context.store.records.swap(TURNS, worker, ANYTHING, None)
            await self._context.store.records.swap(SECRETS, worker, ANYTHING, None)

    async def _turns(self) -> dict[str, PushTurn]:
        stored = await self._context.store.records.list(TURNS)
        return {worker: msgspec.msgpack.decode(data, type=PushTurn) for worker, data in stored.items()}

    async def _now(self) -> datetime:
        return (await self._context.store.jobs.read([])).now

    # Jobs

    async def claim(self, worker: Worker, claim: Claim, unknown: Collection[str]) -> list[Claimed]:
        """Claim jobs for a worker, except of tasks that it reported as unknown."""
        loop = asyncio.get_running_loop()
        until = loop.time() + claim.wait
        nonce = bytes.fromhex(claim.nonce or "")
        async with self._context.store.events.listen([f"work/{queue}" for queue in worker.queues]) as listener:
            while True:
                tasks = await self._tasks(worker, unknown)
                records: list[Record] = []
                if tasks is None or tasks:
                    request = await claim_request(self._context, worker, tasks, nonce, claim.slots, heard=False)
                    records = await self._context.writes.claim(request)
                remaining = until - loop.time()
                if records or remaining <= 0:
                    config = await self._context.flow_config.current()
                    return await give_results(self._context, [claimed(record, config) for record in records])
                await listener.wait(min(POLL_EVERY, remaining))

    async def _tasks(self, worker: Worker, unknown: Collection[str]) -> list[str] | None:
        """The tasks to claim; null = any."""
        if not unknown:
            return worker.tasks
        tasks = worker.tasks
        if tasks is None:
            tallies = (await self._context.store.jobs.counts(worker.tenant)).jobs
            queued = {tally.task for tally in tallies if tally.state is State.QUEUED and tally.queue in worker.queues}
            tasks = sorted(queued)
        return [task for task in tasks if task not in unknown]

    async def renew(self, worker: Worker, renew: Renew) -> Renewed:
        """Renew the leases of a worker's jobs on its behalf."""
        return await renew_now(self._context, renew, lease_of(self._context, worker))

    async def lose(self, jobs: Sequence[tuple[JobKey, str]]) -> None:
        """Reclaim jobs now, by their tokens: their worker is gone, so their leases need not run out."""
        context, tokens = self._context, {key: fence(token) for key, token in jobs}
        on_lost = await read_on_lost(context)
        await context.writes.heartbeat([Heartbeat(key.id, key.tenant, token) for key, token in tokens.items()], 0.0)

        def lost(record: Record, now: datetime) -> Move | None:
            job = record.job
            if record.token != tokens[key_of(job)]:
                return None
            return lifecycle.lose(job, now, on_lost(job))

        await context.move_jobs(list(tokens), lost)

    async def held(self, worker: Worker) -> list[Claimed]:
        """The jobs that a worker was sent by another server, without their payloads."""
        found: list[Record] = []
        for queue in worker.queues:
            after = None
            scope = ListScope(worker.tenant, queue, frozenset({State.RUNNING}))
            while True:
                piece = await self._context.store.jobs.list(scope, after, MOST_AT_ONCE)
                mine = [key_of(record.job) for record in piece.records if record.job.worker == worker.id]
                read = (await self._context.store.jobs.read(mine)).records if mine else []
                found += [one for one in read if one is not None and one.job.worker == worker.id and one.token]
                if (after := piece.next) is None:
                    break
        config = await self._context.flow_config.current()
        return [claimed(one, config) for one in found]
