"""A predicate on jobs: one type for listings, bulk actions and limits.

Every given condition must hold. Names match exactly, never by prefix. What an index of the store can
answer (tenant, queue, state) is also offered as `states`, so that a store need not know this type.
"""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

from windlass.model.duration import Time
from windlass.model.failure import Fingerprint, fingerprint_of
from windlass.model.job import FINISHED, PENDING, Job, Reason, State
from windlass.model.names import Name

StateWord = Literal[
    "blocked", "scheduled", "queued", "running", "succeeded", "failed", "cancelled", "pending", "finished"
]

Scalar = str | int | float | bool | None


class Match(Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """Which jobs are meant; an empty match means all of the tenant's."""

    state: Annotated[list[StateWord], Meta(max_length=16)] = []
    """Any of these; `pending` and `finished` stand for several."""
    task: Name | None = None
    queue: Name | None = None
    tag: Annotated[list[str], Meta(max_length=32)] = []
    """All of these must be there."""
    worker: str | None = None
    node: str | None = None
    """The machine of the worker that has it, or had it last."""
    key: str | None = None
    reason: Reason | None = None
    created_after: Time | None = None
    created_before: Time | None = None
    payload: Annotated[dict[str, Scalar], Meta(max_length=16)] = {}
    """Fields of the payload, by path (`customer`, `order.id`), and the value each must equal."""
    text: Annotated[str, Meta(max_length=512)] | None = None
    """A text in the message of its last error."""
    fingerprint: Fingerprint | None = None
    """What its last error has in common with those of other jobs: see `Failures`."""


ANY = Match()


def states(match: Match) -> frozenset[State]:
    """The states a matching job can be in."""
    if not match.state:
        return PENDING | FINISHED
    named: set[State] = set()
    for word in match.state:
        if word == "pending":
            named |= PENDING
        elif word == "finished":
            named |= FINISHED
        else:
            named.add(State(word))
    return frozenset(named)


def matches(match: Match, job: Job, payload: object = None) -> bool:
    """Whether the job is meant. `payload` is the decoded payload, needed only where `match.payload` asks for fields."""
    return (
        job.state in states(match)
        and match.task in (None, job.task)
        and match.queue in (None, job.queue)
        and match.worker in (None, job.worker)
        and match.node in (None, job.node)
        and match.key in (None, job.key)
        and match.reason in (None, job.reason)
        and (match.created_after is None or job.created_at > match.created_after)
        and (match.created_before is None or job.created_at < match.created_before)
        and (match.text is None or (job.error is not None and match.text in job.error.message))
        and (match.fingerprint is None or fingerprint_of(job) == match.fingerprint)
        and all(tag in job.tags for tag in match.tag)
        and all(equal(field(payload, path), value) for path, value in match.payload.items())
    )


ABSENT = object()


def field(payload: object, path: str) -> object:
    """The value at a path of names and list positions, or `ABSENT`."""
    found: object = payload
    for step in path.split("."):
        if isinstance(found, Mapping):
            found = found.get(step, ABSENT)
        elif isinstance(found, list) and step.isdecimal() and int(step) < len(found):
            found = found[int(step)]
        else:
            return ABSENT
    return found


def equal(found: Any, wanted: Scalar) -> bool:
    # True == 1 in Python; on the wire they are two different values.
    return isinstance(found, bool) == isinstance(wanted, bool) and bool(found == wanted)


def index_only(match: Match) -> bool:
    """Whether tenant, queue, task and state say it all, so that counting needs no look at the jobs themselves."""
    return match == Match(state=match.state, task=match.task, queue=match.queue)
