"""The short way of a lone job that is like one before it, but for its id and payload.

Whatever else there is to a job was checked and worked out for the first of its kind. The way is open only where nobody
watches and no rules are in force, and where the store has one; whoever finds it shut goes the usual way.
"""

import logging
from typing import NamedTuple, cast

from msgspec.structs import replace

from windlass.engine.desk import Desk
from windlass.engine.drafts import drafts_of
from windlass.engine.following import life
from windlass.engine.sound import sound
from windlass.model.errors import WindlassError
from windlass.model.job import NOTHING, NewJob
from windlass.model.names import is_id_in
from windlass.model.operations import Enqueued, EnqueueMany
from windlass.store.beside import Chute, Chuting

MOST_KINDS = 1000


class _Kind(NamedTuple):
    """Jobs that ask for the same."""

    asked: NewJob
    chute: Chute | None


class Chutes:
    """Those of one engine, one for each task of a tenant's queue."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk
        self._store = cast("Chuting", desk.store) if hasattr(desk.store, "chute") else None
        self._kinds: dict[tuple[str, str, str], _Kind] = {}

    def enqueue(self, operation: EnqueueMany) -> Enqueued | None:
        """The answer, if the job could go the short way."""
        if len(operation.jobs) != 1 or not self._open:
            return None
        (new,) = operation.jobs
        if not type(new.id) is type(new.task) is type(new.queue) is str or not is_id_in(new.queue, new.id):
            return None
        payload = bytes(new.payload)
        chute = self._chute(operation, new)
        if chute is None or len(payload) > self._desk.settings.most_payload:
            return None
        created = chute(new.id, payload)
        return None if created is None else Enqueued(ids=[new.id], created=int(created))

    @property
    def _open(self) -> bool:
        desk = self._desk
        return desk.wire.quiet and desk.regimes.none_seen and desk.sure is None and not life.isEnabledFor(logging.DEBUG)

    def _chute(self, operation: EnqueueMany, new: NewJob) -> Chute | None:
        lane = operation.tenant, new.queue, new.task
        asked = replace(new, id=None, payload=NOTHING)
        kind = self._kinds.get(lane)
        if kind is None or kind.asked != asked:
            kind = self._kinds[lane] = _Kind(asked, self._made(operation))
            if len(self._kinds) > MOST_KINDS:
                self._kinds.clear()
        return kind.chute

    def _made(self, operation: EnqueueMany) -> Chute | None:
        try:
            (example,) = drafts_of(self._desk, sound(operation))
        except WindlassError:
            return None  # the usual way tells what is wrong
        asks = example.new
        if self._store is None or asks.key is not None or asks.tier is not None or asks.yielding:
            return None
        return self._store.chute(example)
