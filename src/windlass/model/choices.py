"""The allowed values of a field that is one of a few words: for the error that names them.

Knows declared types and a decoder's way to name a place in them (`jobs[0].then.keep_result`). Only asked when something
is wrong.
"""

import re
from collections.abc import Iterator, Mapping
from enum import Enum
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import msgspec
from msgspec import Struct

_STEP = re.compile(r"\.?(?P<field>[^.\[\]]+)|\[(?P<item>[^\]]*)\]")


def choices(kind: Any, path: str) -> list[str]:
    """The words that are allowed at a place in values of this kind; empty = it is not a matter of words.

    A kind is a type, or a map of names to types.
    """
    found = [kind]
    for step in _STEP.finditer(path):
        found = [inner for outer in found for inner in _inside(outer, step["field"])]
    return list(dict.fromkeys(str(word) for last in found for word in _words(last)))


def _plain(kind: Any) -> Iterator[Any]:
    """A type without what is said about it, or each of those that it may be."""
    origin = get_origin(kind)
    if origin is Annotated:
        yield from _plain(get_args(kind)[0])
    elif origin in (Union, UnionType):
        for one in get_args(kind):
            yield from _plain(one)
    else:
        yield kind


def _inside(kind: Any, field: str | None) -> Iterator[Any]:
    for outer in _plain(kind):
        if isinstance(outer, type) and issubclass(outer, Struct):
            # A struct that is written as an array is named by its places.
            yield from (one.type for one in msgspec.structs.fields(outer) if field in (None, one.encode_name))
        elif field is None:
            yield from get_args(outer)  # of items, or of keys and values
        elif isinstance(outer, Mapping):
            yield outer.get(field)


def _words(kind: Any) -> Iterator[Any]:
    for one in _plain(kind):
        if get_origin(one) is Literal:
            yield from get_args(one)
        elif isinstance(one, type) and issubclass(one, Enum):
            yield from (member.value for member in one)
