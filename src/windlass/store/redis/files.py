"""Files beside the jobs in Redis: those that runs left, and the results of steps, in the partition of their job;
uploaded ones in the first.
"""

import struct
from collections.abc import Mapping, Sequence

from windlass.model.names import JobKey, raw_key
from windlass.model.steps import MOST_STEP_BYTES, MOST_STEPS
from windlass.store.data import JobStep, StepSaved, StoredStep, StoredSteps
from windlass.store.encoding import from_micros, span
from windlass.store.redis.calls import Partitions
from windlass.store.redis.flow import HOME
from windlass.store.redis.urls import Argument

STEP = struct.Struct(">QI")
"""Before the result of a step: when it finished, its number."""


class RedisFiles:
    """The files of a store in Redis."""

    def __init__(self, partitions: Partitions) -> None:
        self._partitions = partitions

    async def attach(self, key: JobKey, token: bytes, files: Mapping[str, bytes]) -> bool:
        arguments: list[Argument] = [raw_key(*key), token]
        for name, data in files.items():
            arguments += (name, data)
        return bool(await self._partitions.call("attach", self._partitions.of_id(key.id), arguments))

    async def left(self, key: JobKey) -> dict[str, int]:
        reply = await self._partitions.call("left", self._partitions.of_id(key.id), [raw_key(*key)])
        return dict(sorted((name.decode(), int(size)) for name, size in zip(reply[::2], reply[1::2], strict=True)))

    async def read(self, key: JobKey, name: str) -> bytes | None:
        data: bytes | None = await self._partitions.call(
            "read_file", self._partitions.of_id(key.id), [raw_key(*key), name]
        )
        return data

    async def upload(self, tenant: str, digest: bytes, data: bytes, *, seconds: float, most: int) -> None:
        await self._partitions.call("upload", HOME, [tenant, digest, data, span(seconds), most])

    async def uploaded(self, tenant: str, digests: Sequence[bytes], seconds: float) -> dict[bytes, bytes]:
        reply = await self._partitions.call("uploaded", HOME, [tenant, span(seconds), *digests])
        return dict(zip(reply[::2], reply[1::2], strict=True))


class RedisSteps:
    """The results of steps of a store in Redis."""

    def __init__(self, partitions: Partitions) -> None:
        self._partitions = partitions

    async def save(self, steps: Sequence[JobStep]) -> list[StepSaved]:
        replies = await self._partitions.spread(
            "save_steps", steps, lambda step: self._partitions.of_id(step.id), _saved_arguments
        )
        return [StepSaved(reply.decode()) for reply in replies]

    async def list(self, key: JobKey) -> StoredSteps:
        now, *found = await self._partitions.call("steps", self._partitions.of_id(key.id), [raw_key(*key)])
        packed = sorted(
            (*reversed(STEP.unpack_from(data)), name, data) for name, data in zip(found[::2], found[1::2], strict=True)
        )
        steps = [StoredStep(name.decode(), from_micros(at), data[STEP.size :]) for _, at, name, data in packed]
        return StoredSteps(from_micros(int(now)), steps)


def _saved_arguments(steps: Sequence[JobStep]) -> list[Argument]:
    arguments: list[Argument] = [MOST_STEPS, MOST_STEP_BYTES]
    for step in steps:
        arguments += (raw_key(step.id, step.tenant), step.token, step.name, step.result)
    return arguments
