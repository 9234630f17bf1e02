"""The threads of a context: as few as will do, and each can be told to stop at any moment."""

import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.support.patience import PATIENCE
from windlass.call.arguments import CallSignature
from windlass.call.signals import ANY_ERROR
from windlass.model.outcome import Verdict
from windlass.worker.contexts.execution import Execution
from windlass.worker.contexts.frames import Assignment, ContextOutbox, ContextUpdate, FrameReader, RunOutcome
from windlass.worker.contexts.main import Threads

NOTHING = b"\x90"  # no arguments


class Chore:
    """A task, as far as a thread needs it."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function
        self.plan = CallSignature(function)
        self.errors = ANY_ERROR
        self.soft_timeout = None


class Room:
    """Threads, and what they tell at the other end of a socket."""

    def __init__(self, most: int) -> None:
        self._ours, theirs = socket.socketpair()
        self._ours.settimeout(PATIENCE)
        self._frames = FrameReader(ContextUpdate)
        self._outcomes: list[RunOutcome] = []
        self._outbox = ContextOutbox(theirs)
        self._theirs = theirs
        self._number = 0
        self.threads = Threads(most, self._outbox, lambda _number: None)

    def put(self, function: Callable[[], Any], *, cancelled: bool = False) -> Execution:
        self._number += 1
        assignment = Assignment(
            self._number, "chore", NOTHING, "application/vnd.msgpack", "id", "default", "default", 1, 0, 0.0
        )
        run = Execution([assignment], self._outbox.add_update)
        if cancelled:
            run.cancel()
        self.threads.put((Chore(function), assignment, run))
        return run

    def ended(self) -> RunOutcome:
        while not self._outcomes:
            for update in self._frames.feed(self._ours.recv(1 << 16)):
                self._outcomes += update.outcomes
        return self._outcomes.pop(0)

    def close(self) -> None:
        self._ours.close()
        self._theirs.close()


@pytest.fixture
def room() -> Iterator[Room]:
    opened = Room(most=4)
    yield opened
    opened.close()


def test_a_job_that_was_cancelled_while_it_waited_is_not_begun(room: Room) -> None:
    ran: list[int] = []

    def chore() -> None:
        ran.append(1)

    room.put(chore, cancelled=True)
    assert room.ended().verdict is Verdict.ERROR
    room.put(chore)
    assert room.ended().verdict is Verdict.OK
    assert ran == [1]


def test_an_order_to_stop_never_strikes_the_next_job(room: Room) -> None:
    """Told at every moment around their end, jobs end one way or the other, and those after them end well."""
    fine = 0
    for number in range(300):
        begun = threading.Event()

        def chore(begun: threading.Event = begun, number: int = number) -> int:
            begun.set()
            return sum(range(number * 20))

        run = room.put(chore)
        begun.wait(PATIENCE)
        run.cancel()
        room.ended()
        room.put(lambda: None)
        fine += room.ended().verdict is Verdict.OK
    assert fine == 300


def test_a_job_that_waits_behind_stuck_threads_gets_another_one(room: Room) -> None:
    stuck, reached = threading.Event(), threading.Event()
    for _ in range(3):
        room.put(lambda: stuck.wait(PATIENCE))
    room.put(reached.set)
    while not reached.wait(0.003):
        room.threads.check()
    assert room.ended().number == 4
    stuck.set()
    assert sorted(room.ended().number for _ in range(3)) == [1, 2, 3]
