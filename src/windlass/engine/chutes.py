"""The short way of a lone job that is like one before it, but for its id and payload.

Whatever else there is to a job was checked and worked out for the first of its kind. There is such a way only where no
rules are in force and where the store has one; whoever finds none goes the usual way.
"""

import logging
from typing import cast

from windlass.engine.desk import Desk
from windlass.engine.drafts import drafts_of
from windlass.engine.following import life, log_entered
from windlass.engine.sound import sound
from windlass.engine.telling import Telling
from windlass.model.errors import WindlassError
from windlass.model.job import NewJob
from windlass.model.mold import Mold
from windlass.model.names import JobKey, text_id
from windlass.model.operations import EnqueueMany
from windlass.store.beside import Chute, Chuting

MOST_KINDS = 1000

Kind = tuple[str, bytes]
"""Whose jobs, and all that they ask for."""


class Chutes:
    """Those of one engine."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk
        self._store = cast("Chuting", desk.store) if desk.sure is None and hasattr(desk.store, "chute") else None
        self._most_payload = desk.settings.most_payload
        self._known: dict[Kind, Chute] = {}

    def add(self, tenant: str, mold: Mold, id: bytes, payload: bytes) -> bool | None:
        """Whether the job, which is kept now, is new; null = it must go the usual way."""
        kind = tenant, mold.spelled
        chute = self._known.get(kind) or self._made(kind, mold.new)
        if chute is None or len(payload) > self._most_payload:
            return None
        created = chute(id, payload)
        if created is None and chute.shut:  # there may be rules now: the next one finds out whether there is a way
            self._known.pop(kind, None)
        return created

    async def tell(self, tenant: str, mold: Mold, id: bytes, *, created: bool) -> None:
        """Let those know of a job who want to. That it is kept comes first."""
        if life.isEnabledFor(logging.DEBUG):
            log_entered(text_id(id), mold.new.task, created=created)
        if created and not self._desk.wire.quiet:
            await cast("Telling", self._desk.store).tell_queued([JobKey(text_id(id), tenant)])

    def _made(self, kind: Kind, new: NewJob) -> Chute | None:
        if self._store is None or not kind[1] or not self._desk.regimes.none_seen:
            return None
        try:
            (example,) = drafts_of(self._desk, sound(EnqueueMany(tenant=kind[0], jobs=[new])))
        except WindlassError:
            return None  # the usual way tells what is wrong
        chute = self._store.chute(example)
        if chute is not None:
            if len(self._known) >= MOST_KINDS:
                self._known.clear()
            self._known[kind] = chute
        return chute
