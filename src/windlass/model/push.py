"""Push: what a server sends to the URL of a worker, and the signature that proves where it came from.

Knows the form of an address and of a signature. Which addresses may be reached is judged where they are reached.
"""

import hashlib
import hmac
import re
from typing import NamedTuple

from windlass.model.errors import Invalid
from windlass.model.wire import MOST_RESULT
from windlass.model.worker import MOST_URL

ID = "windlass-job"
ATTEMPT = "windlass-attempt"
WORKER = "windlass-worker"
TIMESTAMP = "windlass-timestamp"
SIGNATURE = "windlass-signature"

ANSWER_WITHIN = 30.0
"""Seconds in which a worker must answer."""

MOST_ANSWER = 2 * MOST_RESULT
"""Bytes that its answer may have: in JSON a result is longer than it is."""

DEFAULT_PORTS = {"http": 80, "https": 443}

# One strict form, so that no two readers of an address can differ: no user, no Unicode, no backslash, no fragment.
_URL = re.compile(
    r"(?P<scheme>https?)://(?P<host>[a-z0-9_]([a-z0-9_.-]*[a-z0-9_])?\.?|\[[0-9a-f:.]+\])(:(?P<port>[0-9]{1,5}))?"
    r"(?P<target>/[!$-;=@-Z_a-z~%]*(\?[!$-;=?-Z_a-z~%]*)?)?",
    re.IGNORECASE | re.ASCII,
)


class Address(NamedTuple):
    """Where jobs are sent to, in its parts."""

    scheme: str
    host: str
    """A name or a literal address, without brackets."""
    port: int
    target: str
    """The path, and the query if there is one."""

    @property
    def authority(self) -> str:
        """What the header Host says."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == DEFAULT_PORTS[self.scheme] else f"{host}:{self.port}"


def read_url(url: str, *, at: str = "worker.url") -> Address:
    """The parts of an address that jobs are sent to, or what is wrong with it."""
    if len(url) > MOST_URL:
        raise Invalid(f"an address may have {MOST_URL} characters", at=at)
    parts = _URL.fullmatch(url)
    if parts is None:
        raise Invalid(
            "not an address that jobs can be sent to: http:// or https://, a host, perhaps a port, a path and a query; "
            "ASCII, without user and password",
            at=at,
        )
    scheme = parts["scheme"].lower()
    port = int(parts["port"] or DEFAULT_PORTS[scheme])
    if not 0 < port < 2**16:
        raise Invalid(f"there is no port {port}", at=at)
    return Address(scheme, parts["host"].strip("[]").lower(), port, parts["target"] or "/")


def signature(secret: str, timestamp: str, body: bytes) -> str:
    """HMAC-SHA256 over the timestamp, a full stop and the body, in hex digits."""
    return hmac.new(secret.encode(), timestamp.encode() + b"." + body, hashlib.sha256).hexdigest()
