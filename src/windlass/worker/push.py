"""Workers that have jobs sent to them: each that is alive gets a dispatcher, on one server at a time.

Any number of servers may do this over one store; whose turn a worker is, they agree on through the store. Stands before
the service that answers requests, so that what workers say here is known at once; what they say elsewhere is found out.
"""

import asyncio
import logging
from collections.abc import Callable, Collection, Coroutine, Mapping, Sequence
from contextlib import suppress
from typing import Any, Protocol

from msgspec.structs import replace

from windlass.model.errors import Denied, WindlassError
from windlass.model.names import EVERY_TENANT, JobKey
from windlass.model.operations import (
    A,
    Applied,
    Finish,
    Operation,
    Register,
    Registered,
    Release,
    Service,
    Unregister,
    Workers,
)
from windlass.model.ports import Chance, Clock
from windlass.model.push import read_url
from windlass.model.worker import NewWorker, Worker
from windlass.worker.delivering import Delivery, Language, Network
from windlass.worker.dispatcher import Book, Dispatcher

log = logging.getLogger("windlass.push")

HEARD = (Register, Unregister, Finish, Release)
"""What workers say that concerns us."""

LOOK_UP_WITHIN = 5.0
"""Seconds that a name is looked up for when a worker registers."""

LOOK_EVERY = 1.0
LOOK_EVERY_IF_NONE = 5.0
"""Seconds between two looks at who is there, and if there was nobody."""


class Turns(Book, Protocol):
    """How servers agree on who sends to whom."""

    async def secrets(self) -> Mapping[str, str]: ...

    async def take_turns(self, workers: Sequence[Worker], *, first: bool = False) -> set[str]: ...

    async def give_up_turn(self, worker: str) -> None: ...

    async def forget(self, workers: Collection[str]) -> None: ...


class Push:
    """Sends jobs to workers; also answers operations, as the service behind it does."""

    def __init__(
        self,
        service: Service,
        turns: Turns,
        network: Network,
        language: Callable[[Worker], Language],
        *,
        clock: Clock,
        chance: Chance,
    ) -> None:
        self._service = service
        self._turns = turns
        self._network = network
        self._language = language
        self._clock = clock
        self._chance = chance
        self._dispatchers: dict[str, tuple[Dispatcher, asyncio.Task[None]]] = {}
        self._new: set[str] = set()
        self._poked = asyncio.Event()

    def __call__(self, operation: Operation[A], /) -> Coroutine[Any, Any, A]:
        return self._heard(operation) if type(operation) in HEARD else self._service(operation)

    async def _heard(self, operation: Operation[A]) -> A:
        if isinstance(operation, Register) and operation.worker.url is not None:
            await self._check(operation.worker)
        answer = await self._service(operation)
        match operation, answer:
            case Register(), Registered() if operation.worker.url is not None:
                self._new.add(answer.worker)
                self._poked.set()
            case Unregister(), _ if operation.worker in self._dispatchers:
                self._poked.set()
            case ((Finish() | Release()), Applied()) if operation.worker in self._dispatchers:
                # Where two tenants have an id of which one report was refused, the next renewal tells.
                sure = {*answer.applied} - {*answer.refused}
                tenant = self._dispatchers[operation.worker][0].worker.tenant
                keys = [JobKey(one.id, one.tenant or tenant) for one in operation.jobs if one.id in sure]
                self._dispatchers[operation.worker][0].ended(keys)
        return answer

    async def _check(self, worker: NewWorker) -> None:
        """Refuse an address that no job will be sent to. What a name means is looked up again for each connection."""
        address = read_url(worker.url or "")
        network = self._way_to(worker)
        try:
            async with asyncio.timeout(LOOK_UP_WITHIN):
                found = await network.resolve(address.host, address.port)
        except (OSError, TimeoutError, UnicodeError):
            return  # nobody knows the name now; maybe later
        try:
            network.allowed.check(address.host, address.port, found, encrypted=address.scheme == "https")
        except Denied as fault:
            raise Denied(fault.detail, at="worker.url") from None

    def _way_to(self, worker: NewWorker) -> Network:
        network = self._network
        return network._replace(allowed=replace(network.allowed, near=True)) if worker.trusted else network

    async def run(self) -> None:
        """Until it is cancelled: then jobs that were not taken are given back, and other servers go on."""
        try:
            async with asyncio.TaskGroup() as group:
                while True:
                    try:
                        await self._look(group)
                    except WindlassError as fault:
                        log.warning("cannot see who is there: %s", fault)
                    await self._pause()
        finally:
            with suppress(WindlassError):  # then the turns end by themselves
                for worker in self._dispatchers:
                    await self._turns.give_up_turn(worker)

    async def _pause(self) -> None:
        try:
            async with asyncio.timeout(LOOK_EVERY if self._dispatchers else LOOK_EVERY_IF_NONE):
                await self._poked.wait()
        except TimeoutError:
            pass
        self._poked.clear()

    async def _look(self, group: asyncio.TaskGroup) -> None:
        """Start and stop dispatchers, so that there is one for each worker whose turn is ours."""
        # Secrets are asked for first: one whose worker is not among those alive afterwards is of one that is gone.
        secrets = await self._turns.secrets()
        if not secrets and not self._dispatchers and not self._new:
            return
        new, self._new = self._new, set()
        found = await self._service(Workers(tenant=EVERY_TENANT))
        alive = {worker.id: worker for worker in found if worker.id in secrets and worker.url is not None}
        ours = await self._turns.take_turns([worker for id, worker in alive.items() if id in new], first=True)
        ours |= await self._turns.take_turns([worker for id, worker in alive.items() if id not in new])
        for id in self._dispatchers.keys() - ours:
            self._stop(id, gone=id not in alive)
        for id in ours - self._dispatchers.keys():
            self._start(group, alive[id], secrets[id])
        await self._turns.forget(secrets.keys() - alive.keys())

    def _start(self, group: asyncio.TaskGroup, worker: Worker, secret: str) -> None:
        log.info("sends jobs to %s at %s", worker.name, worker.url)
        delivery = Delivery(worker, secret, self._way_to(worker), self._language(worker), self._clock)
        dispatcher = Dispatcher(worker, self._service, self._turns, delivery, clock=self._clock, chance=self._chance)
        self._dispatchers[worker.id] = dispatcher, group.create_task(self._watched(dispatcher))

    def _stop(self, id: str, *, gone: bool) -> None:
        dispatcher, task = self._dispatchers.pop(id)
        dispatcher.gone = gone
        log.info("sends no more jobs to %s", dispatcher.worker.name)
        task.cancel()

    async def _watched(self, dispatcher: Dispatcher) -> None:
        """One that breaks is started again at the next look; the others go on."""
        try:
            await dispatcher.run()
        except* WindlassError as faults:
            log.warning("sending jobs to %s: %s", dispatcher.worker.name, faults.exceptions[0])
        except* Exception:
            log.exception("sending jobs to %s", dispatcher.worker.name)
        finally:
            found = self._dispatchers.get(dispatcher.worker.id)
            if found is not None and found[0] is dispatcher and not _cancelled():
                del self._dispatchers[dispatcher.worker.id]


def _cancelled() -> bool:
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
