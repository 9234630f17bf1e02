"""Values that a job emits while it runs: lines of JSON on a stream of its output, `values`.

Each value is one line, whole within its chunk. An empty line says that a run begins: what came before it is of an
earlier run. Knows the lines, not how they travel.
"""

from collections.abc import AsyncGenerator, AsyncIterator, Generator, Iterator
from typing import Any, Generic, TypeVar

import msgspec

from windlass.call.arguments import from_plain, to_plain
from windlass.model.errors import Invalid, TooLarge
from windlass.model.output import MOST_VALUE, Chunk
from windlass.model.wire import UNENCODABLE, invalid

V = TypeVar("V")

_encoder = msgspec.json.Encoder(enc_hook=to_plain)


def encode_value(value: object) -> bytes:
    """A value as its line."""
    try:
        line = _encoder.encode(value) + b"\n"
    except UNENCODABLE as fault:
        raise Invalid(f"the value cannot be sent: {fault}", at="emit") from None
    if len(line) > MOST_VALUE:
        raise TooLarge(f"the value has {len(line) - 1} bytes as JSON, at most {MOST_VALUE - 1} fit", at="emit")
    return line


class _ValueReader(Generic[V]):
    def __init__(self, kind: Any) -> None:
        self.run = 0
        """Of the last value: 1 in the first run that emits any. When it grows, the job has begun again."""
        self._kind = kind
        self._decoder: msgspec.json.Decoder[V] = msgspec.json.Decoder(kind, dec_hook=from_plain)

    def _read(self, chunk: Chunk) -> Iterator[V]:
        for line in chunk.data.splitlines():
            if not line:
                self.run += 1
                continue
            self.run = self.run or 1  # where it began is not kept any more
            try:
                yield self._decoder.decode(line)
            except UNENCODABLE as fault:
                raise invalid(fault, at="values", kind=self._kind) from None


class ValueStream(_ValueReader[V], Iterator[V]):
    """The values that a job has emitted and emits, until it has ended."""

    def __init__(self, chunks: Iterator[Chunk], kind: Any) -> None:
        super().__init__(kind)
        self._values = self._all(chunks)

    def _all(self, chunks: Iterator[Chunk]) -> Generator[V, None, None]:
        for chunk in chunks:
            yield from self._read(chunk)

    def __next__(self) -> V:
        return next(self._values)

    def close(self) -> None:
        """Read no more."""
        self._values.close()


class AsyncValueStream(_ValueReader[V], AsyncIterator[V]):
    """The same in asynchronous code."""

    def __init__(self, chunks: AsyncGenerator[Chunk, None], kind: Any) -> None:
        super().__init__(kind)
        self._chunks = chunks
        self._values = self._all()

    async def _all(self) -> AsyncGenerator[V, None]:
        try:
            async for chunk in self._chunks:
                for value in self._read(chunk):
                    yield value
        finally:
            await self._chunks.aclose()

    async def __anext__(self) -> V:
        return await anext(self._values)

    async def aclose(self) -> None:
        """Read no more."""
        await self._values.aclose()
