"""What scripts answer: bytes to `Record` and the like. How they lie is said in `layout`."""

import struct
from collections.abc import Sequence
from datetime import datetime, timedelta
from functools import lru_cache
from typing import Any, NamedTuple

import msgspec
from msgspec.structs import replace

from windlass.model.job import NO_HANDLER, Chunk, Error, HandlerRun, Job, Message, Progress, State
from windlass.model.names import raw_id, text_id
from windlass.model.operations import Glimpse
from windlass.store import Kept, Record, Ripe, Swept, Touched, Wish, places, terms
from windlass.store.flow import EXPLICIT, FLEXIBLE
from windlass.store.micros import EPOCH, ended_at, from_micros
from windlass.store.redis.layout import (
    ATTEMPT,
    BLOCKED,
    CHUNK,
    ENDED,
    ERRORS,
    EXTRAS,
    FLAGS,
    HEAD,
    MESSAGE,
    OWN,
    PROGRESS,
    REASONS,
    RESULT_ONLY,
    RUN_SIZE,
    RUNNING,
    STATE,
    STATES,
    STREAMS,
    TERMS_SIZE,
    TOLD,
    UPDATED,
    parts,
)

HISTORY, TERMS = slice(3, 10), slice(18, 32)
"""The bytes of a head from its flags to its losses, and from its due time to its size of terms."""
NO_HISTORY, NO_TERMS = bytes(7), bytes(14)
"""Those of a plain new job."""
PRIORITY, CREATION = struct.Struct(">i"), struct.Struct(">Q")
BEGINNING = from_micros(0)
PRIORITY_AT, PRIORITY_END, CREATION_AT = 32, 36, 52
"""Where these are in a head."""
GRANT = struct.Struct(">8sQ16s")
"""What a notice of a grant begins with: nonce, time of the lease, id. The bytes of the job follow."""
NONCE_SIZE = 8
SEEN = struct.Struct(">8sQ16s32xi32x")
"""The same, and of the head behind it the priority."""
GRANT_HISTORY, GRANT_TERMS = (slice(GRANT.size + part.start, GRANT.size + part.stop) for part in (HISTORY, TERMS))

_errors = msgspec.msgpack.Decoder(Error)
_files = msgspec.msgpack.Decoder(dict[str, bytes])
_progress = msgspec.msgpack.Decoder(Progress)


def touched(id: str, held: int, reason: int, told: bytes) -> Touched:
    """What `touch.lua` answers of one job."""
    deadline = None
    if told:
        (record,) = records([raw_id(id) + bytes(4) + told], whole=False, bare=True)
        deadline = record.job.deadline
    return Touched(id, bool(held), REASONS[reason], deadline)


def chunks(reply: Sequence[bytes]) -> list[Chunk]:
    """What `output.lua` answers."""
    found: list[Chunk] = []
    for piece in reply:
        n, _, attempt, at, stream = CHUNK.unpack_from(piece)
        data = piece[CHUNK.size :]
        found.append(Chunk(n=n, attempt=attempt, at=from_micros(at), stream=STREAMS[stream], data=data))
    return found


def messages(reply: Sequence[bytes]) -> list[Message]:
    """What `collect.lua` answers of one job."""
    return [Message(MESSAGE.unpack_from(one)[0], one[MESSAGE.size :]) for one in reply]


def swept(reply: Sequence[bytes]) -> list[Swept]:
    """What `promote.lua` and `purge.lua` answer."""
    return [
        Swept(text_id(one[:16]), *parts(one[17:])[:3], STATES[one[16] % RESULT_ONLY], one[16] >= RESULT_ONLY)
        for one in reply
    ]


class Run(NamedTuple):
    """A run of a job, current or last; empty before the first."""

    token: bytes = b""
    pid: int = 0
    started: int = 0
    finished: int = 0
    code: int = 0
    worker: str = ""
    node: str = ""
    tier: str = ""
    """Seconds and name of the one at which it runs."""
    ran: HandlerRun = NO_HANDLER


NO_RUN = Run()


def records(reply: Sequence[Any], *, whole: bool, handed_out: bool = False, bare: bool = False) -> list[Record]:
    """The jobs of a reply, each with its errors and progress (and files) behind it if its flags say so.

    A `bare` reply is of jobs alone, whatever their flags say.
    """
    found: list[Record] = []
    entries = iter(reply)
    for value in entries:
        id, size = OWN.unpack_from(value)
        head = HEAD.unpack_from(value, OWN.size)
        flags = 0 if bare else head[FLAGS]
        errors = [_errors.decode(entry) for entry in next(entries)] if flags & ERRORS else []
        progress = _progress.decode(next(entries)) if flags & PROGRESS else None
        waits = next(entries) if head[STATE] == BLOCKED else b""
        files = _files_of(next(entries)) if handed_out and head[FLAGS] & EXTRAS else {}
        text = OWN.size + HEAD.size
        zero = value.index(0, text)
        run_from = zero + 1 + head[TERMS_SIZE]
        end = run_from + head[RUN_SIZE]
        run = _run(value[run_from:end]) if head[RUN_SIZE] else NO_RUN
        size = len(value) - end if whole else size
        job = _job(id, head, value[text:zero], value[zero + 1 : run_from], run, errors, progress, size)
        if waits:
            job = replace(job, waits_for=id_list(waits))
        running = job.state is State.RUNNING
        group = parts(value[text:zero])[3]
        found.append(Record(job, run.token if running else None, value[end:] if whole else None, files, group))
    return found


def id_list(packed: bytes) -> list[str]:
    return [text_id(packed[at : at + 16]) for at in range(0, len(packed), 16)]


def ripened(reply: Sequence[Any]) -> list[Ripe]:
    """What `ripe.lua` answers."""
    found: list[Ripe] = []
    for at in range(0, len(reply), 5):
        member, score, follows, result, children = reply[at : at + 5]
        state = int(score) % 8
        found.append(
            Ripe(
                text_id(member[:16]),
                member[16:].decode(),
                int(score),
                STATES[state] if state < len(STATES) else None,
                [text_id(child) for child in children],
                terms.unpack_then(follows)[1] if follows else None,
                kept(result) if result else None,
            )
        )
    return found


def kept(result: bytes) -> Kept:
    content_type, _, data = result.partition(b"\0")
    return Kept(data, content_type.decode())


def _files_of(value: bytes) -> dict[str, bytes]:
    return _files.decode(value) if value else {}


def claimed(reply: Sequence[Any], wish: Wish) -> list[Record]:
    """The jobs of a claim: their bytes as they were, and what we know became of them."""
    now, *entries = reply
    if not now:
        return records(entries, whole=True, handed_out=True)
    started = int(now)
    start, worker = from_micros(started), wish.worker
    found: list[Record] = []
    rest = iter(entries)
    for id in rest:
        value = next(rest)
        created = from_micros(CREATION.unpack_from(value, CREATION_AT)[0])
        if (plain := _plain(id, value, created, start, wish)) is not None:
            found.append(plain)
            continue
        run = Run(wish.nonce, 0, started, 0, 0, worker.id, worker.node)
        head = HEAD.unpack_from(value)
        errors = [_errors.decode(entry) for entry in next(rest)] if head[FLAGS] & ERRORS else []
        files = _files_of(next(rest)) if head[FLAGS] & EXTRAS else {}
        zero = value.index(0, HEAD.size)
        payload_from, payload_to = zero + 1 + head[TERMS_SIZE], len(value) - head[RUN_SIZE]
        code = ENDED.unpack_from(value, payload_to)[3] if head[RUN_SIZE] else 0
        after = (1, RUNNING, 0, 0, head[ATTEMPT] + 1, *head[ATTEMPT + 1 : UPDATED], started, *head[UPDATED + 1 :])
        payload = value[payload_from:payload_to]
        packed = value[zero + 1 : payload_from]
        route = value[HEAD.size : zero]
        group = parts(route)[3]
        tier = next(rest).decode() if group.startswith((EXPLICIT, FLEXIBLE)) else ""
        own = run._replace(code=code, tier=tier) if code or tier else run
        job = _job(id, after, route, packed, own, errors, None, len(payload))
        found.append(Record(job, wish.nonce, payload, files, group))
    return found


def glimpse(said: bytes) -> Glimpse | None:
    """What such a notice says in passing, if the job asked for nothing. Who has a group is never granted like this."""
    if said[GRANT_HISTORY] != NO_HISTORY or said[GRANT_TERMS] != NO_TERMS:
        return None
    names, _, payload = said[SEEN.size :].partition(b"\0")
    token, created_at, id, priority = SEEN.unpack_from(said)
    return Glimpse(token, created_at, id, priority, names, payload)


def granted(said: bytes, wish: Wish) -> list[Record]:
    """The job that a notice brings to whoever waits for one: new, and leased in the moment that it came."""
    _, started, id = GRANT.unpack_from(said)
    value = said[GRANT.size :]
    start = EPOCH + timedelta(microseconds=started)  # not by `from_micros`: nobody will ask for that moment again
    plain = _plain(id, value, start, start, wish)
    return claimed([b"%d" % started, id, value], wish) if plain is None else [plain]


def _plain(id: bytes, value: bytes, created: datetime, start: datetime, wish: Wish) -> Record | None:
    """A job that asked for nothing, was never late and has never run, as most claims bring; null = another."""
    if value[HISTORY] != NO_HISTORY or value[TERMS] != NO_TERMS:
        return None
    zero = value.index(0, HEAD.size)
    route = value[HEAD.size : zero]
    if b";" in route:
        return None
    worker, payload = wish.worker, value[zero + 1 :]
    like = _first_run(value[PRIORITY_AT:PRIORITY_END], route, worker.id, worker.node)
    job = replace(like, id=text_id(id), created_at=created, updated_at=start, started_at=start, size=len(payload))
    return Record(job, wish.nonce, payload)


@lru_cache(maxsize=1000)
def _first_run(priority: bytes, route: bytes, worker: str, node: str) -> Job:
    """Such a job, but for what is its own."""
    tenant, queue, task, _ = parts(route)
    return Job(
        id="",
        tenant=tenant,
        queue=queue,
        task=task,
        priority=PRIORITY.unpack(priority)[0],
        state=State.RUNNING,
        attempt=1,
        worker=worker or None,
        node=node or None,
        created_at=BEGINNING,
        updated_at=BEGINNING,
        started_at=BEGINNING,
        size=0,
    )


def _job(  # noqa: PLR0917 - the parts of a job, in the order they lie
    id: bytes,
    head: tuple[Any, ...],
    route: bytes,
    packed: bytes,
    run: Run,
    errors: list[Error],
    progress: Progress | None,
    size: int,
) -> Job:
    _, state, reason, _, attempt, crashes, losses, updated, due, _, _, priority, _, _, created, _ = head
    tenant, queue, task, _ = parts(route)
    asked = terms.unpack(packed)
    started_at = from_micros(run.started) if run.started else None
    seconds, _, assigned = run.tier.partition(" ")
    bounds = [asked["timeout"]] if "timeout" in asked else []
    bounds += [float(seconds)] if seconds else []
    deadline = None
    if state == RUNNING and started_at and bounds:
        deadline = started_at + timedelta(seconds=min(bounds))
    return Job(
        **asked,
        id=text_id(id),
        tenant=tenant,
        queue=queue,
        task=task,
        priority=priority,
        state=STATES[state],
        reason=REASONS[reason],
        attempt=attempt,
        crashes=crashes,
        losses=losses,
        worker=run.worker or None,
        node=run.node or None,
        sandbox=run.ran.sandbox,
        handler_version=run.ran.handler_version,
        pid=run.pid or None,
        progress=progress,
        code=run.code or None,
        errors=errors,
        error=errors[-1] if errors else None,
        created_at=from_micros(created),
        updated_at=from_micros(updated),
        run_at=from_micros(due) if due else None,
        started_at=started_at,
        finished_at=ended_at(started_at, from_micros(run.finished) if run.finished else None),
        assigned=assigned or None,
        deadline=deadline,
        size=size,
    )


def _run(data: bytes) -> Run:
    worker, place, tier = data[TOLD.size :].decode().split("\0")
    token, pid, started, finished, code = TOLD.unpack_from(data)
    node, ran = places.read(place)
    return Run(token, pid, started, finished, code, worker, node or "", tier, ran)
