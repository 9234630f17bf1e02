"""How an operation maps to a request: which of its fields are in the path, the query or the body.

Derived from the declaration of the operation; the routes and the OpenAPI document are both made from these shapes.
"""

import re
from collections.abc import Mapping
from functools import cached_property
from typing import Annotated, Any, get_args, get_origin, get_type_hints

import msgspec
from msgspec import NODEFAULT, Struct

from windlass.model.errors import Invalid
from windlass.model.match import Match
from windlass.model.operations import OPERATIONS, Operation, Route
from windlass.model.wire import invalid

_PARAMETER = re.compile(r"\{(\w+)\}")

IN_QUERY = ("GET", "DELETE")
"""Verbs whose arguments stand in the query. An action on many jobs may bring them in a body instead, for a query has no
room for a thousand ids."""


class Shape:
    """The outer form of one operation."""

    def __init__(self, kind: type[Operation[Any]], route: Route, path: str) -> None:
        self.kind = kind
        self.route = route
        self.path = path
        self.names = _PARAMETER.findall(path)
        self.body = route.body
        """The field that is the whole body; null = the body is a map of the fields that are left, or there is none."""
        self.hints = get_type_hints(kind, include_extras=True)

    @cached_property
    def flat(self) -> dict[str, type[Struct]]:
        """Fields whose own fields stand in the query or body beside the others."""
        return {
            name: kind
            for name, hint in self.hints.items()
            if (kind := _struct_in(hint)) is not None and name in ("match", "options")
        }

    @cached_property
    def fields(self) -> list[msgspec.structs.FieldInfo]:
        """Fields that are neither in the path nor the body."""
        apart = {"tenant", self.body, *self.names}
        if "id" in self.names and "ids" in self.kind.__struct_fields__:
            apart |= {"ids", "match"}
        return [field for field in msgspec.structs.fields(self.kind) if field.name not in apart]

    @cached_property
    def struct(self) -> type[Struct]:
        """The fields of the query, or of a body that is a map, as one struct."""
        found: list[Any] = []
        for field in self.fields:
            if field.name in self.flat:
                found += [_entry(one) for one in msgspec.structs.fields(self.flat[field.name])]
            else:
                found.append(_entry(field))
        return msgspec.defstruct(self.kind.__name__, found, kw_only=True, forbid_unknown_fields=True, frozen=True)

    @property
    def in_query(self) -> bool:
        """Whether what is neither path nor body stands in the query."""
        return self.route.verb in IN_QUERY or self.body is not None

    @property
    def may_have_body(self) -> bool:
        """Whether its arguments come in the query, or in a body."""
        return self.route.verb == "DELETE" and "ids" in self.struct.__struct_fields__

    @property
    def has_body(self) -> bool:
        return self.body is not None or self.may_have_body or (self.route.verb not in IN_QUERY and bool(self.fields))

    def from_query(self, pairs: list[tuple[str, str]]) -> Struct:
        """The query as a struct; what is not known, or not of its type, is refused by name."""
        given: dict[str, Any] = {}
        for name, value in pairs:
            first, rest = _split(name)
            if rest is not None and first in self.maps:
                inner = given.setdefault(first, {})
                if rest in inner:
                    raise Invalid("given twice", at=f"{first}.{rest}")
                inner[rest] = _scalar(value) if first == "payload" else value
            elif name in self.maps:
                raise Invalid(f"give its fields one by one: {name}.NAME=VALUE", at=name)
            elif _is_list(self.kinds.get(name)):
                given.setdefault(name, []).append(value)
            elif name in given:
                raise Invalid("given twice", at=name)
            else:
                given[name] = _scalar(value) if name == "tier" else value
        try:
            return msgspec.convert(given, self.struct, strict=False)
        except msgspec.ValidationError as fault:
            raise invalid(fault, kind=self.struct) from None

    @cached_property
    def unasked(self) -> Struct:
        """What an empty query says."""
        return self.from_query([])

    @cached_property
    def kinds(self) -> dict[str, Any]:
        return {field.encode_name: field.type for field in msgspec.structs.fields(self.struct)}

    @cached_property
    def maps(self) -> frozenset[str]:
        """Fields with fields of their own, which a query names `FIELD.NAME`."""
        return frozenset(name for name, kind in self.kinds.items() if _is_map(kind))

    def build(self, tenant: str, path: Mapping[str, str], rest: Struct | None, body: Any) -> Operation[Any]:
        """The operation that a request means."""
        fields: dict[str, Any] = {"tenant": tenant}
        for name in self.names:
            if name == "id" and "ids" in self.kind.__struct_fields__:
                fields["ids"] = [path[name]]
            else:
                fields[name] = path[name]
        if self.body is not None:
            fields[self.body] = body
        if rest is not None:
            fields |= self._unflatten(rest)
        return self.kind(**fields)

    def _unflatten(self, rest: Struct) -> dict[str, Any]:
        fields: dict[str, Any] = {}
        for field in self.fields:
            inner = self.flat.get(field.name)
            if inner is None:
                fields[field.name] = getattr(rest, field.name)
                continue
            made = inner(**{name: getattr(rest, name) for name in inner.__struct_fields__})
            if not (isinstance(made, Match) and made == Match() and field.default is None):
                fields[field.name] = made
        return fields


def _entry(field: msgspec.structs.FieldInfo) -> tuple[Any, ...]:
    if field.default is not NODEFAULT:
        return field.name, field.type, field.default
    if field.default_factory is not NODEFAULT:
        return field.name, field.type, msgspec.field(default_factory=field.default_factory)
    return field.name, field.type


def _struct_in(hint: Any) -> type[Struct] | None:
    for kind in (hint, *getattr(hint, "__args__", ())):
        if isinstance(kind, type) and issubclass(kind, Struct):
            return kind
    return None


def _is_list(hint: Any) -> bool:
    return any(
        getattr(kind, "__origin__", None) is list
        or getattr(getattr(kind, "__origin__", None), "__origin__", None) is list
        for kind in (hint, *getattr(hint, "__args__", ()))
    )


def _split(name: str) -> tuple[str, str | None]:
    """A field and what is named in it: `payload.customer`, or `payload[customer]` as forms and OpenAPI spell it."""
    first, dot, rest = name.partition(".")
    if dot and "[" not in first:
        return first, rest
    first, bracket, rest = name.partition("[")
    return (first, rest[:-1]) if bracket and rest.endswith("]") else (name, None)


def _is_map(hint: Any) -> bool:
    inner = get_args(hint)[0] if get_origin(hint) is Annotated else hint
    return get_origin(inner) is dict or (isinstance(inner, type) and issubclass(inner, Struct))


def _scalar(text: str) -> Any:
    """A value in a query: a number, true, false or null where it reads as one, else text."""
    try:
        found = msgspec.json.decode(text)
    except (msgspec.MsgspecError, RecursionError):
        return text
    return text if isinstance(found, dict | list) else found


SHAPES = [
    Shape(kind, route, path)
    for kind, route in OPERATIONS.items()
    for path in ((route.path, route.one) if route.one else (route.path,))
]
"""Every route there is. An action on many jobs has a second one for a single job."""
