"""The worker: claims jobs, has them run by other processes, renews their leases and reports how they ended.

Three kinds of process. The *supervisor* talks to the queue and never runs user code, so nothing a task does can keep it
from renewing a lease. The *zygote* has imported the user's app once and forks *contexts* in milliseconds. A context
runs user code: many jobs at once, or exactly one. Only this package starts, feeds and kills processes.
Here are the options of a worker; `supervisor` is where to start reading.
"""

import os

from msgspec import Struct

from windlass.worker.functions import FunctionOptions


class WorkerOptions(Struct, frozen=True, kw_only=True):
    """One worker's settings."""

    target: str = ""
    """The app whose tasks it runs, as `module:name`; empty = none."""
    queues: list[str] = []
    """Where it takes jobs from; none = every queue that the app's tasks name."""
    strict: bool = False
    """Whether it takes jobs of a queue only when those before it have none; else its queues take turns."""
    weights: dict[str, int] = {}
    """How many turns a queue has, if more than one."""
    offers: list[str] = []
    """What it has for tasks and handlers that need it, as labels."""
    slots: int = 32
    """How many jobs run at once."""
    contexts: int = os.cpu_count() or 1
    """How many processes share the jobs that do not ask for one of their own."""
    name: str = ""
    """Its name for people; empty = the host's name and the process's number."""
    burst: bool = False
    """Whether to end when there is nothing left to do."""
    grace: float = 30.0
    """Seconds that running jobs get to finish after the first signal."""
    stop_jobs: bool = False
    """Whether it ends all its jobs when it stops, also those that would go on without it."""
    adopt_lease: float = 600.0
    """Seconds that jobs which go on without their worker wait for another."""
    max_jobs: int | None = None
    """Jobs after which the worker ends."""
    context_max_jobs: int | None = None
    """Jobs after which a context is replaced."""
    max_memory: int | None = None
    """Bytes of memory beyond which a context is replaced, and a job alone in its process is killed."""
    max_age: float | None = None
    """Seconds after which a context is replaced."""
    max_output: int = 64 << 20
    """Bytes that a job alone in its process may print before it is killed."""
    telemetry: str | None = None
    """A folder for a file with a row for each run; null = no file."""
    functions: FunctionOptions | None = None
    """How it runs jobs whose code is kept in the queue; null = not at all."""
    reach: tuple[str, ...] = ()
    """Where handlers of `http` may be beyond public addresses: networks, addresses or hosts, each with a port."""
