"""Queues that claims pass by because their partition is away: told once when it begins, and when it is over."""

import logging
from collections.abc import Iterable

from windlass.model.errors import Unavailable
from windlass.store.redis.partitions import Partitions

log = logging.getLogger("windlass.store.redis")

Run = tuple[int, list[str]]
"""A partition, and queues of it."""


class Passing:
    """What the claims of one store object pass by."""

    def __init__(self, partitions: Partitions) -> None:
        self._partitions = partitions
        self._queues: set[str] = set()

    def there(self, runs: list[Run]) -> list[Run]:
        """Those whose partition is not known to be away; raises if all of them are."""
        if self._partitions.number == 1:
            return runs
        there = set(self._partitions.there(partition for partition, _ in runs))
        found = [run for run in runs if run[0] in there]
        if len(found) < len(runs):
            for partition, queues in runs:
                if (fault := self._partitions.fault(partition)) is not None:
                    self._pass_by(queues, fault)
        if self._queues:
            self._take_up(queue for _, queues in found for queue in queues)
        return found

    def _pass_by(self, queues: Iterable[str], fault: Unavailable) -> None:
        new = [queue for queue in queues if queue not in self._queues]
        if new:
            self._queues.update(new)
            log.warning("nothing is claimed from %s, but from the other queues: %s", ", ".join(new), fault)

    def _take_up(self, queues: Iterable[str]) -> None:
        back = [queue for queue in queues if queue in self._queues]
        if back:
            self._queues.difference_update(back)
            log.info("%s can be claimed from again", ", ".join(back))
