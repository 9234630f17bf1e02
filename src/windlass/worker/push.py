"""Push: sends jobs to workers that named a URL. Each of them gets a dispatcher, on one server at a time.

`Delivery` is one request to one worker and its answer. `PushRunner` is the `Runner` that makes them. `Dispatcher` puts
it under a `WorkerLoop`, which claims and renews on the worker's behalf. `Push` agrees with other servers, through the
store, on who sends to whom; it wraps the service, so that it sees at once what workers report here.
"""

import asyncio
import logging
from collections.abc import Callable, Collection, Coroutine, Mapping, Sequence
from contextlib import suppress
from typing import Any, Literal, NamedTuple, Protocol

import httpcore2
from msgspec import Raw
from msgspec.structs import replace

from windlass.model import push, wire
from windlass.model.errors import Denied, Invalid, WindlassError
from windlass.model.job import JSON, MSGPACK
from windlass.model.names import EVERY_TENANT, JobKey, key_of
from windlass.model.operations import (
    A,
    Applied,
    Begin,
    Claim,
    Claimed,
    Finish,
    Finished,
    Operation,
    Register,
    Registered,
    Release,
    Released,
    Renew,
    Renewed,
    Service,
    Unregister,
    Workers,
)
from windlass.model.outcome import Verdict
from windlass.model.ports import Clock, Randomness
from windlass.model.wire import FAULTS, Format
from windlass.model.worker import NewWorker, Worker, WorkerOrders, as_introduced
from windlass.worker.claims import Registration
from windlass.worker.contexts.frames import RunOutcome
from windlass.worker.guarded import GuardedBackend
from windlass.worker.leases import is_cancelled
from windlass.worker.loop import WorkerLoop
from windlass.worker.network import Network, check_url
from windlass.worker.runs import ActiveRun, Stop, finished

log = logging.getLogger("windlass.push")


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

    def __init__(self, message: str, *, perhaps_begun: bool = True) -> None:
        super().__init__(message)
        self.perhaps_begun = perhaps_begun
        """Whether the worker may have got the job, and run it."""


UNSENT = (httpcore2.ConnectError, httpcore2.UnsupportedProtocol, UnicodeError, Denied)
"""Faults before anything was sent."""

UNAVAILABLE = 503

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
            keepalive_expiry=push.ANSWER_WITHIN,
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
            raise NotDelivered(
                str(fault) or type(fault).__name__, perhaps_begun=not isinstance(fault, UNSENT)
            ) from None
        match status:
            case 202:
                return "accepted"
            case 404:
                return "unknown"
            case 200:
                return self._outcome(claimed, body)
            case _:
                refused = status == UNAVAILABLE or 400 <= status < 500  # noqa: PLR2004 - 4xx
                raise NotDelivered(f"the worker answered {status}", perhaps_begun=not refused)

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
                if len(answer) > push.MOST_ANSWER:
                    raise NotDelivered(f"the answer has more than {push.MOST_ANSWER} bytes")
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


PAUSES = (0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 30.0)
"""Seconds without deliveries after one that failed, and after each that fails then."""

UNKNOWN_FOR = 60.0
"""Seconds for which a worker is not offered a task that it does not know, by its own answer."""

STOP_WITHIN = 30.0
"""Seconds that a worker has to stop a cancelled job."""

RENEW_EVERY = 1.0
"""Seconds between two renewals of the same jobs."""

LAST_REPORTS = 2.0
"""Seconds in which the last reports of a dispatcher are sent; then leases run out."""


class PushStore(Protocol):
    """What is written on a worker's behalf, and how servers agree on who sends to whom."""

    @property
    def lease(self) -> float: ...

    async def claim(self, worker: Worker, claim: Claim, unknown: Collection[str]) -> list[Claimed]: ...

    async def renew(self, worker: Worker, renew: Renew) -> Renewed: ...

    async def lose(self, jobs: Sequence[tuple[JobKey, str]]) -> None: ...

    async def held(self, worker: Worker) -> list[Claimed]: ...

    async def secrets(self) -> Mapping[str, str]: ...

    async def take_turns(self, workers: Sequence[Worker], *, first: bool = False) -> set[str]: ...

    async def give_up_turn(self, worker: str) -> None: ...

    async def forget(self, workers: Collection[str]) -> None: ...


NOTHING_NEW = Renewed()


class OnBehalf:
    """The service as a push worker's loop sees it: nothing that is asked here counts as a heartbeat of the worker."""

    def __init__(self, worker: Worker, service: Service, store: PushStore, clock: Clock) -> None:
        self._worker = worker
        self._service = service
        self._store = store
        self._clock = clock
        self._unknown: dict[str, float] = {}
        """Tasks that the worker does not know, and until when it is not asked again."""

    def note_unknown(self, task: str) -> None:
        self._unknown[task] = self._clock.monotonic() + UNKNOWN_FOR

    async def __call__(self, operation: Operation[Any]) -> Any:
        match operation:
            case Register() if operation.id is None:  # it has registered itself
                return Registered(worker=self._worker.id, lease=self._store.lease)
            case Claim():
                now = self._clock.monotonic()
                self._unknown = {task: until for task, until in self._unknown.items() if until > now}
                return await self._store.claim(self._worker, operation, self._unknown)
            case Renew():
                renewed = await self._store.renew(self._worker, operation)
                if operation.wait and renewed == NOTHING_NEW:
                    await self._clock.sleep(min(operation.wait, RENEW_EVERY, self._store.lease / 4))
                return renewed
        return await self._service(operation)


class PushRunner:
    """The `Runner` of one push worker: sends each job, and waits until the worker has reported it."""

    def __init__(self, worker: Worker, service: OnBehalf, delivery: Delivery, loop: WorkerLoop, clock: Clock) -> None:
        self._worker = worker
        self._service = service
        self._delivery = delivery
        self._worker_loop = loop
        self._runs = loop.runs
        self._clock = clock
        self._loop = asyncio.get_running_loop()
        self._sending: dict[int, asyncio.Task[None]] = {}
        """Deliveries, by number of the run."""
        self._failures = 0
        """Deliveries that have failed, since the last one that did not."""
        self._resuming: asyncio.TimerHandle | None = None

    def slots(self) -> int:
        """After a failed delivery, one job is sent before the others follow."""
        delivered = len(self._runs.active) - len(self._sending)
        return min(self._worker.slots, delivered + 1) if self._failures else self._worker.slots

    def start(self, batch: Sequence[tuple[ActiveRun, Claimed]]) -> None:
        for run, claimed in batch:
            if claimed.job.pid is None:
                self._sending[run.number] = self._loop.create_task(self._deliver(run, claimed))
            else:  # another server has sent it
                run.pid, run.began, run.cleared = claimed.job.pid, True, True
                if claimed.job.started_at is not None:
                    run.since -= max(0.0, (self._clock.now() - claimed.job.started_at).total_seconds())
            self._runs.limit_time(run)

    async def _deliver(self, run: ActiveRun, claimed: Claimed) -> None:
        try:
            await self._send(run, claimed)
        except Exception:
            log.exception("sending job %s to %s", run.id, self._worker.name)
            self._end(run, self._interrupted(run))

    async def _send(self, run: ActiveRun, claimed: Claimed) -> None:
        try:
            if not run.cleared and not await self._begin_first(run):
                return
            answer = await self._delivery.send(claimed)
            if isinstance(answer, Finished):
                await self._finish(run, answer)
        except (NotDelivered, *FAULTS) as fault:
            self._pause(fault)
            perhaps_begun = run.at_most_once and getattr(fault, "perhaps_begun", True)
            self._end(run, run.released(stopped=str(fault) if perhaps_begun else None))
            return
        self._failures = 0
        if answer == "unknown":
            log.info("%s does not know %s", self._worker.name, run.job.task)
            self._service.note_unknown(run.job.task)
            self._end(run, run.released())
        elif answer == "accepted":
            await self._begin(run)
        self._runs.changed.set()  # there may be more slots now

    async def _finish(self, run: ActiveRun, report: Finished) -> None:
        """Sent here, because a refusal counts as a failed delivery; what is not answered is reported like any other."""
        try:
            await self._service(Finish(tenant=self._worker.tenant, worker=self._worker.id, jobs=[report]))
        except FAULTS:
            raise
        except WindlassError:
            self._end(run, report)
        else:
            self._end(run, None)

    async def _begin_first(self, run: ActiveRun) -> bool:
        """Before it is sent, for a job that may not run twice: whether it is still ours."""
        answer = await self._write_begin(run)
        run.cleared = not answer.refused
        if answer.refused:
            self._end(run, None)
        return run.cleared

    async def _begin(self, run: ActiveRun) -> None:
        """The worker has the job. Written at once: another server that takes over must not send it again."""
        del self._sending[run.number]
        with suppress(WindlassError):  # then it is sent with the next updates
            await self._write_begin(run)

    async def _write_begin(self, run: ActiveRun) -> Applied:
        run.pid = max(1, self._worker.pid)
        began = run.begins(run.pid)
        answer: Applied = await self._service(Begin(tenant=self._worker.tenant, worker=self._worker.id, jobs=[began]))
        run.began = True
        return answer

    def _pause(self, fault: WindlassError) -> None:
        if self._resuming is not None:
            return  # one of several that were sent together
        pause = PAUSES[min(self._failures, len(PAUSES) - 1)]
        log.warning("cannot send a job to %s: %s; again in %g s", self._worker.name, fault, pause)
        self._failures += 1
        self._worker_loop.pause("a failed delivery")
        self._resuming = self._loop.call_later(pause, self._resume)

    def _resume(self) -> None:
        self._resuming = None
        self._worker_loop.pause("a failed delivery", False)

    def stop(self, run: ActiveRun) -> None:
        """A cancelled job is the worker's to stop, when it renews. One that it has not answered for sees the connection
        close.
        """
        if run.stopping is Stop.CANCEL and run.number not in self._sending:
            run.set_timer(self._loop.call_later(STOP_WITHIN, self._end, run, run.released()))
        elif run.stopping is Stop.TIMEOUT:
            self._end(run, finished(run, RunOutcome(run.number, Verdict.ERROR)))
        else:
            self._end(run, None if run.stopping is Stop.LOST else self._interrupted(run))

    def kill(self, run: ActiveRun) -> None:
        self._end(run, self._interrupted(run))

    def _interrupted(self, run: ActiveRun) -> Released:
        """The report on a run of which nothing more will be heard here."""
        return run.released(stopped="this server stopped while the job was sent" if run.at_most_once else None)

    def send(self, run: ActiveRun, messages: Sequence[bytes]) -> None:
        """The worker asks for messages itself."""

    def _end(self, run: ActiveRun, report: Finished | Released | None) -> None:
        if (sending := self._sending.pop(run.number, None)) is not None and sending is not asyncio.current_task():
            sending.cancel()
        self._runs.remove(run, report)

    def ended(self, keys: Collection[JobKey]) -> None:
        """The worker has reported these jobs."""
        for run in list(self._runs.active.values()):
            if key_of(run.job) in keys:
                self._end(run, None)

    def release_unsent(self) -> None:
        """Release what the worker has not taken."""
        for run in list(self._runs.active.values()):
            if run.number in self._sending:
                self._end(run, self._interrupted(run))

    async def close(self) -> None:
        if self._resuming is not None:
            self._resuming.cancel()
        await self._delivery.close()


class Dispatcher:
    """One push worker's loop. `run` until it is cancelled: then what the worker has not taken is released, and if the
    worker is gone the rest is lost at once.
    """

    def __init__(
        self,
        worker: Worker,
        service: Service,
        store: PushStore,
        delivery: Delivery,
        *,
        clock: Clock,
        chance: Randomness,
    ) -> None:
        self.worker = worker
        self._store = store
        on_behalf = OnBehalf(worker, service, store, clock)
        self._registration = Registration(on_behalf, worker.tenant, as_introduced(worker))
        self._clock = clock
        self._loop = WorkerLoop(self._registration, clock=clock, chance=chance)
        self._loop.leases.take_orders(self._obey)
        self._ordered = asyncio.Event()
        """Set when people have paused or resumed the worker, until the queue knows that it drains."""
        self._runner = PushRunner(worker, on_behalf, delivery, self._loop, clock)
        self._gone = False
        """Whether the worker is gone."""
        self._obey(worker.orders)

    def _obey(self, orders: WorkerOrders) -> None:
        if orders.pause.paused != self._paused:
            log.info("%s is %s", self.worker.name, "paused" if orders.pause.paused else "resumed")
            self._loop.pause("an order", orders.pause.paused)
            self._ordered.set()

    @property
    def _paused(self) -> bool:
        return "an order" in self._loop.paused_by

    async def _announce_draining(self) -> None:
        """Say so when no jobs are sent to the worker, or are again, so that its free slots do not count."""
        while True:
            await self._ordered.wait()
            self._ordered.clear()
            try:
                await self._registration.update(replace(self._registration.about, draining=self._paused))
            except WindlassError as fault:
                log.info("cannot announce that %s drains: %s", self.worker.name, fault)
                await self._clock.sleep(RENEW_EVERY)
                self._ordered.set()

    def worker_gone(self) -> None:
        """When this is cancelled, its jobs are lost at once."""
        self._gone = True

    def ended(self, keys: Collection[JobKey]) -> None:
        self._runner.ended(keys)

    async def _adopt(self) -> None:
        """Go on with what another server has sent; release what it had not sent."""
        held = await self._store.held(self.worker)
        self._loop.runs.start([one for one in held if one.job.pid is not None], lambda _: self._runner)
        for one in held:
            if one.job.pid is None:
                self._loop.reports.release(Released(id=one.job.id, token=one.token, tenant=one.job.tenant))

    async def run(self) -> None:
        reporting = asyncio.create_task(self._loop.reports.run())
        try:
            await self._loop.register()
            await self._adopt()
            async with asyncio.TaskGroup() as group:
                group.create_task(self._loop.leases.run())
                group.create_task(self._announce_draining())
                await self._loop.run(lambda _: self._runner, self._runner.slots)
        finally:
            self._runner.release_unsent()
            with suppress(TimeoutError, WindlassError):
                async with asyncio.timeout(LAST_REPORTS):
                    await self._loop.report_all()
                    if self._gone and (left := self._loop.runs.active.values()):
                        await self._store.lose([(key_of(run.job), run.token) for run in left])
            reporting.cancel()
            await self._runner.close()


OBSERVED = (Register, Unregister, Finish, Release)
"""Operations of workers that matter here."""

CHECK_EVERY = 1.0
CHECK_EVERY_IF_NONE = 5.0
"""Seconds between two checks of which workers are alive, and if there was none."""


class Push:
    """Sends jobs to workers; also answers operations, as the service behind it does."""

    def __init__(
        self,
        service: Service,
        store: PushStore,
        network: Network,
        codec: Callable[[Worker], BodyCodec],
        *,
        clock: Clock,
        chance: Randomness,
    ) -> None:
        self._service = service
        self._store = store
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
            await check_url(operation.worker.url, self._network_to(operation.worker), at="worker.url")
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
                keys = {JobKey(one.id, one.tenant or tenant) for one in operation.jobs if one.id in applied}
                self._dispatchers[operation.worker][0].ended(keys)
        return answer

    def _network_to(self, worker: NewWorker) -> Network:
        network = self._network
        return network._replace(allowed=replace(network.allowed, near=True)) if worker.trusted else network

    async def run(self) -> None:
        """Until it is cancelled: then jobs that were not taken are released, and other servers take over."""
        failed = False
        try:
            async with asyncio.TaskGroup() as group:
                while True:
                    try:
                        await self._rebalance(group)
                    except WindlassError as fault:
                        if not failed:  # one line, however long the store is away
                            log.warning("cannot list workers: %s", fault)
                        failed = True
                    else:
                        failed = False
                    await self._pause()
        finally:
            with suppress(WindlassError):  # then the turns end by themselves
                for worker in self._dispatchers:
                    await self._store.give_up_turn(worker)

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
        secrets = await self._store.secrets()
        if not secrets and not self._dispatchers and not self._new:
            return
        new, self._new = self._new, set()
        found = await self._service(Workers(tenant=EVERY_TENANT))
        alive = {worker.id: worker for worker in found if worker.id in secrets and worker.url is not None}
        ours = await self._store.take_turns([worker for id, worker in alive.items() if id in new], first=True)
        ours |= await self._store.take_turns([worker for id, worker in alive.items() if id not in new])
        for id in self._dispatchers.keys() - ours:
            self._stop(id, gone=id not in alive)
        for id in ours - self._dispatchers.keys():
            self._start(group, alive[id], secrets[id])
        await self._store.forget(secrets.keys() - alive.keys())

    def _start(self, group: asyncio.TaskGroup, worker: Worker, secret: str) -> None:
        log.info("sends jobs to %s at %s", worker.name, worker.url)
        delivery = Delivery(worker, secret, self._network_to(worker), self._codec(worker), self._clock)
        dispatcher = Dispatcher(worker, self._service, self._store, delivery, clock=self._clock, chance=self._chance)
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
            if found is not None and found[0] is dispatcher and not is_cancelled():
                del self._dispatchers[dispatcher.worker.id]
