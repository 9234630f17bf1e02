"""Dependencies of a task: parameters whose values come from a provider instead of the payload.

`Depends(provider)` stands in the annotation of a parameter or is its default. A provider is a function or a class; one
that is a generator is finished when the run has ended. Knows how values are made; `hooks` knows when.
"""

import contextlib
import inspect
from collections.abc import Callable, Collection, Coroutine, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from typing import Annotated, Any, TypeVar, get_args, get_origin

from windlass.model.errors import Invalid

T = TypeVar("T")

Provider = Callable[..., Any]

NAMED = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


class Provided:
    """Marks a parameter: its value is what this provider makes."""

    __slots__ = ("provider",)

    def __init__(self, provider: Provider) -> None:
        if not callable(provider):
            raise Invalid(f"Depends takes a function that makes the value, not {provider!r}", at="Depends")
        self.provider = provider

    def __repr__(self) -> str:
        return f"Depends({name_of(self.provider)})"


def Depends(provider: Provider) -> Any:  # noqa: N802 - as it is called elsewhere
    """The value of this parameter comes from `provider`, in each run; it is never part of the payload.

    In the annotation, `db: Annotated[Pool, Depends(get_pool)]`, or as the default, `db: Pool = Depends(get_pool)`: then
    type checkers know that `enqueue` may leave it out.
    """
    return Provided(provider)


def name_of(function: Provider) -> str:
    return str(getattr(function, "__qualname__", repr(function)))


def providers_of(called: str, signature: inspect.Signature, hints: Mapping[str, Any]) -> dict[str, Provider]:
    """The parameters that are dependencies, and the providers of their values."""
    found: dict[str, Provider] = {}
    plain = all(parameter.kind in NAMED for parameter in signature.parameters.values())
    for name, parameter in signature.parameters.items():
        dependency = _dependency(parameter, hints.get(name))
        if dependency is None:
            _check_readable(called, parameter, hints)
        elif not plain and parameter.kind is not inspect.Parameter.KEYWORD_ONLY:
            advice = f"{name!r} must stand behind a *, because other parameters have no names, or any name"
            raise Invalid(f"{called}{signature}: {advice}", at="Depends")
        else:
            found[name] = dependency.provider
    return found


def _dependency(parameter: inspect.Parameter, hint: Any) -> Provided | None:
    if isinstance(parameter.default, Provided):
        return parameter.default
    if get_origin(hint) is Annotated:
        return next((one for one in get_args(hint) if isinstance(one, Provided)), None)
    return None


def _check_readable(called: str, parameter: inspect.Parameter, hints: Mapping[str, Any]) -> None:
    """An annotation that cannot be read must not hide a dependency: it would become part of the payload."""
    annotation = parameter.annotation
    if isinstance(annotation, str) and "Depends(" in annotation and parameter.name not in hints:
        advice = "import what it names where it can be found at run time, or write = Depends(…)"
        raise Invalid(f"{called}: the annotation {annotation!r} cannot be read: {advice}", at="Depends")


# What a provider needs itself


def needs(provider: Provider) -> dict[str, Provider]:
    """The dependencies of a provider. Its other parameters must have defaults."""
    signature = inspect.signature(provider)
    found = providers_of(name_of(provider), signature, _hints(provider))
    for name, parameter in signature.parameters.items():
        if name not in found and parameter.default is inspect.Parameter.empty and parameter.kind in NAMED:
            raise Invalid(
                f"{name_of(provider)}{signature} provides a value, and nothing provides its {name!r}: "
                "give it a default, or Depends(…)",
                at="Depends",
            )
    return found


def _hints(provider: Provider) -> dict[str, Any]:
    function = provider
    if inspect.isclass(provider):
        function = provider.__init__
    elif not inspect.isroutine(provider):
        function = type(provider).__call__
    try:
        return inspect.get_annotations(function, eval_str=True)
    except (NameError, TypeError, AttributeError):
        return {name: one for name, one in inspect.get_annotations(function).items() if not isinstance(one, str)}


def is_async(provider: Provider) -> bool:
    """Whether its value can be had only in an event loop."""
    inner = inspect.unwrap(provider)
    return inspect.iscoroutinefunction(inner) or inspect.isasyncgenfunction(inner)


def check_chain(called: str, wanted: Mapping[str, Provider], *, opened: Collection[Provider], in_loop: bool) -> None:
    """Refuse now what would fail in every run: a circle, or a provider that needs an event loop where there is none.

    `opened`: lifespans, whose values are there already.
    """

    def check(wanted: Mapping[str, Provider], path: tuple[Provider, ...]) -> None:
        for provider in wanted.values():
            if provider in opened:
                continue
            if provider in path:
                circle = " → ".join(map(name_of, (*path, provider)))
                raise Invalid(f"{called}: its dependencies form a circle: {circle}", at="Depends")
            if not in_loop and is_async(provider):
                raise Invalid(
                    f"{called} is a plain function, and {name_of(provider)}, which it depends on, is asynchronous: "
                    "make the task an async function, or the provider a plain one",
                    at="Depends",
                )
            check(needs(provider), (*path, provider))

    check(wanted, ())


# Values


class Values:
    """The values of dependencies in one run. Each provider is called once; `stack` finishes generators."""

    def __init__(
        self, stack: AsyncExitStack, opened: Mapping[Provider, Any], overrides: Mapping[Provider, Provider]
    ) -> None:
        self._stack = stack
        self._opened = opened
        self._overrides = overrides
        self._made: dict[Provider, Any] = {}

    async def of(self, wanted: Mapping[str, Provider]) -> dict[str, Any]:
        return {name: await self.value(provider) for name, provider in wanted.items()}

    async def value(self, provider: Provider) -> Any:
        provider = self._overrides.get(provider, provider)
        if provider in self._opened:
            return self._opened[provider]
        if provider not in self._made:
            self._made[provider] = await self._make(provider, await self.of(needs(provider)))
        return self._made[provider]

    async def _make(self, provider: Provider, given: dict[str, Any]) -> Any:
        if inspect.isasyncgenfunction(provider):
            return await self._stack.enter_async_context(asynccontextmanager(provider)(**given))
        if inspect.isgeneratorfunction(provider):
            return self._stack.enter_context(contextmanager(provider)(**given))
        made = provider(**given)
        if inspect.isawaitable(made):
            made = await made
        if isinstance(made, contextlib._AsyncGeneratorContextManager):  # noqa: SLF001 - it was decorated as one
            return await self._stack.enter_async_context(made)
        if isinstance(made, contextlib._GeneratorContextManager):  # noqa: SLF001
            return self._stack.enter_context(made)
        return made


def driven(what: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine that has nothing to wait for, without an event loop."""
    try:
        what.send(None)
    except StopIteration as end:
        value: T = end.value
        return value
    what.close()
    raise Invalid("an asynchronous provider cannot be used by a plain function: make it async", at="Depends")
