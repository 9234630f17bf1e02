"""New jobs that differ in nothing but their ids and payloads, as those of one request mostly do.

What follows from the rest of a job is worked out once for all of these, whichever store they go to.
"""

from collections.abc import Iterator, Sequence

from msgspec.structs import replace

from windlass.model.job import NOTHING
from windlass.store import Draft


def alike(drafts: Sequence[Draft]) -> Iterator[Sequence[Draft]]:
    """All of them in their order, neighbours that are alike together."""
    if len(drafts) == 1:
        yield drafts
        return
    start, before = 0, None
    for place, draft in enumerate(drafts):
        shared = replace(draft, id="", new=replace(draft.new, id=None, payload=NOTHING))
        if shared != before:
            if before is not None:
                yield drafts[start:place]
            start, before = place, shared
    if before is not None:
        yield drafts[start:]
