"""`step`: durable steps of a task. The result of each is kept with the job before the task goes on, so that another
run of the job gets it instead of running the step again.

Knows which steps this run has begun and what earlier ones have finished; a runner says how these reach the queue.
"""

import asyncio
import functools
import re
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any, ParamSpec, Protocol, TypeVar, cast, overload

import msgspec

from windlass.call.arguments import CallSignature
from windlass.call.current import running
from windlass.call.signals import Fail, Suspended
from windlass.model.duration import seconds
from windlass.model.errors import Invalid
from windlass.model.job import MSGPACK
from windlass.model.steps import MOST_STEP_BYTES, MOST_STEP_NAME

P = ParamSpec("P")
T = TypeVar("T")

PRINTABLE = re.compile(r"[^\x00-\x1f\x7f]+")

NEARLY = 0.001
"""Seconds of a sleep that are not worth another run."""


class SavedStep(Protocol):
    """A step that an earlier run has finished."""

    @property
    def name(self) -> str: ...

    @property
    def result(self) -> bytes: ...

    @property
    def age(self) -> float:
        """Seconds since it finished, when this run asked."""
        ...


class StepLink(Protocol):
    """How one run reaches the steps that are kept with its job. The first of each pair waits in this thread."""

    in_loop: bool
    """Whether the run is a coroutine in the loop that brings the answers: then that must not wait."""

    def load(self) -> list[Any]: ...

    async def aload(self) -> list[Any]: ...

    def save(self, name: str, result: bytes) -> None:
        """Raises `Fail` if it cannot be kept."""
        ...

    async def asave(self, name: str, result: bytes) -> None: ...

    def answer(self, answer: Any) -> None:
        """What was asked is answered."""
        ...

    def close(self) -> None:
        """The run must stop: nothing more is answered."""
        ...


class RunSteps:
    """The steps of one run."""

    def __init__(self, link: StepLink) -> None:
        self.link = link
        self._begun: set[str] = set()
        self._sleeps = 0
        self._saved: dict[str, SavedStep] | None = None

    def begin(self, name: str) -> None:
        if not isinstance(name, str) or len(name) > MOST_STEP_NAME or not PRINTABLE.fullmatch(name):
            raise Invalid(
                f"the name of a step is a text of up to {MOST_STEP_NAME} characters, not {name!r:.200}", at="step"
            )
        if name in self._begun:
            advice = "each step of a job needs a name of its own; in a loop, let the name say which round it is"
            raise Invalid(f"step {name!r} was run already: {advice}", at="step")
        self._begun.add(name)

    def name_sleep(self) -> str:
        self._sleeps += 1
        return f"sleep {self._sleeps}"

    def load(self) -> dict[str, SavedStep]:
        if self._saved is None:
            self._saved = {one.name: one for one in self.link.load()}
        return self._saved

    async def aload(self) -> dict[str, SavedStep]:
        if self._saved is None:
            self._saved = {one.name: one for one in await self.link.aload()}
        return self._saved


class SyncSteps:
    """`step` for a plain function."""

    def __call__(self, name: str, function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Run a step, or answer what it returned in an earlier run of this job."""
        steps = _steps()
        if steps is None:
            return function(*args, **kwargs)
        _check_may_wait(steps)
        steps.begin(name)
        result = _Result(name, function)
        if (saved := steps.load().get(name)) is not None:
            return cast("T", result.read(saved.result))
        value, packed = result.pack(function(*args, **kwargs))
        steps.link.save(name, packed)
        return cast("T", value)

    def sleep(self, duration: float | str | timedelta, *, name: str | None = None) -> None:
        """Go on after so long; see `step.sleep`."""
        steps = _steps()
        if steps is None:
            return
        _check_may_wait(steps)
        name = steps.name_sleep() if name is None else name
        steps.begin(name)
        if (saved := steps.load().get(name)) is None:
            after = seconds(duration, at="duration")
            steps.link.save(name, msgspec.msgpack.encode(after))
            raise Suspended(after)
        _check_slept(saved)


class Steps:
    """Durable steps of the job that this code runs for.

    In a plain call of a task there is no job: a step is then a call like any other, and a sleep returns at once.
    """

    sync = SyncSteps()
    """The same for plain functions: `step.sync("charge", charge, order)`, `step.sync.sleep("3d")`."""

    @overload
    async def __call__(
        self, name: str, function: Callable[P, Awaitable[T]], /, *args: P.args, **kwargs: P.kwargs
    ) -> T: ...

    @overload
    async def __call__(self, name: str, function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T: ...

    async def __call__(self, name: str, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """Run a step, or answer what it returned in an earlier run of this job.

        The result is kept before this returns; it must be something that a task could return. The name is the step's
        own: no other step of the job may have it. A step that raises is not finished, and runs again with its job.
        """
        steps = _steps()
        if steps is None:
            return await _called(function, args, kwargs)
        steps.begin(name)
        result = _Result(name, function)
        if (saved := (await steps.aload()).get(name)) is not None:
            return result.read(saved.result)
        value, packed = result.pack(await _called(function, args, kwargs))
        await steps.link.asave(name, packed)
        return value

    async def sleep(self, duration: float | str | timedelta, *, name: str | None = None) -> None:
        """Go on after so long: this run ends here and frees its slot, the job is scheduled, and its next run comes back
        to this line and passes it. No attempt is used.

        Without a `name`, sleeps are named in the order in which the task comes to them.
        """
        steps = _steps()
        if steps is None:
            return
        name = steps.name_sleep() if name is None else name
        steps.begin(name)
        if (saved := (await steps.aload()).get(name)) is None:
            after = seconds(duration, at="duration")
            await steps.link.asave(name, msgspec.msgpack.encode(after))
            raise Suspended(after)
        _check_slept(saved)


def _steps() -> RunSteps | None:
    run = running.get(None)
    return None if run is None else run.steps


def _check_may_wait(steps: RunSteps) -> None:
    if not steps.link.in_loop:
        return
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return  # in a thread of its own
    raise Invalid("step.sync would block the event loop: write `await step(…)` in a coroutine", at="step")


async def _called(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    value = function(*args, **kwargs)
    return await value if asyncio.iscoroutine(value) or isinstance(value, Awaitable) else value


def _check_slept(saved: SavedStep) -> None:
    left: float = msgspec.msgpack.decode(saved.result, type=float) - saved.age
    if left > NEARLY:
        raise Suspended(left)  # it was run before its time


class _Result:
    """The result of one step, as it is kept and as its function is annotated."""

    def __init__(self, name: str, function: Callable[..., Any]) -> None:
        self._name = name
        self._plan = _plan_of(function)

    def read(self, packed: bytes) -> Any:
        try:
            return self._plan.unpack_result(packed, MSGPACK)
        except Invalid as fault:
            raise Fail(f"step {self._name!r}: what an earlier run has kept does not fit: {fault}") from None

    def pack(self, value: Any) -> tuple[Any, bytes]:
        """The result as another run would get it, and how it is kept. What cannot be kept is not run again."""
        try:
            packed = self._plan.pack_result(value)
            read = self._plan.unpack_result(packed, MSGPACK)
        except Invalid as fault:
            raise Fail(f"step {self._name!r}: {fault}") from None
        if len(packed) > MOST_STEP_BYTES:
            bound = f"its result has {len(packed)} bytes, at most {MOST_STEP_BYTES} are kept of all steps of a job"
            raise Fail(f"step {self._name!r}: {bound}: keep it elsewhere, and return where it is")
        return read, packed


def _anything() -> Any: ...


def _plan_of(function: Callable[..., Any]) -> CallSignature:
    while isinstance(function, functools.partial):
        function = function.func
    try:
        return CallSignature(function)
    except (TypeError, ValueError):  # a builtin may have no signature
        return CallSignature(_anything)


step = Steps()
