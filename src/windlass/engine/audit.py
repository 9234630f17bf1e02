"""The audit log: each management operation that the engine answers leaves a line, written right after it.

Management is what needs the scope `operate` or `admin` and changes something, but for messages to jobs. A dry run and a
refused request leave no line. If the line cannot be written, the operation stands, and the line goes to the log of the
process.
"""

import logging
import re
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
from msgspec.structs import asdict

from windlass.engine.context import EngineContext
from windlass.engine.edit import edited_fields
from windlass.model.audit import (
    MOST_DETAILS,
    MOST_IDS_NOTED,
    OWNER,
    AuditEntry,
    AuditLine,
    AuditPage,
    Caller,
    caller,
)
from windlass.model.errors import WindlassError
from windlass.model.names import check_id
from windlass.model.new_job import JobOptions, NewJob
from windlass.model.operations import (
    MOST_AT_ONCE,
    OPERATIONS,
    Audit,
    Changed,
    Edit,
    FailByHand,
    FinishByHand,
    Operation,
    PutSchedule,
    Rerun,
    Resize,
    Send,
    SendSignal,
)
from windlass.model.token import Token
from windlass.store.optional import AuditRow, AuditStore

log = logging.getLogger("windlass.audit")

TALK = (Send, Resize, SendSignal)
"""What is sent to a job: there is much of it, and it is the job's own business."""

AUDITED = frozenset(
    kind
    for kind, route in OPERATIONS.items()
    if route.scope in ("operate", "admin") and route.verb != "GET" and kind not in TALK
)

ACTIONS = {kind: re.sub(r"(?<!^)(?=[A-Z])", "-", kind.__name__).lower() for kind in AUDITED} | {
    Rerun: "retry",
    FinishByHand: "finish",
    FailByHand: "fail",
}
"""What an operation is called in the log."""

NAMES = ("name", "queue", "task", "worker", "key")
"""Fields that name what an operation changes."""

UNSAID = {"tenant", "ids", "id", "match", "dry_run", "handler", "result", *NAMES}
"""Fields that are not details: those with a place of their own, and code and results, which may be large or private."""

_NO_OPTIONS = JobOptions()

_pack = msgspec.msgpack.Encoder().encode
_line = msgspec.msgpack.Decoder(AuditLine)


async def audited(context: EngineContext, operation: Operation[Any], answering: Awaitable[Any]) -> Any:
    """The answer to an operation, once its line is written."""
    if caller.get() is OWNER:
        return await answering
    try:
        answer = await answering
    except WindlassError as fault:
        if fault.status >= 500:  # noqa: PLR2004 - it was not refused: it may have been carried out in part
            await _note(context, operation, _line_of(context, operation, None, str(fault)))
        raise
    if not getattr(operation, "dry_run", False):
        await _note(context, operation, _line_of(context, operation, answer))
    return answer


def _line_of(context: EngineContext, operation: Operation[Any], answer: Any, error: str = "") -> AuditLine:
    who = caller.get() or Caller(context.user)
    given = asdict(operation)
    if isinstance(operation, Edit):
        given = {"id": operation.id, "annotations": operation.annotations, "changed": edited_fields(operation) or None}
    if isinstance(operation, PutSchedule):  # without the payload, which may be large or private
        given["schedule"] = {**asdict(operation.schedule), "job": _terms(operation.schedule.job)}
    ids = given.get("ids") or ([given["id"]] if "id" in given else [])
    rest = {name: value for name, value in given.items() if name not in UNSAID and value not in (None, False)}
    details = msgspec.json.encode(rest).decode() if rest else ""
    return AuditLine(
        by=who.name,
        note=who.note,
        action=ACTIONS[type(operation)],
        name=next((given[name] for name in NAMES if name in given), answer.key if isinstance(answer, Token) else ""),
        ids=ids[:MOST_IDS_NOTED],
        match=given.get("match"),
        details=details if len(details) <= MOST_DETAILS else f"{details[:MOST_DETAILS]}…",
        count=answer.changed if isinstance(answer, Changed) else None,
        error=error[:MOST_DETAILS],
    )


def _terms(job: NewJob) -> dict[str, Any]:
    """What a job says of itself beside its payload and files."""
    said = {name: getattr(job, name) for name in JobOptions.__struct_fields__}
    return {"task": job.task} | {name: value for name, value in said.items() if value != getattr(_NO_OPTIONS, name)}


async def _note(context: EngineContext, operation: Operation[Any], line: AuditLine) -> None:
    kept = context.store.audit
    try:
        if kept is not None:
            await kept.add(operation.tenant, _pack(line))
            return
        why = "the store has no audit log"
    except WindlassError as fault:
        why = str(fault)
    text = msgspec.json.encode(line).decode()
    log.warning("audit: a line of tenant %s was not stored (%s): %s", operation.tenant, why, text)


async def read_audit(context: EngineContext, operation: Audit) -> AuditPage:
    if context.store.audit is None:
        return AuditPage(entries=[])
    if operation.job is not None:
        found = await _entries_of(context, context.store.audit, operation, operation.job)
        return AuditPage(entries=found[: operation.limit])
    page = await context.store.audit.list(operation.tenant, operation.after, operation.limit)
    return AuditPage(entries=[_entry(row) for row in page.rows], next=page.next)


def _entry(row: AuditRow) -> AuditEntry:
    return AuditEntry(**asdict(_line.decode(row.data)), at=row.at, tenant=row.tenant)


async def _entries_of(context: EngineContext, kept: AuditStore, operation: Audit, id: str) -> list[AuditEntry]:
    """The lines that name a job. The log has no index: it is read back to when the job was made."""
    check_id(id, at="job")
    (key,) = await context.keys([id], operation.tenant)
    record = (await context.store.jobs.read([key])).records[0] if key is not None else None
    entries: list[AuditEntry] = []
    after = operation.after
    while len(entries) < operation.limit:
        page = await kept.list(operation.tenant, after, MOST_AT_ONCE)
        found = [_entry(row) for row in page.rows if id.encode() in row.data]
        entries += [entry for entry in found if id in entry.ids]
        after = page.next
        if after is None or (record is not None and page.rows[-1].at < record.job.created_at):
            break
    return entries


ANSWERS: dict[type[Operation[Any]], Callable[[EngineContext, Any], Awaitable[Any]]] = {Audit: read_audit}
