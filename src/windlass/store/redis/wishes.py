"""Wishes that were granted: what a server has leased to a claim that waited, until whoever waits asks for it.

Kept only while somebody listens. What is forgotten here is not lost: the same claim, sent to the server, answers it.
"""

import struct
from collections.abc import Iterator
from contextlib import contextmanager

from windlass.store.redis.notices import Bell

GRANT = struct.Struct(">8sQ16s")
"""What a notice of a grant begins with: nonce, time of the lease, id. The bytes of the job follow."""


class Grants:
    """What was granted to the callers of one store."""

    def __init__(self) -> None:
        self._granted: dict[bytes, list[bytes]] = {}

    def take(self, nonce: bytes) -> list[bytes] | None:
        """What was leased under this nonce, as `claim.lua` would answer it; null = nothing that is known of."""
        return self._granted.pop(nonce, None)

    @contextmanager
    def bell(self) -> Iterator[Bell]:
        """A bell for somebody who may be waiting with a wish."""
        bell = _GrantBell(self._granted)
        try:
            yield bell
        finally:
            for nonce in bell.heard:
                self._granted.pop(nonce, None)


class _GrantBell(Bell):
    def __init__(self, granted: dict[bytes, list[bytes]]) -> None:
        super().__init__()
        self._granted = granted
        self.heard: list[bytes] = []

    def ring(self, said: bytes | None) -> None:
        if said:  # all other notices are empty
            nonce, now, id = GRANT.unpack_from(said)
            self._granted[nonce] = [b"%d" % now, id, said[GRANT.size :]]
            self.heard.append(nonce)
        super().ring(said)
