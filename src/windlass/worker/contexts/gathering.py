"""Gathers claimed jobs of tasks that take several calls at once, until there are enough or the first waits no longer.

The jobs are running as far as the queue knows: their leases are renewed. Knows no process.
"""

import asyncio
from collections.abc import Callable, Mapping

from windlass.model.worker import BatchOptions
from windlass.worker.contexts.frames import LARGE, Assignment

BatchName = tuple[str, str]
"""Tenant and task."""


class Gathering:
    """The batches of one worker that have not begun."""

    def __init__(self, tasks: Mapping[str, BatchOptions], start: Callable[[list[Assignment]], None]) -> None:
        """`start`: called with each batch, to run it."""
        self._tasks = tasks
        self._start = start
        self._loop = asyncio.get_running_loop()
        self._waiting: dict[BatchName, list[Assignment]] = {}
        self._timers: dict[BatchName, asyncio.TimerHandle] = {}
        self._names: dict[int, BatchName] = {}
        """By number of the run."""

    @property
    def numbers(self) -> list[int]:
        """Of the runs that wait."""
        return list(self._names)

    def add(self, assignment: Assignment) -> None:
        name, options = (assignment.tenant, assignment.task), self._tasks[assignment.task]
        waiting = self._waiting.setdefault(name, [])
        waiting.append(assignment)
        self._names[assignment.number] = name
        if len(waiting) >= options.size or sum(len(one.payload) for one in waiting) > LARGE:
            self._begin(name)
        elif len(waiting) == 1:
            self._timers[name] = self._loop.call_later(options.within, self._begin, name)

    def begin_all(self) -> None:
        """No more jobs can come now."""
        for name in list(self._waiting):
            self._begin(name)

    def _begin(self, name: BatchName) -> None:
        batch = self._forget(name)
        for one in batch:
            del self._names[one.number]
        if batch:
            self._start(batch)

    def _forget(self, name: BatchName) -> list[Assignment]:
        if (timer := self._timers.pop(name, None)) is not None:
            timer.cancel()
        return self._waiting.pop(name, [])

    def remove(self, number: int) -> bool:
        """Leave out one that is to be stopped; whether it was waiting."""
        name = self._names.pop(number, None)
        if name is None:
            return False
        waiting = self._waiting[name]
        waiting[:] = [one for one in waiting if one.number != number]
        if not waiting:
            self._forget(name)
        return True
