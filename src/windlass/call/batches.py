"""Tasks that take several calls at once: a batch is one call of the function, and each call in it is a job of its own.

Knows how the signature of such a function is that of one call; a worker decides which calls make a batch.
"""

import collections.abc
import inspect
import types
import typing
from collections.abc import Callable, Mapping
from typing import Any, get_args, get_origin

from windlass.call.arguments import CallSignature
from windlass.call.dependencies import NAMED, providers_of
from windlass.model.duration import seconds
from windlass.model.errors import Invalid
from windlass.model.worker import BatchOptions

MOST_CALLS = 1000
"""Of a batch."""

DEFAULT_WITHIN = 1.0
"""Seconds in which one is gathered, unless its task says more or less."""

LONGEST_WITHIN = 60.0
"""The same at most."""

LISTS = (list, collections.abc.Sequence, collections.abc.Collection, collections.abc.Iterable)
"""What a list of calls may be annotated with."""


def batch_options(batch: Any, within: Any, options: Mapping[str, Any]) -> BatchOptions:
    """What was said of a task's batches, checked."""
    if type(batch) is not int or not 1 <= batch <= MOST_CALLS:
        raise Invalid(f"{batch!r} is no number of calls: 1 to {MOST_CALLS}", at="batch")
    for name in ("isolate", "input", "stdin"):
        if options.get(name):
            raise Invalid(f"jobs with {name} run alone, not in a batch: leave one of them out", at=name)
    found = BatchOptions(batch, seconds(within, at="within"))
    if found.within > LONGEST_WITHIN:
        raise Invalid(f"at most {LONGEST_WITHIN:g} s: the first call waits so long for others", at="within")
    if (timeout := options.get("timeout")) is not None and seconds(timeout, at="timeout") <= found.within:
        raise Invalid(
            f"a run begins when it is claimed: it must be longer than within, {found.within:g} s", at="timeout"
        )
    return found


class BatchSignature(CallSignature):
    """How one call is sent to a function that takes a list of them."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__(function)
        hints = super()._read_hints()
        others = providers_of(self._called, self._whole, hints)
        sent = [one for name, one in self._whole.parameters.items() if name not in others]
        advice = "a task that takes batches has one parameter without a default, the list of calls, and dependencies"
        if len(sent) != 1 or sent[0].kind not in NAMED or sent[0].default is not inspect.Parameter.empty:
            raise Invalid(f"{self._called}{self._whole}: {advice}", at="batch")
        self.item = sent[0].name
        """The parameter that gets the list."""
        hint = hints.get(self.item, Any)
        if hint is not Any and not _is_list(hint):
            raise Invalid(f"{self._called}{self._whole}: {self.item} gets a list: annotate it so, list[…]", at="batch")

    def _read_hints(self) -> dict[str, Any]:
        """Of one call: what is in the lists."""
        hints = super()._read_hints()
        hints[self.item] = _item_of(hints.get(self.item, Any))
        if (result := hints.get("return")) is not None:
            hints["return"] = _without_exceptions(_item_of(result)) if _is_list(result) else result
        return hints


def _is_list(hint: Any) -> bool:
    return hint in LISTS or get_origin(hint) in LISTS


def _item_of(hint: Any) -> Any:
    """The type of the items of a list; anything, if that is not said."""
    return get_args(hint)[0] if get_args(hint) else Any


def _without_exceptions(hint: Any) -> Any:
    """The type of a result, where an exception may stand in its place."""
    if get_origin(hint) not in (typing.Union, types.UnionType):
        return hint
    kept = [one for one in get_args(hint) if not (isinstance(one, type) and issubclass(one, BaseException))]
    return typing.Union[tuple(kept)] if kept else Any  # noqa: UP007 - of types that are known only now
