"""Jobs of which there is to be one at a time: what identifies such a job, and what becomes of a second one.

A store remembers the last job that was added under an identity, and asks `settle` in the step that adds the next one;
on Redis, `lua/add.lua` makes the same decision. Nothing is locked, and so nothing must be released: whether the other
job counts is seen from its state.
"""

import hashlib
from datetime import timedelta
from typing import Literal

import msgspec
from msgspec import Raw

from windlass.model import wire
from windlass.model.errors import Conflict, Invalid
from windlass.model.job import State
from windlass.model.new_job import NewJob

IDENTITY_SIZE = 16

Settlement = Literal["add", "join", "replace", "reject"]

WAITING = frozenset({State.BLOCKED, State.SCHEDULED, State.QUEUED})
HAS_FAILED = frozenset({State.FAILED, State.CANCELLED})


def identity_of(tenant: str, new: NewJob) -> bytes:
    """What a unique job is known by: its tenant, queue and task, with its own key or its payload.

    The queue is part of it because a store may keep each queue in another partition.
    """
    scope = f"{tenant}\0{new.queue}\0{new.task}\0".encode()
    own = b"payload\0" + _canonical(new) if new.unique_key is None else b"key\0" + new.unique_key.encode()
    return hashlib.sha256(scope + own).digest()[:IDENTITY_SIZE]


def _canonical(new: NewJob) -> bytes:
    """A payload so that the same value is the same bytes, in JSON and MessagePack, in whatever order its keys are."""
    payload = bytes(new.payload)
    try:
        value = wire.value(Raw(payload), new.content_type)
        return b"%d" % new.one_argument + msgspec.msgpack.encode(value, order="sorted")
    except (Invalid, TypeError, ValueError):  # an encoding that is not known, or keys that have no order
        return new.content_type.encode() + b"\0" + payload


def settle(new: NewJob, state: State, age: timedelta, *, follows: bool = False) -> Settlement:
    """What becomes of a unique job, where the last one of its identity is in this state and of this age.

    `follows`: another job brings it about. Then no caller could be refused, so it is left out.
    """
    if not _counts(new, state, age):
        return "add"
    if new.on_duplicate == "replace" and state in WAITING:
        return "replace"
    return "join" if follows or new.on_duplicate == "join" else "reject"


def _counts(new: NewJob, state: State, age: timedelta) -> bool:
    """Whether the other job keeps this one off."""
    match new.unique:
        case "queued":
            return state in WAITING
        case "pending":
            return state in WAITING or state is State.RUNNING
        case float() | int() as seconds:
            return state not in HAS_FAILED and age < timedelta(seconds=seconds)
    return False


def edit_refused(id: str, state: State) -> Conflict:
    """The error for an edit that makes a job the same as another one, which keeps it off."""
    return Conflict(f"it would be the same as job {id}, which is {state}: cancel one of them instead", at="payload")


def duplicate_refused(new: NewJob, id: str, state: State) -> Conflict:
    """The error for a job that is kept off by another one."""
    if new.on_duplicate == "replace":
        hint = "it has started, so it cannot be replaced: send this again later, or with unique=queued"
    else:
        hint = "send this again later, or with on_duplicate=join or replace"
    return Conflict(f"job {id} of task {new.task!r} is the same and is {state}; {hint}", at="unique")
