"""The job as it is sent in: the options that fit any task, the terms of one job, and what comes along with it.

Only the declarations; durations are seconds.
"""

from typing import Annotated, Literal

from msgspec import Meta, Raw, Struct, field

from windlass.model.duration import DAY, LONGEST, Seconds, Time
from windlass.model.names import DEFAULT_QUEUE, MOST_FILES, FileName, Name, Sha256
from windlass.model.output import OutputPolicy
from windlass.model.retry import EXPONENTIAL, RetryPolicy
from windlass.model.stdin import Stdin

KeepResult = Literal["keep", "once", "none"]

OnLost = Literal["retry", "requeue", "fail", "adopt"]
"""What becomes of a job whose run ended without a word of its own: `lifecycle` says how."""

AT_MOST_ONCE: frozenset[OnLost | None] = frozenset({"fail", "adopt"})
"""With these a job that has begun is never started a second time."""

LOWEST, HIGHEST = -(2**31), 2**31 - 1
"""Bounds of a priority."""

LEAST_OWNER_TIMEOUT = 1.0
"""Seconds: upkeep looks no more often."""

AfterFailure = Literal["skip", "fail", "run"]
"""What becomes of a job if one of those that it waits for does not succeed."""

Unique = Literal["pending", "queued"] | Annotated[float, Meta(gt=0, le=LONGEST)]
"""For how long there is one such job: while it waits or runs, while it waits, or so many seconds after it came."""

OnDuplicate = Literal["join", "replace", "reject"]
"""What becomes of a second one: the first is answered, gets what the second brings, or the second is refused."""

WithResults = Literal["one", "list", "current"]
"""How a job gets the results of those that it waits for."""

Tags = Annotated[list[Annotated[str, Meta(min_length=1, max_length=128)]], Meta(max_length=32)]

MOST_PARENTS = 1000
NOTHING = Raw(b"\xc0")
"""MessagePack nil: the payload of a job that was given none."""

# Jobs hold nothing that could hold them in turn, so the collector need not look at them (`gc=False`): otherwise it
# takes a third of the time in which many are made.


class JobOptions(Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True, gc=False):
    """What a submitter may ask of the queue for a job, whatever its task. Only an edit changes it later."""

    queue: Name = DEFAULT_QUEUE
    """The named queue it waits in."""
    key: Annotated[str, Meta(min_length=1, max_length=512)] | None = None
    """The caller's own name for the job; its id is derived from tenant, queue and key."""
    unique: Unique | None = None
    """There is one such job at a time: `pending` = while it waits or runs, `queued` = while it waits, a number = for so
    many seconds after it was accepted, unless it fails or is cancelled. Null = any number of them."""
    unique_key: Annotated[str, Meta(min_length=1, max_length=512)] | None = None
    """What makes a job of the same tenant, queue and task the same one; null = its payload."""
    on_duplicate: OnDuplicate = "join"
    """What becomes of a second one: `join` answers the first, `replace` gives its payload, time and options to the
    first, which must not have started, and `reject` refuses it."""
    priority: Annotated[int, Meta(ge=LOWEST, le=HIGHEST)] = 0
    """Lower goes first; equal ones go by arrival."""
    tags: Tags = []
    """Words to find it by."""
    timeout: Seconds | None = None
    """Seconds one attempt may run; null = as long as it likes."""
    tier: Name | Seconds | None = None
    """The time class asked for, by name or by seconds; null = flexible where the queue has tiers."""
    yielding: bool = False
    """Whether it may be halted for others, and is denied rather than queued."""
    max_retry: Annotated[int, Meta(ge=0, le=1_000_000)] | None = 0
    """How many re-runs a failing job gets; null = as many as the retry deadline allows."""
    retry: RetryPolicy = EXPONENTIAL
    """When those re-runs come."""
    keep_result: KeepResult = "keep"
    """Whether the result stays with the record, is handed out once, or is dropped at once."""
    keep_result_for: Seconds | None = None
    """Seconds after success that the result stays, if its record stays longer; null = as long as the record."""
    keep_success: Seconds | None = DAY
    """Seconds that the record of a success stays; null = forever."""
    keep_failure: Seconds | None = 7 * DAY
    """Seconds that the record of a failed or cancelled job stays; null = forever."""
    expires: Seconds | None = None
    """Seconds after creation within which it must be started, or it fails as `expired`; null = never."""
    owner_timeout: Annotated[float, Meta(ge=LEAST_OWNER_TIMEOUT, le=LONGEST)] | None = None
    """Seconds it may go without its owner asking for it; then it is cancelled as `abandoned`; null = forever."""
    on_failure: Name | None = None
    """The task of a job that is queued when this one has failed, with its record as the one argument; null = none."""
    isolate: bool = False
    """Whether it runs in a process of its own."""
    on_lost: OnLost | None = None
    """What to do if its process or worker is killed, or its worker stops, while it runs: `retry`, `requeue` (the same,
    but a lost worker is not counted), `fail`: once begun it is never run again, or `adopt`: so too, but in a process of
    its own, which goes on when its worker ends. Null = as its queue says."""
    output: OutputPolicy | None = None
    """How much it may put out; null = as its queue says."""
    input: bool = False
    """Whether messages may be sent to it, which its task takes while it runs."""
    stdin: Stdin | None = None
    """Where its process reads what is sent to it: its standard input is a pipe, or a terminal to which it also prints.
    It then accepts messages, and has a process of its own."""
    most_input: Annotated[int, Meta(ge=0, le=2**53)] | None = None
    """Bytes that may be sent to one run in all; null = as much as it reads, but 64 MiB to a standard input."""
    headers: Annotated[
        dict[Annotated[str, Meta(max_length=128)], Annotated[str, Meta(max_length=8192)]], Meta(max_length=64)
    ] = {}
    """Texts that travel with the job untouched (trace ids and the like)."""
    content_type: Annotated[str, Meta(max_length=128)] = "application/vnd.msgpack"
    """How the payload is encoded; the queue itself never decodes it."""
    one_argument: bool = False
    """Whether a payload, or a result passed on by `then`, is one argument even if it is a list or a map of several."""


class Terms(JobOptions, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True, gc=False):
    """A task, and what is asked of the queue for one job of it."""

    task: Name
    """Which code the job runs."""
    after: Annotated[list[str], Meta(max_length=MOST_PARENTS)] = field(default_factory=list)
    """Ids of jobs of the same tenant that must have succeeded before it is queued."""
    after_failure: AfterFailure = "skip"
    """If one of these does not succeed: `skip` cancels the job, `fail` lets it fail, both with the reason `dependency`;
    with `run` any end will do, and it is queued once all of them have ended or are gone."""
    with_results: WithResults | None = None
    """Whether a claim hands it the results of the jobs in `after`, in their order, null for one without: as its first
    argument, before those in its payload (`one`: the result of the only job, `list`: the list of all), or aside
    (`current`). They must still be kept then."""
    follow_up: str | None = None
    """The id of the job that `then` makes once this one has succeeded; null = none. The queue says so, whatever is
    sent."""


OWN_ID = (
    "A UUID made by the caller, in lower case: sending it twice makes one job. Its last two digits must be those of "
    "the queue, the lowest byte of the CRC-32 of its name (`df` for `default`): the error says which. Or send a `key`."
)


class NewJob(Terms, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True, gc=False):
    """A job as it is sent in."""

    payload: Raw = field(default_factory=lambda: NOTHING)  # made, for a schema cannot show it
    """One encoded value, in the encoding that `content_type` names."""
    files: Annotated[dict[FileName, bytes], Meta(max_length=MOST_FILES)] = field(default_factory=dict)
    """Files that go to the worker with the payload, by name; together with it they are no larger than it may be."""
    hashes: Annotated[dict[FileName, Sha256], Meta(max_length=MOST_FILES)] = field(default_factory=dict)
    """More files, by name: the SHA-256 of each, which was sent before."""
    id: Annotated[str, Meta(description=OWN_ID)] | None = None
    """A UUID made by the caller; sending it twice makes one job. Absent: derived from `key`, or random."""
    delay: Seconds | None = None
    """Seconds to wait before it may run."""
    then: "NewJob | None" = None
    """A job to be queued when this one has succeeded; without a payload of its own it gets this one's result."""
    run_at: Time | None = None
    """The time before which it may not run, with its time zone; not together with `delay`."""
