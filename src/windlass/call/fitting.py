"""Whether what one task returns can be the argument of another, by their annotations.

Refuses only what can never fit: of a union one member is enough, and what says nothing fits everything. Knows types as
msgspec reads them; values are checked when they come.
"""

from collections.abc import Iterator
from typing import Any

from msgspec import inspect as of

MOST_DEPTH = 8
"""Types inside types that are looked at: some contain themselves."""

_SIMPLE: dict[type[of.Type], str] = {
    of.NoneType: "null",
    of.BoolType: "bool",
    of.IntType: "number",
    of.FloatType: "number",
    of.StrType: "text",
    of.BytesType: "bytes",
    of.ByteArrayType: "bytes",
    of.MemoryViewType: "bytes",
    of.DateTimeType: "text",
    of.DateType: "text",
    of.TimeType: "text",
    of.TimeDeltaType: "text",
    of.UUIDType: "text",
    of.DecimalType: "text",
}
_ITEMS = (of.ListType, of.SetType, of.FrozenSetType, of.VarTupleType, of.CollectionType)
_FIELDS = (of.DataclassType, of.TypedDictType, of.StructType, of.NamedTupleType)


def fits(returned: Any, wanted: Any) -> bool:
    """Whether a value of the first annotation may be one of the second."""
    try:
        return _fits(of.type_info(returned), of.type_info(wanted), MOST_DEPTH)
    except TypeError:
        return True  # what msgspec cannot read says so when it is sent


def _fits(returned: of.Type, wanted: of.Type, depth: int) -> bool:
    if depth == 0:
        return True
    return any(_fits_alone(one, other, depth - 1) for one in _members(returned) for other in _members(wanted))


def _members(kind: of.Type) -> Iterator[of.Type]:
    if isinstance(kind, of.Metadata):
        yield from _members(kind.type)
    elif isinstance(kind, of.UnionType):
        for one in kind.types:
            yield from _members(one)
    else:
        yield kind


def _fits_alone(returned: of.Type, wanted: of.Type, depth: int) -> bool:
    shape, other = _shape(returned), _shape(wanted)
    if shape == "any" or other == "any":
        return True
    if shape != other:
        return False
    if shape == "list":
        return _lists_fit(_items(returned), _items(wanted), depth)
    return shape != "map" or _maps_fit(returned, wanted, depth)


def _shape(kind: of.Type) -> str:
    """What it is on the wire."""
    if isinstance(kind, (*_ITEMS, of.TupleType, of.NamedTupleType)):
        return "list"
    if isinstance(kind, of.StructType):
        return "list" if kind.array_like else "map"
    if isinstance(kind, (of.DictType, of.DataclassType, of.TypedDictType)):
        return "map"
    if isinstance(kind, of.LiteralType):
        return _shape_of_values(kind.values)
    if isinstance(kind, of.EnumType):
        return _shape_of_values(tuple(one.value for one in kind.cls))
    return _SIMPLE.get(type(kind), "any")


def _shape_of_values(values: tuple[Any, ...]) -> str:
    shapes = {"text" if isinstance(one, str) else "number" if type(one) is int else "any" for one in values}
    return shapes.pop() if len(shapes) == 1 else "any"


def _items(kind: of.Type) -> of.Type | tuple[of.Type, ...]:
    """The type of its items, or that of each."""
    if isinstance(kind, _ITEMS):
        return kind.item_type
    if isinstance(kind, of.TupleType):
        return kind.item_types
    return tuple(field.type for field in kind.fields) if isinstance(kind, _FIELDS) else of.AnyType()


def _lists_fit(returned: of.Type | tuple[of.Type, ...], wanted: of.Type | tuple[of.Type, ...], depth: int) -> bool:
    if isinstance(returned, tuple) and isinstance(wanted, tuple):
        return len(returned) <= len(wanted) and all(map(_fits, returned, wanted, [depth] * len(returned)))
    ones = returned if isinstance(returned, tuple) else (returned,)
    others = wanted if isinstance(wanted, tuple) else (wanted,)
    return all(_fits(one, other, depth) for one in ones for other in others)


def _maps_fit(returned: of.Type, wanted: of.Type, depth: int) -> bool:
    if isinstance(wanted, of.DictType):
        if isinstance(returned, of.DictType):
            return _fits(returned.key_type, wanted.key_type, depth) and _fits(
                returned.value_type, wanted.value_type, depth
            )
        return all(_fits(field.type, wanted.value_type, depth) for field in _fields(returned))
    has = {field.encode_name: field.type for field in _fields(returned)}
    of_any = returned.value_type if isinstance(returned, of.DictType) else None
    for field in _fields(wanted):
        found = has.get(field.encode_name, of_any)
        if found is None and field.required:
            return False
        if found is not None and field.required and not _fits(found, field.type, depth):
            return False
    return True


def _fields(kind: of.Type) -> tuple[of.Field, ...]:
    return kind.fields if isinstance(kind, _FIELDS) else ()


def described(kind: Any) -> str:
    """An annotation as people write it."""
    return kind.__name__ if isinstance(kind, type) and not hasattr(kind, "__args__") else str(kind)
