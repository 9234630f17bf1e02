"""A worker takes over the runs that other workers of this machine have left: what still runs, and what has ended.

The lock of a run's folder keeps workers of this machine apart; whose the run is, the queue decides.
"""

import asyncio
import logging

from windlass.model.errors import Missing, WindlassError
from windlass.model.operations import Adopt, Claimed, Orphan
from windlass.model.ports import Clock, Randomness
from windlass.worker.claims import Registration
from windlass.worker.contexts.kept import KeptRun, KeptRuns
from windlass.worker.contexts.pool import ContextRunner

log = logging.getLogger("windlass.worker")

LOOK_EVERY = 1.0
"""Seconds between two looks."""


class Adoption:
    """`run` until it is cancelled."""

    def __init__(
        self,
        kept: KeptRuns,
        registration: Registration,
        contexts: ContextRunner,
        lease: float,
        *,
        clock: Clock,
        chance: Randomness,
    ) -> None:
        self._kept = kept
        self._registration = registration
        self._contexts = contexts
        self._lease = lease
        self._clock = clock
        self._chance = chance
        self._complained = False

    async def run(self) -> None:
        while True:
            await self._clock.sleep(LOOK_EVERY)
            await self.look()

    async def look(self) -> None:
        """Take over what there is."""
        for run in self._kept.left():
            try:
                await self._adopt(run)
            except asyncio.CancelledError:
                run.let_go()
                raise
            except (OSError, WindlassError) as fault:
                run.let_go()
                log.log(logging.DEBUG if self._complained else logging.WARNING, "cannot adopt runs: %s", fault)
                self._complained = True
                return

    async def _adopt(self, run: KeptRun) -> None:
        nonce = self._chance.token().hex()
        tokens = list(reversed(run.about.tokens))
        run.expect(nonce)
        for token in tokens:
            if claimed := await self._ask(run, token, nonce):
                run.confirm(nonce)
                log.info("adopted job %s of process %s", run.about.job, claimed.job.pid)
                self._contexts.adopt(claimed, run)
                return
        log.info("job %s is no longer to be run: its process ends", run.about.job)
        self._contexts.end_orphan(run)

    async def _ask(self, run: KeptRun, token: str, nonce: str) -> Claimed | None:
        about = run.about
        orphan = Orphan(id=about.job, tenant=about.tenant, token=token, nonce=nonce, lease=self._lease)
        try:
            adopted = await self._registration.ask(lambda names: Adopt(**names, jobs=[orphan]))
        except Missing as fault:  # the queue forgot this worker twice
            raise OSError(str(fault)) from fault
        return adopted[0] if adopted else None
