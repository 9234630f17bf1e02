"""What is said to whoever sent jobs that were accepted, but not by as many as they should be."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from windlass.model.errors import NotReplicated

MOST_NAMED = 3


@contextmanager
def accepted_all(ids: Sequence[str]) -> Iterator[None]:
    """Say which jobs are meant, so that they can be looked at, or sent again under the same ids."""
    try:
        yield
    except NotReplicated as fault:
        raise NotReplicated(f"{_named(ids)} accepted, but {fault.detail}") from fault


def _named(ids: Sequence[str]) -> str:
    if len(ids) == 1:
        return f"job {ids[0]} (under this id it may be sent again) is"
    named = ", ".join([*ids[:MOST_NAMED], *(["…"] if len(ids) > MOST_NAMED else [])])
    return f"{len(ids)} jobs ({named}: under these ids they may be sent again) are"
