"""Small records beside the jobs: tokens, quotas, options of tasks.

Records are bytes by kind and name, changed by compare-and-swap. Tokens and task options are cached for a moment, and
the cache survives a store that is away: jobs may be accepted without it.
"""

import hashlib
import hmac
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from datetime import timedelta
from typing import Any, NamedTuple, TypeVar, cast

import msgspec
from msgspec.structs import replace

from windlass.cached import CachedValue
from windlass.engine.context import EngineContext
from windlass.model.errors import Conflict, Missing, PartAway, Unavailable
from windlass.model.names import EVERY_TENANT, queue_mark
from windlass.model.new_job import JobOptions, NewJob
from windlass.model.operations import (
    A,
    AddToken,
    Enqueue,
    EnqueueLines,
    EnqueueMany,
    GetQuota,
    Operation,
    PutQuota,
    RemoveToken,
    Service,
    Tokens,
)
from windlass.model.ports import Clock
from windlass.model.quota import Quota
from windlass.model.token import PREFIX, Issued, Locked, Pass, Token, key_of
from windlass.model.worker import MOST_TASKS, NewWorker
from windlass.store.data import ANYTHING

TOKENS, QUOTAS, TASK_OPTIONS = "token", "quota", "task-options"
"""Kinds of records: by key, by tenant, by `tenant/task`."""

MOST_TRIES = 100
"""Each failed try is a concurrent change of the same record."""

TOKENS_CACHED_FOR = 0.5
"""Seconds: a removed token is refused after at most so long."""

PATIENCE = 0.5
"""Seconds to wait for the store if some tokens are cached."""

OPTIONS_CACHED_FOR = 2.0
"""Seconds for which the options of tasks are cached."""

_pack = msgspec.msgpack.Encoder().encode
_locked = msgspec.msgpack.Decoder(Locked)
_quota = msgspec.msgpack.Decoder(Quota)
_options = msgspec.msgpack.Decoder(JobOptions)

Change = Callable[[bytes | None], bytes | None]
"""The new record from the old one; null = none. May be called more than once."""


class RecordChange(NamedTuple):
    """A record before and after a change."""

    before: bytes | None
    after: bytes | None


async def change_record(context: EngineContext, kind: str, name: str, make: Change) -> RecordChange:
    """Change one record, so that of two concurrent changes neither undoes the other."""
    for _ in range(MOST_TRIES):
        before = (await context.store.records.list(kind, [name])).get(name)
        after = make(before)
        if after == before or await context.store.records.swap(kind, name, before, after):
            return RecordChange(before, after)
    raise Conflict("other callers change the same settings at the same time: try again")


# Tokens


async def add_token(context: EngineContext, operation: AddToken) -> Issued:
    key = context.chance.token().hex()[:12]
    token = f"{PREFIX}_{key}_{b''.join(context.chance.token() for _ in range(4)).hex()}"
    now = (await context.store.jobs.read([])).now
    expires_at = None if operation.expires is None else now + timedelta(seconds=operation.expires)
    fields: dict[str, Any] = {
        "key": key,
        "tenant": operation.tenant,
        "scopes": operation.scopes,
        "note": operation.note,
        "created_at": now,
        "expires_at": expires_at,
    }
    locked = Locked(**fields, digest=_digest(token))
    await context.store.records.swap(TOKENS, key, ANYTHING, _pack(locked))
    for notify in context.on_token:
        notify(key, locked)
    return Issued(**fields, token=token)


async def list_tokens(context: EngineContext, operation: Tokens) -> list[Token]:
    known = [_locked.decode(data) for data in (await context.store.records.list(TOKENS)).values()]
    return [
        msgspec.convert(one, Token, from_attributes=True)
        for one in sorted(known, key=lambda one: (one.created_at, one.key))
        if operation.tenant in (EVERY_TENANT, one.tenant)
    ]


async def remove_token(context: EngineContext, operation: RemoveToken) -> None:
    mine = {one.key for one in await list_tokens(context, Tokens(tenant=operation.tenant))}
    if operation.key not in mine:
        raise Missing(f"there is no token {operation.key[:60]}", at="key")
    await context.store.records.swap(TOKENS, operation.key, ANYTHING, None)
    for notify in context.on_token:
        notify(operation.key, None)


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode()).digest()


class Keyring:
    """Finds tokens in a cache. Tokens that this process adds or removes take effect at once.

    While the store does not answer, the tokens that it last returned stay valid.
    """

    def __init__(self, context: EngineContext, clock: Clock, patience: float = PATIENCE) -> None:
        self._context = context
        self._cached = CachedValue(self._read, clock, TOKENS_CACHED_FOR, patience)
        self._changes = 0
        self._changed: dict[str, tuple[int, Locked | None]] = {}
        """Changes of this process since the last read began, each with its number."""
        context.on_token.append(self._note_change)

    def _note_change(self, key: str, locked: Locked | None) -> None:
        self._changes += 1
        self._changed[key] = self._changes, locked

    async def find(self, token: str) -> Pass | None:
        locked = await self._locked(key_of(token) or "")
        if locked is None or not hmac.compare_digest(locked.digest, _digest(token)):
            return None
        return _pass_of(locked)

    async def _locked(self, key: str) -> Locked | None:
        known = await self._cached.known()
        return self._changed[key][1] if key in self._changed else known.get(key)

    async def find_key(self, key: str) -> Pass | None:
        """By name, for a session that was made with the token."""
        locked = await self._locked(key)
        return None if locked is None else _pass_of(locked)

    async def _read(self) -> dict[str, Locked]:
        """All tokens that are valid now, by the store's clock."""
        seen = self._changes
        now = (await self._context.store.jobs.read([])).now
        locked = [_locked.decode(data) for data in (await self._context.store.records.list(TOKENS)).values()]
        self._changed = {key: change for key, change in self._changed.items() if change[0] > seen}
        return {one.key: one for one in locked if one.expires_at is None or one.expires_at > now}


def _pass_of(locked: Locked) -> Pass:
    return Pass(locked.tenant, frozenset(locked.scopes), locked.key, locked.note)


# Quotas: stored here, enforced by servers


async def put_quota(context: EngineContext, operation: PutQuota) -> Quota:
    await context.store.records.swap(QUOTAS, operation.tenant, ANYTHING, _pack(operation.quota))
    return operation.quota


async def get_quota(context: EngineContext, operation: GetQuota) -> Quota:
    stored = (await context.store.records.list(QUOTAS)).get(operation.tenant)
    return Quota() if stored is None else _quota.decode(stored)


# Options of tasks, for jobs that are enqueued by name
#
# Python code that has the task sends its options with each job (`exact`). The command line and HTTP clients know only
# the name. Workers register the options of their tasks, and such jobs take them from there.

FIELDS = tuple(name for name in JobOptions.__struct_fields__ if name not in ("key", "content_type", "one_argument"))
"""Options that a task may be declared with."""

OptionsByTask = Mapping[str, JobOptions]
"""By `tenant/task`."""

W = TypeVar("W", bound=JobOptions)

_none = JobOptions()


async def register_task_options(context: EngineContext, tenant: str, worker: NewWorker) -> None:
    """Store the options of a worker's tasks. If two workers differ, the last to register counts."""
    if worker.options is None:
        return
    before = await context.store.records.list(TASK_OPTIONS)
    room = MOST_TASKS - sum(name.startswith(f"{tenant}/") for name in before)
    for task in worker.tasks or ():
        name, options = f"{tenant}/{task}", worker.options.get(task, _none)
        after = None if options == _none else _pack(options)
        if before.get(name) == after:
            continue
        if name not in before:
            room -= 1
        if room >= 0 or name in before:
            await context.store.records.swap(TASK_OPTIONS, name, ANYTHING, after)


async def read_task_options(context: EngineContext) -> OptionsByTask:
    return {name: _options.decode(data) for name, data in (await context.store.records.list(TASK_OPTIONS)).items()}


async def known_task_options(context: EngineContext) -> OptionsByTask:
    """As they are now; as they were last read while that partition of the store is away."""
    with suppress(PartAway):
        context.task_options = await read_task_options(context)
    return context.task_options


class WithTaskOptions:
    """A service in front of another that gives jobs the options of their tasks."""

    def __init__(self, service: Service, context: EngineContext, clock: Clock, patience: float | None = None) -> None:
        """`patience`: seconds to wait for the store if options are cached; null = no limit."""
        self._service = service
        self._cached = CachedValue(lambda: read_task_options(context), clock, OPTIONS_CACHED_FOR, patience)

    async def __call__(self, operation: Operation[A], /) -> A:
        if isinstance(operation, Enqueue | EnqueueMany | EnqueueLines) and not operation.exact:
            # The next service decides whether it accepts jobs without the store.
            with suppress(Unavailable):
                operation = cast("Operation[A]", _with_options(operation, await self._cached.known()))
        return await self._service(operation)


def _with_options(
    operation: Enqueue | EnqueueMany | EnqueueLines, known: OptionsByTask
) -> Enqueue | EnqueueMany | EnqueueLines:
    tenant = operation.tenant
    if not known:
        return operation
    match operation:
        case Enqueue():
            return replace(operation, job=job_with_options(known, tenant, operation.job))
        case EnqueueMany():
            return replace(operation, jobs=[job_with_options(known, tenant, new) for new in operation.jobs])
        case _:
            return replace(operation, options=_filled(operation.options, options_of(known, tenant, operation.task)))


def job_with_options(known: OptionsByTask, tenant: str, new: NewJob) -> NewJob:
    options = options_of(known, tenant, new.task)
    if new.id is not None and options.queue != new.queue and not new.id.endswith(f"{queue_mark(options.queue):02x}"):
        options = replace(options, queue=new.queue)  # a caller's own id is valid for one queue only: so it chose one
    found = _filled(new, options)
    if found.then is not None:
        found = replace(found, then=job_with_options(known, tenant, found.then))
    return found


def options_of(known: OptionsByTask, tenant: str, task: str) -> JobOptions:
    return known.get(f"{tenant}/{task}") or known.get(f"{EVERY_TENANT}/{task}") or _none


def _filled(asked: W, options: JobOptions) -> W:
    """What is asked for a job; where it is the default, the option of its task."""
    taken = {
        name: value
        for name in FIELDS
        if (value := getattr(options, name)) != (default := getattr(_none, name)) and getattr(asked, name) == default
    }
    return replace(asked, **taken) if taken else asked


ANSWERS: dict[type[Operation[Any]], Callable[[EngineContext, Any], Awaitable[Any]]] = {
    AddToken: add_token,
    Tokens: list_tokens,
    RemoveToken: remove_token,
    PutQuota: put_quota,
    GetQuota: get_quota,
}
