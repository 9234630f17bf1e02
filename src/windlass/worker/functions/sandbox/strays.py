"""Ends what foreign code has left behind whose keeper was killed: it has become ours, and nobody else watches over it.

Knows it by its user, so this is for code that has one of its own; where the worker is not root it cannot be told apart.
"""

import os

from windlass.worker.processes import children, end_children_but


def end_strays(uid: int) -> None:
    """End those children of this process that are of a tenant's user; those of living keepers are not ours."""

    def others() -> list[int]:
        return [pid for pid in children(os.getpid()) if _user_of(pid) != uid]

    end_children_but(others)


def _user_of(pid: int) -> int | None:
    try:
        return os.stat(f"/proc/{pid}").st_uid  # noqa: PTH116
    except OSError:
        return None  # it has ended meanwhile
