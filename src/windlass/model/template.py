"""What jobs of one task have in common: all but their ids and payloads."""

from operator import attrgetter
from typing import NamedTuple

from msgspec.structs import replace

from windlass.model import wire
from windlass.model.names import queue_mark
from windlass.model.new_job import NewJob

_particulars = attrgetter(
    "id",
    "key",
    "unique",
    "tier",
    "yielding",
    "delay",
    "run_at",
    "expires",
    "owner_timeout",
    "after",
    "files",
    "hashes",
    "then",
    "on_failure",
)
_no_particulars = _particulars(NewJob(task="x"))


class JobTemplate(NamedTuple):
    """A job without id and payload, and what is computed of it once for all jobs that it is the template of."""

    new: NewJob
    encoded: bytes
    """The same as bytes: equal for templates of the same options. Empty if its jobs differ in more than id and payload,
    or wait for something, or have files or a follow-up."""
    mark: bytes
    """What the ids of its jobs end with."""


def template_of(new: NewJob) -> JobTemplate:
    """Of a job that was checked. Its own copy: what was given in Python may be changed there afterwards."""
    mark = bytes((queue_mark(new.queue),))
    if _particulars(new) != _no_particulars:
        return JobTemplate(new, b"", mark)
    encoded = wire.encode(new)
    return JobTemplate(replace(wire.decode(encoded, NewJob), payload=new.payload), encoded, mark)
