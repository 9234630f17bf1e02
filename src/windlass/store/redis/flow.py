"""Flow control over Redis: the flow settings as the library reads them, and one call for each question.

Knows how settings are spelled for `lua/rules.lua`; decides nothing.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime

import msgspec

from windlass.model.errors import Invalid
from windlass.model.names import JobKey, raw_key, text_id
from windlass.store.encoding import from_micros, span, to_micros
from windlass.store.flow import BucketUsage, LaneBacklog, LimitRule, Regroup, Rules, TierRule
from windlass.store.redis.calls import Partitions
from windlass.store.redis.layout import parts
from windlass.store.redis.urls import Argument

HOME = 0
"""The partition whose rules are the ones in force; the others have copies."""


class RedisFlow:
    """Flow control in Redis."""

    def __init__(self, partitions: Partitions) -> None:
        self.partitions = partitions

    async def rules(self) -> Rules:
        found = await self.partitions.call("rules", HOME)
        return msgspec.msgpack.decode(found, type=Rules) if found else Rules()

    async def set_rules(self, rules: Rules) -> bool:
        if self.partitions.number > 1 and any(limit_rule.queue is None for limit_rule in rules.limit_rules.values()):
            raise Invalid("on a cluster a limit must name its queue", at="match.queue")
        if not await self.partitions.call("set_rules", HOME, _spelled_out(rules, "next")):
            return False
        for partition in range(self.partitions.number):
            if partition != HOME:
                await self.partitions.call("set_rules", partition, _spelled_out(rules, "later"))
        return True

    async def regroup(self, changes: Sequence[Regroup]) -> list[bool]:
        replies = await self.partitions.spread(
            "regroup",
            changes,
            lambda change: self.partitions.of_id(change.id),
            lambda some: [
                word for change in some for word in (raw_key(change.id, change.tenant), change.before, change.after)
            ],
        )
        return [bool(moved) for moved in replies]

    async def hold(self, bucket: str, seconds: float) -> None:
        await self.partitions.each_there("hold", [bucket, span(seconds)])

    async def unblock_ready(self, limit: int) -> int:
        replies = await self.partitions.each_there("unblock_ready", [limit])
        newest = replies[HOME][1] if HOME in replies else 0
        for partition, (_, version) in replies.items():
            if version < newest:  # the process that put the settings in force stopped before this one
                await self.partitions.call("set_rules", partition, _spelled_out(await self.rules(), "later"))
        return sum(number for number, _ in replies.values())

    async def catch_up(self, partition: int, group_epoch: int) -> bool:
        """Whether a partition that refused jobs of this group_epoch did so because it lags behind; now it does not."""
        if partition == HOME:
            return False
        rules = await self.rules()
        if rules.group_epoch != group_epoch:
            return False
        await self.partitions.call("set_rules", partition, _spelled_out(rules, "later"))
        return True

    async def next_opening(self, queues: Sequence[str]) -> float | None:
        by_partition: dict[int, list[Argument]] = {}
        for queue in queues:
            by_partition.setdefault(self.partitions.of_queue(queue), []).append(queue)
        there = self.partitions.there(by_partition)
        found = [await self.partitions.call("next_opening", number, by_partition[number]) for number in there]
        return min((int(micros) / 1e6 for micros in found if micros is not None), default=None)

    async def backlog(self, tenant: str, queue: str, limit: int) -> list[LaneBacklog]:
        reply = await self.partitions.call("backlog", self.partitions.of_queue(queue), [tenant, queue, limit])
        return [_lane_backlog(*reply[at : at + 3]) for at in range(0, len(reply), 3)]

    async def rank(self, key: JobKey) -> int | None:
        found: int | None = await self.partitions.call("rank", self.partitions.of_id(key.id), [raw_key(*key)])
        return found

    async def usage(self, limit_rule: str, limit: int) -> list[BucketUsage]:
        replies = await self.partitions.each("usage", [limit_rule, limit])
        return [_usage(*reply[at : at + 4]) for reply in replies for at in range(0, len(reply), 4)][:limit]


def _lane_backlog(lane: bytes, count: int, jobs: list[bytes]) -> LaneBacklog:
    firsts = [
        (int(priority), int.from_bytes(member[:8]), text_id(member[8:]))
        for member, priority in zip(jobs[::2], jobs[1::2], strict=True)
    ]
    return LaneBacklog(*parts(lane), count, firsts)


def _usage(bucket: bytes, running: int, waiting: int, free_at: bytes) -> BucketUsage:
    return BucketUsage(bucket.decode(), running, waiting, from_micros(int(free_at)) if free_at else None)


def _spelled_out(rules: Rules, unless: str) -> list[Argument]:
    """The arguments of `set_rules`."""
    pauses = {pattern: to_micros(until) for pattern, until in rules.paused_until.items()}
    sections: list[Mapping[str, Argument]] = [
        {name: _encode_limit_rule(limit_rule) for name, limit_rule in rules.limit_rules.items()},
        {name: _levels(levels) for name, levels in rules.tiers.items() if levels},
        dict(_weights(rules.fair_queues)) | dict(_weights(rules.fair_tenant_queues)),
        pauses,
        _letters(rules),
    ]
    about: list[Argument] = [rules.version, unless, rules.group_epoch, msgspec.msgpack.encode(rules)]
    for section in sections:
        about.append(len(section))
        for name, value in section.items():
            about += (name, value)
    return about


def _encode_limit_rule(limit_rule: LimitRule) -> str:
    parts = (
        limit_rule.running,
        limit_rule.count,
        span(limit_rule.per),
        limit_rule.burst,
        _time(limit_rule.closed_until),
    )
    return " ".join("-" if part is None else str(part) for part in parts)


def _time(when: datetime | None) -> int | None:
    return None if when is None else to_micros(when)


def _levels(levels: Iterable[TierRule]) -> str:
    return " ".join(f"{level.name} {level.seconds!r} {level.cap}" for level in levels)


def _weights(fair: Mapping[str, Mapping[str, float]]) -> Iterator[tuple[str, Argument]]:
    for level, weights in fair.items():
        yield level, "1"
        for member, weight in weights.items():
            yield f"{level} {member}", repr(float(weight))


def _letters(rules: Rules) -> dict[str, Argument]:
    """What holds in which queue."""
    found: dict[str, set[str]] = {}
    for queue in rules.fair_queues:
        found.setdefault(queue, set()).add("q")
    for tenant_queue in rules.fair_tenant_queues:
        found.setdefault(tenant_queue.partition(",")[2], set()).add("l")
    for pattern in rules.paused_until:
        found.setdefault(pattern.split(",")[1], set()).add("s")
    return {queue: "".join(sorted(letters)) for queue, letters in found.items()}
