"""What the answers share: the store, chance, the settings.

Also how a tenant's job is found, and the one way to decide and write moves.
"""

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from functools import lru_cache
from typing import NamedTuple, cast

from msgspec import Struct
from msgspec.structs import replace

from windlass.engine.attending import Attention, attended
from windlass.engine.experience import Experience
from windlass.engine.gathering import Gathering
from windlass.engine.regime import Regimes
from windlass.engine.telling import Telling
from windlass.model.errors import Conflict, Missing
from windlass.model.events import Gone
from windlass.model.handler import Language
from windlass.model.job import Job
from windlass.model.lifecycle import Move
from windlass.model.names import EVERY_TENANT, JobKey, check_id, key_of
from windlass.model.operations import Hand
from windlass.model.ports import Chance
from windlass.model.token import Locked
from windlass.model.wire import MOST_PAYLOAD, MOST_RESULT
from windlass.model.worker import Worker
from windlass.store import Record, Store
from windlass.store.beside import Bounded, Directory, Outcomes, Replicating, Shelf, Timetable, Wire
from windlass.store.flow import Flow
from windlass.store.mailbox import Mailbox

Decide = Callable[[Record, datetime], Move | None]
"""What is to happen to a job as it was read at that time; null = nothing."""

MOST_ROUNDS = 8
"""How often a move is decided anew when the job changed in between; each round somebody else got a step further."""

MOST_KNOWN_WORKERS = 10_000

FENCE_BYTES = 8

MOST_NAMED = 10
"""Tenants that are named where several have an id."""


class Settings(Struct, frozen=True, kw_only=True):
    """What an operator may choose for the engine."""

    lease: float = 15.0
    """Seconds after which an unrenewed job, or a silent worker, is taken for lost."""
    most_payload: int = MOST_PAYLOAD
    """Bytes of one payload."""
    most_result: int = MOST_RESULT
    """Bytes of one result."""
    replicas: int | None = None
    """Replicas of a Redis store that must have a new job before it counts as accepted; null = as its address says."""
    replicated_within: float = 1.0
    """Seconds that they are waited for."""
    replicas_synced: bool = False
    """Whether they must have it on disk."""


class Handled(NamedTuple):
    """Which tasks have handlers, as it was a moment ago."""

    until: float
    """When to look again, by the loop's clock."""
    tasks: Mapping[str, Mapping[str, Language]]
    """By tenant, each with the language of its handler."""


class Desk:
    """One engine's working place."""

    def __init__(self, store: Store, chance: Chance, settings: Settings) -> None:
        wire = cast("Wire", store)  # every store carries news, and keeps records too
        self.store = cast("Store", Telling(store, wire))
        self.shelf = cast("Shelf", store)
        self.outcomes = cast("Outcomes", store)
        self.timetable = cast("Timetable", store)
        self.bounded = store if isinstance(store, Bounded) else None
        waits = getattr(store, "replicated_within", None) is not None
        self.sure = cast("Replicating", self.store) if waits else None
        """The store, if new jobs are accepted only when its replicas have them too."""
        self.wire = wire
        self.flow = cast("Flow", store)  # and holds claims to rules
        self.directory = cast("Directory", store)  # and knows whose an id is
        self.mailbox = cast("Mailbox", store)  # and messages to jobs
        self.regimes = Regimes(self.shelf, self.flow)
        self.chance = chance
        self.settings = settings
        self.gathering: Gathering | None = None
        self.experience = Experience()
        self.let_in: dict[tuple[str, str], dict[str, datetime]] = {}
        """Yielding jobs of a tenant's queue that are on their way to the store, and until when that is believed."""
        self.handled: Handled | None = None
        self.reserved: frozenset[str] = frozenset()
        """Tasks of an app in the same program, as `tenant/task`: handlers cannot take their place."""
        # What a worker said of itself never changes, so it is asked for once; whether it lives is told by its renewals.
        self.known_workers: dict[str, Worker] = {}
        self.hands: dict[str, Hand] = {}
        """By worker: who takes what its waiting claim is given, ahead of the claim's answer."""
        self.idle: set[str] = set()
        """Workers whose last claim had to wait: the next one listens before it asks, and then asks once."""
        self.on_token: list[Callable[[str, Locked | None], None]] = []
        """Called for each token that is added here, or removed (null), by its key."""
        self._attention = Attention()

    async def find(self, id: str, tenant: str, *, payload: bool = False) -> Record:
        """The record of a tenant's own job: somebody else's answers exactly like none."""
        return (await self._found(id, tenant, payload=payload))[0]

    async def keys(self, ids: Sequence[str], tenant: str) -> list[JobKey | None]:
        """Which jobs a tenant means by these ids; null = there is none, which is known where all tenants are asked for.

        An id that several tenants have is then refused.
        """
        if tenant != EVERY_TENANT:
            return [JobKey(id, tenant) for id in ids]
        found = zip(ids, await self.directory.owners(ids), strict=True)
        return [_only(id, tenants) for id, tenants in found]

    async def _found(self, id: str, tenant: str, *, payload: bool) -> tuple[Record, datetime]:
        """The record and the store's time."""
        check_id(id)
        (key,) = await self.keys([id], tenant)
        if key is None:
            raise no_job(id)
        reading = await self.store.read([key], payload=payload)
        record = reading.records[0]
        if record is None:
            raise no_job(id)
        return record, reading.now

    async def asked_for(self, id: str, tenant: str, *, payload: bool = False) -> Record:
        """The same, for somebody who wants to know how the job stands: so it is attended to."""
        record, now = await self._found(id, tenant, payload=payload)
        if record.job.unattended is not None and self._attention.is_due(record.job, now):
            if not await self.settle_read([record], now, attended):
                await self.settle([key_of(record.job)], attended)  # it has changed meanwhile
            self._attention.note(key_of(record.job), now)
        return record

    async def settle(self, keys: Sequence[JobKey], decide: Decide) -> set[JobKey]:
        """Decide and write moves for these jobs; those that were changed.

        A move is refused when its job changed after it was read; it is then read and decided again.
        """
        changed: set[JobKey] = set()
        rest = list(dict.fromkeys(keys))
        for _ in range(MOST_ROUNDS):
            if not rest:
                break
            reading = await self.store.read(rest)
            moves = self._moves(reading.records, decide, reading.now)
            applied = await self.store.apply(moves)
            changed |= {key_of(move) for move, done in zip(moves, applied, strict=True) if done}
            rest = [key_of(move) for move, done in zip(moves, applied, strict=True) if not done]
        return changed

    async def settle_read(self, records: Sequence[Record | None], now: datetime, decide: Decide) -> int:
        """The same for jobs already read, without a second try: whoever comes next decides again."""
        moves = self._moves(records, decide, now)
        return sum(await self.store.apply(moves)) if moves else 0

    def _moves(self, records: Sequence[Record | None], decide: Decide, now: datetime) -> list[Move]:
        """What is decided for these, each move fenced by the token its job was read under."""
        decided = [(record, decide(record, now)) for record in records if record is not None]
        return [replace(move, fence=record.token) for record, move in decided if move is not None]

    def remember(self, worker: Worker) -> None:
        if len(self.known_workers) >= MOST_KNOWN_WORKERS:
            self.forget_worker(next(iter(self.known_workers)))
        self.known_workers[worker.id] = worker

    def forget_worker(self, id: str) -> None:
        self.known_workers.pop(id, None)
        self.idle.discard(id)


def no_job(id: str) -> Missing:
    return Missing(f"there is no job {id}", at="id")


def _only(id: str, tenants: Sequence[str]) -> JobKey | None:
    if len(tenants) > 1:
        raise several(id, tenants)
    return JobKey(id, tenants[0]) if tenants else None


def several(id: str, tenants: Sequence[str], at: str = "id") -> Conflict:
    named = ", ".join(tenants[:MOST_NAMED]) + (" and others" if len(tenants) > MOST_NAMED else "")
    return Conflict(f"several tenants have a job {id}: {named}; name the one that is meant", at=at)


def owns(tenant: str, job: Job | Gone) -> bool:
    return tenant in (EVERY_TENANT, job.tenant)


@lru_cache(maxsize=1024)  # all jobs of one claim have the same
def fence(token: str) -> bytes:
    """The bytes of a token; what is no token at all fences off nothing but itself."""
    try:
        given = bytes.fromhex(token)
    except ValueError:
        return b""
    return given if len(given) == FENCE_BYTES else b""
