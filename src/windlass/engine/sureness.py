"""What is said to whoever sent jobs that were accepted, but not by as many as they should be."""

from collections.abc import Sequence

from windlass.model.errors import NotReplicated

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
