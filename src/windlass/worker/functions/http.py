"""Functions behind a URL: a job's payload is posted there, and the answer is its outcome.

One call for each job, whose status is the code; or one call for a batch, with a payload and an answer on each line. A
URL comes from a tenant, so its address is checked like that of a worker.
"""

import asyncio
import errno
import re
import socket
from collections.abc import Sequence

import httpcore2
import msgspec

from windlass.model.errors import Denied, Invalid
from windlass.model.handler import Handler
from windlass.model.job import JSON, MSGPACK, Reason
from windlass.model.push import Address, read_url
from windlass.worker.functions import ERROR, FAILED, OK, RETRY, FunctionJob, FunctionListener, FunctionOutcome
from windlass.worker.functions.protocol import BYTES, raw_payload
from windlass.worker.guarded import GuardedBackend
from windlass.worker.network import Network

SOCKETS = 10
MOST_ANSWER = 16 << 20
ANSWER_WITHIN = 120.0
"""Seconds that a call may take, unless the job or its handler has a timeout."""

NUMBER = re.compile(rb"\s*(\d{3})(?!\d)\s?(.*)", re.DOTALL)


class CallError(Exception):
    """A call got no answer."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


class HttpCalls:
    """The calls of one worker. To be closed."""

    def __init__(self, network: Network) -> None:
        self._pools = {
            encrypted: httpcore2.AsyncConnectionPool(
                ssl_context=network.tls,
                max_connections=SOCKETS,
                keepalive_expiry=30.0,
                network_backend=GuardedBackend(network, encrypted=encrypted),
            )
            for encrypted in (False, True)
        }
        self._free = asyncio.Semaphore(SOCKETS)

    async def close(self) -> None:
        for pool in self._pools.values():
            await pool.aclose()

    async def outcomes(
        self, handler: Handler, batch: list[FunctionJob], listener: FunctionListener
    ) -> list[FunctionOutcome]:
        """The outcomes of one call, made as soon as there is a socket for it."""
        async with self._free:
            sent = list(batch)  # without those stopped so far; answers for those stopped later are ignored
            for job in sent:
                listener.began(job.id, None, None)
            return await self._outcomes(handler, sent)

    async def _outcomes(self, handler: Handler, batch: list[FunctionJob]) -> list[FunctionOutcome]:
        try:
            address = read_url(handler.body)
            payloads = [raw_payload(job.payload, job.content_type) for job in batch]
        except Invalid as fault:
            return [FunctionOutcome(id=job.id, code=FAILED, type="Invalid", message=str(fault)) for job in batch]
        most = _time(handler, batch[0])
        whole = handler.options.whole_batch
        body = b"".join(_line(payload) for payload in payloads) if whole else payloads[0]
        try:
            async with asyncio.timeout(most):
                status, answer, kind = await self._post(address, body, "text/plain" if whole else _media(batch[0]))
        except TimeoutError:
            return _broken(batch, "ETIMEDOUT", f"no answer within {most:g} s", Reason.TIMEOUT)
        except CallError as fault:
            return _broken(batch, fault.code, str(fault))
        if not whole:
            return [_single(batch[0], status, answer, kind)]
        if not OK <= status < OK + 100:
            return [_single(job, status, answer, kind) for job in batch]
        return read_answers(batch, answer)

    async def _post(self, address: Address, body: bytes, media: str) -> tuple[int, bytes, str]:
        url = httpcore2.URL(scheme=address.scheme, host=address.host, port=address.port, target=address.target)
        headers = [("host", address.authority), ("content-type", media), ("content-length", str(len(body)))]
        pool = self._pools[address.scheme == "https"]
        try:
            async with pool.stream("POST", url, headers=headers, content=body) as response:
                answer = bytearray()
                async for piece in response.aiter_stream():
                    answer += piece
                    if len(answer) > MOST_ANSWER:
                        raise CallError("EMSGSIZE", f"the answer has more than {MOST_ANSWER} bytes")
                kind = dict(response.headers).get(b"content-type", b"text/plain").decode("latin-1")
                return response.status, bytes(answer), kind
        except (httpcore2.NetworkError, httpcore2.ProtocolError, OSError, UnicodeError, Denied) as fault:
            raise CallError(code_of(fault), str(fault) or type(fault).__name__) from None


class HttpBatch:
    """A batch that is being called: one call, or one for each job."""

    def __init__(self, calls: HttpCalls, handler: Handler, listener: FunctionListener) -> None:
        self._calls = calls
        self._handler = handler
        self._listener = listener
        self._calls_of: dict[str, tuple[asyncio.Task[None], list[FunctionJob]]] = {}
        """For each job without an answer, its call and the other jobs of that call."""

    async def run(self, jobs: Sequence[FunctionJob]) -> None:
        async with asyncio.TaskGroup() as group:
            for batch in _batches(self._handler, jobs):
                task = group.create_task(self._run(batch))
                self._calls_of.update((job.id, (task, batch)) for job in batch)

    def stop(self, id: str, why: str) -> None:
        """Stop waiting for its answer. The call itself goes on, with the other jobs of a whole batch."""
        if (found := self._calls_of.pop(id, None)) is None:
            return
        task, batch = found
        batch[:] = [job for job in batch if job.id != id]
        if not batch:
            task.cancel()
        self._listener.ended(FunctionOutcome(id=id, code=ERROR, type="Stopped", message=why))

    async def _run(self, batch: list[FunctionJob]) -> None:
        for outcome in await self._calls.outcomes(self._handler, batch, self._listener):
            if self._calls_of.pop(outcome.id, None) is not None:
                self._listener.ended(outcome)


def _batches(handler: Handler, jobs: Sequence[FunctionJob]) -> list[list[FunctionJob]]:
    """The jobs of each call. Those of one call have the same timeout, so that none is cut short by another."""
    if not handler.options.whole_batch:
        return [[job] for job in jobs]
    alike: dict[float, list[FunctionJob]] = {}
    for job in jobs:
        alike.setdefault(_time(handler, job), []).append(job)
    return list(alike.values())


def _time(handler: Handler, job: FunctionJob) -> float:
    wished = job.timeout if job.timeout is not None else handler.options.timeout
    return ANSWER_WITHIN if wished is None else wished


def _media(job: FunctionJob) -> str:
    return JSON if job.content_type == MSGPACK else job.content_type


def _line(payload: bytes) -> bytes:
    return payload.replace(b"\r", b" ").replace(b"\n", b" ") + b"\n"


def _single(job: FunctionJob, status: int, answer: bytes, kind: str) -> FunctionOutcome:
    """The status of a call is its job's code; any other than 2xx, 4xx and 5xx asks for another run."""
    if OK <= status < OK + 100:
        return FunctionOutcome(id=job.id, code=status, result=answer or None, content_type=_known(answer, kind))
    code = status if FAILED <= status < ERROR + 100 else RETRY
    text = answer[:1000].decode(errors="replace").strip()
    return FunctionOutcome(id=job.id, code=code, type="Answered", message=f"answered {status}: {text}".rstrip(": "))


def _known(answer: bytes, kind: str) -> str:
    """The content type of an answer, as far as its header can be trusted."""
    media = kind.partition(";")[0].strip().lower()
    try:
        answer.decode()
        if media == JSON:
            msgspec.json.decode(answer)
            return JSON
    except (ValueError, RecursionError, msgspec.MsgspecError):
        return BYTES
    return "text/plain"


def read_answers(batch: Sequence[FunctionJob], answer: bytes) -> list[FunctionOutcome]:
    """One line for each job, beginning with its code; `#` begins a comment."""
    text = [line for line in answer.splitlines() if line.strip() and not line.startswith(b"#")]
    outcomes: list[FunctionOutcome] = []
    for at, job in enumerate(batch):
        if at >= len(text):
            outcomes += _broken([job], "NO_RESPONSE", "there is no answer to this job")
            continue
        found = NUMBER.fullmatch(text[at])
        if found is None:
            # From here on it is unknown which line is which job's.
            return outcomes + _broken(batch[at:], "INVALID_RESPONSE", "its answer does not begin with a code")
        outcomes.append(_single(job, int(found[1]), found[2], "text/plain"))
    return outcomes


def _broken(
    batch: Sequence[FunctionJob], code: str, message: str, reason: Reason | None = None
) -> list[FunctionOutcome]:
    return [
        FunctionOutcome(id=job.id, code=ERROR, type=code, message=f"{code}: {message}", reason=reason) for job in batch
    ]


def code_of(fault: BaseException | None) -> str:
    """The errno name of what went wrong in a call."""
    seen: BaseException | None = fault
    while seen is not None:
        if isinstance(seen, ExceptionGroup):
            seen = seen.exceptions[0]
            continue
        if isinstance(seen, socket.gaierror):  # whose numbers are no errno
            return "ENOTFOUND"
        if isinstance(seen, OSError) and (name := errno.errorcode.get(seen.errno or 0)) is not None:
            return name
        seen = seen.__cause__ or seen.__context__
    return {Denied: "EACCES", httpcore2.ConnectError: "ECONNREFUSED"}.get(type(fault), "EPROTO")
