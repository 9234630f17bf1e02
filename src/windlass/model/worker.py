"""The record of a worker: who may claim what, when it was last heard of, and what people ordered it to do."""

from datetime import datetime
from typing import Annotated, Literal

from msgspec import Meta, Struct, field

from windlass.model.handler import Language
from windlass.model.limit import Pause
from windlass.model.names import DEFAULT_QUEUE, Name
from windlass.model.new_job import JobOptions
from windlass.model.schedule import NewSchedule

MOST_URL = 2000

MOST_TASKS = 1000
"""Tasks of a worker, and tasks of one tenant whose options are kept."""

MOST_LABELS = 64
"""What one task needs of a worker, and what a worker offers."""

Labels = Annotated[list[Name], Meta(max_length=MOST_LABELS)]

MOST_WEIGHT = 16

MOST_SLOTS = 10_000

Slots = Annotated[int, Meta(ge=1, le=MOST_SLOTS)]


SandboxTier = Literal["limits", "confined", "isolated"]
"""How far code that was sent in is kept away from the machine; each has what those before it have."""


class BatchOptions(Struct, frozen=True):
    """Which calls of a task a worker gathers, to run them by one call of its function."""

    size: int
    """Calls, at most."""
    within: float
    """Seconds after the first, in which others may come."""


class NewWorker(Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """A worker as it introduces itself."""

    name: Annotated[str, Meta(min_length=1, max_length=128)]
    """For people; need not be unique."""
    node: Annotated[str, Meta(max_length=256)] = ""
    """The machine it runs on."""
    pid: Annotated[int, Meta(ge=0, le=2**32 - 1)] = 0
    """Its own process there."""
    queues: Annotated[list[Name], Meta(min_length=1, max_length=256)] = field(default_factory=lambda: [DEFAULT_QUEUE])
    """The queues it takes jobs from, preferred first."""
    in_turn: bool = False
    """Whether its queues take turns instead."""
    weights: Annotated[dict[Name, Annotated[int, Meta(ge=1, le=MOST_WEIGHT)]], Meta(max_length=256)] = {}
    """How many turns a queue has for each turn of the others; those that are not named have one."""
    tasks: Annotated[list[Name], Meta(max_length=MOST_TASKS)] | None = None
    """The tasks it runs; null = whatever its queues hold. Those that need what it does not offer are left out."""
    needs: Annotated[dict[Name, Labels], Meta(max_length=MOST_TASKS)] = {}
    """What tasks that it knows need of a worker, as labels like `gpu`."""
    offers: Labels = []
    """The labels of what it has for tasks and handlers that need it."""
    options: Annotated[dict[Name, JobOptions], Meta(max_length=MOST_TASKS)] | None = None
    """The options of its tasks, which jobs that are queued by name take where they do not say otherwise. Those that are
    not named here have none; null = it says nothing of options. Kept with the queue, and not shown with the worker."""
    app: Annotated[str, Meta(max_length=256)] = ""
    """The app whose tasks it runs, as `module:name`."""
    schedules: Annotated[dict[Name, NewSchedule], Meta(max_length=MOST_TASKS)] | None = None
    """The schedules that its app declares; those that it declared before and no longer names are retired. Null = it
    says nothing of schedules. Kept with the queue, and not shown with the worker."""
    handlers: bool = False
    """Whether it also takes jobs whose task has a handler, as handlers come and go."""
    sandbox: SandboxTier | None = None
    """The tier under which it runs code that was sent in; null = it runs none."""
    languages: Annotated[list[Language], Meta(max_length=16)] | None = None
    """The languages of handlers whose jobs it takes; null = all."""
    unable: Annotated[dict[str, Annotated[str, Meta(max_length=2000)]], Meta(max_length=16)] = {}
    """Languages that it cannot run, each with the reason."""
    slots: Slots = 1
    """How many jobs it runs at once."""
    draining: bool = False
    """Whether it takes no more jobs for now: it is stopping, or paused. Its free slots count nowhere."""
    lease: Annotated[float, Meta(ge=1, le=86_400)] | None = None
    """Seconds that it may be silent before it counts as gone and its jobs go to others; null, or more than the queue's
    own lease = as long as that."""
    url: Annotated[str, Meta(max_length=MOST_URL)] | None = None
    """The URL that jobs are pushed to; null = it claims them itself. Visible to readers: put no secret in it."""
    format: Literal["json", "msgpack"] = "msgpack"
    """What is sent there, and what is answered in."""
    trusted: bool = False
    """Whether its address may be on the server's machine or in a private network: if its token is of all tenants.

    A server says so itself, whatever is sent.
    """


class Adopter(Struct, frozen=True):
    """The worker under which a run goes on, from now on."""

    worker: str
    node: str
    token: bytes
    """The run's: the one before names it no longer."""
    lease: float
    at: datetime


class WorkerUsage(Struct, frozen=True, forbid_unknown_fields=True):
    """What a worker and all its processes use."""

    memory: Annotated[int, Meta(ge=0, le=2**62)]
    """Bytes; what processes share counts for each of them."""
    cpu: Annotated[float, Meta(ge=0, le=1e6)]
    """How many CPUs were busy with them on average since the report before."""


StopOrder = Literal["soon", "now"]
"""`soon`: let running jobs end within the worker's grace, then exit. `now`: give them back at once, and exit."""


class WorkerOrders(Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """What people ordered a worker to do."""

    pause: Pause = Pause()
    """Whether it is to claim nothing for now."""
    stop: StopOrder | None = None


NO_ORDERS = WorkerOrders()


class Worker(NewWorker, frozen=True, kw_only=True, omit_defaults=False):
    """A worker as the queue knows it."""

    id: str
    """Made at registration, new for every life of the process."""
    tenant: str
    """Whose jobs it may take; `-` = everybody's."""
    running: int = 0
    """How many jobs it holds now."""
    usage: WorkerUsage | None = None
    """As it last reported; null = it has not."""
    orders: WorkerOrders = NO_ORDERS
    """It has obeyed them once it is `draining`, or is gone."""
    registered_at: datetime
    """When it introduced itself."""
    seen_at: datetime
    """When it last claimed or renewed."""


class WorkerChange(Struct, frozen=True, kw_only=True):
    """A worker came or went."""

    at: datetime
    """When; of one that is lost, when that was noticed."""
    event: Literal["joined", "stopped", "lost"]
    """`stopped`: it said goodbye. `lost`: it was silent for a whole lease."""
    worker: str
    """Its id."""
    name: str
    node: str
    tenant: str


def as_introduced(worker: Worker) -> NewWorker:
    """A worker as it introduced itself."""
    return NewWorker(**{name: getattr(worker, name) for name in NewWorker.__struct_fields__})


def unmet(worker: NewWorker, task: str) -> list[str]:
    """What a task that a worker knows needs, and the worker does not offer."""
    return [label for label in worker.needs.get(task, ()) if label not in worker.offers]


def counted_slots(worker: Worker) -> int:
    """The slots that count as there: of a draining worker those in use."""
    return worker.running if worker.draining else worker.slots
