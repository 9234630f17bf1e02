"""Limits: at most so many running, or so many starts per period, among matching jobs.

Only their shapes and what they say of a job; the stores enforce them inside the claim.
"""

from collections.abc import Callable, Iterator
from fnmatch import fnmatchcase
from typing import Annotated

from msgspec import Meta, Struct, field

from windlass.model.duration import Time, seconds
from windlass.model.errors import Invalid
from windlass.model.match import ABSENT, Scalar, equal
from windlass.model.match import field as value_at
from windlass.model.names import Name, check_name

Count = Annotated[int, Meta(ge=1, le=1_000_000)]

MOST_DEPTH = 4
"""How deep `all` and `any` may be nested."""

MOST_STARTS = 10_000
"""Starts per period of a limit without a burst: each of them is remembered for that long."""


class Condition(Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """What a value must be like; all that is given must hold."""

    any_of: Annotated[list[Scalar], Meta(max_length=1000)] | None = field(name="in", default=None)
    """One of these."""
    min: float | None = None
    """A number, no less than this."""
    max: float | None = None
    """A number, no more than this."""
    glob: Annotated[str, Meta(min_length=1, max_length=256)] | None = None
    """A text of this form: `*` stands for any characters, `?` for one."""


Wanted = Scalar | Condition


class Which(Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """Which jobs a limit is about, by what only an edit changes of a job; all that is given must hold."""

    tenant: Name | Condition | None = None
    queue: Name | Condition | None = None
    task: Name | Condition | None = None
    tag: Annotated[list[str], Meta(max_length=32)] = []
    """All of these must be there."""
    payload: Annotated[dict[str, Wanted], Meta(max_length=16)] = {}
    """Fields of the payload by path (`customer`, `order.id`), and the value of each or a test."""
    all: Annotated[list["Which"], Meta(max_length=16)] = []
    """Each of these must hold as well."""
    any: Annotated[list["Which"], Meta(max_length=16)] = []
    """At least one of these must hold as well."""


class Rate(Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """So many starts per period."""

    count: Count
    per: Annotated[float, Meta(gt=0, le=31_536_000)] = 1.0
    """Seconds."""
    burst: Count | None = None
    """Null = no stretch of time as long as the period ever has more starts than `count`. Else so many may start at
    once after a quiet time, and from then on one each `per / count` seconds."""


class Pause(Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """Whether something is at rest."""

    paused: bool = False
    """While it is, what is queued waits; what runs goes on."""
    until: Time | None = None
    """When it resumes by itself; null = until it is resumed by hand."""
    why: Annotated[str, Meta(max_length=500)] = ""
    since: Time | None = None
    """When it began. Set by the queue; read-only."""


class NewLimit(Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """A bound on jobs that match, as it is sent in."""

    match: Which = Which()
    """Whose jobs they are; of a tenant's limit only that tenant's."""
    running: Count | None = None
    """At most so many of them run at once."""
    rate: Rate | None = None
    """At most so many of them start per period."""
    key: Annotated[str, Meta(max_length=256)] | None = None
    """A bucket of its own for each value of this: `tenant`, `queue`, `task` or `payload.FIELD`; null = one for all."""


class Limit(NewLimit, frozen=True, kw_only=True, omit_defaults=True):
    """A bound on jobs that match, as the queue keeps it."""

    name: Name
    tenant: str
    """Whose jobs it bounds; `-` = everybody's, together unless its key is the tenant."""
    paused: bool = False
    """While it is, no job of it starts."""
    until: Time | None = None
    """When the pause ends by itself; null = until it is resumed by hand."""
    why: str = ""
    since: Time | None = None
    """When it began."""


class Subject(Struct, frozen=True):
    """What limits look at of a job."""

    tenant: str
    queue: str
    task: str
    tags: list[str]
    payload: Callable[[], object]
    """Decodes it; called only where a limit asks for one of its fields."""


def read_rate(text: str, *, at: str) -> Rate:
    """A rate as people write it: `100/1m`."""
    count, slash, per = text.partition("/")
    if not slash or not count.isdecimal():
        raise Invalid(f"{text!r} is not N/TIME, such as 100/1m", at=at)
    return Rate(count=int(count), per=seconds(per if per[:1].isdecimal() else f"1{per}", at=at))


def check_limit(limit: NewLimit) -> None:
    """Refuse what cannot be meant."""
    if limit.running is None and limit.rate is None:
        raise Invalid("a limit says how many may run at once (running) or start per period (rate)", at="running")
    if limit.rate is not None and limit.rate.burst is None and limit.rate.count > MOST_STARTS:
        raise Invalid(f"more than {MOST_STARTS} per period: take a shorter period, or give a burst", at="rate.count")
    if limit.key is not None and not _is_key(limit.key):
        raise Invalid(f"{limit.key!r} is no key: tenant, queue, task or payload.FIELD", at="key")
    _check_which(limit.match, "match", 1)


def _is_key(key: str) -> bool:
    first, dot, path = key.partition(".")
    return all(path.split(".")) if first == "payload" and dot else key in ("tenant", "queue", "task")


def _check_which(which: Which, at: str, depth: int) -> None:
    if depth > MOST_DEPTH:
        raise Invalid(f"`all` and `any` may be nested at most {MOST_DEPTH} deep", at=at)
    for name in ("tenant", "queue", "task"):
        _check_name_test(getattr(which, name), f"{at}.{name}")
    for path in which.payload:
        if not all(path.split(".")):
            raise Invalid(f"{path!r} is no field: write customer, or order.id", at=f"{at}.payload")
    for wanted in (which.tenant, which.queue, which.task, *which.payload.values()):
        if isinstance(wanted, Condition):
            _check_condition(wanted, at)
    for word in ("all", "any"):
        for place, inner in enumerate(getattr(which, word)):
            _check_which(inner, f"{at}.{word}[{place}]", depth + 1)


def _check_name_test(wanted: str | Condition | None, at: str) -> None:
    if isinstance(wanted, str):
        check_name(wanted, at=at)
    elif wanted is not None and (wanted.min is not None or wanted.max is not None):
        raise Invalid("a name is no number: it has no min or max", at=at)


def _check_condition(wanted: Condition, at: str) -> None:
    if wanted == Condition():
        raise Invalid("a test without a condition: give in, min, max or glob", at=at)
    if wanted.any_of == []:
        raise Invalid("`in` names nothing: no value could pass", at=at)
    if wanted.min is not None and wanted.max is not None and not wanted.min <= wanted.max:
        raise Invalid(f"no number is at least {wanted.min:g} and at most {wanted.max:g}", at=at)


def holds(which: Which, job: Subject) -> bool:
    """Whether the job is meant."""
    return (
        _passes(which.tenant, job.tenant)
        and _passes(which.queue, job.queue)
        and _passes(which.task, job.task)
        and all(tag in job.tags for tag in which.tag)
        and all(_fits(wanted, value_at(job.payload(), path)) for path, wanted in which.payload.items())
        and all(holds(inner, job) for inner in which.all)
        and (not which.any or any(holds(inner, job) for inner in which.any))
    )


def may_hold(which: Which, tenant: str, queue: str, task: str) -> bool:
    """Whether a job of these names may be meant, whatever its tags and payload."""
    return (
        _passes(which.tenant, tenant)
        and _passes(which.queue, queue)
        and _passes(which.task, task)
        and all(may_hold(inner, tenant, queue, task) for inner in which.all)
        and (not which.any or any(may_hold(inner, tenant, queue, task) for inner in which.any))
    )


def paths(which: Which) -> Iterator[str]:
    """The fields of payloads that it asks for."""
    yield from which.payload
    for inner in (*which.all, *which.any):
        yield from paths(inner)


def key_of(key: str, job: Subject) -> object:
    """The value that says which bucket a job is in, or `ABSENT`."""
    if key.startswith("payload."):
        return value_at(job.payload(), key.removeprefix("payload."))
    return getattr(job, key)


def _passes(wanted: str | Condition | None, name: str) -> bool:
    return wanted is None or _fits(wanted, name)


def _fits(wanted: Wanted, found: object) -> bool:
    if not isinstance(wanted, Condition):
        return equal(found, wanted)
    if found is ABSENT:
        return False
    if wanted.any_of is not None and not any(equal(found, one) for one in wanted.any_of):
        return False
    if wanted.min is not None and not (_is_number(found) and found >= wanted.min):  # type: ignore[operator]
        return False
    if wanted.max is not None and not (_is_number(found) and found <= wanted.max):  # type: ignore[operator]
        return False
    return wanted.glob is None or (isinstance(found, str) and fnmatchcase(found, wanted.glob))


def _is_number(found: object) -> bool:
    return isinstance(found, int | float) and not isinstance(found, bool)
