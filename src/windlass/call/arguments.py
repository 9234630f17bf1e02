"""A function's signature as a plan: arguments to a payload, a payload to arguments, a result to its type.

A payload that is a map becomes keyword arguments, an array positional ones, anything else the single argument; nil, the
payload of a job that was given none, is no argument at all where none is required. A result that is passed on by `then`
is always the single argument. What we send ourselves is a map of
names to values, unless the signature has places without names: then it is [places, names]. Types are those that msgspec
knows (numbers, texts, bytes, dates, enums, UUIDs, paths, dataclasses, TypedDicts …), and pydantic's models.
"""

import functools
import inspect
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from pathlib import PurePath
from types import SimpleNamespace
from typing import Any

import msgspec
from msgspec import Struct

from windlass.call.dependencies import NAMED, Provider, providers_of
from windlass.model.errors import Invalid
from windlass.model.job import JSON, MSGPACK, TEXT
from windlass.model.new_job import NOTHING
from windlass.model.wire import UNENCODABLE, invalid

ABSENT: Any = object()
"""Stands for an argument that was not sent: the function's own default applies."""

MAPS = frozenset({*range(0x80, 0x90), 0xDE, 0xDF})
"""Bytes that begin a map in MessagePack."""

MOST_IN_SHORT_MAP = 15

SIMPLE = (str, bytes, int, float, bool)

Arguments = tuple[tuple[Any, ...], dict[str, Any]]


def to_plain(value: Any) -> Any:
    """What msgspec cannot encode by itself: pydantic models and paths, and nothing else."""
    if isinstance(value, PurePath):
        return str(value)
    dump = getattr(type(value), "model_dump", None)
    if dump is not None:
        return dump(value, mode="python", by_alias=True, round_trip=True)
    raise TypeError(f"a {type(value).__name__} cannot be sent: use plain values, dataclasses or models")


def from_plain(kind: type, value: Any) -> Any:
    """The same the other way round."""
    if isinstance(value, str) and isinstance(kind, type) and issubclass(kind, PurePath):
        return kind(value)
    validate = getattr(kind, "model_validate", None)
    if validate is None:
        raise TypeError(f"a {getattr(kind, '__name__', kind)} cannot be received")
    try:
        return validate(value)
    except ValueError as fault:
        raise ValueError(_in_one_line(fault)) from None


def _in_one_line(fault: ValueError) -> str:
    """What pydantic complains of, without its pages of advice."""
    errors = getattr(fault, "errors", None)
    if errors is None:
        return str(fault)
    return "; ".join(f"{'.'.join(map(str, one['loc']))}: {one['msg']}".removeprefix(": ") for one in errors())


_encoder = msgspec.msgpack.Encoder(enc_hook=to_plain)


class CallSignature:
    """How one function is called through the queue."""

    # Read when first needed: annotations, and so what is a dependency, may name what is defined further down.

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function
        self._whole = inspect.signature(function)
        self._called = getattr(function, "__name__", type(function).__name__)

    @cached_property
    def dependencies(self) -> dict[str, Provider]:
        """Parameters that are no part of the payload, and who provides their values."""
        return providers_of(self._called, self._whole, self._hints)

    def dependencies_left(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Provider]:
        """Those that a call does not give itself."""
        given = self._whole.bind_partial(*args, **kwargs).arguments
        return {name: provider for name, provider in self.dependencies.items() if name not in given}

    @cached_property
    def signature(self) -> inspect.Signature:
        """Of a call through the queue: without dependencies."""
        if not self.dependencies:
            return self._whole
        sent = [one for name, one in self._whole.parameters.items() if name not in self.dependencies]
        return self._whole.replace(parameters=sent)

    @cached_property
    def _plain(self) -> bool:
        return all(parameter.kind in NAMED for parameter in self.signature.parameters.values())

    @cached_property
    def _names(self) -> tuple[str, ...]:
        return tuple(self.signature.parameters)

    @cached_property
    def _has_defaults(self) -> bool:
        return any(one.default is not inspect.Parameter.empty for one in self.signature.parameters.values())

    @cached_property
    def _bounds(self) -> tuple[int, int]:
        """How many arguments a call without keywords may have; none will do if some are only for keywords."""
        places = [p for p in self.signature.parameters.values() if p.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD]
        required = [p for p in self.signature.parameters.values() if p.default is inspect.Parameter.empty]
        by_place = self._plain and all(p.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD for p in required)
        return (len(required), len(places)) if by_place else (1, 0)

    @cached_property
    def _hints(self) -> dict[str, Any]:
        return self._read_hints()

    def _read_hints(self) -> dict[str, Any]:
        try:
            return typing.get_type_hints(self._function, include_extras=True)
        except (NameError, TypeError, AttributeError):
            return dict(_readable_hints(self._function))

    @cached_property
    def _decoder(self) -> "msgspec.msgpack.Decoder[Any]":
        return msgspec.msgpack.Decoder(self._struct, dec_hook=from_plain)

    @cached_property
    def _spellings(self) -> list[tuple[bytes, type]]:
        """All names as they are sent, and their types, if it is enough for a value to be of its type; else none."""
        hints = [self._hints.get(name, Any) for name in self._names]
        if len(hints) != self._bounds[1] or len(hints) > MOST_IN_SHORT_MAP or any(hint not in SIMPLE for hint in hints):
            return []
        try:
            _ = self._decoder
        except TypeError:
            return []  # what cannot be received is not sent: `_pack_with_care` raises the error
        return [(_encoder.encode(name), hint) for name, hint in zip(self._names, hints, strict=True)]

    @cached_property
    def _front(self) -> bytes:
        """How a map of all of them begins."""
        return bytes((0x80 | len(self._names),))

    @cached_property
    def _struct(self) -> type[Struct]:
        fields: list[Any] = []
        for name, parameter in self.signature.parameters.items():
            hint = self._hints.get(name, Any)
            if parameter.default is inspect.Parameter.empty:
                fields.append((name, hint))
            else:
                fields.append((name, hint, msgspec.field(default_factory=lambda: ABSENT)))
        try:
            return msgspec.defstruct("Arguments", fields, kw_only=True, forbid_unknown_fields=True, gc=False)
        except RuntimeError:
            raise TypeError("an argument has a name that Python keeps for itself: call it something else") from None

    def prepare(self) -> None:
        """Compute now what the first call would need, so that processes forked later have it."""
        with suppress(TypeError):  # each call says so
            _ = self._decoder

    def pack(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bytes:
        """The payload of a call; refused if the function could not be called so."""
        spellings = self._spellings
        if args and len(args) == len(spellings) and not kwargs:
            # In as few steps as will do: most calls are like this.
            try:
                packed, place = self._front, 0
                for value in args:
                    name, kind = spellings[place]
                    if type(value) is not kind:
                        break
                    packed += name + _encoder.encode(value)
                    place += 1  # noqa: SIM113 - an iterator costs as much as all this
                else:
                    return packed
            except UNENCODABLE:
                pass  # raised below, with its name
        return self._pack_with_care(args, kwargs)

    def _pack_with_care(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bytes:
        least, most = self._bounds
        if least <= len(args) <= most and not kwargs:
            values = dict(zip(self._names, args, strict=False))  # `bind` in one step, for the usual call
        else:
            bound = self._bind(args, kwargs)
            if not self._plain:
                return self._pack_general(bound)
            values = bound.arguments
        try:
            packed = _encoder.encode(values)
            self._decoder.decode(packed)
        except UNENCODABLE as fault:
            raise invalid(fault, at="arguments", kind=self._hints) from None
        return packed

    def _bind(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> inspect.BoundArguments:
        try:
            return self.signature.bind(*args, **kwargs)
        except TypeError as fault:
            raise Invalid(f"{self._called}{self.signature}: {fault}", at="arguments") from None

    def _pack_general(self, bound: inspect.BoundArguments) -> bytes:
        try:
            packed = _encoder.encode([bound.args, bound.kwargs] if self._takes_names else bound.args)
            self._general(msgspec.msgpack.decode(packed), MSGPACK)
        except UNENCODABLE as fault:
            raise invalid(fault, at="arguments") from None
        return packed

    @cached_property
    def takes_one(self) -> bool:
        """Whether it can be called with one argument, as a task that follows another is."""
        try:
            self.signature.bind(None)
        except TypeError:
            return False
        return True

    # Read each time: what an annotation names may be defined further down, after a task that is to follow.

    @property
    def returns(self) -> Any:
        """The type of its result."""
        return self._hints_now().get("return", Any)

    @property
    def takes_first(self) -> Any:
        """The type of its first argument."""
        first = next(iter(self.signature.parameters.values()), None)
        return Any if first is None else self._hints_now().get(first.name, Any)

    def _hints_now(self) -> Mapping[str, Any]:
        return dict(_readable_hints(self._function))

    def pack_rest(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bytes:
        """The payload of a call whose first argument is a result: the other arguments, by name."""
        bound = self._bind((None, *args), kwargs)
        given = dict(bound.arguments)
        if not args and not kwargs:
            return bytes(NOTHING)
        if not self._plain:
            raise Invalid(
                f"{self._called}{self.signature}: arguments besides a result need names, *args and / have none",
                at="arguments",
            )
        del given[self._names[0]]
        try:
            packed = _encoder.encode(given)
            for name, value in msgspec.msgpack.decode(packed).items():
                self._convert(self._hints.get(name, Any), MSGPACK, value, name)
        except UNENCODABLE as fault:
            raise invalid(fault, at="arguments", kind=self._hints) from None
        return packed

    def rest(self, payload: bytes, content_type: str = MSGPACK) -> dict[str, Any]:
        """The other arguments of such a call, as they were sent."""
        given = _value(payload, content_type) or {}
        if not isinstance(given, dict):
            raise TypeError("arguments besides a result are sent by name, in a map")
        return given

    def unpack_rest(self, result: Any, payload: bytes, content_type: str = MSGPACK) -> Arguments:
        """The arguments of such a call."""
        try:
            given = self.rest(payload, content_type)
            if not given:
                return self._one(result, MSGPACK)
            return (), self._present(_convert(self.signature.bind(result, **given).arguments, self._struct, MSGPACK))
        except UNENCODABLE as fault:
            raise invalid(fault, at="arguments", kind=self._hints) from None

    def unpack(self, payload: bytes, content_type: str = MSGPACK, *, one: bool = False) -> Arguments:
        """The arguments that a payload stands for. `one`: it is one argument, whatever it is."""
        try:
            if one:
                return self._one(_value(payload, content_type), content_type)
            if content_type == MSGPACK and self._plain and payload and payload[0] in MAPS:
                return (), self._present(self._decoder.decode(payload))
            return self._arguments(_value(payload, content_type), content_type)
        except UNENCODABLE as fault:
            raise invalid(fault, at="arguments", kind=self._hints) from None

    def _present(self, found: Struct) -> dict[str, Any]:
        values = msgspec.structs.asdict(found)
        if self._has_defaults:
            return {name: value for name, value in values.items() if value is not ABSENT}
        return values

    def _arguments(self, value: Any, content_type: str) -> Arguments:
        if value is None and not self._required:
            return (), {}
        if not self._plain:
            return self._general(value, content_type)
        if not isinstance(value, dict):
            value = self.signature.bind(*(value if isinstance(value, list) else [value])).arguments
        return (), self._present(_convert(value, self._struct, content_type))

    def _one(self, value: Any, content_type: str) -> Arguments:
        if value is None and not self._names:
            return (), {}
        if not self._plain:
            return self._general([value], content_type)
        bound = self.signature.bind(value).arguments
        return (), self._present(_convert(bound, self._struct, content_type))

    def _general(self, value: Any, content_type: str) -> Arguments:
        """Signatures with *args, **kwargs or nameless places: each value is converted by itself."""
        args: Sequence[Any] = ()
        kwargs: dict[str, Any] = {}
        match value:
            case [list() as places, dict() as names] if self._takes_names:
                args, kwargs = places, names
            case list():
                args = value
            case dict() if self._takes_names:
                kwargs = value
            case _:
                args = [value]
        bound = self.signature.bind(*args, **kwargs)
        if taken := self.dependencies.keys() & bound.kwargs.keys():
            raise Invalid(f"{min(taken)!r} is a dependency of the task: it cannot be sent", at="arguments")
        for name, given in bound.arguments.items():
            convert = functools.partial(self._convert, self._hints.get(name, Any), content_type)
            match self.signature.parameters[name].kind:
                case inspect.Parameter.VAR_POSITIONAL:
                    bound.arguments[name] = tuple(convert(one, name) for one in given)
                case inspect.Parameter.VAR_KEYWORD:
                    bound.arguments[name] = {key: convert(one, key) for key, one in given.items()}
                case _:
                    bound.arguments[name] = convert(given, name)
        return bound.args, bound.kwargs

    @cached_property
    def _required(self) -> bool:
        """Whether there is an argument that must be given."""
        optional = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
        return any(
            parameter.default is inspect.Parameter.empty and parameter.kind not in optional
            for parameter in self.signature.parameters.values()
        )

    @cached_property
    def _takes_names(self) -> bool:
        kinds = (*NAMED, inspect.Parameter.VAR_KEYWORD)
        return any(parameter.kind in kinds for parameter in self.signature.parameters.values())

    def _convert(self, hint: Any, content_type: str, value: Any, name: str) -> Any:
        try:
            return _convert(value, hint, content_type)
        except UNENCODABLE as fault:
            raise invalid(fault, at=f"arguments.{name}", kind=hint) from None

    def pack_result(self, value: Any) -> bytes:
        try:
            return _encoder.encode(value)
        except UNENCODABLE as fault:
            raise Invalid(f"the result cannot be kept: {fault}", at="result") from None

    @cached_property
    def _result_decoder(self) -> "msgspec.msgpack.Decoder[Any]":
        return msgspec.msgpack.Decoder(self._hints.get("return", Any), dec_hook=from_plain)

    def unpack_result(self, data: bytes, content_type: str) -> Any:
        """A result as the function's annotation says."""
        try:
            if content_type == MSGPACK:
                return self._result_decoder.decode(data)
            return _convert(_value(data, content_type), self._hints.get("return", Any), content_type)
        except UNENCODABLE as fault:
            raise invalid(fault, at="result", kind=self._hints.get("return")) from None


def _readable_hints(function: Callable[..., Any]) -> Iterator[tuple[str, Any]]:
    """Each annotation by itself: one that names what is nowhere to be found stands for anything."""
    for name, annotation in getattr(function, "__annotations__", {}).items():
        alone = SimpleNamespace(__annotations__={name: annotation})
        try:
            yield name, typing.get_type_hints(alone, getattr(function, "__globals__", {}), include_extras=True)[name]
        except (NameError, TypeError, AttributeError):
            continue


def _convert(value: Any, hint: Any, content_type: str) -> Any:
    """A plain value as its type. JSON knows only texts as keys; a plain text knows no other way to say a number."""
    strict, texts_as_keys = content_type != TEXT, content_type == JSON
    return msgspec.convert(value, hint, strict=strict, str_keys=texts_as_keys, dec_hook=from_plain)


def _value(payload: bytes, content_type: str) -> Any:
    if content_type == MSGPACK:
        return msgspec.msgpack.decode(payload)
    if content_type == JSON:
        return msgspec.json.decode(payload)
    try:
        return payload.decode()
    except UnicodeDecodeError:
        return payload
