"""Which group a job belongs to: what limits and tiers say of it, written down once, when it comes.

Payloads are decoded only where a limit asks for one of their fields.
"""

import hashlib
from collections.abc import Sequence
from urllib.parse import quote

from msgspec import Raw

from windlass.model import wire
from windlass.model.errors import Invalid
from windlass.model.job import Terms
from windlass.model.limit import Limit, Subject, holds, key_of, may_hold, paths
from windlass.model.match import ABSENT
from windlass.model.names import EVERY_TENANT
from windlass.model.queue import Tier, tier_of
from windlass.store.flow import BAR, EXPLICIT, FLEXIBLE, KEY, YIELDING

MOST_KEY = 80
"""Characters of a key as it stands in the name of a bucket; of a longer one a digest stands there."""

NO_KEY = "~"
"""The bucket of jobs that lack the key."""


def allowance_name(limit: Limit) -> str:
    return f"{limit.tenant}/{limit.name}"


def concerned(limits: Sequence[Limit], tenant: str, queue: str, task: str) -> list[Limit]:
    """The limits that may bound jobs of these names."""
    return [
        limit
        for limit in limits
        if limit.tenant in (EVERY_TENANT, tenant) and may_hold(limit.match, tenant, queue, task)
    ]


def looks_inside(limit: Limit) -> bool:
    """Whether it asks for more of a job than its names."""
    inner = (limit.match, *limit.match.all, *limit.match.any)
    return needs_payload(limit) or any(which.tag or which.all or which.any for which in inner)


def needs_payload(limit: Limit) -> bool:
    return (limit.key or "").startswith("payload.") or any(True for _ in paths(limit.match))


def subject(tenant: str, terms: Terms, payload: Raw | bytes | None) -> Subject:
    """What limits see of a job."""
    decoded: list[object] = []

    def value() -> object:
        if not decoded:
            decoded.append(_decoded(payload, terms.content_type))
        return decoded[0]

    return Subject(tenant, terms.queue, terms.task, terms.tags, value)


def _decoded(payload: Raw | bytes | None, content_type: str) -> object:
    try:
        return ABSENT if payload is None else wire.value(Raw(bytes(payload)), content_type)
    except Invalid:
        return ABSENT  # in an encoding that nobody here reads: it has no fields


def buckets(limits: Sequence[Limit], job: Subject) -> str:
    """The buckets that a job is in, each after a bar."""
    return "".join(BAR + _bucket(limit, job) for limit in limits if holds(limit.match, job))


def _bucket(limit: Limit, job: Subject) -> str:
    name = allowance_name(limit)
    return name if limit.key is None else f"{name}{KEY}{_key(key_of(limit.key, job))}"


def _key(value: object) -> str:
    if value is ABSENT:
        return NO_KEY
    text = value if isinstance(value, str) else wire.encode(value, "json").decode(errors="replace")
    plain = quote(text, safe="").replace("~", "%7E")
    if plain and len(plain) <= MOST_KEY:
        return plain
    return f"%{hashlib.blake2b(text.encode(), digest_size=16).hexdigest()}"


def class_of(tiers: list[Tier], terms: Terms, *, strict: bool) -> str:
    """How a job stands to the tiers of its queue."""
    if terms.yielding:
        if tiers:
            return YIELDING
        if strict:
            raise Invalid(f"queue {terms.queue!r} has no tiers: only where it has can a job be yielding", at="yielding")
        return ""
    if not tiers:
        if strict and terms.tier is not None:
            raise Invalid(_no_tiers(terms), at="tier")
        return ""
    if terms.tier is None:
        return FLEXIBLE
    try:
        return EXPLICIT + tier_of(tiers, terms.tier).name
    except Invalid:
        if strict:
            raise
        return FLEXIBLE


def _no_tiers(terms: Terms) -> str:
    seconds = isinstance(terms.tier, float | int)
    instead = "give the job a timeout" if seconds else "name none"
    return f"queue {terms.queue!r} has no tiers: set some (windlass queues set {terms.queue} --tier …), or {instead}"
