"""`/metrics`: what a scraper of Prometheus reads. Jobs are counted by the store, requests by ourselves.

Knows the text format. A token of one tenant is shown that tenant's numbers; one of all, everything.
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
from windlass.model.worker import Worker
from windlass.server.gate import Gate

PATH = "/metrics"
TEXT = "text/plain; version=0.0.4; charset=utf-8"

BUCKETS = (0.005, 0.025, 0.1, 0.5, 2.5, 10.0)
"""Seconds up to which an answer begins."""

UNKNOWN = "none"
"""The route of a request that asks for what is not there."""

Labels = tuple[tuple[str, str], ...]


class Requests:
    """Counts requests by their route, and how long their answers took to begin."""

    def __init__(self) -> None:
        self._names: dict[object, str] = {}
        self.statuses: Counter[tuple[str, str, int]] = Counter()
        self.times: dict[str, list[int]] = defaultdict(lambda: [0] * (len(BUCKETS) + 1))
        self.seconds: defaultdict[str, float] = defaultdict(float)

    def know(self, routes: Iterable[BaseRoute]) -> None:
        self._names = {route.endpoint: route.path for route in routes if isinstance(route, Route)}

    def now(self) -> float:
        return perf_counter()

    def note(self, scope: Scope, status: int, came_at: float) -> None:
        """An answer begins, to a request that came then."""
        seconds = self.now() - came_at
        route = self._names.get(scope.get("endpoint"), UNKNOWN)
        verb = scope["method"] if route != UNKNOWN else UNKNOWN  # a verb may be anything: nobody can fill our memory
        self.statuses[verb, route, status] += 1
        self.times[route][bisect_left(BUCKETS, seconds)] += 1
        self.seconds[route] += seconds


class Counted:
    """A service in front of another: counts the jobs that pass."""

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
    """Answers a scraper."""

    def __init__(self, service: Counted, gate: Gate, requests: Requests) -> None:
        self._service = service
        self._gate = gate
        self._requests = requests

    def all(self) -> list[Route]:
        return [Route(PATH, self.metrics, methods=["GET"])]

    async def metrics(self, request: Request) -> Response:
        tenant = await self._gate.identify(request, "read")
        parts = [_family("windlass_up", "gauge", "Whether this server answers.", {(): 1})]
        stats = await self._service(GetStats(tenant=tenant))
        parts += [_jobs(stats), _runs(stats)]
        parts += _workers(await self._service(Workers(tenant=tenant)))
        parts += [_errors(await self._service(Queues(tenant=tenant)))]
        if tenant == EVERY_TENANT:
            parts += self._passed()
        return Response("".join(parts), headers={"content-type": TEXT, "cache-control": "no-store"})

    def _passed(self) -> Iterator[str]:
        for word in ("enqueued", "claimed", "finished"):
            about = f"Jobs {word} over HTTP on this server."
            yield _family(f"windlass_jobs_{word}_total", "counter", about, {(): self._service.jobs[word]})
        statuses: dict[Labels, float] = {
            (("method", verb), ("route", route), ("status", str(status))): count
            for (verb, route, status), count in self._requests.statuses.items()
        }
        yield _family("windlass_http_requests_total", "counter", "Requests to this server.", statuses)
        yield self._times()

    def _times(self) -> str:
        name = "windlass_http_request_duration_seconds"
        lines = _head(name, "histogram", "Seconds until the answer to a request began.")
        for route, counts in sorted(self._requests.times.items()):
            passed = 0
            for bound, count in zip((*map(str, BUCKETS), "+Inf"), counts, strict=True):
                passed += count
                lines += _line(f"{name}_bucket", (("route", route), ("le", bound)), passed)
            lines += _line(f"{name}_sum", (("route", route),), round(self._requests.seconds[route], 6))
            lines += _line(f"{name}_count", (("route", route),), passed)
        return lines


def _jobs(stats: Stats) -> str:
    numbers: Counter[Labels] = Counter()
    for queue in stats.queues:
        for state, count in queue.states.items():
            numbers[("tenant", queue.tenant), ("queue", queue.queue), ("state", state)] += count
    return _family("windlass_jobs", "gauge", "Jobs on record, by their state.", numbers)


def _runs(stats: Stats) -> str:
    numbers: Counter[Labels] = Counter()
    for queue in stats.queues:
        for outcome, count in queue.outcomes.items():
            numbers[("tenant", queue.tenant), ("queue", queue.queue), ("outcome", outcome)] += count
    return _family("windlass_runs_total", "counter", "Runs that have ended, by how they did.", numbers)


def _errors(cards: Iterable[QueueCard]) -> str:
    about = "By which part of the real wait estimates were wrong lately: the median."
    known: dict[Labels, float] = {
        (("queue", card.queue),): card.estimate_error for card in cards if card.estimate_error is not None
    }
    return _family("windlass_estimate_error_ratio", "gauge", about, known)


def _workers(workers: list[Worker]) -> list[str]:
    number: Counter[Labels] = Counter()
    slots: Counter[Labels] = Counter()
    running: Counter[Labels] = Counter()
    for worker in workers:
        whose = (("tenant", worker.tenant),)
        number[whose] += 1
        slots[whose] += worker.slots
        running[whose] += worker.running
    return [
        _family("windlass_workers", "gauge", "Workers that are alive.", number),
        _family("windlass_slots", "gauge", "Jobs that they can run at once.", slots),
        _family("windlass_slots_used", "gauge", "Jobs that they hold.", running),
    ]


def _family(name: str, kind: str, about: str, numbers: Mapping[Labels, float]) -> str:
    return _head(name, kind, about) + "".join(_line(name, labels, value) for labels, value in sorted(numbers.items()))


def _head(name: str, kind: str, about: str) -> str:
    return f"# HELP {name} {about}\n# TYPE {name} {kind}\n"


def _line(name: str, labels: Labels, value: float) -> str:
    said = ",".join(f'{label}="{_escaped(text)}"' for label, text in labels)
    return f"{name}{{{said}}} {value}\n" if said else f"{name} {value}\n"


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")
