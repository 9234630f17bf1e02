"""The short way of a lone job that is like one before it, but for its id and payload.

Whatever else there is to a job was checked and worked out for the first of its kind. The way is open only where nobody
watches and no rules are in force, and where the store has one; whoever finds it shut goes the usual way.
"""

import logging
from operator import attrgetter
from typing import cast

from msgspec.structs import replace

from windlass.engine.desk import Desk
from windlass.engine.drafts import drafts_of
from windlass.engine.following import life
from windlass.engine.sound import sound
from windlass.model import wire
from windlass.model.errors import WindlassError
from windlass.model.job import NOTHING, NewJob
from windlass.model.names import raw_id_in
from windlass.model.operations import Enqueued, EnqueueMany
from windlass.store.beside import Chute, Chuting

MOST_KINDS = 1000

Kind = tuple[str, bytes]
"""Whose jobs, and all that they ask for. As bytes: what was given in Python may be changed there afterwards."""

_particulars = attrgetter(
    "key", "tier", "yielding", "delay", "run_at", "expires", "unattended", "after", "files", "then"
)
_no_particulars = _particulars(NewJob(task="x"))


class Chutes:
    """Those of one engine."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk
        self._store = cast("Chuting", desk.store) if hasattr(desk.store, "chute") else None
        self._known: dict[Kind, Chute] = {}

    def enqueue(self, operation: EnqueueMany) -> Enqueued | None:
        """The answer, if the job could go the short way."""
        if len(operation.jobs) != 1 or not self._open:
            return None
        (new,) = operation.jobs
        if type(new.id) is not str or new.files:
            return None
        chute, payload = self._chute(operation, new), bytes(new.payload)
        if chute is None or len(payload) > self._desk.settings.most_payload:
            return None
        if (raw := raw_id_in(new.queue, new.id)) is None:
            return None
        created = chute(raw, payload)
        return None if created is None else Enqueued(ids=[new.id], created=int(created))

    @property
    def _open(self) -> bool:
        desk = self._desk
        return desk.wire.quiet and desk.regimes.none_seen and desk.sure is None and not life.isEnabledFor(logging.DEBUG)

    def _chute(self, operation: EnqueueMany, new: NewJob) -> Chute | None:
        try:
            kind = operation.tenant, wire.encode(replace(new, id=None, payload=NOTHING))
            return self._known.get(kind) or self._made(operation, kind)
        except (*wire.UNSPEAKABLE, WindlassError):
            return None  # the usual way tells what is wrong

    def _made(self, operation: EnqueueMany, kind: Kind) -> Chute | None:
        if _particulars(operation.jobs[0]) != _no_particulars:
            return None
        (example,) = drafts_of(self._desk, sound(operation))
        chute = self._store.chute(example) if self._store else None
        if chute is not None:
            if len(self._known) >= MOST_KINDS:
                self._known.clear()
            self._known[kind] = chute
        return chute
