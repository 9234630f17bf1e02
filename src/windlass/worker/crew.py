"""The contexts that share jobs: how many there are, which gets the next job, when one is replaced."""

import logging

from windlass.model.ports import Clock
from windlass.worker.options import WorkerOptions
from windlass.worker.pool import Context, Pool
from windlass.worker.processes import resident

log = logging.getLogger("windlass.worker")


class Crew:
    """One worker's contexts."""

    def __init__(self, pool: Pool, options: WorkerOptions, clock: Clock) -> None:
        self.pool = pool
        self._options = options
        self._clock = clock
        self._shared: list[Context] = []
        self.hiring = True
        """Whether whoever leaves is replaced."""

    def fill(self) -> None:
        """As many contexts as there should be."""
        while self.hiring and len(self._shared) < min(self._options.contexts, self._options.slots):
            self._shared.append(self.pool.fork(isolated=False, born=self._clock.monotonic()))

    def least_busy(self) -> Context:
        least: Context | None = None
        for context in self._shared:
            if context.held_up:
                continue
            if not context.held:
                return context
            if least is None or len(context.held) < len(least.held):
                least = context
        if least is None and self._shared:
            return min(self._shared, key=lambda context: len(context.held))
        if least is None:
            raise OSError("there was no room for a process that runs jobs")
        return least

    def look_for_held_up(self) -> None:
        """Ask contexts that were given jobs, while others have less to do, whether their event loops answer."""
        for context in self._shared:
            if context.unanswered:
                context.held_up = True
            elif context.held and (context.held_up or context.jobs > context.asked_at) and self._has_idler(context):
                context.ask_whether_it_answers()

    def _has_idler(self, context: Context) -> bool:
        return any(not other.held_up and len(other.held) < len(context.held) for other in self._shared)

    def alone(self) -> Context:
        """A context for one job."""
        return self.pool.fork(isolated=True, born=self._clock.monotonic())

    def dismiss(self, context: Context) -> None:
        """It gets no more jobs; another takes its place."""
        if context in self._shared:
            self._shared.remove(context)
            self.fill()

    def miss(self, context: Context) -> None:
        """There was no room for it. The next look tries again: at once would be in vain."""
        if context in self._shared:
            self._shared.remove(context)

    def retire_if_spent(self, context: Context) -> None:
        """Replace a context that has done its share; it ends with its last job."""
        if context in self._shared and self._is_spent(context):
            context.leave()
            self.dismiss(context)

    def _is_spent(self, context: Context) -> bool:
        most_jobs, most_age = self._options.context_max_jobs, self._options.max_age
        old = most_age is not None and self._clock.monotonic() - context.born > most_age
        return old or (most_jobs is not None and context.jobs >= most_jobs)

    def is_fat(self, context: Context) -> bool:
        limit = self._options.max_memory
        return limit is not None and context.pid is not None and resident(context.pid) > limit

    def look(self) -> list[Context]:
        """Replace what is too old or too fat; of contexts for one job, answer those that are too fat."""
        self.pool.look()
        self.fill()
        for context in list(self._shared):
            if self._is_spent(context) or self.is_fat(context):
                context.leave()
                self.dismiss(context)
        return [context for context in self.pool.contexts.values() if context.isolated and self.is_fat(context)]

    async def guard(self) -> None:
        """A zygote that has died is replaced; what ran in its contexts died with it."""
        while True:
            await self.pool.lost.wait()
            log.error("the process that forks contexts is lost; starting it again")
            self._shared.clear()
            self.fill()
            await self.pool.restart()

    async def close(self) -> None:
        self.hiring = False
        await self.pool.close()
