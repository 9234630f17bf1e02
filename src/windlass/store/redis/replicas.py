"""What is said to a server to learn how many of its replicas have what it was just given.

Knows the words and what the answers mean; asks nobody. WAIT answers for what was written before it on the same
connection, and holds up everything behind it there: so it goes over a connection of its own, together with the writes.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import hiredis

from windlass.model.duration import seconds
from windlass.model.errors import Invalid

OPTIONS = ("replicas", "replicated_within", "replicas_synced")
"""What an address may say of replicas."""

Words = tuple[str | int, ...]


class Replicas(NamedTuple):
    """How many must have a new job, and for how many seconds they are waited for."""

    number: int
    within: float = 1.0
    synced: bool = False
    """Whether they must have it on disk."""

    def questions(self, key: str) -> tuple[Words, Words]:
        """A small write on the partition that `key` names, and what is asked then.

        Without the write a job that was there already would count as replicated on a connection that wrote nothing.
        """
        bound = max(1, round(self.within * 1000))
        return ("SET", f"{key}:stirred", "1"), (
            ("WAITAOF", 0, self.number, bound) if self.synced else ("WAIT", self.number, bound)
        )

    def shortfall(self, reply: Any) -> str:
        """What is missing, by the answer; empty = nothing."""
        if isinstance(reply, hiredis.ReplyError):
            return f"the store does not tell whether its replicas have it: {reply}"
        found = reply[1] if self.synced else reply
        if found >= self.number:
            return ""
        have = "have it on disk" if self.synced else "have it"
        return f"{found} of {self.number} replicas said within {self.within:g} s that they {have}"


def read_replicas(options: Mapping[str, Any]) -> Replicas | None:
    """What the options of an address say of them; null = nothing."""
    said = {name: options[name] for name in OPTIONS if name in options}
    if "replicas" not in said:
        return None
    try:
        number, within = int(said["replicas"]), seconds(str(said.get("replicated_within", "1")))
    except ValueError:
        raise Invalid(f"{said['replicas']!r} is no number of replicas", at="replicas") from None
    return checked(number, within, synced=said.get("replicas_synced", "no") in ("yes", "true", "1"))


def checked(number: int, within: float, *, synced: bool) -> Replicas:
    if not 0 <= number <= MOST:
        raise Invalid(f"{number} is no number of replicas: 0 to {MOST}", at="replicas")
    if not 0 < within <= LONGEST:
        raise Invalid(f"replicas are waited for up to {LONGEST:g} s, not {within:g}", at="replicated_within")
    return Replicas(number, within, synced)


MOST = 100
LONGEST = 60.0
