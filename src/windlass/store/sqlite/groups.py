"""Groups, taken apart: what class a lane is of and which buckets bound it.

Knows how `store.flow` spells a group and how a level of tiers is named among the buckets; knows no table.
"""

from collections.abc import Sequence
from functools import lru_cache

from windlass.store.flow import BAR, EXPLICIT, FLEXIBLE, KEY, Level, Rules

LEVEL = "#"
"""Between a line's names and the number of a level: no allowance has it in its name."""


def split(group: str) -> tuple[str, tuple[str, ...]]:
    """The class and the buckets."""
    kind, *buckets = group.split(BAR)
    return kind, tuple(dict.fromkeys(buckets))


def allowance_of(bucket: str) -> str:
    return bucket.partition(KEY)[0]


def levels_of(rules: Rules, tenant: str, queue: str) -> Sequence[Level]:
    return rules.tiers.get(f"{tenant},{queue}", ()) if rules.tiers else ()


def eligible(kind: str, levels: Sequence[Level]) -> list[int]:
    """The places of the levels at which a job of a class may run, longest first. None = nothing bounds its time."""
    if not levels or not kind.startswith((EXPLICIT, FLEXIBLE)):
        return []
    asked = [place for place, level in enumerate(levels) if kind == EXPLICIT + level.name]
    return asked or list(reversed(range(len(levels))))


def level_buckets(tenant: str, queue: str, place: int) -> tuple[str, ...]:
    """Where a job that runs at a level holds its places, from the second level to its own."""
    return _level_buckets(f"{tenant},{queue}", place)


@lru_cache(maxsize=1024)
def _level_buckets(line: str, place: int) -> tuple[str, ...]:
    return tuple(f"{line}{LEVEL}{number + 1}" for number in range(1, place + 1))


def held_levels(rules: Rules, tenant: str, queue: str, assigned: str | None) -> tuple[str, ...]:
    """Where a job that was assigned a tier holds its places under the rules in force."""
    if assigned is None:
        return ()
    for place, level in enumerate(levels_of(rules, tenant, queue)):
        if level.name == assigned:
            return level_buckets(tenant, queue, place)
    return ()
