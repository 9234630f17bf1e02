"""New jobs on their way into Redis: one by one, many at once, out of a journal, and until replicas have them.

Knows which script takes them in; decides nothing.
"""

from collections.abc import Sequence
from typing import Any

from windlass.model.errors import NotReplicated
from windlass.store import Draft
from windlass.store.beside import Chute, Haul, Hauled
from windlass.store.flow import StaleRules
from windlass.store.redis import layout
from windlass.store.redis.address import Argument
from windlass.store.redis.blocking import BlockingChannel
from windlass.store.redis.chute import RedisChute
from windlass.store.redis.flow import RedisFlow

ENOUGH = ""
"""What is missing when nothing is: enough replicas have it, or nobody asked."""


class RedisAdding(RedisFlow):
    """How a store in Redis takes in new jobs."""

    async def add(self, drafts: Sequence[Draft]) -> list[bool]:
        if len(drafts) == 1 and layout.is_bare(drafts[0]):
            (new,), _ = await self._add("add_one", self.strand(drafts[0]), drafts)
            return [bool(new)]
        return await self._add_all(drafts, surely=False)

    def chute(self, example: Draft) -> Chute | None:
        channel = self.partitions.connection.channel
        if not isinstance(channel, BlockingChannel) or not self.partitions.timed_by_server:
            return None
        if self.partitions.is_likely_bounded("add_one") or not layout.is_bare(example):
            return None
        return RedisChute(channel, self.partitions, example)

    @property
    def replicated_within(self) -> float | None:
        replicas = self.partitions.connection.replicas
        return None if replicas is None else replicas.within

    async def add_surely(self, drafts: Sequence[Draft]) -> list[bool]:
        return await self._add_all(drafts, surely=True)

    @property
    def strands(self) -> int:
        return self.partitions.number

    def strand(self, draft: Draft) -> int:
        return self.partitions.of_queue(draft.new.queue)

    async def drain(self, haul: Haul) -> Hauled:
        about: list[Argument] = [haul.journal, haul.since, haul.upto]
        reply, missing = await self._add("drain", haul.strand, haul.drafts, about, surely=haul.surely)
        shortfall = missing if haul.surely else None
        if isinstance(reply, bytes):
            return Hauled(int(reply), shortfall=shortfall)
        return Hauled(haul.upto, [bool(new) for new in reply], shortfall)

    async def _add_all(self, drafts: Sequence[Draft], *, surely: bool) -> list[bool]:
        if len({draft.grouping for draft in drafts}) > 1:
            raise StaleRules
        added: list[bool | None] = [None] * len(drafts)
        missing = ENOUGH
        for partition, chosen in self.partitions.parts(drafts, self.strand):
            try:
                reply, shortfall = await self._add("add", partition, [drafts[one] for one in chosen], surely=surely)
            except StaleRules:
                raise StaleRules(added) from None
            missing = missing or shortfall
            for one, new in zip(chosen, reply, strict=True):
                added[one] = bool(new)
        if missing:
            raise NotReplicated(missing)
        return [bool(new) for new in added]

    async def _add(
        self,
        script: str,
        partition: int,
        drafts: Sequence[Draft],
        more: Sequence[Argument] = (),
        *,
        surely: bool = False,
    ) -> tuple[Any, str]:
        """What a script says of new jobs of one partition, and what is missing until enough replicas have them."""
        arguments: list[Argument] = layout.add_arguments(drafts)
        arguments += more
        try:
            return await self._call(script, partition, arguments, surely=surely)
        except StaleRules:
            if not drafts or not await self.catch_up(partition, drafts[0].grouping):
                raise
        return await self._call(script, partition, arguments, surely=surely)

    async def _call(self, script: str, partition: int, arguments: list[Argument], *, surely: bool) -> tuple[Any, str]:
        if surely:
            return await self.partitions.call_surely(script, partition, arguments)
        return await self.partitions.call(script, partition, arguments), ENOUGH
