"""One job on its way to a worker's address, and what the worker says to it.

A request goes to an address that was looked up and judged once, and to no other: no redirects, no proxies. The answer
is bounded in time and size. Knows HTTP and the form of a job; what becomes of the job is decided elsewhere.
"""

import asyncio
import ssl
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal, NamedTuple

import httpcore2
from msgspec import Raw

from windlass.model import push, wire
from windlass.model.errors import Denied, Invalid, WindlassError
from windlass.model.job import JSON, MSGPACK
from windlass.model.operations import Claimed, Finished
from windlass.model.ports import Clock
from windlass.model.wire import MOST_RESULT, Format
from windlass.model.worker import Worker
from windlass.worker.addresses_allowed import Allowed, Resolve, resolve

ANSWER_WITHIN = 30.0
MOST_ANSWER = 2 * MOST_RESULT

OK = 200


class Language(NamedTuple):
    """How values lie in a body of either format, payloads and results included."""

    encode: Callable[[Any, Format], bytes]
    decode: Callable[[bytes, Any, Format], Any]
    types: Mapping[Format, str] = {"json": JSON, "msgpack": MSGPACK}
    """What each format is called."""


class Network(NamedTuple):
    """The way to the addresses of workers."""

    allowed: Allowed
    resolve: Resolve = resolve
    tls: ssl.SSLContext | None = None
    """Whom to trust; null = as the machine does."""
    answer_within: float = ANSWER_WITHIN


class NotDelivered(WindlassError):
    """The worker could not be reached, or what it said is no answer."""

    code, title, status, exit_status = "not_delivered", "Not delivered", 502, 75


Said = Finished | Literal["accepted", "unknown"]
"""What a worker says to a job: how it ended, that it will tell, or that it does not know the task."""


class Delivery:
    """Sends jobs to one worker. To be closed."""

    def __init__(self, worker: Worker, secret: str, network: Network, language: Language, clock: Clock) -> None:
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
            network_backend=Guarded(network, encrypted=self._address.scheme == "https"),
        )

    async def close(self) -> None:
        await self._pool.aclose()

    async def send(self, claimed: Claimed) -> Said:
        """What the worker says to a job; `NotDelivered` if that is nothing of use."""
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
        """The answer as a report: only the server says of which job it is."""
        form = self._worker.format
        try:
            said = wire.decode(body, dict[str, Raw], form)
            whole = wire.encode(
                [{**said, "id": claimed.job.id, "token": claimed.token, "tenant": claimed.job.tenant}], form
            )
            (report,) = self._language.decode(whole, list[Finished], form)
        except Invalid as fault:
            raise NotDelivered(f"the answer is no outcome: {fault}") from None
        assert isinstance(report, Finished)  # noqa: S101 - it was asked for
        return report


class Guarded(httpcore2.AsyncNetworkBackend):
    """Connects to what a name means now, if that is allowed, and to nothing that it may mean a moment later."""

    def __init__(self, network: Network, *, encrypted: bool) -> None:
        self._network = network
        self._encrypted = encrypted
        self._inner = httpcore2.AnyIOBackend()

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,  # noqa: ASYNC109 - so it is declared
        local_address: str | None = None,
        socket_options: Iterable[httpcore2.SOCKET_OPTION] | None = None,
    ) -> httpcore2.AsyncNetworkStream:
        found = await self._network.resolve(host, port)
        addresses = self._network.allowed.check(host, port, found, encrypted=self._encrypted)
        for address in addresses[:-1]:
            try:
                return await self._inner.connect_tcp(str(address), port, timeout, local_address, socket_options)
            except httpcore2.ConnectError:
                continue
        return await self._inner.connect_tcp(str(addresses[-1]), port, timeout, local_address, socket_options)

    async def connect_unix_socket(
        self,
        path: str,
        timeout: float | None = None,  # noqa: ARG002, ASYNC109
        socket_options: Iterable[httpcore2.SOCKET_OPTION] | None = None,  # noqa: ARG002
    ) -> httpcore2.AsyncNetworkStream:
        raise Denied(f"jobs are not sent to {path}", at="url")

    async def sleep(self, seconds: float) -> None:
        await self._inner.sleep(seconds)
