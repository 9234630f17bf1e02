"""`windlass shell`: talk to a job from this terminal, or through pipes.

The terminal is raw while the job runs, so that every key goes to the job, Ctrl-C too. However the command ends, the
terminal is then as it was before.
"""

import asyncio
import os
import signal
import sys
import termios
import threading
import tty
from collections.abc import Coroutine, Iterator
from contextlib import ExitStack, aclosing, contextmanager, suppress
from typing import Annotated

import msgspec
from cyclopts import Parameter
from msgspec import Raw

from windlass.cli import console, values
from windlass.cli.job_view import wait_text
from windlass.cli.options import option
from windlass.cli.target import HERE, Queue, Target, open_queue
from windlass.model.errors import Busy, Conflict, WindlassError
from windlass.model.events import Event
from windlass.model.job import FINISHED, Job, State
from windlass.model.new_job import NewJob
from windlass.model.operations import Cancel, Enqueue, GetQueue, GetResult, Resize, Send, Show
from windlass.model.output import MOST_MESSAGE, VALUES
from windlass.model.stdin import TERM, Stdin
from windlass.system import SystemClock

TASK = "shell"
"""The task that is run if none is named."""

OWNER_TIMEOUT = 60.0
"""Seconds after which a job ends whose terminal is gone."""

TRY_AGAIN = 0.1
"""Seconds before input is sent again that the job has no room for."""

FAILED = 1
KILLED_BY = 128
"""What a shell adds to the number of a signal."""

ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""Signals that end the job: Ctrl-C among them only while it waits, for later that goes to its program."""

HALF = MOST_MESSAGE // 2
"""Bytes that are read at once: two such pieces fit into one message."""


async def shell(
    queue: Annotated[str, Parameter(name="QUEUE", help="The queue.")],
    payload: Annotated[str | None, Parameter(name="PAYLOAD", help="The payload: JSON if it parses, else text.")] = None,
    /,
    *,
    task: Annotated[str, option("NAME", "The task; its program reads its standard input.")] = TASK,
    target: Target = HERE,
) -> int:
    """Run a job and talk to it: what is typed here goes to it, what it prints comes here.

    At a terminal the job gets a terminal of the same size, and every key, Ctrl-C too. With input from a pipe or a file
    it gets a pipe. On a queue with tiers it starts at once or not at all (exit status 75), and is halted when other
    jobs need its place. Exits with the status of its program, 1 if the job failed.

    For example:
      windlass shell web
      echo 'print(6 * 7)' | windlass shell web --task python
    """
    stdin: Stdin = "terminal" if sys.stdin.isatty() else "pipe"
    async with open_queue(target, create=True) as service:
        tiers = (await service(GetQueue(queue=queue))).tiers
        new = NewJob(
            task=task,
            queue=queue,
            stdin=stdin,
            yielding=bool(tiers),
            on_lost="fail",
            owner_timeout=OWNER_TIMEOUT,
            headers={TERM: os.environ.get("TERM", "")} if stdin == "terminal" else {},
        )
        if payload is not None:
            new = msgspec.structs.replace(new, payload=values.payload(payload))
        job = await service(Enqueue(job=new))
        return await _Session(service, job).run()


class _Session:
    """One job and the terminal, or the pipes, that it is connected to."""

    def __init__(self, queue: Queue, job: Job) -> None:
        self._queue = queue
        self._job = job
        self._terminal = job.stdin == "terminal"
        self._loop = asyncio.get_running_loop()
        self._raw = ExitStack()
        """Restores the terminal."""
        self._ended_by: signal.Signals | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def run(self) -> int:
        following = asyncio.create_task(self._follow())
        for number in ENDING:
            self._loop.add_signal_handler(number, self._end, number, following)
        try:
            with self._raw:
                await following
        except (asyncio.CancelledError, WindlassError):
            with suppress(WindlassError):
                await self._queue(Cancel(ids=[self._job.id]))
            if self._ended_by is None:
                raise
            return KILLED_BY + self._ended_by
        finally:
            for task in self._tasks:
                task.cancel()
        return await self._status()

    def _end(self, number: signal.Signals, following: "asyncio.Task[None]") -> None:
        self._ended_by = number
        following.cancel()

    async def _follow(self) -> None:
        begun = False
        async with aclosing(self._queue.follow(self._job.id)) as stream:
            async for event in stream:
                if event.chunk is not None:
                    if event.chunk.stream != VALUES:
                        console.write_bytes(event.chunk.data, error=event.chunk.stream != "stdout")
                else:
                    self._note(event)
                if event.name == "started" and not begun:
                    begun = True
                    self._connect()

    def _note(self, event: Event) -> None:
        """Say why nothing happens yet, or why it ends."""
        if event.name == "estimate" and event.estimate is not None and event.estimate.seconds != 0:
            self._say(f"waiting: {wait_text(event.estimate)}")
        elif event.name == "halted":
            self._say("halted: its place is needed for other jobs")

    def _say(self, text: str) -> None:
        end = "\r\n" if self._terminal else "\n"
        console.write_bytes(f"windlass: {text}{end}".encode(), error=True)

    # Input

    def _connect(self) -> None:
        """From here on, what is typed goes to the job."""
        typed: asyncio.Queue[bytes] = asyncio.Queue(maxsize=16)
        self._start(self._send_all(typed))
        threading.Thread(target=self._read, args=(typed,), name="windlass-typed", daemon=True).start()
        if self._terminal:
            self._raw.enter_context(_raw())
            self._loop.add_signal_handler(signal.SIGWINCH, self._resize)
            self._resize()

    def _start(self, doing: Coroutine[None, None, None]) -> None:
        task = self._loop.create_task(doing)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _read(self, typed: "asyncio.Queue[bytes]") -> None:
        """In a thread of its own: a file cannot be waited for, and a pipe may be shared."""
        while True:
            try:
                data = os.read(sys.stdin.fileno(), HALF)
            except OSError:
                data = b""
            try:
                asyncio.run_coroutine_threadsafe(typed.put(data), self._loop).result()
            except (RuntimeError, asyncio.CancelledError):
                return  # it is over
            if not data:
                return

    async def _send_all(self, typed: "asyncio.Queue[bytes]") -> None:
        """Send what was typed, with what is typed meanwhile, and at last the end of it."""
        while data := await typed.get():
            more = data
            while more and len(data) <= HALF and not typed.empty():
                more = typed.get_nowait()
                data += more
            await self._send(data)
            if not more:
                break
        await self._send(b"")

    async def _send(self, data: bytes) -> None:
        while True:
            try:
                await self._queue(Send(id=self._job.id, data=data))
            except Busy:
                await SystemClock().sleep(TRY_AGAIN)
            except Conflict:
                return  # it has ended
            except WindlassError as fault:
                self._say(f"not sent: {fault}")
                return
            else:
                return

    def _resize(self) -> None:
        with suppress(OSError):
            size = os.get_terminal_size(sys.stdin.fileno())
            if size.lines and size.columns:
                self._start(self._set_size(size.lines, size.columns))

    async def _set_size(self, rows: int, columns: int) -> None:
        with suppress(WindlassError):
            await self._queue(Resize(id=self._job.id, rows=rows, columns=columns))

    # The end

    async def _status(self) -> int:
        found = await self._queue(GetResult(id=self._job.id))
        if found.state is State.SUCCEEDED:
            value = values.readable(found.result, found.content_type) if isinstance(found.result, Raw) else None
            return value & 0xFF if isinstance(value, int) else 0
        job = await self._queue(Show(id=self._job.id))
        why = f": {found.error.type}: {found.error.message}" if found.error is not None else ""
        reason = f" ({job.reason})" if job.reason is not None and job.state in FINISHED else ""
        console.note(f"windlass: job {job.id} {found.state}{reason}{why}")
        return FAILED


@contextmanager
def _raw() -> Iterator[None]:
    """The terminal raw, and afterwards as it was."""
    descriptor = sys.stdin.fileno()
    before = termios.tcgetattr(descriptor)
    tty.setraw(descriptor, termios.TCSANOW)  # what was typed before is for the job
    try:
        yield
    finally:
        termios.tcsetattr(descriptor, termios.TCSANOW, before)  # waits for no output that a stopped terminal holds
