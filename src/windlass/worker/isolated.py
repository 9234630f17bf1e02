"""A context for one job alone: its process, its session, its output are the job's own.

The function runs in the main thread, so that TERM interrupts it wherever it waits. What the supervisor says is heard
when the function asks; a second thread, which costs more than many a job, listens only where messages may come.
"""

import os
import signal
import socket
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress

from windlass.call.signals import Cancelled
from windlass.worker import context
from windlass.worker.frames import Assignment, Frames, Orders
from windlass.worker.outbox import Outbox
from windlass.worker.running import Callee, Run, call, ended, is_async


def live(link: socket.socket, tasks: Mapping[str, Callee], frames: Frames[Orders]) -> None:
    """The life of such a context: one assignment, then the end. `frames` are new; to make them takes a while."""
    told = _first(link, frames)
    assignment = _assignment(told)
    callee = tasks.get(assignment.task)
    outbox = Outbox(link)
    if callee is None:
        outbox.end(context.unknown(assignment))
    elif is_async(callee):
        context.live(link, tasks, told, frames)
    else:
        _alone(link, frames, outbox, callee, told)
    outbox.send()


def _first(link: socket.socket, frames: Frames[Orders]) -> list[Orders]:
    """What it is told at first, the assignment among it; if it began late, there may be more."""
    told: list[Orders] = []
    while not any(orders.start for orders in told):
        data = link.recv(context.READ_AT_ONCE)
        if not data:
            os._exit(0)
        told += frames.feed(data)
    return told


def _assignment(told: Sequence[Orders]) -> Assignment:
    return next(assignment for orders in told for assignment in orders.start)


def _alone(link: socket.socket, frames: Frames[Orders], outbox: Outbox, callee: Callee, told: Sequence[Orders]) -> None:
    assignment = _assignment(told)

    def say_at_once(said: object) -> None:
        outbox.say(said)  # type: ignore[arg-type]
        outbox.send()

    run = Run(assignment, say_at_once)
    for orders in told:
        _obey(orders, run)
    if assignment.input:
        threading.Thread(target=_hear, args=(link, frames, run), name="windlass-orders", daemon=True).start()
    else:
        run.look = _look(link, frames, run)
    signal.signal(signal.SIGTERM, _interrupt)
    try:
        ending = call(callee, assignment, run)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
    except Cancelled as fault:
        ending = ended(assignment.number, fault)
    outbox.end(ending)


def _interrupt(_number: int, _frame: object) -> None:
    raise Cancelled


def _obey(orders: Orders, run: Run) -> None:
    for passed in orders.input:
        if run.inbox is not None:
            run.inbox.put(passed.data)
    if orders.stop:
        run.cancel()


def _look(link: socket.socket, frames: Frames[Orders], run: Run) -> Callable[[], None]:
    """A way to hear what has been said by now, for any thread of this process."""
    here, alone = os.getpid(), threading.Lock()

    def look() -> None:
        if os.getpid() != here:
            return  # what is said to the job is not for the processes that it makes
        with alone, suppress(BlockingIOError):
            data = link.recv(context.READ_AT_ONCE, socket.MSG_DONTWAIT)
            for orders in frames.feed(data):
                _obey(orders, run)

    return look


def _hear(link: socket.socket, frames: Frames[Orders], run: Run) -> None:
    with suppress(OSError):
        while data := link.recv(context.READ_AT_ONCE):
            for orders in frames.feed(data):
                _obey(orders, run)
    os._exit(0)  # the supervisor is gone
