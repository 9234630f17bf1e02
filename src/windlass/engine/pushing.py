"""What the servers that send jobs to workers share through the store: secrets, turns, and claims on a worker's behalf.

A worker's jobs are sent by one server at a time, whose turn it is, so that its slots are counted in one place. A turn
is written, and holds if it still stands a moment later; it ends unless it is written again. None of this counts as a
sign of life of the worker.
"""

import asyncio
from collections.abc import Collection, Mapping, Sequence
from datetime import datetime, timedelta

import msgspec
from msgspec import Raw, Struct
from msgspec.structs import replace

from windlass.engine.desk import Desk, fence
from windlass.engine.jobs import LOOK_AGAIN
from windlass.engine.work import SECRETS, lease_of, renew_now, turns_of
from windlass.model import lifecycle
from windlass.model.job import State
from windlass.model.lifecycle import Move
from windlass.model.names import key_of
from windlass.model.operations import MOST_AT_ONCE, Alive, Claimed, Renew, Renewed
from windlass.model.ports import Clock
from windlass.model.worker import Worker
from windlass.store import Record, Scope, Touch, Wish

TURNS = "push.turn"

TURN = 6.0
"""Seconds that a turn lasts unless it is taken again."""

SETTLED = 0.5
"""Seconds after which whoever else wanted the same turn has written so."""

NEW = 2.0
"""Seconds for which a new worker is left to the server that it registered with."""


class Turn(Struct, frozen=True, array_like=True):
    """Which server sends jobs to a worker, and until when."""

    server: str
    until: datetime


class Pushing:
    """One server's part in it."""

    def __init__(self, desk: Desk, clock: Clock) -> None:
        self._desk = desk
        self._clock = clock
        self._server = desk.chance.token().hex()

    @property
    def lease(self) -> float:
        return self._desk.settings.lease

    async def secrets(self) -> Mapping[str, str]:
        """The secrets of all workers that have one, by worker."""
        return {worker: data.decode() for worker, data in (await self._desk.shelf.shelved(SECRETS)).items()}

    async def take_turns(self, workers: Sequence[Worker], *, first: bool = False) -> set[str]:
        """Take or keep the turn of each that is free; the workers whose turn is ours. `first`: they are new here."""
        if not workers:
            return set()
        now = await self._now()
        turns = await self._turns()
        free = [
            worker
            for worker in workers
            if first or self._is_mine(turns, worker) or self._is_free(turns.get(worker.id), worker, now)
        ]
        turn = msgspec.msgpack.encode(Turn(self._server, now + timedelta(seconds=TURN)))
        for worker in free:
            if not (self._is_mine(turns, worker) and turns[worker.id].until - now > timedelta(seconds=TURN / 2)):
                await self._desk.shelf.put(TURNS, worker.id, turn)
        if not first and not all(self._is_mine(turns, worker) for worker in free):
            await self._clock.sleep(SETTLED)
            turns = await self._turns()
            free = [worker for worker in free if self._is_mine(turns, worker)]
        for worker in free:
            self._desk.remember(worker)
        return {worker.id for worker in free}

    def _is_mine(self, turns: Mapping[str, Turn], worker: Worker) -> bool:
        return worker.id in turns and turns[worker.id].server == self._server

    def _is_free(self, turn: Turn | None, worker: Worker, now: datetime) -> bool:
        return turn.until <= now if turn else worker.registered_at + timedelta(seconds=NEW) <= now

    async def give_up_turn(self, worker: str) -> None:
        if (turn := (await self._turns()).get(worker)) is not None and turn.server == self._server:
            ended = Turn(self._server, await self._now())
            await self._desk.shelf.put(TURNS, worker, msgspec.msgpack.encode(ended))

    async def forget(self, workers: Collection[str]) -> None:
        """Drop what was kept for workers that are gone: their names never come again."""
        for worker in workers:
            await self._desk.shelf.put(TURNS, worker, None)
            await self._desk.shelf.put(SECRETS, worker, None)

    async def _turns(self) -> dict[str, Turn]:
        shelved = await self._desk.shelf.shelved(TURNS)
        return {worker: msgspec.msgpack.decode(data, type=Turn) for worker, data in shelved.items()}

    async def _now(self) -> datetime:
        return (await self._desk.store.read([])).now

    # Jobs

    async def claim(
        self, worker: Worker, nonce: bytes, slots: int, wait: float, unknown: Collection[str]
    ) -> list[Claimed]:
        """Take jobs for a worker, but none of the tasks that it said it does not know."""
        loop = asyncio.get_running_loop()
        until = loop.time() + wait
        async with self._desk.store.listen([f"work/{queue}" for queue in worker.queues]) as listener:
            while True:
                tasks = await self._tasks(worker, unknown)
                records: list[Record] = []
                if tasks is None or tasks:
                    able = replace(worker, tasks=tasks)
                    regime = await self._desk.regimes.current()
                    turns, in_order = turns_of(worker), regime.in_order(worker.queues)
                    lasts = regime.has_never_twice(worker.queues)
                    lease = lease_of(self._desk, worker)
                    wish = Wish(able, nonce, slots, lease, heard=False, turns=turns, in_order=in_order, lasts=lasts)
                    records = await self._desk.store.claim(wish)
                remaining = until - loop.time()
                if records or remaining <= 0:
                    return [_claimed(record) for record in records]
                await listener.wait(min(LOOK_AGAIN, remaining))

    async def _tasks(self, worker: Worker, unknown: Collection[str]) -> list[str] | None:
        """Which tasks to claim; null = any."""
        if not unknown:
            return worker.tasks
        tasks = worker.tasks
        if tasks is None:
            tallies = await self._desk.store.tally(worker.tenant)
            queued = {tally.task for tally in tallies if tally.state is State.QUEUED and tally.queue in worker.queues}
            tasks = sorted(queued)
        return [task for task in tasks if task not in unknown]

    async def renew(self, worker: Worker, jobs: Sequence[Claimed]) -> Renewed:
        """Lengthen the leases of jobs that a worker has, without a word from it."""
        alive = [Alive(id=one.job.id, token=one.token, tenant=one.job.tenant, deadline=one.deadline) for one in jobs]
        operation = Renew(tenant=worker.tenant, worker=worker.id, jobs=alive)
        return await renew_now(self._desk, operation, lease_of(self._desk, worker))

    async def lose(self, jobs: Sequence[Claimed]) -> None:
        """Take jobs back now: their worker is gone, so there is no need to wait for their leases to run out."""
        desk, tokens = self._desk, {key_of(one.job): fence(one.token) for one in jobs}
        regime = await desk.regimes.refreshed()
        await desk.store.touch([Touch(key.id, key.tenant, token) for key, token in tokens.items()], 0.0)

        def lost(record: Record, now: datetime) -> Move | None:
            job = record.job
            if record.token != tokens[key_of(job)]:
                return None
            return lifecycle.lose(job, now, regime.settings(job.tenant, job.queue).on_lost)

        await desk.settle(list(tokens), lost)

    async def held(self, worker: Worker) -> list[Claimed]:
        """The jobs that a worker holds, as another server has left them; without their payloads."""
        found: list[Claimed] = []
        for queue in worker.queues:
            after = None
            scope = Scope(worker.tenant, queue, frozenset({State.RUNNING}))
            while True:
                piece = await self._desk.store.page(scope, after, MOST_AT_ONCE)
                mine = [key_of(record.job) for record in piece.records if record.job.worker == worker.id]
                read = (await self._desk.store.read(mine)).records if mine else []
                found += [
                    _claimed(one) for one in read if one is not None and one.job.worker == worker.id and one.token
                ]
                if (after := piece.next) is None:
                    break
        return found


def _claimed(record: Record) -> Claimed:
    return Claimed(
        job=record.job,
        token=(record.token or b"").hex(),
        payload=Raw(record.payload or b""),
        files=record.files,
        deadline=record.job.deadline,
    )
