"""The words of a queue of notifications: whose a notification is (its scope), what it brings, how its task is told.

Knows those headers and shapes, and which of our tags and headers hold them; asks nobody anything.
"""

import hashlib
from base64 import b64encode
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from msgspec import Meta, Raw, Struct

from windlass.model import wire
from windlass.model.errors import Invalid
from windlass.model.job import FINISHED, Job
from windlass.model.match import Match, StateWord
from windlass.server import translation

TASK = "notify"
"""What all of these jobs run."""

ALL: list[StateWord] = ["pending", "succeeded", "failed"]
"""What that queue knows of: a cancelled task is gone."""

TENANT, SERVICE, PATH, CORRELATOR = "ngsild-tenant", "fiware-service", "fiware-servicepath", "fiware-correlator"
TIME_INDEX = "fiware-timeindex-attribute"

ROOT = "/"
NO_PART = '""'


class Scope(Struct, frozen=True):
    """Whose a notification is: names that match whole, never by how they begin."""

    service: str = ""
    path: str = ROOT
    correlator: str = ""

    @property
    def tags(self) -> list[str]:
        """All by which its jobs are found; digests, for a path may be longer than a tag."""
        place = _digest(self.service, self.path)
        return [place, _digest(self.service, self.path, self.correlator)] if self.correlator else [place]

    @property
    def headers(self) -> dict[str, str]:
        """What a job carries of it."""
        said = {SERVICE: self.service, PATH: self.path, CORRELATOR: self.correlator}
        return {name: value for name, value in said.items() if value}


def _digest(*names: str) -> str:
    return "scope:" + hashlib.sha256(wire.encode(names)).hexdigest()


def scope_of(headers: Mapping[str, str]) -> Scope:
    """The scope that a request or a job names."""
    service = headers.get(TENANT) or headers.get(SERVICE, "")
    return Scope(service, headers.get(PATH) or ROOT, headers.get(CORRELATOR, ""))


def match_of(headers: Mapping[str, str], states: list[StateWord]) -> Match:
    """The jobs of the scope that a request names; of every scope if it names none."""
    names_one = any(headers.get(name) for name in (TENANT, SERVICE, PATH, CORRELATOR))
    return Match(task=TASK, state=states, tag=scope_of(headers).tags if names_one else [])


def states_of(status: str | None) -> list[StateWord]:
    """What a `taskStatus` stands for."""
    if status is None:
        return ALL
    for word in ALL:
        if word == status:
            return [word]
    raise Invalid(f"one of {', '.join(ALL)}, not {status[:60]!r}", at="taskStatus")


# Ids


def task_id(scope: Scope, id: str) -> str:
    """An id that says what it is of, and is as unique as the job's own."""
    parts = (scope.service, scope.path, scope.correlator, id.replace("-", ""))
    return ":".join(b64encode(part.encode()).decode() if part else NO_PART for part in parts)


# What a task is told as


class Runtime(Struct, frozen=True):
    """How a task fares."""

    task_id: str
    task_type: str
    status: Literal["pending", "succeeded", "failed"]
    retries_left: int | None
    """Null where there never were any."""
    errors: list[str]


class Wrapped(Struct, frozen=True):
    """The same with the name that it has beside its input."""

    runtime: Runtime


class Told(Struct, frozen=True):
    """A task, and what it was given."""

    runtime: Runtime
    input: Raw


def runtime(job: Job) -> Runtime:
    return Runtime(
        task_id=task_id(scope_of(job.headers), job.id),
        task_type=job.task,
        status=_status(job),
        retries_left=max(0, job.max_retry - max(0, job.attempt - 1)) if job.max_retry else None,
        errors=[": ".join(text for text in (error.type, error.message) if text) for error in job.errors],
    )


def _status(job: Job) -> Literal["pending", "succeeded", "failed"]:
    if job.state not in FINISHED:
        return "pending"
    return "succeeded" if job.state == "succeeded" else "failed"


def told(job: Job) -> Told:
    """Of a job with its payload."""
    assert isinstance(job.payload, Raw)  # noqa: S101 - it was asked for
    return Told(runtime(job), translation.value(job.payload, job.content_type, "json"))


# Notifications


class Notification(Struct, frozen=True):
    """A body as it comes; what else is in it is for nobody here."""

    data: Annotated[list[dict[str, Any]], Meta(min_length=1)]
    subscriptionId: str | None = None  # noqa: N815 - its own name


class Input(Struct, frozen=True):
    """The payload of a job: its fields are the arguments of the task."""

    fiware_service: str | None
    fiware_service_path: str
    fiware_correlator: str | None
    payload: list[dict[str, Any]]


def input_of(body: bytes, scope: Scope) -> Input:
    """What a notification gives its task; refused if an entity has no id or no type."""
    notification = wire.decode(body, Notification, "json")
    entities = [_entity(entity, f"data[{place}]") for place, entity in enumerate(notification.data)]
    return Input(scope.service or None, scope.path, scope.correlator or None, entities)


def _entity(entity: dict[str, Any], at: str) -> dict[str, Any]:
    for name in ("id", "type"):
        if not isinstance(entity.get(name), str) or not entity[name]:
            raise Invalid("an entity has an id and a type, which are texts", at=f"{at}.{name}")
    return {name: value for name, value in entity.items() if not _is_empty(value)}


def _is_empty(attribute: Any) -> bool:
    """Whether an attribute says neither what it is nor what it has."""
    if not isinstance(attribute, dict):
        return attribute is None
    return all(attribute.get(name) in (None, "") for name in ("type", "value"))
