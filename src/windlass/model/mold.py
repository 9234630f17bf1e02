"""What jobs of one task have in common: all but their ids and payloads."""

from typing import NamedTuple

from msgspec.structs import replace

from windlass.model import wire
from windlass.model.job import NewJob
from windlass.model.names import queue_mark


class Mold(NamedTuple):
    """A job without id and payload, and what is worked out of it once for all that are cast in it."""

    new: NewJob
    spelled: bytes
    """The same as bytes: two molds that ask for the same are alike."""
    mark: bytes
    """What the ids of its jobs end with."""


def mold_of(new: NewJob) -> Mold:
    """Its own copy: what was given in Python may be changed there afterwards."""
    spelled = wire.encode(new)
    own = replace(wire.decode(spelled, NewJob), payload=new.payload, then=new.then)  # a payload is in any encoding
    return Mold(own, spelled, bytes((queue_mark(new.queue),)))
