"""What jobs of one task have in common: all but their ids and payloads."""

from operator import attrgetter
from typing import NamedTuple

from msgspec.structs import replace

from windlass.model import wire
from windlass.model.job import NewJob
from windlass.model.names import queue_mark

_particulars = attrgetter(
    "id", "key", "tier", "yielding", "delay", "run_at", "expires", "unattended", "after", "files", "then"
)
_no_particulars = _particulars(NewJob(task="x"))


class JobTemplate(NamedTuple):
    """A job without id and payload, and what is worked out of it once for all that are cast in it."""

    new: NewJob
    spelled: bytes
    """The same as bytes: two molds that ask for the same are alike. None if its jobs are not just like each other, or
    wait for something, or bring something along."""
    mark: bytes
    """What the ids of its jobs end with."""


def template_of(new: NewJob) -> JobTemplate:
    """Of a job that was checked. Its own copy: what was given in Python may be changed there afterwards."""
    mark = bytes((queue_mark(new.queue),))
    if _particulars(new) != _no_particulars:
        return JobTemplate(new, b"", mark)
    spelled = wire.encode(new)
    return JobTemplate(replace(wire.decode(spelled, NewJob), payload=new.payload), spelled, mark)
