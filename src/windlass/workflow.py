"""Workflows: calls that wait for each other. `chain` runs steps one after the other, `group` runs calls at once.

All jobs of a workflow are queued together, each with the ids of those that it waits for (`after`) and with how it gets
their results (`with_results`). Nothing else is stored: `Batch`, the handle of a workflow, is a list of jobs.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar, cast

from msgspec.structs import replace

from windlass.call.fitting import described, fits
from windlass.call.options import Duration
from windlass.job_handle import MOST_WAIT, Job
from windlass.model.duration import seconds
from windlass.model.errors import Invalid, Unavailable
from windlass.model.job import State
from windlass.model.names import keyed_id
from windlass.model.new_job import MOST_PARENTS, NewJob, WithResults
from windlass.model.operations import MOST_AT_ONCE, BatchProgress, Cancel, EnqueueMany, GetProgress
from windlass.system import SystemClock

if TYPE_CHECKING:
    from windlass.app import Task, Windlass

R = TypeVar("R")

MOST_BYTES = 8 << 20
"""Bytes of payloads that are sent together, as with `Task.map`."""

_clock = SystemClock()


class Workflow:
    """Calls that were not sent yet: one (`Signature`), or several that wait for each other."""

    def then(self, *steps: "Workflow | Task[Any, Any, Any]") -> "CallChain":
        """It, and then these steps, each with the result of the one before: of a group, the list of its results."""
        return CallChain(self, *steps)

    def enqueue(self) -> "Batch[Any]":
        """Queue all its jobs. All arguments are checked before anything is sent."""
        jobs = self._planned()
        if jobs.app is not None:
            operations = list(jobs.operations())
            try:
                jobs.app.link.ask_each(operations)
            except Unavailable:  # a connection that rested may be stale; by their ids they are the same jobs
                jobs.app.link.ask_each(operations)
        return jobs.batch()

    async def aenqueue(self) -> "Batch[Any]":
        """The same in asynchronous code."""
        jobs = self._planned()
        for operation in jobs.operations():
            assert jobs.app is not None  # noqa: S101 - jobs have one
            try:
                await jobs.app.link.aask(operation)
            except Unavailable:
                await jobs.app.link.aask(operation)
        return jobs.batch()

    def _planned(self) -> "Plan":
        plan = Plan()
        plan.place_last(self)
        return plan


class Signature(Workflow, Generic[R]):
    """A call of a task that is not sent by itself. Of a later step, the first argument is the result before it."""

    def __init__(
        self, task: "Task[Any, R, Any]", args: tuple[Any, ...], kwargs: dict[str, Any], *, immutable: bool = False
    ) -> None:
        self.task = task
        self.args = args
        self.kwargs = kwargs
        self.immutable = immutable
        """Whether it leaves out the result of the step before."""

    def __repr__(self) -> str:
        given = [*map(repr, self.args), *(f"{name}={value!r}" for name, value in self.kwargs.items())]
        return f"{self.task.name}.{'si' if self.immutable else 's'}({', '.join(given)})"


class CallGroup(Workflow):
    """Calls, or chains of calls, that run at once. Their results are a list, in the order of the members."""

    def __init__(self, members: "Iterable[Workflow | Task[Any, Any, Any]]") -> None:
        self.members = [_step(one) for one in members]
        for member in self.members:
            if _is_list(member):
                raise Invalid(
                    "a member of a group may not end with a group itself: let a task take its list", at="group"
                )

    def __repr__(self) -> str:
        return f"group({', '.join(map(repr, self.members))})"


class CallChain(Workflow):
    """Steps that run one after the other."""

    def __init__(self, *steps: "Workflow | Task[Any, Any, Any]") -> None:
        self.steps = [part for one in steps for part in _parts(_step(one))]
        for before, after in zip(self.steps, self.steps[1:], strict=False):
            _check_pair(before, after)

    def __repr__(self) -> str:
        return f"chain({', '.join(map(repr, self.steps))})"


def chain(*steps: "Workflow | Task[Any, Any, Any]") -> CallChain:
    """Steps that run one after the other, each with the result of the one before as its first argument.

    `chain(fetch.s(url), parse.s(), store.s())`; a step is a call, a task, a group, or another chain.
    """
    return CallChain(*steps)


def group(*members: "Workflow | Task[Any, Any, Any] | Iterable[Workflow]") -> CallGroup:
    """Calls that run at once: `group(fetch.s(url) for url in urls).then(merge)` gives `merge` the list of results.

    Members are calls, or chains that end with a call. An empty group is complete at once.
    """
    found: list[Any] = []
    for one in members:
        found += [one] if isinstance(one, Workflow) or hasattr(one, "s") else one
    return CallGroup(found)


def _step(given: Any) -> Workflow:
    if isinstance(given, Workflow):
        return given
    if hasattr(given, "s"):
        return cast("Workflow", given.s())
    raise Invalid(f"{given!r} is no step of a workflow: give task.s(…), a task, a chain or a group", at="workflow")


def _parts(step: Workflow) -> list[Workflow]:
    return step.steps if isinstance(step, CallChain) else [step]


# Whether steps fit


def _is_list(step: Workflow) -> bool:
    """Whether its result is a list of results."""
    return isinstance(step, CallGroup) or (
        isinstance(step, CallChain) and bool(step.steps) and _is_list(step.steps[-1])
    )


def _ends(step: Workflow) -> Iterator[Signature[Any]]:
    """The calls whose results go on."""
    if isinstance(step, Signature):
        yield step
    elif isinstance(step, CallGroup):
        for member in step.members:
            yield from _ends(member)
    elif isinstance(step, CallChain) and step.steps:
        yield from _ends(step.steps[-1])


def _entries(step: Workflow) -> Iterator[Signature[Any]]:
    """The calls that get the result of the step before."""
    if isinstance(step, Signature):
        yield step
    elif isinstance(step, CallGroup):
        for member in step.members:
            yield from _entries(member)
    elif isinstance(step, CallChain) and step.steps:
        yield from _entries(step.steps[0])


def _check_pair(before: Workflow, after: Workflow) -> None:
    """Refuse now what would fail in every run."""
    ends = list({id(end.task.job_template): end for end in _ends(before)}.values())
    entries = list(_entries(after))
    for end in ends:
        template = end.task.template
        if template.keep_success == 0:
            raise Invalid(f"{end.task.name} has keep_success=0, but a later step waits for it", at="keep_success")
        takes = [entry for entry in entries if not entry.immutable]
        if takes and (template.keep_result != "keep" or template.keep_result_for is not None):
            advice = "leave out keep_result and keep_result_for"
            raise Invalid(f"{takes[0].task.name} needs the result of {end.task.name}: {advice}", at="keep_result")
        for entry in {id(one.task.plan): one for one in takes}.values():
            check_fits(end.task, entry.task, many=_is_list(before))


def check_fits(
    first: "Task[Any, Any, Any]", second: "Task[Any, Any, Any]", *, many: bool = False, at: str = ""
) -> None:
    """Refuse a task whose first argument can never be what another one returns; `many`: a list of that."""
    returned = first.plan.returns
    given, wanted = (list[returned] if many else returned), second.plan.takes_first  # type: ignore[valid-type]
    if not fits(given, wanted):
        what = f"{second.name}{second.plan.signature} cannot take what {first.name} returns"
        raise Invalid(f"{what}: {described(given)} is not {described(wanted)}", at=at or second.name)


# Jobs


class Before(NamedTuple):
    """What a step follows."""

    ids: list[str]
    with_results: WithResults
    empty: bool = False
    """Whether it is a group without members: its list of results is known."""


class Plan:
    """The jobs of a workflow, in an order in which each comes behind those that it waits for."""

    def __init__(self) -> None:
        self.app: Windlass | None = None
        """Whose they are; null = there are none."""
        self._jobs: dict[str, tuple[Task[Any, Any, Any], NewJob]] = {}
        self._last = Before([], "list", empty=True)

    def operations(self) -> Iterator[EnqueueMany]:
        """What is sent: as many jobs at once as one request takes."""
        if self.app is not None:
            for some in _sent_together([new for _, new in self._jobs.values()]):
                yield EnqueueMany(tenant=self.app.tenant, jobs=some, exact=True)

    def batch(self) -> "Batch[Any]":
        jobs = {id: task.job(id) for id, (task, _) in self._jobs.items()}
        ends = [] if self._last.empty else [jobs[id] for id in self._last.ids]
        return Batch(self.app, [*jobs.values()], ends, many=self._last.with_results == "list")

    def place_last(self, step: Workflow, before: "Before | None" = None) -> None:
        """Add the jobs of the whole workflow."""
        self._last = self.place(step, before)

    def place(self, step: Workflow, before: Before | None) -> Before:
        """Add the jobs of a step; what the next one follows."""
        if isinstance(step, Signature):
            return self._place_call(step, before)
        if isinstance(step, CallGroup):
            if not step.members:
                return Before(before.ids if before else [], "list", empty=True)
            return Before([id for member in step.members for id in self.place(member, before).ids], "list")
        last = before
        for one in cast("CallChain", step).steps:
            last = self.place(one, last)
        if last is None or last is before:
            raise Invalid("a chain has at least one step", at="chain")
        return last

    def _place_call(self, call: Signature[Any], before: Before | None) -> Before:
        task, plan = call.task, call.task.plan
        if before is None or call.immutable:
            payload = plan.pack(call.args, call.kwargs)
        elif before.empty:
            payload = plan.pack(([], *call.args), call.kwargs)
        else:
            payload = plan.pack_rest(call.args, call.kwargs)
        new = task.with_payload(payload)
        if new.unique is not None:  # it might join another job, whose id is not known here
            raise Invalid(f"{task.name} is unique: in a workflow use {task.name}.using(unique=None)", at="unique")
        if before is not None and before.ids:
            passed = None if call.immutable or before.empty else before.with_results
            new = _waiting(new, before.ids, passed)
        if self.app not in (None, task.app):
            raise Invalid("all tasks of a workflow must be of one app", at="workflow")
        self.app = task.app
        id = new.id or keyed_id(task.app.tenant, new.queue, new.key or "")
        self._jobs[id] = task, new
        return Before([id], "one")


def _waiting(new: NewJob, ids: list[str], with_results: WithResults | None) -> NewJob:
    if new.after or new.with_results:
        raise Invalid(f"{new.task} waits for the step before it: leave out after and with_results", at="after")
    if len(ids) > MOST_PARENTS:
        raise Invalid(f"{new.task} would wait for {len(ids)} jobs, at most {MOST_PARENTS} are allowed", at="after")
    return replace(new, after=ids, with_results=with_results)


def _sent_together(news: Sequence[NewJob]) -> Iterator[list[NewJob]]:
    """All of them, in parts that one request takes."""
    sizes = list(accumulate(len(memoryview(new.payload)) for new in news))
    start = 0
    while start < len(news):
        sent = sizes[start - 1] if start else 0
        end = start + 1
        while end < len(news) and end - start < MOST_AT_ONCE and sizes[end] - sent <= MOST_BYTES:
            end += 1
        yield [*news[start:end]]
        start = end


# The handle


class Batch(Generic[R]):
    """Jobs that were queued, as one: those of a workflow, or any."""

    def __init__(self, app: "Windlass | None", jobs: list[Job[Any]], ends: list[Job[Any]], *, many: bool) -> None:
        self.jobs = jobs
        """All of them, each behind those that it waits for."""
        self._app = app
        self._ends = ends
        self._many = many

    def progress(self) -> BatchProgress:
        """How many jobs have ended, and how many are in which state; asks the queue each time."""
        return _sum(app.ask(GetProgress(ids=ids)) for app, ids in self._parts())

    async def aprogress(self) -> BatchProgress:
        """The same in asynchronous code."""
        return _sum([await app.aask(GetProgress(ids=ids)) for app, ids in self._parts()])

    def wait(self, timeout: Duration | None = None) -> BatchProgress:
        """Wait until all jobs have ended, in whatever way. Raises `TimeoutError` if they have not in time."""
        until = _until(timeout)
        return _sum(self._ended(app, ids, until) for app, ids in self._parts())

    async def await_end(self, timeout: Duration | None = None) -> BatchProgress:  # noqa: ASYNC109 - as with results
        """The same in asynchronous code."""
        until = _until(timeout)
        return _sum([await self._aended(app, ids, until) for app, ids in self._parts()])

    def result(self, timeout: Duration | None = None) -> R:
        """The result of the last step, waiting for it; if that is a group, the list of its results.

        Raises `TimeoutError`, and `JobFailed` if a job that it takes ended without a result.
        """
        until = _until(timeout)
        found = [job.result(_left(until)) for job in self._ends]
        return cast("R", found if self._many else found[0])

    async def aresult(self, timeout: Duration | None = None) -> R:  # noqa: ASYNC109
        """The same in asynchronous code."""
        until = _until(timeout)
        found = [await job.aresult(_left(until)) for job in self._ends]
        return cast("R", found if self._many else found[0])

    def cancel(self) -> int:
        """Cancel all jobs that have not ended; how many."""
        # The last ones first: those that wait for others would be cancelled with the reason `dependency`.
        return sum(app.ask(Cancel(ids=ids[::-1])).changed for app, ids in reversed([*self._parts()]))

    async def acancel(self) -> int:
        """The same in asynchronous code."""
        return sum([(await app.aask(Cancel(ids=ids[::-1]))).changed for app, ids in reversed([*self._parts()])])

    def on_complete(self, step: "Signature[Any] | Task[Any, Any, Any]") -> Job[Any]:
        """Queue a call that runs once all jobs have ended, in whatever way.

        Its first argument is the list of their results, in the order of `jobs`, None for each that has none.
        """
        return self._completion(step).enqueue().jobs[0]

    async def aon_complete(self, step: "Signature[Any] | Task[Any, Any, Any]") -> Job[Any]:
        """The same in asynchronous code."""
        return (await self._completion(step).aenqueue()).jobs[0]

    def _completion(self, step: "Signature[Any] | Task[Any, Any, Any]") -> "_Completion":
        call = _step(step)
        if not isinstance(call, Signature):
            raise Invalid("on_complete takes one call: task.s(…), or a task", at="on_complete")
        return _Completion(call, [job.id for job in self.jobs])

    def _parts(self) -> "Iterator[tuple[Windlass, list[str]]]":
        """The ids of all jobs, as many at a time as one request takes."""
        for start in range(0, len(self.jobs), MOST_AT_ONCE):
            assert self._app is not None  # noqa: S101 - jobs have one
            yield self._app, [job.id for job in self.jobs[start : start + MOST_AT_ONCE]]

    def _ended(self, app: "Windlass", ids: list[str], until: float | None) -> BatchProgress:
        while True:
            found = app.ask(GetProgress(ids=ids, wait=_wait(until)))
            if _is_over(found, until):
                return found

    async def _aended(self, app: "Windlass", ids: list[str], until: float | None) -> BatchProgress:
        while True:
            found = await app.aask(GetProgress(ids=ids, wait=_wait(until)))
            if _is_over(found, until):
                return found

    def __len__(self) -> int:
        return len(self.jobs)

    def __repr__(self) -> str:
        return f"<batch of {len(self.jobs)} jobs>"


class _Completion(Workflow):
    """A call that waits for all jobs of a batch, however they end."""

    def __init__(self, call: Signature[Any], ids: list[str]) -> None:
        task = call.task.using(after_failure="run")
        self._call = Signature(task, call.args, call.kwargs, immutable=call.immutable)
        self._ids = ids

    def _planned(self) -> Plan:
        plan = Plan()
        plan.place_last(self._call, Before(self._ids, "list", empty=not self._ids))
        return plan


def _sum(parts: Iterable[BatchProgress]) -> BatchProgress:
    total, done, states = 0, 0, Counter[State]()
    for part in parts:
        total, done = total + part.total, done + part.done
        states.update(part.states)
    return BatchProgress(total, done, dict(states))


def _until(timeout: Duration | None) -> float | None:
    return None if timeout is None else _clock.monotonic() + seconds(timeout, at="timeout")


def _left(until: float | None) -> float | None:
    return None if until is None else max(0.0, until - _clock.monotonic())


def _wait(until: float | None) -> float:
    left = _left(until)
    return MOST_WAIT if left is None else min(MOST_WAIT, left)


def _is_over(progress: BatchProgress, until: float | None) -> bool:
    """Whether all of these jobs have ended."""
    pending = progress.total - progress.done
    if pending and until is not None and _clock.monotonic() >= until:
        raise TimeoutError(f"at least {pending} jobs of the batch have not ended in time: wait again, or cancel them")
    return not pending
