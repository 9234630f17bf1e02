"""The jobs of a text: what they share once, and an id and a payload each.

Thousands come at a time, so nothing is made for each of them before it is needed.
"""

from collections.abc import Sequence

from msgspec import Raw, Struct
from msgspec.structs import replace

from windlass.model.fresh_ids import SIZE, raw_ids, text_ids
from windlass.model.job import NOTHING, NewJob
from windlass.store import Draft


class Lines(Struct, frozen=True, gc=False):
    """Jobs of one tenant that differ in nothing but their ids and payloads."""

    tenant: str
    common: NewJob
    """Each of them but for its payload."""
    ids: bytes
    """One after the other, ascending."""
    payloads: Sequence[bytes]

    def __len__(self) -> int:
        return len(self.payloads)


def part_of(lines: Lines, start: int, end: int) -> Lines:
    return replace(lines, ids=lines.ids[start * SIZE : end * SIZE], payloads=lines.payloads[start:end])


def lines_in(drafts: Sequence[Draft]) -> Lines:
    """Jobs that are alike, with ascending ids."""
    common = replace(drafts[0].new, id=None, payload=NOTHING)
    ids = raw_ids(draft.id for draft in drafts)
    return Lines(drafts[0].tenant, common, ids, [bytes(draft.new.payload) for draft in drafts])


def drafts_in(lines: Lines) -> list[Draft]:
    tenant, common = lines.tenant, lines.common
    named = zip(text_ids(lines.ids), lines.payloads, strict=True)
    return [Draft(tenant, id, replace(common, payload=Raw(payload))) for id, payload in named]
