"""Which user the code of a tenant runs as, where the worker may choose: one for each tenant, the same on every worker.

The ids come from a range that no distribution gives to anybody; nothing has to be made for them.
"""

import hashlib
import os

SPAN = 2**28


class Users:
    """The users of the tenants that one worker has met."""

    def __init__(self, first: int) -> None:
        self._first = first
        self._tenants: dict[int, str] = {}

    def of(self, tenant: str) -> int | None:
        """A tenant's own user; null where this process may not choose one."""
        if os.geteuid() != 0:
            return None
        for turn in range(SPAN):
            digest = hashlib.sha256(f"{turn}:{tenant}".encode()).digest()
            uid = self._first + int.from_bytes(digest[:8], "big") % SPAN
            if self._tenants.setdefault(uid, tenant) == tenant:
                return uid
        raise LookupError("every user id of the range is taken")
