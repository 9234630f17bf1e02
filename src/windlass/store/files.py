"""Files as a store keeps them: those that runs left, and uploaded ones that jobs name by their SHA-256.

An optional capability. Files that are sent with a job belong to `JobStore`: they are added and claimed with it.
"""

from collections.abc import Mapping, Sequence
from typing import Protocol

from windlass.model.names import JobKey


class FileStore(Protocol):
    """Files beside the jobs. A digest is known to one tenant alone: the same bytes of another are stored again."""

    async def attach(self, key: JobKey, token: bytes, files: Mapping[str, bytes]) -> bool:
        """Keep what a run has left, in the place of what an earlier one left, until the job vanishes.

        Refused without the token of the current run.
        """

    async def left(self, key: JobKey) -> dict[str, int]:
        """The files that a run has left: their sizes in bytes, by name."""

    async def read(self, key: JobKey, name: str) -> bytes | None:
        """One of them."""

    async def upload(self, tenant: str, digest: bytes, data: bytes, *, seconds: float, most: int) -> None:
        """Keep a file until it was not asked for in so long; of a tenant's files the ones that expire first make room
        when they have more than `most` bytes.
        """

    async def uploaded(self, tenant: str, digests: Sequence[bytes], seconds: float) -> dict[bytes, bytes]:
        """Those that are there, by digest; each stays for so long from now."""
