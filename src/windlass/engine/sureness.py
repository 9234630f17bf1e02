"""The answer to a sender whose jobs were not all accepted, or not by enough replicas."""

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager

from windlass.model.errors import Full, NotReplicated, Partly, Unavailable, WindlassError

Find = Callable[[list[str]], Awaitable[int]]
"""How many of these jobs there are."""

MOST_NAMED = 3


class accepted_all:  # noqa: N801 - reads as a statement
    """Says which jobs are meant, so that they can be looked at, or sent again under the same ids."""

    def __init__(self, ids: Sequence[str]) -> None:
        self._ids = ids

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, fault: BaseException | None, trace: object) -> None:
        if isinstance(fault, NotReplicated):
            raise NotReplicated(f"{_named(self._ids)} accepted, but {fault.detail}") from fault


def _named(ids: Sequence[str]) -> str:
    if len(ids) == 1:
        return f"job {ids[0]} (under this id it may be sent again) is"
    named = ", ".join([*ids[:MOST_NAMED], *(["…"] if len(ids) > MOST_NAMED else [])])
    return f"{len(ids)} jobs ({named}: under these ids they may be sent again) are"


@asynccontextmanager
async def taking(before: list[str], ids: list[str], find: Find | None = None) -> AsyncIterator[None]:
    """While jobs are accepted after others of the same request: a fault says which of all these were.

    `find`: a store may be full after it has taken some of them; null = it takes all or none.
    """
    try:
        yield
    except WindlassError as fault:
        accepted, unsure = await _told_apart(fault, ids, find)
        if before or accepted or unsure:
            fault.partly = Partly([*before, *accepted], unsure)
        raise


async def _told_apart(fault: WindlassError, ids: list[str], find: Find | None) -> tuple[list[str], list[str]]:
    """Those that are accepted, and those that may be."""
    if isinstance(fault, NotReplicated):
        return ids, []
    if isinstance(fault, Unavailable):
        return [], ids
    if not isinstance(fault, Full) or find is None:
        return [], []
    try:
        found = await find(ids)
    except WindlassError:
        return [], ids
    if found == len(ids):
        return ids, []
    return [], (ids if found else [])
