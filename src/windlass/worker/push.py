"""Push: sends jobs to workers that named a URL. Each of them gets a dispatcher, on one server at a time.

`Delivery` is one request to one worker and its answer. `Dispatcher` claims on a worker's behalf, never more jobs than
it has slots, sends them, renews their leases and enforces their time limits. `Push` agrees with other servers, through
the store, on who sends to whom; it wraps the service, so that it sees at once what workers report here.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from typing import Any, Literal, NamedTuple, Protocol, TypedDict

import httpcore2
from msgspec import Raw
from msgspec.structs import replace

from windlass.model import push, wire
from windlass.model.errors import Denied, Invalid, Unavailable, WindlassError
from windlass.model.job import JSON, MSGPACK, Error, Reason
from windlass.model.lifecycle import Verdict
from windlass.model.names import EVERY_TENANT, JobKey, key_of
from windlass.model.operations import (
    A,
    Applied,
    Began,
    Begin,
    Claimed,
    Finish,
    Finished,
    Operation,
    Register,
    Registered,
    Release,
    Released,
    Renewed,
    Service,
    Unregister,
    Workers,
)
from windlass.model.ports import Clock, Randomness
from windlass.model.push import read_url
from windlass.model.wire import FAULTS, MOST_RESULT, Format
from windlass.model.worker import NewWorker, Worker
from windlass.worker.network import ANSWER_WITHIN, GuardedBackend, Network

log = logging.getLogger("windlass.push")


MOST_ANSWER = 2 * MOST_RESULT

OK = 200


class BodyCodec(NamedTuple):
    """How values are encoded in a body of either format, payloads and results included."""

    encode: Callable[[Any, Format], bytes]
    decode: Callable[[bytes, Any, Format], Any]
    types: Mapping[Format, str] = {"json": JSON, "msgpack": MSGPACK}
    """What each format is called."""


class NotDelivered(WindlassError):
    """The worker could not be reached, or sent no valid answer."""

    code, title, status, exit_status = "not_delivered", "Not delivered", 502, 75


PushAnswer = Finished | Literal["accepted", "unknown"]
"""A worker's answer to a job: how it ended, that it will report, or that it does not know the task."""


class Delivery:
    """Sends jobs to one worker. To be closed."""

    def __init__(self, worker: Worker, secret: str, network: Network, language: BodyCodec, clock: Clock) -> None:
        self._worker = worker
        self._secret = secret
        self._address = push.read_url(worker.url or "")
        self._language = language
        self._clock = clock
        self._network = network
        self._pool = httpcore2.AsyncConnectionPool(
            ssl_context=network.tls,
            max_connections=worker.slots,
            keepalive_expiry=ANSWER_WITHIN,
            network_backend=GuardedBackend(network, encrypted=self._address.scheme == "https"),
        )

    async def close(self) -> None:
        await self._pool.aclose()

    async def send(self, claimed: Claimed) -> PushAnswer:
        """The worker's answer to a job; `NotDelivered` if there is no valid one."""
        try:
            async with asyncio.timeout(self._network.answer_within):
                status, body = await self._post(claimed)
        except (httpcore2.TimeoutException, TimeoutError):
            raise NotDelivered(f"no answer within {self._network.answer_within:g} s") from None
        except (httpcore2.NetworkError, httpcore2.ProtocolError, OSError, UnicodeError, Denied) as fault:
            raise NotDelivered(str(fault) or type(fault).__name__) from None
        match status:
            case 202:
                return "accepted"
            case 404:
                return "unknown"
            case 200:
                return self._outcome(claimed, body)
            case _:
                raise NotDelivered(f"the worker answered {status}")

    async def _post(self, claimed: Claimed) -> tuple[int, bytes]:
        address = self._address
        url = httpcore2.URL(scheme=address.scheme, host=address.host, port=address.port, target=address.target)
        body = self._language.encode(claimed, self._worker.format)
        async with self._pool.stream("POST", url, headers=self._headers(claimed, body), content=body) as response:
            if response.status != OK:
                return response.status, b""
            answer = bytearray()
            async for piece in response.aiter_stream():
                answer += piece
                if len(answer) > MOST_ANSWER:
                    raise NotDelivered(f"the answer has more than {MOST_ANSWER} bytes")
            return response.status, bytes(answer)

    def _headers(self, claimed: Claimed, body: bytes) -> list[tuple[str, str]]:
        timestamp = str(int(self._clock.now().timestamp()))
        media = self._language.types[self._worker.format]
        return [
            ("host", self._address.authority),
            ("content-type", media),
            ("accept", media),
            ("content-length", str(len(body))),
            (push.ID, claimed.job.id),
            (push.ATTEMPT, str(claimed.job.attempt)),
            (push.WORKER, self._worker.id),
            (push.TIMESTAMP, timestamp),
            (push.SIGNATURE, push.signature(self._secret, timestamp, body)),
        ]

    def _outcome(self, claimed: Claimed, body: bytes) -> Finished:
        """The answer as a report: only the server decides which job it is about."""
        form = self._worker.format
        try:
            fields = wire.decode(body, dict[str, Raw], form)
            whole = wire.encode(
                [{**fields, "id": claimed.job.id, "token": claimed.token, "tenant": claimed.job.tenant}], form
            )
            (report,) = self._language.decode(whole, list[Finished], form)
        except Invalid as fault:
            raise NotDelivered(f"the answer is no outcome: {fault}") from None
        assert isinstance(report, Finished)  # noqa: S101 - it was asked for
        return report


WAIT = 30.0
"""Seconds that one claim waits for work."""

PAUSES = (0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 30.0)
"""Seconds without deliveries after one that failed, and after each that fails then."""

UNKNOWN_FOR = 60.0
"""Seconds for which a worker is not offered a task that it does not know, by its own answer."""

GATHER = 0.002
"""Seconds that freed slots are gathered for one claim."""

STOP_WITHIN = 30.0
"""Seconds that a worker has to stop a cancelled job."""

RENEW_EVERY = 1.0


class PushLeases(Protocol):
    """What is written on a worker's behalf."""

    @property
    def lease(self) -> float: ...

    async def claim(
        self, worker: Worker, nonce: bytes, slots: int, wait: float, unknown: Collection[str]
    ) -> list[Claimed]: ...

    async def renew(self, worker: Worker, jobs: Sequence[Claimed]) -> Renewed: ...

    async def lose(self, jobs: Sequence[Claimed]) -> None: ...

    async def held(self, worker: Worker) -> list[Claimed]: ...


class PushedRun:
    """A job that is being sent to the worker, or is there."""

    def __init__(self, claimed: Claimed, seconds: float | None, *, delivered: bool = False) -> None:
        self.claimed = claimed
        self.seconds = seconds
        """How long it may take; null = as long as it likes."""
        self.limit = asyncio.timeout(None)
        self.delivered = delivered
        self.unwanted = False
        self.ended = asyncio.Event()


class Dispatcher:
    """One worker's jobs. `run` until it is cancelled: then what was not taken is released, and if the worker is gone
    the rest is lost at once.
    """

    def __init__(
        self,
        worker: Worker,
        service: Service,
        book: PushLeases,
        delivery: Delivery,
        *,
        clock: Clock,
        chance: Randomness,
    ) -> None:
        self.worker = worker
        self._service = service
        self._book = book
        self._delivery = delivery
        self._clock = clock
        self._chance = chance
        self._runs: dict[JobKey, PushedRun] = {}
        self._changed = asyncio.Event()
        self._unknown: dict[str, float] = {}
        self._failures = 0
        self._paused_until = 0.0
        self._gone = False
        """Whether the worker is gone."""

    async def run(self) -> None:
        try:
            async with asyncio.TaskGroup() as group:
                await self._adopt(group)
                group.create_task(self._renew())
                await self._claim(group)
        finally:
            for run in self._runs.values():
                if not run.delivered:
                    await self._release(run.claimed)
            left = [run.claimed for run in self._runs.values() if run.delivered and not run.ended.is_set()]
            if self._gone and left:
                await self._report(lambda: self._book.lose(left))
            await self._delivery.close()

    def worker_gone(self) -> None:
        """When this is cancelled, its jobs are lost at once."""
        self._gone = True

    def ended(self, keys: Iterable[JobKey]) -> None:
        """The worker has reported these jobs."""
        for key in keys:
            if (run := self._runs.get(key)) is not None:
                run.ended.set()

    # Claiming

    async def _adopt(self, group: asyncio.TaskGroup) -> None:
        """Go on with what another server has sent; release what it had not sent."""
        for one in await self._book.held(self.worker):
            if one.job.pid is None:
                await self._release(one)
            else:
                self._start(group, PushedRun(one, self._time_left(one), delivered=True))

    async def _claim(self, group: asyncio.TaskGroup) -> None:
        while True:
            await self._clock.sleep(max(0.0, self._paused_until - self._clock.monotonic()))
            self._changed.clear()
            free = self.worker.slots - len(self._runs)
            if free < 1 or (self._failures and self._runs and not self._all_delivered()):
                await self._changed.wait()
                continue
            if free < self.worker.slots // 4:
                await self._clock.sleep(GATHER)  # others are about to end: one claim for all of them
                free = self.worker.slots - len(self._runs)
            # After a failure one job is sent before the others follow.
            for one in await self._take(1 if self._failures else free):
                self._start(group, PushedRun(one, _allowed(one)))

    def _start(self, group: asyncio.TaskGroup, run: PushedRun) -> None:
        self._runs[key_of(run.claimed.job)] = run
        group.create_task(self._follow(run))

    def _all_delivered(self) -> bool:
        return all(run.delivered for run in self._runs.values())

    async def _take(self, slots: int) -> list[Claimed]:
        now = self._clock.monotonic()
        self._unknown = {task: until for task, until in self._unknown.items() if until > now}
        nonce = self._chance.token()
        try:
            taken = await self._book.claim(self.worker, nonce, slots, WAIT, self._unknown)
        except WindlassError as fault:
            log.warning("cannot claim for %s: %s", self.worker.name, fault)
            await self._clock.sleep(RENEW_EVERY)
            return []
        except asyncio.CancelledError:
            # A cancelled claim may have taken jobs: sent again with the same nonce, it names them.
            with suppress(WindlassError):
                await self._release_all(await self._book.claim(self.worker, nonce, slots, 0, self._unknown))
            raise
        if self._clock.monotonic() < self._paused_until:
            await self._release_all(taken)  # a delivery has failed while this waited
            return []
        return taken

    # One job

    async def _follow(self, run: PushedRun) -> None:
        """Follow a job from its claim until it has ended or is no longer the worker's."""
        try:
            async with asyncio.timeout(run.seconds) as run.limit:
                if run.delivered or await self._deliver(run):
                    await run.ended.wait()
        except TimeoutError:
            await (self._release(run.claimed) if run.unwanted else self._time_out(run.claimed))
        if self._runs.get(key_of(run.claimed.job)) is run:  # it may have been released, and claimed again
            del self._runs[key_of(run.claimed.job)]
        self._changed.set()

    def _time_left(self, claimed: Claimed) -> float | None:
        """Of a job that has been running for a while."""
        if claimed.deadline is None:
            return None
        return max(0.0, (claimed.deadline - self._clock.now()).total_seconds())

    async def _deliver(self, run: PushedRun) -> bool:
        """Whether the worker has taken the job and will report it."""
        claimed = run.claimed
        try:
            answer = await self._delivery.send(claimed)
            if isinstance(answer, Finished):
                await self._finish(answer)
        except (NotDelivered, *FAULTS) as fault:
            self._pause(fault)
            await self._release(claimed)
            return False
        self._failures = 0
        if isinstance(answer, Finished):
            return False
        if answer == "unknown":
            log.info("%s does not know %s", self.worker.name, claimed.job.task)
            self._unknown[claimed.job.task] = self._clock.monotonic() + UNKNOWN_FOR
            await self._release(claimed)
            return False
        run.delivered = True
        self._changed.set()
        began = Began(**_names_of(claimed), pid=max(1, self.worker.pid))
        await self._report(lambda: self._service(Begin(tenant=self.worker.tenant, worker=self.worker.id, jobs=[began])))
        return True

    def _pause(self, fault: WindlassError) -> None:
        now = self._clock.monotonic()
        if now < self._paused_until:
            return  # one of several that were sent together
        pause = PAUSES[min(self._failures, len(PAUSES) - 1)]
        log.warning("cannot send a job to %s: %s; again in %g s", self.worker.name, fault, pause)
        self._failures += 1
        self._paused_until = now + pause

    async def _time_out(self, claimed: Claimed) -> None:
        message = f"ran longer than its time limit of {_allowed(claimed) or 0:g} s"
        error = Error(type="Timeout", message=message)
        await self._finish(Finished(**_names_of(claimed), outcome=Verdict.ERROR, error=error, reason=Reason.TIMEOUT))

    async def _finish(self, report: Finished) -> None:
        await self._report(
            lambda: self._service(Finish(tenant=self.worker.tenant, worker=self.worker.id, jobs=[report]))
        )

    async def _release_all(self, taken: list[Claimed]) -> None:
        for one in taken:
            await self._release(one)

    async def _release(self, claimed: Claimed) -> None:
        unrun = Released(**_names_of(claimed))
        await self._report(
            lambda: self._service(Release(tenant=self.worker.tenant, worker=self.worker.id, jobs=[unrun]))
        )

    async def _report(self, ask: Callable[[], Awaitable[object]]) -> None:
        """Send a report, and once more if the store does not answer; after that the lease runs out."""
        for last in (False, True):
            try:
                await ask()
            except Unavailable as fault:
                if last:
                    log.warning("cannot report a job of %s: %s", self.worker.name, fault)
                else:
                    await self._clock.sleep(RENEW_EVERY)
            except FAULTS:
                raise
            except WindlassError as fault:
                log.warning("a job of %s: %s", self.worker.name, fault)
                return
            else:
                return

    # Leases

    async def _renew(self) -> None:
        """Renew the worker's jobs, and learn which are lost."""
        while True:
            await self._clock.sleep(min(RENEW_EVERY, self._book.lease / 4))
            if not self._runs:
                continue
            try:
                for some in _without_repeats(self._runs.values()):
                    self._obey(some, await self._book.renew(self.worker, [run.claimed for run in some.values()]))
            except WindlassError as fault:
                log.warning("cannot renew for %s: %s", self.worker.name, fault)

    def _obey(self, asked: Mapping[str, PushedRun], renewed: Renewed) -> None:
        for id in renewed.lost:
            asked[id].ended.set()
        for order in renewed.orders:
            run = asked[order.id]
            if run.unwanted:
                continue
            if order.order == "deadline":
                self._shorten(run, order.deadline)
            else:
                self._stop(run)

    def _shorten(self, run: PushedRun, deadline: datetime | None) -> None:
        """Time was taken from a running job: its limit comes as much earlier as its deadline does."""
        before, limit = run.claimed.deadline, run.limit.when()
        if before is None or deadline is None or limit is None:
            return
        run.claimed = replace(run.claimed, deadline=deadline)
        run.limit.reschedule(limit - (before - deadline).total_seconds())

    def _stop(self, run: PushedRun) -> None:
        """The worker learns of it when it renews; one that has not answered yet sees the connection close."""
        run.unwanted = True
        now = asyncio.get_running_loop().time()
        until = now + STOP_WITHIN if run.delivered else now
        run.limit.reschedule(min(until, run.limit.when() or until))


class _JobNames(TypedDict):
    id: str
    token: str
    tenant: str


def _names_of(claimed: Claimed) -> _JobNames:
    return {"id": claimed.job.id, "token": claimed.token, "tenant": claimed.job.tenant}


def _without_repeats(runs: Iterable[PushedRun]) -> list[dict[str, PushedRun]]:
    """Runs by id, in as many parts as one id has tenants: answers name ids."""
    parts: list[dict[str, PushedRun]] = []
    for run in runs:
        id = run.claimed.job.id
        part = next((part for part in parts if id not in part), None)
        if part is None:
            parts.append(part := {})
        part[id] = run
    return parts


def _allowed(claimed: Claimed) -> float | None:
    """Seconds that a run may take: by its timeout, or its tier; null = any number."""
    if claimed.deadline is None or claimed.job.started_at is None:
        return claimed.job.timeout
    return (claimed.deadline - claimed.job.started_at).total_seconds()


OBSERVED = (Register, Unregister, Finish, Release)
"""Operations of workers that matter here."""

LOOK_UP_WITHIN = 5.0
"""Seconds that a name is looked up for when a worker registers."""

CHECK_EVERY = 1.0
CHECK_EVERY_IF_NONE = 5.0
"""Seconds between two checks of which workers are alive, and if there was none."""


class PushTurns(PushLeases, Protocol):
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
        turns: PushTurns,
        network: Network,
        codec: Callable[[Worker], BodyCodec],
        *,
        clock: Clock,
        chance: Randomness,
    ) -> None:
        self._service = service
        self._turns = turns
        self._network = network
        self._codec = codec
        self._clock = clock
        self._chance = chance
        self._dispatchers: dict[str, tuple[Dispatcher, asyncio.Task[None]]] = {}
        self._new: set[str] = set()
        self._changed = asyncio.Event()

    def __call__(self, operation: Operation[A], /) -> Coroutine[Any, Any, A]:
        return self._observed(operation) if type(operation) in OBSERVED else self._service(operation)

    async def _observed(self, operation: Operation[A]) -> A:
        if isinstance(operation, Register) and operation.worker.url is not None:
            await self._check(operation.worker)
        answer = await self._service(operation)
        match operation, answer:
            case Register(), Registered() if operation.worker.url is not None:
                self._new.add(answer.worker)
                self._changed.set()
            case Unregister(), _ if operation.worker in self._dispatchers:
                self._changed.set()
            case ((Finish() | Release()), Applied()) if operation.worker in self._dispatchers:
                # If two tenants have the same id and one report was refused, the next renewal decides.
                applied = {*answer.applied} - {*answer.refused}
                tenant = self._dispatchers[operation.worker][0].worker.tenant
                keys = [JobKey(one.id, one.tenant or tenant) for one in operation.jobs if one.id in applied]
                self._dispatchers[operation.worker][0].ended(keys)
        return answer

    async def _check(self, worker: NewWorker) -> None:
        """Refuse an address that no job will be sent to. What a name means is looked up again for each connection."""
        address = read_url(worker.url or "")
        network = self._network_to(worker)
        try:
            async with asyncio.timeout(LOOK_UP_WITHIN):
                found = await network.resolve(address.host, address.port)
        except (OSError, TimeoutError, UnicodeError):
            return  # the name has no address now; perhaps later
        try:
            network.allowed.check(address.host, address.port, found, encrypted=address.scheme == "https")
        except Denied as fault:
            raise Denied(fault.detail, at="worker.url") from None

    def _network_to(self, worker: NewWorker) -> Network:
        network = self._network
        return network._replace(allowed=replace(network.allowed, near=True)) if worker.trusted else network

    async def run(self) -> None:
        """Until it is cancelled: then jobs that were not taken are released, and other servers take over."""
        try:
            async with asyncio.TaskGroup() as group:
                while True:
                    try:
                        await self._rebalance(group)
                    except WindlassError as fault:
                        log.warning("cannot list workers: %s", fault)
                    await self._pause()
        finally:
            with suppress(WindlassError):  # then the turns end by themselves
                for worker in self._dispatchers:
                    await self._turns.give_up_turn(worker)

    async def _pause(self) -> None:
        try:
            async with asyncio.timeout(CHECK_EVERY if self._dispatchers else CHECK_EVERY_IF_NONE):
                await self._changed.wait()
        except TimeoutError:
            pass
        self._changed.clear()

    async def _rebalance(self, group: asyncio.TaskGroup) -> None:
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
        delivery = Delivery(worker, secret, self._network_to(worker), self._codec(worker), self._clock)
        dispatcher = Dispatcher(worker, self._service, self._turns, delivery, clock=self._clock, chance=self._chance)
        self._dispatchers[worker.id] = dispatcher, group.create_task(self._watched(dispatcher))

    def _stop(self, id: str, *, gone: bool) -> None:
        dispatcher, task = self._dispatchers.pop(id)
        if gone:
            dispatcher.worker_gone()
        log.info("sends no more jobs to %s", dispatcher.worker.name)
        task.cancel()

    async def _watched(self, dispatcher: Dispatcher) -> None:
        """One that fails is started again at the next check; the others go on."""
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
