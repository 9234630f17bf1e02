"""What a context has to tell, gathered from its threads and sent in frames."""

import os
import re
import socket
import sys
import threading
from contextlib import suppress
from typing import NoReturn

from windlass.model.job import Error
from windlass.model.lifecycle import Verdict
from windlass.model.wire import UNSPEAKABLE, speakable
from windlass.worker.frames import LARGE, Ending, News, Said, frame

MANY = 64
"""Endings that are sent without waiting for more."""


class Outbox:
    """Any thread may put something in; whoever finds it full, or has nothing else to do, sends it."""

    def __init__(self, link: socket.socket) -> None:
        self._link = link
        self._lock = threading.Lock()
        self._process = os.getpid()
        self._endings: list[Ending] = []
        self._said: list[Said] = []
        self._bytes = 0

    def end(self, ending: Ending) -> None:
        if os.getpid() != self._process:
            _end_forked(ending)
        self._endings.append(ending)
        if ending.result is not None:
            self._bytes += len(ending.result)

    def say(self, said: Said) -> None:
        self._said.append(said)

    @property
    def full(self) -> bool:
        return len(self._endings) >= MANY or self._bytes >= LARGE

    def send(self) -> None:
        """Send what there is, in the order it came. Ends the process if nobody listens any more."""
        if not self._endings and not self._said:
            return
        with self._lock:
            endings, self._endings = self._endings, []
            said, self._said = self._said, []
            large, self._bytes = self._bytes > LARGE, 0
            try:
                if large:
                    self._send_one_by_one(endings, said)
                elif endings or said:
                    self._send_together(endings, said)
            except OSError:
                os._exit(0)  # the supervisor is gone

    def tell(self, news: News) -> None:
        """Send something else at once."""
        with self._lock:
            try:
                self._link.sendall(frame(news))
            except OSError:
                os._exit(0)

    def _send_together(self, endings: list[Ending], said: list[Said]) -> None:
        try:
            packed = frame(News(endings, said))
        except UNSPEAKABLE:
            self._send_one_by_one(endings, said)
        else:
            self._link.sendall(packed)

    def _send_one_by_one(self, endings: list[Ending], said: list[Said]) -> None:
        """Also where one of them cannot be said, by whatever a task has put into it: the others go through."""
        for one in said:
            with suppress(*UNSPEAKABLE):
                self._link.sendall(frame(News(said=[one])))
        for ending in endings:
            self._link.sendall(_spoken(ending))


def _end_forked(ending: Ending) -> NoReturn:
    """The end of a process that a task has forked, and that came back from the task: the run's end is not its to tell.

    It goes as a program goes that has come to its end, or has left, or that nobody has caught an exception of.
    """
    error, status = ending.error, 0 if ending.verdict is Verdict.OK else 1
    with suppress(Exception):
        if error is not None and error.type == SystemExit.__name__:
            status = _exit_status(error.message)
        elif error is not None:
            sys.stderr.write(error.traceback)
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(status)


def _exit_status(said: str) -> int:
    """As an interpreter takes what `sys.exit` was told."""
    if said in {"", "None"}:
        return 0
    if re.fullmatch(r"-?\d+", said):
        return int(said) & 0xFF
    sys.stderr.write(f"{said}\n")
    return 1


def _spoken(ending: Ending) -> bytes:
    try:
        return frame(News([ending]))
    except UNSPEAKABLE as fault:
        error = Error(type="Unspeakable", message=speakable(f"how it ended cannot be told: {fault}"))
        return frame(News([Ending(ending.number, Verdict.ERROR, error=error)]))
