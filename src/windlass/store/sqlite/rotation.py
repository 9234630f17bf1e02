"""Turns within one claim, where no rule says who takes any: one job for each queue, tenant and task, and again.

Nothing is kept of them: each claim begins with another, as chance has it, so over many claims all get their part.
Jobs are looked up only as they are needed.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import chain, islice

from windlass.model.names import EVERY_TENANT
from windlass.store import Wish, shuffled
from windlass.store.sqlite.picking import Pick, Stream, first_jobs
from windlass.store.sqlite.sources import BEFORE_ALL, Row, Sources
from windlass.store.sqlite.transaction import Transaction


class Rotation:
    """The jobs of one claim, in the order in which they are taken."""

    def __init__(self, tx: Transaction, sources: Sources, wish: Wish) -> None:
        self._tx = tx
        self._sources = sources
        self._wish = wish

    def picks(self) -> Iterator[Pick]:
        queues = list(dict.fromkeys(self._wish.worker.queues))
        if "queues" not in self._wish.turns:
            return chain.from_iterable(self._of_queue(queue, 1) for queue in queues)
        return _in_turn(self._of_queue(queue, len(queues)) for queue in shuffled(self._wish.nonce, queues))

    def _of_queue(self, queue: str, others: int) -> Iterator[Pick]:
        """`others` = how many share the slots."""
        wish, sources = self._wish, self._sources
        if wish.turns <= {"queues"} or f"{EVERY_TENANT},{queue}" in wish.in_order or sources.has_fair_tenants(queue):
            if sources.has_turns(queue):
                yield from _taken(sources.queue(queue))
            else:
                lanes = partial(sources.lanes, queue, BEFORE_ALL)
                yield from self._first(lanes, others, lambda: sources.queue(queue))
            return
        tenants = sources.tenants(queue)
        names = {f"{tenant},{queue}": tenant for tenant in tenants}
        yield from _in_turn(
            self._of_tenant(names[name], queue, tenants[names[name]], others * len(names))
            for name in shuffled(wish.nonce, names)
        )

    def _of_tenant(self, tenant: str, queue: str, heads: Sequence[Row], others: int) -> Iterator[Pick]:
        wish, sources = self._wish, self._sources
        if sources.has_fair_tasks(tenant, queue):
            yield from _taken(sources.narrowed(tenant).queue(queue))
        elif "tasks" not in wish.turns or f"{tenant},{queue}" in wish.in_order:
            yield from self._first(lambda _: heads, others, lambda: sources.narrowed(tenant).queue(queue))
        else:
            tasks: dict[str, list[Row]] = {}
            for head in heads:
                tasks.setdefault(self._tx.lanes.get(head[2]).task, []).append(head)
            names = {f"{tenant},{queue},{task}": task for task in tasks}
            yield from _in_turn(
                self._of_task(tenant, queue, names[name], tasks[names[name]], others * len(names))
                for name in shuffled(wish.nonce, names)
            )

    def _of_task(self, tenant: str, queue: str, task: str, heads: Sequence[Row], others: int) -> Iterator[Pick]:
        return self._first(lambda _: heads, others, lambda: self._sources.narrowed(tenant, task).queue(queue))

    def _first(
        self, heads: Callable[[int], Sequence[Row]], others: int, bounded: Callable[[], Stream]
    ) -> Iterator[Pick]:
        """The jobs of some lanes by priority and arrival: a share of the slots at first, more if others leave some."""
        slots, had = self._wish.slots, 0
        for room in (-(-slots // others), slots):
            found = heads(room)
            if any(is_bounded for *_, is_bounded in found):
                yield from islice(_taken(bounded()), had, None)  # what it has had of those that nothing bounds
                return
            picks = first_jobs(self._tx, found, room)
            yield from picks[had:]
            if len(picks) < room:
                return
            had = room


def _taken(stream: Stream) -> Iterator[Pick]:
    while stream.first() is not None:
        yield stream.take()


def _in_turn(members: Iterable[Iterator[Pick]]) -> Iterator[Pick]:
    """One of each, and again; who has no more is passed by."""
    waiting = deque(members)
    while waiting:
        member = waiting.popleft()
        if (pick := next(member, None)) is not None:
            yield pick
            waiting.append(member)
