"""Failed jobs by what they have in common: the fingerprint of a failure, and groups of failures.

A fingerprint is computed when failures are read, from what the job's last error says. Nothing is stored for it, so jobs
that succeed pay nothing, and it also covers jobs that failed before this existed.
"""

import hashlib
import re
from collections.abc import Iterable
from datetime import datetime
from typing import Annotated

from msgspec import Meta, Struct
from msgspec.structs import replace

from windlass.model.job import Error, Job, Reason

MOST_MESSAGE = 200
"""Characters of a message that count, and that a group shows."""

Fingerprint = Annotated[str, Meta(pattern="^[0-9a-f]{16}$")]


class FailureGroup(Struct, frozen=True, kw_only=True):
    """Failed jobs of one task that failed in the same way."""

    fingerprint: str
    """Names the group: the same for the same failure in other jobs, processes and stores."""
    tenant: str
    task: str
    type: str
    """The class of the error; without one, the reason why the job failed."""
    message: str
    """The start of the message of the sample."""
    where: str
    """The function that raised it and its file, as far as the traceback tells; else empty."""
    count: int
    first_at: datetime
    """When the first of them failed."""
    last_at: datetime
    """When the last of them failed."""
    sample: str
    """The id of the last of them."""
    versions: dict[int, int] = {}
    """How many of them each version of their handler ran, the newest first. Tasks of an app have no versions."""


ITS_OWN = frozenset({Reason.ERROR, Reason.RETRY, Reason.FAILED})
"""Reasons where the traceback shows what the code did; another one shows where it happened to be stopped."""

_VARIABLE = re.compile(
    r"""0x[0-9a-f]+ | [0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f-]{22} | \b(?=[a-f]*\d)[0-9a-f]{12,}\b  # addresses, ids
    | \d+(?:[.,:]\d+)* | '[^'\n]*' | "[^"\n]*"  # numbers, times, and the values that messages quote""",
    re.VERBOSE | re.IGNORECASE,
)
_FRAMES = (
    (re.compile(r'^\s*File "([^"\n]+)", line \d+, in (.+)$', re.MULTILINE), -1),  # Python: the innermost is the last
    (re.compile(r"^\s+at (?:async )?(?P<name>[^\s(]+) \((.+?):\d+:\d+\)$", re.MULTILINE), 0),  # Node
)


def shape_of(message: str) -> str:
    """The first line of a message without what differs from job to job: numbers, ids, quoted values."""
    first = message.strip().partition("\n")[0][: 4 * MOST_MESSAGE]
    return _VARIABLE.sub("…", first)[:MOST_MESSAGE]


def place_of(error: Error) -> str:
    """Where in the code an error was raised: `function, file`, without folders and line numbers; empty = unknown."""
    if error.reason not in ITS_OWN:
        return ""
    for pattern, place in _FRAMES:
        if found := list(pattern.finditer(error.traceback)):
            frame = found[place]
            file, name = (frame[2], frame["name"]) if "name" in pattern.groupindex else (frame[1], frame[2])
            return f"{name}, {file.replace(chr(92), '/').rpartition('/')[2]}"
    return ""


def fingerprint_of(job: Job) -> str:
    """What a job's last error has in common with those of other jobs."""
    error = job.error or Error()
    parts = (job.task, kind_of(job), place_of(error), shape_of(error.message))
    return hashlib.blake2b("\0".join(parts).encode(errors="replace"), digest_size=8).hexdigest()


def kind_of(job: Job) -> str:
    return (job.error.type if job.error else "") or job.reason or ""


def group_of(job: Job) -> FailureGroup:
    """A group of one failed job."""
    error = job.error or Error()
    at = job.finished_at or job.updated_at
    return FailureGroup(
        fingerprint=fingerprint_of(job),
        tenant=job.tenant,
        task=job.task,
        type=kind_of(job),
        message=error.message[:MOST_MESSAGE],
        where=place_of(error),
        count=1,
        first_at=at,
        last_at=at,
        sample=job.id,
        versions={} if job.handler_version is None else {job.handler_version: 1},
    )


def merge(groups: dict[tuple[str, str], FailureGroup], more: Iterable[FailureGroup]) -> None:
    """Add groups to those that are known by tenant and fingerprint."""
    for one in more:
        name = (one.tenant, one.fingerprint)
        known = groups.get(name)
        groups[name] = one if known is None else _both(known, one)


def _both(a: FailureGroup, b: FailureGroup) -> FailureGroup:
    newest = a if a.last_at >= b.last_at else b
    versions = {one: a.versions.get(one, 0) + b.versions.get(one, 0) for one in {*a.versions, *b.versions}}
    return replace(
        newest,
        count=a.count + b.count,
        first_at=min(a.first_at, b.first_at),
        versions=dict(sorted(versions.items(), reverse=True)),
    )


def in_order(groups: Iterable[FailureGroup]) -> list[FailureGroup]:
    """The largest first; of equal ones, that with the newest failure."""
    return sorted(groups, key=lambda one: (one.count, one.last_at, one.fingerprint), reverse=True)
