"""Uploaded functions: code that is stored in the queue and run in contexts of any language, confined by a sandbox.

A *context* is one process of an interpreter under one sandbox tier, for one tenant, with one handler (or those of one
`eid`) loaded; it runs batches of jobs one after the other. Here is what a worker and the functions it runs
exchange: a job, its outcome, a listener, and the options. Frozen data; nothing here starts or reads anything.
"""

import os
from typing import Annotated, Protocol

from msgspec import Meta, Struct

from windlass.model.job import JSON, MSGPACK, Reason
from windlass.model.output import Stream
from windlass.model.worker import SandboxTier

Tier = SandboxTier
"""How strictly uploaded code is confined; each tier includes those before it."""

LANGUAGES = ("python", "node", "php", "sh")
"""Those that need an interpreter."""

OK, RETRY, FAILED, ERROR = 200, 100, 400, 500
"""The plain code of each kind of outcome."""


class FunctionJob(Struct, frozen=True, kw_only=True, gc=False):
    """One job for uploaded code."""

    id: str
    tenant: str
    payload: bytes
    content_type: str = MSGPACK
    timeout: float | None = None
    """Seconds it may run; null = as its handler says."""
    files: dict[str, bytes] = {}
    """What came with it, by name."""


class FunctionOutcome(Struct, frozen=True, kw_only=True, gc=False):
    """How one run ended."""

    id: str
    code: int
    """1xx retry, 2xx ok, 4xx failed, 5xx error."""
    result: bytes | None = None
    """What it answered, in the encoding of `content_type`; null = nothing."""
    content_type: str = JSON
    type: str = ""
    """The name of the error."""
    message: str = ""
    traceback: str = ""
    reason: Reason | None = None
    """`timeout`, `crashed`, `memory`, `output` or `disk`, where the worker and not the code ended it."""
    delay: float | None = None
    """Seconds before the next run that the code asked for."""
    jobs: tuple[tuple[str, str], ...] = ()
    """New jobs that a success asked for: task and payload, as text."""
    files: dict[str, bytes] = {}
    """What it leaves, by name."""
    unrun: bool = False
    """Whether the code never began: it was refused, there was no room, or it was stopped before. `message` has why."""


class FunctionListener(Protocol):
    """Follows running functions. Called in the event loop; must not wait."""

    def began(self, id: str, pid: int | None, tier: Tier | None) -> None:
        """A job is given to a process (null for `http`), under this tier."""
        ...

    def printed(self, id: str, stream: Stream, data: bytes) -> None:
        """A running job printed something that is no new job."""
        ...

    def ended(self, outcome: FunctionOutcome) -> None:
        """A job has ended: called once for each job, as soon as that is known."""
        ...


class FunctionOptions(Struct, frozen=True, kw_only=True):
    """What an operator may choose for uploaded functions."""

    tier: Tier = "confined"
    """The tier of every function; where it is not available, every job is refused."""
    network: bool = False
    """Whether handlers that ask for the network get it."""
    folder: str | None = None
    """Where contexts have their folders; null = in the machine's folder for temporary files."""
    interpreters: dict[str, str] = {}
    """The path of a language's interpreter (`python`, `node`, `php`, `sh`), instead of the one that is found."""
    environment: list[str] = []
    """Variables of the worker's environment that functions may see besides the few that are harmless."""
    contexts: Annotated[int, Meta(ge=1)] = 4 * (os.cpu_count() or 1)
    """Processes that functions have at most, those that wait for work included."""
    idle: float = 60.0
    """Seconds after which a context without work is ended."""
    grace: float = 0.3
    """Seconds between TERM and KILL."""
    memory: int = 512 << 20
    """Bytes of memory that a context may take, unless its handler asks for less."""
    cpu: float = 3600.0
    """Seconds of processor time that one job may take in all its processes, unless its handler asks for less."""
    processes: int = 64
    """Processes and threads that the code of one tenant may have, times the contexts that there may be."""
    files: int = 256
    """Files that one process may have open."""
    file_size: int = 256 << 20
    """Bytes of the largest file that it may write."""
    disk: int = 1 << 30
    """Bytes of files that a context may have in its folder, unless its handler asks for less."""
    disk_files: int = 10_000
    """Files and folders that it may have there."""
    output: int = 64 << 20
    """Bytes that one job may print."""
    result: int = 16 << 20
    """Bytes of one result."""
    uids: int = 0x7000_0000
    """The first of 2²⁸ user ids, one of which stands for each tenant where the worker runs as root."""
