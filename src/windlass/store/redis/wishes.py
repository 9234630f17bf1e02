"""Wishes that were granted: what a server has leased to a claim that waited, until whoever waits asks for it.

Kept only while somebody listens. What is forgotten here is not lost: the same claim, sent to the server, answers it.
"""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from windlass.store import Record, Take, Wish
from windlass.store.redis import answers
from windlass.store.redis.notices import Bell

HEAD_START = 0.001
"""Seconds that what was handed over has for itself before whoever waits goes on: both want the same processor."""


class Grants:
    """What was granted to the callers of one store."""

    def __init__(self) -> None:
        self._granted: dict[bytes, bytes] = {}

    def take(self, wish: Wish) -> list[Record] | None:
        """What was leased under the nonce of a wish, as a claim would answer it; null = nothing that is known of."""
        said = self._granted.pop(wish.nonce, None)
        return None if said is None else answers.granted(said, wish)

    @contextmanager
    def bell(self) -> "Iterator[GrantBell]":
        """A bell for somebody who may be waiting with a wish."""
        bell = GrantBell(self._granted)
        try:
            yield bell
        finally:
            for nonce in bell.heard:
                self._granted.pop(nonce, None)


class GrantBell(Bell):
    """Also hears what was granted, and hands it over."""

    def __init__(self, granted: dict[bytes, bytes]) -> None:
        super().__init__()
        self._granted = granted
        self._awaited: tuple[Wish, Take] | None = None
        self.heard: list[bytes] = []

    def hand_over(self, wish: Wish, take: Take) -> None:
        self._awaited = wish, take

    def ring(self, said: bytes | None) -> None:
        if not said:  # as all other notices are
            super().ring(said)
            return
        nonce = said[: answers.NONCE_SIZE]
        self._granted[nonce] = said
        self.heard.append(nonce)
        if self._awaited is None or self._awaited[0].nonce != nonce:
            super().ring(said)
            return
        wish, take = self._awaited
        take(answers.glimpse(said), lambda: answers.granted(said, wish))
        asyncio.get_running_loop().call_later(HEAD_START, super().ring, said)
