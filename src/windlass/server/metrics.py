"""`/metrics` for Prometheus: the store counts jobs, this server counts requests.

Knows the text format. A token of one tenant sees that tenant's numbers; a token of all tenants sees everything.
"""

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from time import perf_counter

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route
from starlette.types import Scope

from windlass.model.names import EVERY_TENANT
from windlass.model.operations import (
    A,
    Claim,
    Enqueue,
    EnqueueLines,
    EnqueueMany,
    Finish,
    GetStats,
    Operation,
    QueueCard,
    Queues,
    Service,
    Stats,
    Workers,
)
from windlass.model.worker import Worker, counted_slots
from windlass.server.auth import Auth

PATH = "/metrics"
TEXT = "text/plain; version=0.0.4; charset=utf-8"

BUCKETS = (0.005, 0.025, 0.1, 0.5, 2.5, 10.0)
"""Upper bounds of the histogram of response times, in seconds."""

UNKNOWN = "none"
"""The route label of a request that matches no route."""

Labels = tuple[tuple[str, str], ...]


class RequestStats:
    """Counts requests by route, and the time until their responses started."""

    def __init__(self) -> None:
        self._names: dict[object, str] = {}
        self.statuses: Counter[tuple[str, str, int]] = Counter()
        self.times: dict[str, list[int]] = defaultdict(lambda: [0] * (len(BUCKETS) + 1))
        self.seconds: defaultdict[str, float] = defaultdict(float)

    def name_routes(self, routes: Iterable[BaseRoute]) -> None:
        self._names = {route.endpoint: route.path for route in routes if isinstance(route, Route)}

    def now(self) -> float:
        return perf_counter()

    def count(self, scope: Scope, status: int, started_at: float) -> None:
        """Count a response that starts now, to a request that came at `started_at`."""
        seconds = self.now() - started_at
        route = self._names.get(scope.get("endpoint"), UNKNOWN)
        verb = (
            scope["method"] if route != UNKNOWN else UNKNOWN
        )  # a client chooses the verb: it must not fill our memory
        self.statuses[verb, route, status] += 1
        self.times[route][bisect_left(BUCKETS, seconds)] += 1
        self.seconds[route] += seconds


class JobCounter:
    """A service in front of another that counts enqueued, claimed and finished jobs."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self.jobs: Counter[str] = Counter()

    async def __call__(self, operation: Operation[A], /) -> A:
        answer = await self._service(operation)
        match operation:
            case Enqueue() | EnqueueMany() | EnqueueLines():
                self.jobs["enqueued"] += int(getattr(answer, "created", 0))
            case Claim():
                self.jobs["claimed"] += len(answer)  # type: ignore[arg-type]
            case Finish():
                self.jobs["finished"] += len(getattr(answer, "applied", ()))
        return answer


class Metrics:
    """The route."""

    def __init__(self, service: JobCounter, auth: Auth, stats: RequestStats) -> None:
        self._service = service
        self._auth = auth
        self._stats = stats

    def all(self) -> list[Route]:
        return [Route(PATH, self.metrics, methods=["GET"])]

    async def metrics(self, request: Request) -> Response:
        tenant = await self._auth.tenant_of_token(request, "read")
        parts = [_family("windlass_up", "gauge", "1 while this server answers.", {(): 1})]
        parts += _jobs_and_runs(await self._service(GetStats(tenant=tenant)))
        parts += _workers(await self._service(Workers(tenant=tenant)))
        parts += [_errors(await self._service(Queues(tenant=tenant)))]
        if tenant == EVERY_TENANT:
            parts += self._server_totals()
        return Response("".join(parts), headers={"content-type": TEXT, "cache-control": "no-store"})

    def _server_totals(self) -> Iterator[str]:
        for word in ("enqueued", "claimed", "finished"):
            about = f"Jobs {word} over HTTP on this server."
            yield _family(f"windlass_jobs_{word}_total", "counter", about, {(): self._service.jobs[word]})
        statuses: dict[Labels, float] = {
            (("method", verb), ("route", route), ("status", str(status))): count
            for (verb, route, status), count in self._stats.statuses.items()
        }
        yield _family("windlass_http_requests_total", "counter", "Requests to this server.", statuses)
        yield self._times()

    def _times(self) -> str:
        name = "windlass_http_request_duration_seconds"
        lines = _head(name, "histogram", "Seconds until the response to a request started.")
        for route, counts in sorted(self._stats.times.items()):
            passed = 0
            for bound, count in zip((*map(str, BUCKETS), "+Inf"), counts, strict=True):
                passed += count
                lines += _line(f"{name}_bucket", (("route", route), ("le", bound)), passed)
            lines += _line(f"{name}_sum", (("route", route),), round(self._stats.seconds[route], 6))
            lines += _line(f"{name}_count", (("route", route),), passed)
        return lines


def _jobs_and_runs(stats: Stats) -> list[str]:
    jobs: Counter[Labels] = Counter()
    runs: Counter[Labels] = Counter()
    for queue in stats.queues:
        labels = ("tenant", queue.tenant), ("queue", queue.queue)
        for state, count in queue.states.items():
            jobs[*labels, ("state", state)] += count
        for outcome, count in queue.outcomes.items():
            runs[*labels, ("outcome", outcome)] += count
    return [
        _family("windlass_jobs", "gauge", "Stored jobs, by state.", jobs),
        _family("windlass_runs_total", "counter", "Ended runs, by outcome.", runs),
    ]


def _errors(cards: Iterable[QueueCard]) -> str:
    about = "Recent error of wait estimates as a part of the actual wait: the median."
    known: dict[Labels, float] = {
        (("queue", card.queue),): card.estimate_error for card in cards if card.estimate_error is not None
    }
    return _family("windlass_estimate_error_ratio", "gauge", about, known)


def _workers(workers: list[Worker]) -> list[str]:
    number: Counter[Labels] = Counter()
    slots: Counter[Labels] = Counter()
    running: Counter[Labels] = Counter()
    for worker in workers:
        labels = (("tenant", worker.tenant),)
        number[labels] += 1
        slots[labels] += counted_slots(worker)
        running[labels] += worker.running
    return [
        _family("windlass_workers", "gauge", "Live workers.", number),
        _family("windlass_slots", "gauge", "Jobs that live workers can run at once.", slots),
        _family("windlass_slots_used", "gauge", "Jobs that live workers hold.", running),
    ]


def _family(name: str, kind: str, about: str, numbers: Mapping[Labels, float]) -> str:
    return _head(name, kind, about) + "".join(_line(name, labels, value) for labels, value in sorted(numbers.items()))


def _head(name: str, kind: str, about: str) -> str:
    return f"# HELP {name} {about}\n# TYPE {name} {kind}\n"


def _line(name: str, labels: Labels, value: float) -> str:
    pairs = ",".join(f'{label}="{_escaped(text)}"' for label, text in labels)
    return f"{name}{{{pairs}}} {value}\n" if pairs else f"{name} {value}\n"


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")
