"""A function's signature as a plan: arguments to a payload, a payload to arguments, a result to its type.

A payload that is a map becomes keyword arguments, an array positional ones, anything else the single argument. What we
send ourselves is a map of names to values, unless the signature has places without names. Types are those that msgspec
knows (numbers, texts, bytes, dates, enums, UUIDs, dataclasses, TypedDicts …), and pydantic models where pydantic is there.
"""

import inspect
import typing
from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any

import msgspec
from msgspec import Struct

from windlass.model.errors import Invalid
from windlass.model.job import JSON, MSGPACK
from windlass.model.wire import UNSPEAKABLE, invalid

ABSENT: Any = object()
"""Stands for an argument that was not sent: the function's own default applies."""

NAMED = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)

Arguments = tuple[tuple[Any, ...], dict[str, Any]]


def to_plain(value: Any) -> Any:
    """What msgspec cannot encode by itself: pydantic models, and nothing else."""
    dump = getattr(type(value), "model_dump", None)
    if dump is not None:
        return dump(value, mode="python")
    raise TypeError(f"a {type(value).__name__} cannot be sent: use plain values, dataclasses or models")


def from_plain(kind: type, value: Any) -> Any:
    """The same the other way round."""
    validate = getattr(kind, "model_validate", None)
    if validate is not None:
        return validate(value)
    raise TypeError(f"a {getattr(kind, '__name__', kind)} cannot be received")


_encoder = msgspec.msgpack.Encoder(enc_hook=to_plain)


class Plan:
    """How one function is called through the queue."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function
        self.signature = inspect.signature(function)
        self._plain = all(parameter.kind in NAMED for parameter in self.signature.parameters.values())
        self._names = tuple(self.signature.parameters)
        places = [p for p in self.signature.parameters.values() if p.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD]
        required = [p for p in self.signature.parameters.values() if p.default is inspect.Parameter.empty]
        self._has_defaults = len(required) < len(self._names)
        # How many arguments a call without keywords may have; none will do if some are only for keywords.
        by_place = self._plain and all(p.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD for p in required)
        self._least, self._most = (len(required), len(places)) if by_place else (1, 0)

    @cached_property
    def _hints(self) -> dict[str, Any]:
        """Read when first needed: annotations may name what is defined further down."""
        try:
            return typing.get_type_hints(self._function, include_extras=True)
        except (NameError, TypeError):
            return {}

    @cached_property
    def _decoder(self) -> "msgspec.msgpack.Decoder[Any]":
        return msgspec.msgpack.Decoder(self._struct, dec_hook=from_plain)

    @cached_property
    def _struct(self) -> type[Struct]:
        fields: list[Any] = []
        for name, parameter in self.signature.parameters.items():
            hint = self._hints.get(name, Any)
            if parameter.default is inspect.Parameter.empty:
                fields.append((name, hint))
            else:
                fields.append((name, hint, msgspec.field(default_factory=lambda: ABSENT)))
        return msgspec.defstruct("Arguments", fields, kw_only=True, forbid_unknown_fields=True, gc=False)

    def pack(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bytes:
        """The payload of a call; refused if the function could not be called so."""
        if self._least <= len(args) <= self._most and not kwargs:
            values = dict(zip(self._names, args, strict=False))  # `bind` in one step, for the usual call
        else:
            bound = self._bind(args, kwargs)
            if not self._plain:
                return self._pack_general(bound)
            values = bound.arguments
        try:
            packed = _encoder.encode(values)
            self._decoder.decode(packed)
        except UNSPEAKABLE as fault:
            raise _at_argument(fault) from None
        return packed

    def _bind(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> inspect.BoundArguments:
        try:
            return self.signature.bind(*args, **kwargs)
        except TypeError as fault:
            raise Invalid(f"{self._function.__name__}{self.signature}: {fault}", at="arguments") from None

    def _pack_general(self, bound: inspect.BoundArguments) -> bytes:
        try:
            packed = _encoder.encode([list(bound.args), bound.kwargs] if bound.kwargs else list(bound.args))
            self._general(msgspec.msgpack.decode(packed))
        except UNSPEAKABLE as fault:
            raise _at_argument(fault) from None
        return packed

    def unpack(self, payload: bytes, content_type: str = MSGPACK) -> Arguments:
        """The arguments that a payload stands for."""
        try:
            if content_type == MSGPACK and self._plain and payload and _is_map(payload[0]):
                return (), self._present(self._decoder.decode(payload))
            return self._arguments(_value(payload, content_type))
        except UNSPEAKABLE as fault:
            raise _at_argument(fault) from None

    def _present(self, found: Struct) -> dict[str, Any]:
        values = {name: getattr(found, name) for name in self._names}
        if self._has_defaults:
            return {name: value for name, value in values.items() if value is not ABSENT}
        return values

    def _arguments(self, value: Any) -> Arguments:
        if not self._plain:
            return self._general(value)
        if not isinstance(value, dict):
            given = value if isinstance(value, list) else [value]
            if given == [None] and not self._names:
                given = []
            bound = self.signature.bind(*given)
            value = bound.arguments
        return (), self._present(msgspec.convert(value, self._struct, dec_hook=from_plain))

    def _general(self, value: Any) -> Arguments:
        """Signatures with *args, **kwargs or nameless places: each value is converted by itself."""
        args: list[Any] = []
        kwargs: dict[str, Any] = {}
        match value:
            case [list() as places, dict() as names] if len(value) == 2 and self._takes_names:
                args, kwargs = places, names
            case list():
                args = value
            case dict() if self._takes_names:
                kwargs = value
            case _:
                args = [value]
        bound = self.signature.bind(*args, **kwargs)
        for name, given in bound.arguments.items():
            hint = self._hints.get(name, Any)
            match self.signature.parameters[name].kind:
                case inspect.Parameter.VAR_POSITIONAL:
                    bound.arguments[name] = tuple(self._convert(one, hint, name) for one in given)
                case inspect.Parameter.VAR_KEYWORD:
                    bound.arguments[name] = {key: self._convert(one, hint, key) for key, one in given.items()}
                case _:
                    bound.arguments[name] = self._convert(given, hint, name)
        return bound.args, bound.kwargs

    @cached_property
    def _takes_names(self) -> bool:
        kinds = (*NAMED, inspect.Parameter.VAR_KEYWORD)
        return any(parameter.kind in kinds for parameter in self.signature.parameters.values())

    def _convert(self, value: Any, hint: Any, name: str) -> Any:
        try:
            return msgspec.convert(value, hint, dec_hook=from_plain)
        except UNSPEAKABLE as fault:
            raise Invalid(str(fault), at=f"arguments.{name}") from None

    def pack_result(self, value: Any) -> bytes:
        try:
            return _encoder.encode(value)
        except UNSPEAKABLE as fault:
            raise Invalid(f"the result cannot be kept: {fault}", at="result") from None

    def unpack_result(self, data: bytes, content_type: str) -> Any:
        """A result as the function's annotation says."""
        hint = self._hints.get("return", Any)
        if content_type == MSGPACK:
            return msgspec.msgpack.decode(data, type=hint, dec_hook=from_plain)
        return msgspec.convert(_value(data, content_type), hint, dec_hook=from_plain)


def _value(payload: bytes, content_type: str) -> Any:
    if content_type == MSGPACK:
        return msgspec.msgpack.decode(payload)
    if content_type == JSON:
        return msgspec.json.decode(payload)
    try:
        return payload.decode()
    except UnicodeDecodeError:
        return payload


def _is_map(first: int) -> bool:
    """Whether this byte begins a MessagePack map."""
    return 0x80 <= first <= 0x8F or first in (0xDE, 0xDF)


def _at_argument(fault: Exception) -> Invalid:
    return invalid(fault, at="arguments")
