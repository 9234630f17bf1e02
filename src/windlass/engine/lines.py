"""The jobs of a text: what they share once, and an id and a payload each.

Thousands come at a time, and many such texts may wait to be written: so an object for each job is made no sooner than
it is needed, and what is kept meanwhile is a few bytes that lie side by side.
"""

from collections.abc import Sequence

import msgspec
from msgspec import Raw, Struct
from msgspec.structs import replace

from windlass.model.fresh_ids import SIZE, raw_ids, text_ids
from windlass.model.job import NOTHING, NewJob
from windlass.model.names import text_id
from windlass.store import Draft

_pack = msgspec.msgpack.Encoder().encode
_unpack = msgspec.msgpack.Decoder(list[bytes]).decode


class Lines(Struct, frozen=True, gc=False):
    """Jobs of one tenant that differ in nothing but their ids and payloads."""

    tenant: str
    common: NewJob
    """Each of them but for its payload."""
    ids: bytes
    """One after the other, ascending."""
    packed: Raw
    """Their payloads: a list in MessagePack."""

    def __len__(self) -> int:
        return len(self.ids) // SIZE


def lines_with(tenant: str, common: NewJob, ids: bytes, payloads: Sequence[bytes]) -> Lines:
    return Lines(tenant, common, ids, Raw(_pack(payloads)))


def lines_in(drafts: Sequence[Draft]) -> Lines:
    """Jobs that are alike, with ascending ids."""
    common = replace(drafts[0].new, id=None, payload=NOTHING)
    ids = raw_ids(draft.id for draft in drafts)
    return lines_with(drafts[0].tenant, common, ids, [bytes(draft.new.payload) for draft in drafts])


def payloads_of(lines: Lines) -> list[bytes]:
    return _unpack(lines.packed)


def parts_of(lines: Lines, most: int) -> list[Lines]:
    """The same in parts of so many at the most."""
    if len(lines) <= most:
        return [lines]
    tenant, common, ids, payloads = lines.tenant, lines.common, lines.ids, payloads_of(lines)
    return [
        lines_with(tenant, common, ids[start * SIZE : (start + most) * SIZE], payloads[start : start + most])
        for start in range(0, len(payloads), most)
    ]


def drafts_in(lines: Lines, start: int = 0, end: int | None = None) -> list[Draft]:
    """All of them, or those from one place up to another."""
    tenant, common = lines.tenant, lines.common
    texts = text_ids(lines.ids[start * SIZE : None if end is None else end * SIZE])
    named = zip(texts, payloads_of(lines)[start:end], strict=True)
    return [Draft(tenant, id, replace(common, payload=Raw(payload))) for id, payload in named]


def sample_of(lines: Lines) -> Draft:
    """The first of them, without its payload."""
    return Draft(lines.tenant, text_id(lines.ids[:SIZE]), lines.common)
