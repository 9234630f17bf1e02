"""What an app has around its tasks: lifespans of its processes, hooks around each run, hooks around forks.

One `Hooks` belongs to each app. A task that none of this concerns is run as it is. Knows no process: a context says
when it opens and closes, and the tests of `app.testing` say it for each run.
"""

import asyncio
import inspect
from collections.abc import AsyncIterator, Callable, Generator, Iterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, nullcontext
from typing import Any, Protocol

from msgspec import Struct

from windlass.call.arguments import CallSignature
from windlass.call.current import RunningJob, running
from windlass.call.dependencies import Provider, Values, check_chain, driven, is_async, name_of
from windlass.call.signals import ErrorRules
from windlass.model.errors import Invalid


class TaskCode(Protocol):
    """A task of the user's app, as far as running it goes."""

    @property
    def function(self) -> Callable[..., Any]: ...

    @property
    def plan(self) -> CallSignature: ...

    @property
    def errors(self) -> ErrorRules: ...

    @property
    def soft_timeout(self) -> float | None: ...


class TaskOutcome(Struct, frozen=True):
    """How a run ended, as a hook around it sees that."""

    result: Any = None
    """What the task returned."""
    error: BaseException | None = None
    """What it raised; null = it returned."""


Around = Callable[[RunningJob], Generator[None, TaskOutcome, None]]


class WrappedTask(Struct, frozen=True):
    """A task with what is around it."""

    function: Callable[..., Any]
    plan: CallSignature
    errors: ErrorRules
    soft_timeout: float | None


class HookFailed(Exception):
    """A process of the app cannot run jobs, because a hook has failed; the cause says why."""


class Hooks:
    """The hooks of one app."""

    def __init__(self) -> None:
        self.lifespans: list[Provider] = []
        self.around: list[Around] = []
        self.before_fork: list[Callable[[], object]] = []
        self.after_fork: list[Callable[[], object]] = []
        self.overrides: dict[Provider, Provider] = {}
        """Providers that stand in for others, inside a test."""
        self.opened: dict[Provider, Any] = {}
        """What the lifespans of this process have yielded."""

    @property
    def concern_processes(self) -> bool:
        """Whether a context has anything to do before its first job, or after its last."""
        return bool(self.lifespans or self.before_fork or self.after_fork)

    # Processes

    @asynccontextmanager
    async def process(self) -> AsyncIterator[None]:
        """The life of a context: what its lifespans yield is there meanwhile. Raises `HookFailed` before that."""
        for hook in self.after_fork:
            try:
                hook()
            except Exception as fault:
                raise HookFailed(f"after_fork {name_of(hook)}") from fault
        async with AsyncExitStack() as stack:
            await self._open(stack, self.opened)
            try:
                yield
            finally:
                self.opened.clear()

    @asynccontextmanager
    async def lifespans_of_a_run(self) -> AsyncIterator[Mapping[Provider, Any]]:
        """The lifespans, opened for one run, as inside a test."""
        async with AsyncExitStack() as stack:
            opened: dict[Provider, Any] = {}
            await self._open(stack, opened)
            yield opened

    async def _open(self, stack: AsyncExitStack, opened: dict[Provider, Any]) -> None:
        values = Values(stack, opened, self.overrides)
        for one in self.lifespans:
            try:
                value = await values.value(one)
            except Exception as fault:
                raise HookFailed(f"lifespan {name_of(one)}") from fault
            opened[self.overrides.get(one, one)] = value

    @contextmanager
    def process_without_loop(self) -> Iterator[None]:
        """The life of a context that runs a plain function in its main thread."""
        asynchronous = any(is_async(one) for one in self.lifespans)
        with asyncio.Runner() if asynchronous else nullcontext() as runner:
            run = driven if runner is None else runner.run
            life = self.process()
            run(life.__aenter__())
            try:
                yield
            finally:
                run(life.__aexit__(None, None, None))

    # Runs

    def wrap(self, task: TaskCode, opened: Mapping[Provider, Any] | None = None) -> TaskCode:
        """The task with its dependencies and with the hooks around it. `opened`: what lifespans have yielded."""
        if not (self.around or task.plan.dependencies):
            return task
        values = self.opened if opened is None else opened
        self.check(task)
        if inspect.iscoroutinefunction(task.function):

            async def awaits(*args: Any, **kwargs: Any) -> Any:
                return await self._run(task, values, args, kwargs)

            return WrappedTask(awaits, task.plan, task.errors, task.soft_timeout)

        def calls(*args: Any, **kwargs: Any) -> Any:
            return driven(self._run(task, values, args, kwargs))

        return WrappedTask(calls, task.plan, task.errors, task.soft_timeout)

    def check(self, task: TaskCode) -> None:
        """Refuse a task whose dependencies cannot be provided."""
        in_loop = inspect.iscoroutinefunction(task.function)
        check_chain(name_of(task.function), task.plan.dependencies, opened=self.lifespans, in_loop=in_loop)

    async def _run(
        self, task: TaskCode, opened: Mapping[Provider, Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        begun: list[tuple[Around, Generator[None, TaskOutcome, None]]] = []
        try:
            for hook in self.around:
                begun.append((hook, _begin(hook)))  # noqa: PERF401 - those that have begun must be known if one fails
            outcome = TaskOutcome(await self._call(task, opened, args, kwargs))
        except BaseException as fault:  # noqa: BLE001 - whatever ends a run is its outcome
            outcome = TaskOutcome(error=fault)
        for hook, rest in reversed(begun):
            try:
                _end(hook, rest, outcome)
            except BaseException as fault:  # noqa: BLE001
                outcome = TaskOutcome(error=fault)
        if outcome.error is not None:
            raise outcome.error
        return outcome.result

    def call(self, task: TaskCode, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """A plain call of a task with dependencies: those that it is not given are made for it."""
        if inspect.iscoroutinefunction(task.function):
            return self._call(task, self.opened, args, kwargs)
        return driven(self._call(task, self.opened, args, kwargs))

    async def _call(
        self, task: TaskCode, opened: Mapping[Provider, Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        wanted, raised = task.plan.dependencies_left(args, kwargs), None
        async with AsyncExitStack() as stack:
            try:
                given = await Values(stack, opened, self.overrides).of(wanted)
                result = task.function(*args, **kwargs, **given)
                return await result if inspect.isawaitable(result) else result
            except BaseException as fault:
                raised = fault
                raise
        raise raised or AssertionError  # a provider has kept it to itself


def _begin(hook: Around) -> Generator[None, TaskOutcome, None]:
    begun = hook(running.get().job)
    try:
        next(begun)
    except StopIteration:
        raise Invalid(f"{name_of(hook)}, a hook around runs, must yield once: it did not", at="around") from None
    return begun


def _end(hook: Around, begun: Generator[None, TaskOutcome, None], outcome: TaskOutcome) -> None:
    try:
        begun.send(outcome)
    except StopIteration:
        return
    begun.close()
    raise Invalid(f"{name_of(hook)}, a hook around runs, must yield once: it did so again", at="around")
