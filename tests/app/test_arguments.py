"""Arguments through the queue: packed, checked before they are sent, and unpacked as what they were."""

import enum
import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from inspect import Parameter, Signature
from pathlib import Path, PurePosixPath
from typing import Annotated, Any, Literal, NamedTuple, TypedDict
from uuid import UUID

import msgspec
import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Meta, Struct

from tests.support import deferred_annotations as deferred
from windlass.call.arguments import CallSignature
from windlass.model.errors import Invalid
from windlass.model.job import JSON, MSGPACK, TEXT


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Level(enum.IntEnum):
    LOW = 1


@dataclass
class Point:
    x: float
    y: float = 0.0


class Place(NamedTuple):
    name: str
    at: Point


class Options(TypedDict, total=False):
    size: int
    tags: set[str]


class Order(Struct):
    id: UUID
    price: Decimal
    lines: list[Point] = []


class Customer(pydantic.BaseModel):
    name: str
    since: date
    born_in: int = pydantic.Field(default=2000, alias="bornIn")


class Basket(pydantic.BaseModel):
    customer: Customer
    items: dict[str, Decimal]
    seen: set[UUID] = set()


@dataclass
class Visit:
    customer: Customer
    where: Place


ADA = Customer(name="Ada", since=date(2020, 2, 29), bornIn=1815)
ID = UUID("12345678-1234-5678-1234-567812345678")
NOON = datetime(2026, 6, 1, 12, tzinfo=UTC)


def shown(part: Any) -> str:
    """The same in every process: no addresses."""
    return str(getattr(part, "__name__", part)).partition(" at 0x")[0][:40]


def taking(kind: Any) -> CallSignature:
    def task(value: Any) -> Any:
        raise NotImplementedError

    task.__annotations__ = {"value": kind, "return": kind}
    return CallSignature(task)


VALUES: list[tuple[Any, Any]] = [
    (int, 2**63),
    (float, 1.5),
    (float, 3),
    (str, "Grüße 🙂"),
    (bool, True),
    (Path, Path("a/b.txt")),
    (PurePosixPath | None, PurePosixPath("/srv")),
    (dict[str, list[Path]], {"found": [Path("x"), Path("/y")]}),
    (type(None), None),
    (bytes, b"\x00\xff"),
    (datetime, NOON),
    (datetime, datetime(2026, 6, 1, 12, 30, 15, 123456)),  # noqa: DTZ001 - without a zone it stays without one
    (date, date(2026, 2, 28)),
    (timedelta, timedelta(days=1, microseconds=5)),
    (UUID, ID),
    (Decimal, Decimal("10.10")),
    (Colour, Colour.BLUE),
    (Level, Level.LOW),
    (Literal["a", "b"], "b"),
    (list[int], [1, 2]),
    (tuple[int, str], (1, "a")),
    (tuple[int, ...], (1, 2, 3)),
    (set[int], {1, 2}),
    (frozenset[str], frozenset({"a"})),
    (dict[str, list[date]], {"a": [date(2026, 1, 1)]}),
    (dict[int, Colour], {1: Colour.RED}),
    (Point, Point(1.0, 2.0)),
    (Place, Place("here", Point(1.0))),
    (Options, {"size": 3, "tags": {"a"}}),
    (Order, Order(ID, Decimal("1.20"), [Point(1.0)])),
    (Point | None, None),
    (Point | None, Point(0.5)),
    (int | str, "7"),
    (Customer, ADA),
    (list[Customer], [ADA, ADA]),
    (Customer | None, ADA),
    (Customer | None, None),
    (dict[str, Customer], {"a": ADA}),
    (Basket, Basket(customer=ADA, items={"tea": Decimal("1.50")}, seen={ID})),
    (Visit, Visit(ADA, Place("x", Point(2.0)))),
    (Annotated[int, Meta(ge=1)], 5),
    (Any, {"free": [1, None, "x"]}),
]


@pytest.mark.parametrize(("kind", "value"), VALUES, ids=shown)
def test_a_value_arrives_as_what_it_was(kind: Any, value: Any) -> None:
    plan = taking(kind)
    args, kwargs = plan.unpack(plan.pack((value,), {}))
    assert (args, kwargs) == ((), {"value": value})
    assert type(kwargs["value"]) is type(value) or kind is float


@pytest.mark.parametrize(("kind", "value"), VALUES, ids=shown)
def test_a_result_is_read_as_its_annotation_says(kind: Any, value: Any) -> None:
    plan = taking(kind)
    assert plan.unpack_result(plan.pack_result(value), MSGPACK) == value


# Shapes of signatures


def plain(a: int, b: str = "b", *, c: bool = False) -> None: ...


def nameless(a: int, b: date, /) -> None: ...


def mixed(a: int, /, b: date, *rest: Decimal, c: Colour = Colour.RED, **more: Point) -> None: ...


def anything(*args: Any, **kwargs: Any) -> None: ...


def nothing() -> None: ...


SOME_CALLS: list[tuple[Callable[..., None], tuple[Any, ...], dict[str, Any]]] = [
    (plain, (1,), {}),
    (plain, (1, "x"), {}),
    (plain, (1,), {"c": True}),
    (plain, (), {"b": "x", "a": 5}),
    (nameless, (1, date(2026, 1, 1)), {}),
    (mixed, (1, date(2026, 1, 1)), {}),
    (mixed, (1, date(2026, 1, 1), Decimal("1.5"), Decimal("2.5")), {"c": Colour.BLUE, "z": Point(1.0)}),
    (mixed, (1,), {"b": date(2026, 1, 1)}),
    (anything, (), {}),
    (anything, ([1], {"a": 2}), {}),
    (anything, ([1],), {"a": {"b": 2}}),
    (anything, (None,), {}),
    (nothing, (), {}),
]


@pytest.mark.parametrize(("function", "args", "kwargs"), SOME_CALLS, ids=shown)
def test_a_call_arrives_as_the_same_call(
    function: Callable[..., None], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> None:
    plan = CallSignature(function)
    arrived = plan.signature.bind(*plan.unpack(plan.pack(args, kwargs))[0], **plan.unpack(plan.pack(args, kwargs))[1])
    assert arrived.arguments == plan.signature.bind(*args, **kwargs).arguments


def quick(a: str, b: int, c: float, d: bytes, e: bool) -> None: ...


SIMPLE = st.tuples(st.text(), st.integers(-(2**63), 2**64 - 1), st.floats(allow_nan=False), st.binary(), st.booleans())


@given(SIMPLE)
def test_plain_values_are_sent_as_any_others(values: tuple[Any, ...]) -> None:
    plan = CallSignature(quick)
    names = dict(zip("abcde", values, strict=True))
    assert plan.pack(values, {}) == plan.pack((), names) == msgspec.msgpack.encode(names)
    assert plan.unpack(plan.pack(values, {})) == ((), names)


@pytest.mark.parametrize(
    ("values", "at"),
    [
        (("\ud800", 1, 1.0, b"", True), "arguments"),
        (("", 2**64, 1.0, b"", True), "arguments"),
        (("", True, 1.0, b"", True), "arguments.b"),
        (("", 1, "1.0", b"", True), "arguments.c"),
        (("", 1, 1.0, b"", 1), "arguments.e"),
    ],
)
def test_plain_values_that_do_not_fit_are_refused(values: tuple[Any, ...], at: str) -> None:
    with pytest.raises(Invalid) as fault:
        CallSignature(quick).pack(values, {})
    assert fault.value.at == at


def test_a_name_that_cannot_be_received_is_not_sent() -> None:
    def kept(__a: int) -> None: ...  # noqa: PYI063 - as one wrote it before there was another way

    with pytest.raises(Invalid, match="call it something else"):
        CallSignature(kept).pack((1,), {})


def test_a_whole_number_will_do_for_another() -> None:
    assert CallSignature(quick).unpack(CallSignature(quick).pack(("", 1, 1, b"", True), {}))[1]["c"] == 1.0


def test_more_plain_values_than_a_short_map_has_room_for() -> None:
    names = [f"n{place}" for place in range(16)]
    parameters = [Parameter(name, Parameter.POSITIONAL_OR_KEYWORD, annotation=int) for name in names]

    def many(*_: int) -> None: ...

    many.__signature__ = Signature(parameters)  # type: ignore[attr-defined]
    many.__annotations__ = dict.fromkeys(names, int)
    sent = CallSignature(many).pack(tuple(range(16)), {})
    assert msgspec.msgpack.decode(sent) == dict(zip(names, range(16), strict=True))


def test_a_default_is_the_functions_own_and_is_not_sent() -> None:
    plan = CallSignature(plain)
    assert msgspec.msgpack.decode(plan.pack((1,), {})) == {"a": 1}
    assert plan.unpack(plan.pack((1,), {})) == ((), {"a": 1})


# What is refused, and how it is said

REFUSED: list[tuple[Any, tuple[Any, ...], dict[str, Any], str]] = [
    (plain, (), {}, r"arguments: plain\(.*\) -> None: missing a required argument: 'a'"),
    (plain, (1, "b", True), {}, r"arguments: plain\(.*\) -> None: too many positional arguments"),
    (plain, (1,), {"d": 1}, r"arguments: plain\(.*\) -> None: got an unexpected keyword argument 'd'"),
    (plain, (1, "b"), {"b": "c"}, r"multiple values for argument 'b'"),
    (plain, ("1",), {}, r"arguments\.a: Expected `int`, got `str`"),
    (plain, (True,), {}, r"arguments\.a: Expected `int`, got `bool`"),
    (plain, (1, None), {}, r"arguments\.b: Expected `str`, got `(null|None)`"),
    (nameless, (1, "tomorrow"), {}, r"arguments\.b: Invalid RFC3339"),
    (mixed, (1, date(2026, 1, 1), "x"), {}, r"arguments\.rest: Invalid decimal string"),
    (mixed, (1, date(2026, 1, 1)), {"z": {"x": "far"}}, r"arguments\.z\.x: Expected `float`, got `str`"),
    (plain, (2**70,), {}, r"arguments: .*out of range|arguments: .*too large|arguments: .*2\*\*64"),
    (anything, (iter([]),), {}, r"a list_iterator cannot be sent"),
    (anything, ("\ud800",), {}, r"arguments: "),
]


@pytest.mark.parametrize(("function", "args", "kwargs", "message"), REFUSED, ids=shown)
def test_a_call_that_could_not_be_made_is_refused(
    function: Callable[..., None], args: tuple[Any, ...], kwargs: dict[str, Any], message: str
) -> None:
    with pytest.raises(Invalid, match=message):
        CallSignature(function).pack(args, kwargs)


@pytest.mark.parametrize(
    ("kind", "value", "at", "detail"),
    [
        (list[Point], [Point(1.0), {"x": "far"}], "arguments.value[1].x", "Expected `float`"),
        (Order, {"id": str(ID)}, "arguments.value.price", "required"),
        (Options, {"size": "big"}, "arguments.value.size", "Expected `int`"),
        (Colour, "green", "arguments.value", "'green' is none of: red, blue"),
        (Annotated[int, Meta(ge=1)], 0, "arguments.value", "Expected `int` >= 1"),
        (Customer, {"name": "Ada", "since": "soon"}, "arguments.value", "since: Input should be a valid date"),
        (Basket, {"customer": {}, "items": {}}, "arguments.value", "customer.name: Field required; customer.since"),
        (list[Customer], [ADA, {"name": 1}], "arguments.value[1]", "name: Input should be a valid string"),
        (Customer | int, ADA, "arguments", "not supported"),
    ],
)
def test_a_refusal_names_the_place(kind: Any, value: Any, at: str, detail: str) -> None:
    with pytest.raises(Invalid) as refused:
        taking(kind).pack((value,), {})
    assert refused.value.at == at
    assert detail in refused.value.detail
    assert "pydantic.dev" not in refused.value.detail, "no advertisements"


def test_a_wrong_result_is_refused_when_it_is_read() -> None:
    plan = taking(int)
    with pytest.raises(Invalid, match="result: Expected `int`, got `str`"):
        plan.unpack_result(plan.pack_result("seven"), MSGPACK)


def test_a_result_that_no_format_has_is_refused() -> None:
    with pytest.raises(Invalid, match="the result cannot be kept: a object cannot be sent"):
        taking(Any).pack_result([object()])
    assert math.isnan(taking(float).unpack_result(taking(float).pack_result(math.nan), MSGPACK))


# Payloads from elsewhere


@pytest.mark.parametrize(
    ("function", "payload", "arrives"),
    [
        (plain, '{"a": 1, "c": true}', ((), {"a": 1, "c": True})),
        (plain, '[1, "x"]', ((), {"a": 1, "b": "x"})),
        (plain, "1", ((), {"a": 1})),
        (nothing, "null", ((), {})),
        (nothing, "{}", ((), {})),
        (nothing, "[]", ((), {})),
        (nameless, '[1, "2026-01-01"]', ((1, date(2026, 1, 1)), {})),
        (anything, '{"a": 1}', ((), {"a": 1})),
        (anything, "[1, 2]", ((1, 2), {})),
        (anything, '"x"', (("x",), {})),
        (anything, "null", ((), {})),
    ],
)
def test_a_map_gives_names_an_array_places_and_anything_else_the_single_argument(
    function: Callable[..., None], payload: str, arrives: Any
) -> None:
    assert CallSignature(function).unpack(payload.encode(), JSON) == arrives
    packed = msgspec.msgpack.encode(msgspec.json.decode(payload))
    assert CallSignature(function).unpack(packed, MSGPACK) == arrives


def test_types_are_read_from_json_too() -> None:
    def task(when: datetime, id: UUID, data: bytes, by_number: dict[int, Colour], who: Customer) -> None: ...

    sent = {
        "when": "2026-06-01T12:00:00Z",
        "id": str(ID),
        "data": "aGk=",
        "by_number": {"1": "red"},
        "who": {"name": "Ada", "since": "2020-02-29", "bornIn": 1815},
    }
    _, kwargs = CallSignature(task).unpack(msgspec.json.encode(sent), JSON)
    assert kwargs == {"when": NOON, "id": ID, "data": b"hi", "by_number": {1: Colour.RED}, "who": ADA}


def test_a_text_is_the_single_argument() -> None:
    assert taking(str).unpack(b'{"a": 1}', TEXT) == ((), {"value": '{"a": 1}'})
    assert taking(int).unpack(b"42", TEXT) == ((), {"value": 42})
    assert taking(bytes).unpack(b"\xff\x00", "application/octet-stream") == ((), {"value": b"\xff\x00"})
    with pytest.raises(Invalid, match=r"arguments\.value: Expected `int`"):
        taking(int).unpack(b"many", TEXT)


def test_a_job_without_a_payload_uses_the_defaults() -> None:
    def task(a: int = 1, b: str = "x") -> None: ...

    assert CallSignature(task).unpack(b"\xc0") == ((), {})
    with pytest.raises(Invalid, match=r"arguments\.a: Expected `int`, got `(null|None)`"):
        CallSignature(plain).unpack(b"\xc0")


@pytest.mark.parametrize("payload", ['{"a": 1, "z": 2}', '[1, "b", 3]', "{}", "[]", '"x"', "{"])
def test_a_payload_that_does_not_fit_is_refused(payload: str) -> None:
    with pytest.raises(Invalid, match="arguments"):
        CallSignature(plain).unpack(payload.encode(), JSON)


# Where annotations come from


def test_annotations_may_name_what_is_defined_further_down() -> None:
    plan = CallSignature(deferred.ship)
    shipment = deferred.Shipment("Ada", [deferred.Shipment("Bob", [])])
    assert plan.unpack(plan.pack((shipment, [1.5]), {})) == ((), {"shipment": shipment, "weights": [1.5]})
    assert plan.unpack_result(plan.pack_result(shipment), MSGPACK) == shipment


def test_an_annotation_that_is_nowhere_to_be_found_spoils_no_other() -> None:
    plan = CallSignature(deferred.half_known)
    assert plan.unpack(plan.pack((Decimal("1.5"), 2), {})) == ((), {"price": "1.5", "count": 2})
    with pytest.raises(Invalid, match=r"arguments\.count"):
        plan.pack((1, "two"), {})


def test_a_wrapped_function_keeps_its_signature() -> None:
    @functools.wraps(plain)
    def wrapped(*args: Any, **kwargs: Any) -> None: ...

    assert CallSignature(wrapped).unpack(CallSignature(wrapped).pack((1,), {"c": True})) == ((), {"a": 1, "c": True})
    partly = functools.partial(plain, 5)
    assert CallSignature(partly).unpack(CallSignature(partly).pack(("x",), {})) == ((), {"b": "x"})
