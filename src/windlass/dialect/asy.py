"""The WebSocket protocol of an online drawing program: batch tasks, shells, and a status with announcements.

One connection is one task. A text frame is a verb, a space and one JSON value; some verbs are followed by one binary
frame. In stage 1 the client sends files and options, then `start`; in stage 2 the server sends estimates, output and
the result. A client that closes the connection ends the task and clears it. Translates to operations; keeps nothing but
the connection. The program itself is run by `windlass.asy_app`.
"""

import asyncio
import hashlib
from collections.abc import Coroutine
from contextlib import aclosing, suppress
from typing import Annotated, Any, Literal, NamedTuple, TypeVar

import msgspec
from msgspec import Meta, Raw, Struct
from msgspec.structs import replace
from starlette.requests import HTTPConnection, Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route, WebSocketRoute
from starlette.websockets import WebSocket, WebSocketDisconnect

from windlass.cached import CachedValue
from windlass.model import wire
from windlass.model.audit import OWNER, caller
from windlass.model.errors import (
    Busy,
    Conflict,
    Denied,
    FilesMissing,
    Invalid,
    Missing,
    Unavailable,
    WindlassError,
)
from windlass.model.estimate import Estimate, Why
from windlass.model.events import EventCursor, LiveEvents
from windlass.model.job import FINISHED, Job, Reason, State
from windlass.model.names import DEFAULT_TENANT, EVERY_TENANT, MOST_FILES, FileName, Sha256, check_file_name
from windlass.model.new_job import LEAST_OWNER_TIMEOUT, NewJob
from windlass.model.operations import (
    Delete,
    Enqueue,
    GetEstimate,
    GetFile,
    GetFiles,
    GetQueue,
    LowerTimeout,
    PutFile,
    QueueCard,
    Send,
    Service,
    Show,
)
from windlass.model.output import MOST_MESSAGE
from windlass.model.ports import Clock
from windlass.server import formats
from windlass.server.auth import Auth
from windlass.server.requests import ABORT, LIMIT_BUFFER

QUEUE = TASK = "asy"

BATCH, SHELL, STATUS = "/asy", "/asy/interactive", "/asy/status"

PROTOCOLS = {
    BATCH: ("asyonline.asy+restore", "asyonline.asy"),
    SHELL: ("asyonline.asy.interactive+restore", "asyonline.asy.interactive"),
}
"""Of each path, the richest first."""

TOKEN_PROTOCOL = "token."  # noqa: S105
"""A browser cannot send headers with a WebSocket: it offers its token as a protocol of this prefix."""

DURATIONS = (3.0, 10.0, 30.0)
"""Seconds that a task may ask for."""

MOST_CONNECTIONS = 10_000
"""Open connections on one server: each may hold the files of a task."""

MOST_INPUT = 128 * 2**10
"""Bytes of the files of one task."""

MOST_TEXT = 16 * 2**10
"""Characters of a text frame."""

SEND_WITHIN = 30.0
"""Seconds in which a client must take a frame."""

ANNOUNCED_EVERY = 1.0
"""Seconds between two looks at the announcement."""

AGAIN_AFTER = 0.1
"""Seconds until input is sent again of which too much waits."""

KEPT_FOR = 600.0
"""Seconds that a task is kept whose server died before it could clear it."""

ENDED, GOING_AWAY, REFUSED = 1000, 1001, 1008
"""Close codes."""

SERVER_ERROR = "server error"
"""What a client hears of errors that are not its own."""

T = TypeVar("T")


class AsyOptions(Struct, frozen=True, kw_only=True):
    """Settings of the dialect."""

    public: str | None = None
    """The tenant of connections without a token; null = every connection needs one."""
    owner_timeout: float = 600.0
    """Seconds after which a task is cancelled whose server has died."""
    idle: float = 600.0
    """Seconds in which the next frame must come before the task is started."""


# Frames


class Add(Struct, frozen=True):
    """A file; its bytes follow, unless it is to be restored."""

    filename: FileName
    hash: Sha256 | None = None
    restore: bool = False


class DrawOptions(Struct, frozen=True, rename={"stderr_redir": "stderrRedir"}):
    """How the program is run."""

    duration: float | None = None
    format: Literal["svg", "pdf", "png"] = "svg"
    stderr_redir: bool = True
    verbosity: Annotated[int, Meta(ge=0, le=3)] = 0


class Lower(Struct, frozen=True, forbid_unknown_fields=True):
    """A shorter duration for a task that has been started."""

    duration: Annotated[float, Meta(gt=0)]


class Start(Struct, frozen=True):
    """The task is complete."""

    main: FileName | None = None


class Program(Struct, frozen=True):
    """The payload of a task: what `windlass.asy_app` runs."""

    main: str
    format: str = "svg"
    verbosity: int = 0
    interactive: bool = False


class MissingFile(Struct, frozen=True):
    """A file that cannot be restored."""

    filename: str
    hash: str


class Refused(WindlassError):
    """What the client has sent is refused, and the connection with it."""


class ClientGone(WindlassError):
    """The connection is over."""


# Routes


class Announcements:
    """What operators announce, by tenant: the announcement of the queue. Read once a second at most."""

    def __init__(self, service: Service, clock: Clock) -> None:
        self._service = service
        self._clock = clock
        self._cards: dict[str, CachedValue[QueueCard]] = {}

    async def card(self, tenant: str) -> QueueCard:
        if tenant not in self._cards:
            ask = GetQueue(tenant=tenant, queue=QUEUE)
            self._cards[tenant] = CachedValue(lambda: self._service(ask), self._clock, ANNOUNCED_EVERY)
        return await self._cards[tenant].known()

    async def text(self, tenant: str) -> str:
        card = await self.card(tenant)
        return card.announcement or (card.why if card.paused else "")


class Connected(NamedTuple):
    """Whose a connection is."""

    tenant: str
    token: str | None
    """As it came in a protocol; null = in a header, or not at all."""


class Asy:
    """The routes of the dialect."""

    def __init__(
        self,
        service: Service,
        live: LiveEvents,
        auth: Auth,
        clock: Clock,
        options: AsyOptions,
        *,
        stopping: asyncio.Event | None = None,
    ) -> None:
        self.service = service
        self.live = live
        self.options = options
        self.stopping = stopping or asyncio.Event()
        self.announcements = Announcements(service, clock)
        self._auth = auth
        self._open = 0
        """Connections."""

    def all(self) -> list[BaseRoute]:
        return [
            WebSocketRoute(BATCH, self._batch),
            WebSocketRoute(SHELL, self._shell),
            Route(STATUS, self._status, methods=["GET"]),
        ]

    async def _status(self, request: Request) -> Response:
        tenant = (await self.connected(request, None)).tenant
        document = {"status": {"announcement": await self.announcements.text(tenant)}}
        return Response(msgspec.json.encode(document), media_type="application/json")

    async def connected(self, connection: HTTPConnection, token: str | None) -> Connected:
        """The tenant of a connection: of its token, or the public one."""
        public = self.options.public
        if public is not None and token is None and "authorization" not in connection.headers:
            self._auth.check_host(connection)
            return Connected(public, None)
        tenant = await self._auth.tenant_of_token(connection, "enqueue", token=token)
        return Connected(DEFAULT_TENANT if tenant == EVERY_TENANT else tenant, token)

    async def is_allowed(self, connection: HTTPConnection, whose: Connected) -> bool:
        """Whether its token is still good. True while the tokens cannot be read."""
        try:
            await self.connected(connection, whose.token)
        except WindlassError as fault:
            return fault.status >= 500  # noqa: PLR2004
        return True

    async def _batch(self, socket: WebSocket) -> None:
        await self._serve(socket, BATCH)

    async def _shell(self, socket: WebSocket) -> None:
        await self._serve(socket, SHELL)

    async def _serve(self, socket: WebSocket, path: str) -> None:
        offered = socket.scope["subprotocols"]
        token = next((one.removeprefix(TOKEN_PROTOCOL) for one in offered if one.startswith(TOKEN_PROTOCOL)), None)
        try:
            chosen = next((one for one in PROTOCOLS[path] if one in offered), None)
            if chosen is None:
                raise Invalid(f"offer one of the protocols {', '.join(PROTOCOLS[path])}", at="sec-websocket-protocol")
            whose = await self.connected(socket, token)
            if self._open >= MOST_CONNECTIONS:
                raise Busy(f"this server already has {MOST_CONNECTIONS} tasks: try again later")
        except WindlassError as fault:
            await socket.send_denial_response(formats.problem_response(fault.problem(), "json"))
            return
        await socket.accept(subprotocol=chosen)
        socket.scope["extensions"][LIMIT_BUFFER]()
        self._open += 1
        try:
            restores = chosen.endswith("+restore")
            await DrawSession(socket, self, whose, interactive=path == SHELL, restores=restores).run()
        finally:
            self._open -= 1


# One connection


class DrawSession:
    """One connection: a task from its first file to its end."""

    def __init__(self, socket: WebSocket, asy: Asy, whose: Connected, *, interactive: bool, restores: bool) -> None:
        self._socket = socket
        self._asy = asy
        self._service = asy.service
        self._whose = whose
        self._tenant = whose.tenant
        self._interactive = interactive
        self._restores = restores
        self._files: dict[str, bytes] = {}
        self._hashes: dict[str, str] = {}
        """Files that the client says were sent before."""
        self._options = DrawOptions()
        self._asked_for_missing = False
        self._lowered: float | None = None
        """A shorter duration that was asked for after the start."""
        self._job: Job | None = None
        self._longest = DURATIONS[-1]
        """Seconds that a task may run at most."""
        self._estimate: float | None = None
        """The one that the client got last."""
        self._started = False
        """Whether the client knows that the program runs."""
        self._writing = asyncio.Lock()

    async def run(self) -> None:
        """Until the task has ended or is refused, the client is gone, or the server stops."""
        code = ENDED
        caller.set(OWNER)
        try:
            await self._collect()
            code = await self._race(self._relay(), self._receive(), self._announce(), self._check(), self._stopping())
        except Refused as fault:
            await self._send_last("deny", {"error": fault.detail})
            code = REFUSED
        except (ClientGone, WebSocketDisconnect, OSError, RuntimeError):
            pass
        finally:
            await self._clear()
            await self._close(code)

    async def _race(self, *work: Coroutine[Any, Any, int]) -> int:
        """The answer of the first that ends."""
        tasks = [asyncio.create_task(one) for one in work]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            return next(task for task in tasks if task in done).result()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _clear(self) -> None:
        """Stop the task wherever it stands, and clear all that is kept of it."""
        if self._job is not None:
            with suppress(WindlassError):
                await asyncio.shield(self._service(Delete(tenant=self._tenant, ids=[self._job.id])))

    async def _close(self, code: int) -> None:
        try:
            async with asyncio.timeout(1.0):
                await self._socket.close(code)
        except (RuntimeError, WebSocketDisconnect, OSError):
            pass
        except TimeoutError:
            self._socket.scope["extensions"][ABORT]()

    # Stage 1

    async def _collect(self) -> None:
        """Files and options, until the task is started."""
        while self._job is None:
            try:
                async with asyncio.timeout(self._asy.options.idle):
                    verb, data = await self._frame()
            except TimeoutError:
                raise Refused(f"nothing came within {self._asy.options.idle:g} s") from None
            match verb:
                case "add" | "input":
                    await self._add(_decoded(data, Add))
                case "options":
                    self._options = _decoded(data, DrawOptions)
                    self._check_duration(self._options.duration)
                case "start":
                    await self._start(_decoded(data, Start))
                case _:
                    raise Refused(f"unknown verb {verb[:40]!r}: send add, options or start")

    def _check_duration(self, duration: float | None) -> None:
        if duration is not None and self._interactive:
            raise Refused("a shell has no duration")
        if duration is not None and duration not in DURATIONS:
            raise Refused(f"duration must be one of {', '.join(f'{one:g}' for one in DURATIONS)}")

    async def _add(self, file: Add) -> None:
        try:
            check_file_name(file.filename, at="filename")
        except Invalid as fault:
            raise Refused(str(fault)) from None
        if file.filename == "out":
            raise Refused("filename: the folder for results has the name 'out'")
        self._files.pop(file.filename, None)
        self._hashes.pop(file.filename, None)
        if len(self._files) + len(self._hashes) >= MOST_FILES:
            raise Refused(f"more than {MOST_FILES} files")
        if file.restore:
            if not self._restores or file.hash is None:
                raise Refused("restore needs a hash, and a protocol with +restore")
            self._hashes[file.filename] = file.hash
            return
        data = await self._binary()
        if sum(map(len, self._files.values())) + len(data) > MOST_INPUT:
            raise Refused(f"more than {MOST_INPUT} bytes of input")
        if file.hash is not None and hashlib.sha256(data).hexdigest() != file.hash:
            raise Refused(f"{file.filename} has another SHA-256 than its hash")
        self._files[file.filename] = data
        if self._restores and file.hash is not None:
            with suppress(WindlassError):  # then it cannot be restored
                await self._service(PutFile(tenant=self._tenant, hash=file.hash, data=data))

    async def _start(self, start: Start) -> None:
        main = "" if self._interactive else start.main
        if main is None or (main and main not in self._files and main not in self._hashes):
            raise Refused("main must name one of the files")
        announced = self._asy.announcements
        try:
            card = await announced.card(self._tenant)
            new = self._new_job(main, card)
            ask = Enqueue(tenant=self._tenant, job=new, exact=True, most_files=MOST_INPUT)
            self._job = job = await self._service(ask)
        except FilesMissing as fault:
            await self._ask_for_missing(fault)
            return
        except (Unavailable, Missing, Denied):
            raise Refused(SERVER_ERROR) from None
        except (Busy, Conflict) as fault:
            raise Refused(f"no place is free: {fault.detail}" if self._interactive else fault.detail) from None
        except WindlassError as fault:
            raise Refused(fault.detail) from None
        self._longest = max((tier.seconds for tier in card.tiers), default=DURATIONS[-1])
        if job.state not in FINISHED and not self._interactive:
            known = Estimate(seconds=job.estimate, at_most=job.estimate_at_most)
            await self._send_estimate(known if known.seconds is not None else await self._asked(job))

    def _new_job(self, main: str, card: QueueCard) -> NewJob:
        options, interactive, tiers = self._options, self._interactive, bool(card.tiers)
        program = Program(main, options.format, options.verbosity, interactive)
        duration = options.duration
        return NewJob(
            task=TASK,
            queue=QUEUE,
            payload=Raw(wire.encode(program)),
            files=self._files,
            hashes=self._hashes,
            isolate=True,
            on_lost="fail",
            tier=duration if tiers else None,
            timeout=None if interactive or tiers else duration or DURATIONS[-1],
            yielding=interactive,
            stdin="pipe" if interactive else None,
            output=replace(card.output, merged=options.stderr_redir),
            owner_timeout=max(LEAST_OWNER_TIMEOUT, self._asy.options.owner_timeout),
            keep_success=KEPT_FOR,
            keep_failure=KEPT_FOR,
        )

    async def _ask_for_missing(self, fault: FilesMissing) -> None:
        if self._asked_for_missing:
            raise Refused(f"files are still missing: {fault}")
        self._asked_for_missing = True
        missing = [MissingFile(name, sha) for name, sha in self._hashes.items() if sha in fault.missing]
        for one in missing:
            del self._hashes[one.filename]
        await self._send("missing", missing)

    # Stage 2

    async def _relay(self) -> int:
        """Estimates, output and the end of the task."""
        assert self._job is not None  # noqa: S101 - it was started
        try:
            # With a journal the task may not be in the store yet: this waits for it.
            job = await self._service(Show(tenant=self._tenant, id=self._job.id))
            async with aclosing(self._asy.live.follow(job, EventCursor())) as stream:
                async for news in stream:
                    if news is None:
                        continue
                    event, chunk = news
                    if event.estimate is not None and (not self._interactive or event.estimate.seconds != 0):
                        await self._send_estimate(event.estimate)
                    if chunk is not None:
                        await self._output(chunk.stream, chunk.data)
                    elif event.job is not None and await self._state(event.job):
                        return ENDED
        except WindlassError:
            await self._send("complete", {"error": SERVER_ERROR})
            return ENDED
        return GOING_AWAY

    async def _asked(self, job: Job) -> Estimate:
        """The estimate of a task whose wait was not known when it was accepted."""
        try:
            return await self._service(GetEstimate(tenant=self._tenant, id=job.id))
        except WindlassError:
            return Estimate(why=Why.SLOTS)

    async def _send_estimate(self, found: Estimate) -> None:
        """The estimate of this protocol is a number, and a bound where there is one.

        Where nothing is known (no worker, a pause, runs without a limit): as if one slot ran the tasks ahead, and one
        that runs already, each for as long as a task may run.
        """
        longest = found.seconds if found.at_most is None else found.at_most
        if longest is None and found.why is None:
            return  # it waits no longer
        if longest is None:
            longest = (found.position or 1) * self._longest
        if longest != self._estimate:
            self._estimate = longest
            await self._send("queue", {"estimate": float(longest)})

    async def _output(self, stream: str, data: bytes) -> None:
        if stream in ("stdout", "stderr"):
            await self._mark_start()
            await self._send("output", {"stream": stream}, data)

    async def _mark_start(self) -> None:
        if not self._started:
            self._started = True
            await self._send("output", {"stream": "stdout"}, b"")

    async def _state(self, job: Job) -> bool:
        """Tell of the state of the task; whether it has ended."""
        if job.state is State.RUNNING and not self._started:
            await self._apply_lowered()
        if job.state is State.RUNNING or job.pid is not None:
            await self._mark_start()
        if job.state not in FINISHED:
            return False
        if job.state is State.SUCCEEDED:
            await self._send_result(job)
            await self._send("complete", {})
        else:
            await self._send("complete", {"error": error_text(job)})
        return True

    async def _send_result(self, job: Job) -> None:
        left = await self._service(GetFiles(tenant=self._tenant, id=job.id))
        wanted = f".{self._options.format}"
        names = sorted((one.name for one in left), key=lambda name: (not name.endswith(wanted), name))
        if names:
            data = await self._service(GetFile(tenant=self._tenant, id=job.id, name=names[0]))
            await self._send("result", {"format": self._options.format}, data)

    async def _receive(self) -> int:
        """What the client sends to its running task."""
        assert self._job is not None  # noqa: S101
        while True:
            verb, data = await self._frame()
            if verb == "options" and not self._interactive:
                await self._lower(_decoded(data, Lower).duration)
            elif verb == "input" and self._interactive:
                await self._input(await self._binary())
            else:
                allowed = "input" if self._interactive else "options with a duration"
                raise Refused(f"{verb[:40]!r} cannot be sent after start: only {allowed}")

    async def _lower(self, duration: float) -> None:
        """A shorter duration counts from the start of the program; a longer one is ignored."""
        self._check_duration(duration)
        self._lowered = min(duration, self._lowered or duration)
        await self._apply_lowered()

    async def _apply_lowered(self) -> None:
        assert self._job is not None  # noqa: S101
        if self._lowered is not None:
            with suppress(WindlassError):  # it does not run yet, or no longer
                await self._service(LowerTimeout(tenant=self._tenant, id=self._job.id, timeout=self._lowered))

    async def _input(self, data: bytes) -> None:
        assert self._job is not None  # noqa: S101
        for start in range(0, len(data), MOST_MESSAGE):
            piece = data[start : start + MOST_MESSAGE]
            while not await self._sent(Send(tenant=self._tenant, id=self._job.id, data=piece)):  # noqa: ASYNC110
                await asyncio.sleep(AGAIN_AFTER)

    async def _sent(self, message: Send) -> bool:
        try:
            await self._service(message)
        except Busy:
            return False
        except WindlassError:
            return True  # it has ended: its end is on its way
        return True

    async def _announce(self) -> int:
        """Pass on announcements as they change."""
        known = await self._announcement("")
        while True:
            await asyncio.sleep(ANNOUNCED_EVERY)
            found = await self._announcement(known)
            if found != known:
                known = found
                await self._send("status", {"announcement": known})

    async def _announcement(self, known: str) -> str:
        try:
            return await self._asy.announcements.text(self._tenant)
        except WindlassError:
            return known

    async def _check(self) -> int:
        """End the task when its token is no longer good."""
        while await self._asy.is_allowed(self._socket, self._whose):  # noqa: ASYNC110
            await asyncio.sleep(ANNOUNCED_EVERY)
        return REFUSED

    async def _stopping(self) -> int:
        await self._asy.stopping.wait()
        return GOING_AWAY

    # Frames

    async def _frame(self) -> tuple[str, str]:
        """A verb and its JSON."""
        message = await self._message()
        text = message.get("text")
        if text is None:
            raise Refused("a binary frame comes only after the text frame that announces it")
        if len(text) > MOST_TEXT:
            raise Refused(f"a text frame of more than {MOST_TEXT} characters")
        verb, _, data = text.partition(" ")
        return verb, data

    async def _binary(self) -> bytes:
        message = await self._message()
        data: bytes | None = message.get("bytes")
        if data is None:
            raise Refused("a binary frame must follow")
        return data

    async def _message(self) -> Any:
        message = await self._socket.receive()
        if message["type"] == "websocket.disconnect":
            raise ClientGone("the client is gone")
        return message

    async def _send(self, verb: str, value: Any, data: bytes | None = None) -> None:
        """A frame, and the binary one that belongs to it. A client that takes nothing loses its connection."""
        try:
            async with self._writing, asyncio.timeout(SEND_WITHIN):
                await self._socket.send_text(f"{verb} {msgspec.json.encode(value).decode()}")
                if data is not None:
                    await self._socket.send_bytes(data)
        except TimeoutError:
            self._socket.scope["extensions"][ABORT]()
            raise ClientGone("the client takes nothing") from None

    async def _send_last(self, verb: str, value: Any) -> None:
        with suppress(WindlassError, WebSocketDisconnect, RuntimeError, OSError):
            await self._send(verb, value)


def _decoded(data: str, kind: type[T]) -> T:
    try:
        return wire.decode(data.encode(), kind, "json")
    except Invalid as fault:
        raise Refused(f"bad JSON: {fault}") from None
    except UnicodeEncodeError:
        raise Refused("bad JSON: not UTF-8") from None


def error_text(job: Job) -> str:
    """Why a task has not succeeded, as far as it concerns its client."""
    message = job.error.message if job.error is not None else ""
    match job.reason:
        case Reason.TIMEOUT | Reason.SHRUNK:
            return f"time limit: {message}" if message else "time limit"
        case Reason.OUTPUT:
            return f"output limit: {message}"
        case Reason.HALTED:
            return "halted: its place was needed for other tasks"
        case Reason.CRASHED | Reason.LOST | Reason.MEMORY | Reason.DISK:
            return f"the process was stopped: {message}" if job.reason is not Reason.LOST else "the process was stopped"
        case Reason.CANCELLED | Reason.ABANDONED | Reason.DELETED:
            return "the task was stopped"
        case Reason.EXPIRED:
            return "no place was free in time"
        case Reason.FAILED:
            return message or "execution failed"
        case _:
            return SERVER_ERROR
