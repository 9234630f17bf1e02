"""How a worker moves jobs: claim as many as there are free slots, start them, claim again when some have ended.

A job reaches a runner by the answer to a claim, or is adopted with its process (`RunTable.adopt`). While runners work,
`Leases` renews what they hold and passes on orders, `RunTable` takes their outcomes, and `Reports` sends those to the
queue. The same loop serves contexts, functions, push workers and tests; they differ in their `Runner`.
"""

from collections.abc import Callable, Mapping, Sequence

from windlass.model.handler import Language
from windlass.model.operations import MOST_AT_ONCE
from windlass.model.ports import Clock, Randomness
from windlass.worker.claims import Claims, Registration
from windlass.worker.leases import Leases
from windlass.worker.linux import UsageMeter
from windlass.worker.reports import Reports
from windlass.worker.runs import RunnerOf, RunTable
from windlass.worker.telemetry import Telemetry

WAIT = 30.0
"""Seconds that one claim waits for work."""

BURST_WAIT = 0.05
"""The same in a burst; long enough for due jobs to be queued."""

GATHER = 0.002
"""Seconds to let more slots free up before one claim."""

HEAD_START = 0.001
"""Pause after a partly filled claim, so contexts can start before the store is asked again."""


class WorkerLoop:
    """One worker's jobs, from claim to report."""

    def __init__(
        self,
        registration: Registration,
        *,
        clock: Clock,
        chance: Randomness,
        burst: bool = False,
        languages: list[Language] | None = None,
        telemetry: Telemetry | None = None,
        meter: UsageMeter | None = None,
        slots_of: Mapping[str, int] | None = None,
    ) -> None:
        """`burst`: exit when no jobs are left. `languages`: claim handler jobs only in these; null = all."""
        self.reports = Reports(registration, clock)
        self.runs = RunTable(self.reports, clock, telemetry, slots_of, registration.about.options)
        self.leases = Leases(self.runs, registration, clock, meter)
        self.claims = Claims(registration, self.reports.release, clock=clock, chance=chance, give_up_if_damaged=burst)
        self._clock = clock
        self._burst = burst
        self._languages = languages
        self._stopped = False
        self.paused_by: set[str] = set()
        """Why nothing is claimed now."""

    async def run(
        self, runner_of: RunnerOf, slots: Callable[[], int], warm: Callable[[], Sequence[str]] = tuple
    ) -> None:
        """Claim and run jobs until stopped or until no slots are left; in a burst, until no jobs are left.

        `slots`: how many jobs may run at once now. `warm`: what has a warm context, as `tenant/task`. `reports` and
        `leases` must run meanwhile.
        """
        while not self._stopped and (most := slots()) > 0:
            if self._burst and not self.runs.active and self.reports.damaged is not None:
                raise self.reports.damaged
            free = self.runs.free(most)
            if free < 1 or self._claims_nothing:
                await self.runs.some_ended()
                continue
            if free < most // 4:
                await self._clock.sleep(GATHER)  # others are about to end: one claim for all of them
                free = self.runs.free(slots())
            idle = not self.runs.active and self.reports.settled  # reports on their way may make new jobs
            asked = min(free, MOST_AT_ONCE)
            started = await self.claim_and_start(runner_of, asked, BURST_WAIT if self._burst else WAIT, warm())
            if 0 < started < asked:
                await self._clock.sleep(HEAD_START)
            elif self._burst and not started and idle and not self.runs.active and not self._claims_nothing:
                return

    async def claim_and_start(self, runner_of: RunnerOf, free: int, wait: float, warm: Sequence[str] = ()) -> int:
        """Claim up to `free` jobs and start them; returns how many."""
        if free < 1 or self._claims_nothing:
            return 0
        claimed = await self.claims.claim(free, wait, warm, self._languages)
        fitting = self.runs.fitting(claimed, free)
        for one in claimed[len(fitting) :]:
            self.claims.give_back(one)
        if fitting:
            self.runs.start(fitting, runner_of)
        return len(fitting)

    async def register(self) -> bool:
        """Register this worker, however long that takes; false = it was stopped first."""
        return not self._stopped and await self.claims.register()

    @property
    def _claims_nothing(self) -> bool:
        return self._stopped or bool(self.paused_by)

    def stop(self) -> None:
        self._stopped = True
        self._interrupt()

    def pause(self, by: str, paused: bool = True) -> None:
        """Claim nothing as long as any reason remains; the same reason does not count twice."""
        if paused != (by in self.paused_by):
            self.paused_by ^= {by}
            self._interrupt()

    def take_only(self, languages: list[Language]) -> None:
        """From now on, claim handlers' jobs only in these languages."""
        if languages != self._languages:
            self._languages = languages
            self._interrupt()

    def _interrupt(self) -> None:
        self.runs.changed.set()
        self.claims.interrupt()

    async def report_all(self) -> None:
        """Wait until everything is reported, including jobs that an interrupted claim may have taken."""
        await self.claims.released()
        await self.reports.flush()
