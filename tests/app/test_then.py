"""`then`: a job that follows another gets its result as one argument, whatever that is."""

import dataclasses
from typing import Any

import msgspec
import pytest

from tests.support.http_servers import Web
from tests.support.worker_harness import STORES, MakeHarness, StoreKind
from windlass import Windlass
from windlass.call.arguments import CallSignature
from windlass.engine import Engine, upkeep
from windlass.model.errors import Invalid
from windlass.model.job import JSON, MSGPACK, TEXT, State
from windlass.model.new_job import NewJob
from windlass.model.operations import Enqueue

SHOP = """
import os
from dataclasses import dataclass
from pathlib import Path
from windlass import Windlass
app = Windlass(tenant=os.environ["HARNESS_TENANT"])

@dataclass
class Order:
    id: int
    items: list[str]

@app.task
def order() -> Order: return Order(7, ["a", "b"])

@app.task
def ship(order: Order) -> dict[str, int]: return {"boxes": len(order.items), "order": order.id}

@app.task
def bill(what: dict[str, int]) -> list[int]: return [what["boxes"], what["order"]]

@app.task
def total(numbers: list[int], extra: int = 0) -> None: note(f"total {numbers} {extra}")

@app.task
def last(nothing: None) -> None: note(f"last {nothing}")

@app.task
def anything(*values) -> None: note(f"anything {values}")

def note(text: str) -> None:
    with Path(os.environ["WORKSHOP"], "notes").open("a") as file: file.write(f"{text}\\n")
"""


@pytest.mark.parametrize("kind", STORES)
def test_a_result_is_one_argument(kind: StoreKind, make_harness: MakeHarness, request: pytest.FixtureRequest) -> None:
    store = "" if kind == "file" else request.getfixturevalue("redis_server").url
    shop = make_harness(SHOP, store=store)
    tasks = shop.tasks
    chain = tasks.ship.using(then=tasks.bill.using(then=tasks.total.using(then=tasks.last)))
    tasks.order.using(then=chain).enqueue()
    tasks.bill.using(then=tasks.anything).enqueue({"boxes": 1, "order": 2})
    by_name = NewJob(task="order", then=NewJob(task="ship", then=NewJob(task="anything")))
    shop.app.ask(Enqueue(job=by_name))
    shop.start()
    assert shop.noted("total") == ["[2, 7] 0"]
    assert shop.noted("last") == ["None"]
    assert sorted(shop.noted("anything", 2)) == ["([1, 2],)", "({'boxes': 2, 'order': 7},)"]


async def test_over_http_the_payload_is_the_result_itself(page: Web, engine: Engine) -> None:
    new = {"task": "order", "then": {"task": "ship"}}
    parent = (await page.send("POST", "/jobs", new)).json()
    worker = (await page.send("POST", "/workers", {"name": "w", "slots": 2})).json()["worker"]
    (claimed,) = (await page.send("POST", f"/workers/{worker}/claim", {"slots": 1})).json()
    report = [{"id": parent["id"], "token": claimed["token"], "outcome": "ok", "result": {"order": [1, 2]}}]
    await page.send("POST", f"/workers/{worker}/finish", report)
    await upkeep.resolve_dependencies(engine)
    (following,) = (await page.send("POST", f"/workers/{worker}/claim", {"slots": 1})).json()
    assert (following["job"]["task"], following["payload"]) == ("ship", {"order": [1, 2]})
    assert following["job"]["one_argument"] is True
    own = {"task": "t", "payload": [1, 2], "one_argument": True}
    assert (await page.send("POST", "/jobs", own)).json()["one_argument"] is True


@dataclasses.dataclass
class Order:
    id: int
    items: list[str]


def takes(order: Order) -> None: ...
def takes_any(value: Any, more: int = 1) -> None: ...
def takes_all(*values: Any, **names: Any) -> None: ...
def takes_nameless(value: list[int], /) -> None: ...
def takes_nothing() -> None: ...


@pytest.mark.parametrize(
    ("function", "value", "expected"),
    [
        (takes, {"id": 7, "items": ["a"]}, {"order": Order(7, ["a"])}),
        (takes_any, {"value": 1, "more": 2}, {"value": {"value": 1, "more": 2}}),
        (takes_any, [1, 2], {"value": [1, 2]}),
        (takes_any, None, {"value": None}),
        (takes_all, [[1], {"a": 2}], ([[1], {"a": 2}],)),
        (takes_nameless, [1, 2], ([1, 2],)),
        (takes_nothing, None, {}),
    ],
)
def test_a_payload_that_is_one_argument_is_not_spread(function: Any, value: Any, expected: Any) -> None:
    for kind, encode in ((MSGPACK, msgspec.msgpack.encode), (JSON, msgspec.json.encode)):
        args, kwargs = CallSignature(function).unpack(encode(value), kind, one=True)
        assert (args or kwargs) == expected
    assert CallSignature(takes_any).unpack(b"[1, 2]", TEXT, one=True) == ((), {"value": "[1, 2]"})


def test_a_task_that_cannot_take_one_argument_cannot_follow() -> None:
    app = Windlass("never.db")
    first = app.task(name="first")(lambda: None)
    unable: dict[str, Any] = {"none": lambda: None, "two": lambda a, b: None, "named": lambda *, a: None}
    for name, function in unable.items():
        task = app.task(name=name)(function)
        with pytest.raises(Invalid, match=rf"then: {name}\(.*\) cannot be called with one argument, the result"):
            first.using(then=task)
    first.using(then=app.task(name="one")(lambda a, b=2: None))


# Inside a test


@pytest.fixture
def app() -> Windlass:
    app = Windlass("never.db")
    app.seen = []  # type: ignore[attr-defined]

    @app.task
    def order(id: int) -> dict[str, int]:
        if id < 0:
            raise ValueError("no such order")
        return {"id": id}

    @app.task
    def ship(order: dict[str, int]) -> None:
        app.seen.append(order)  # type: ignore[attr-defined]

    return app


def test_inline_what_follows_and_what_waits_runs_too(app: Windlass) -> None:
    order, ship = app.tasks["order"], app.tasks["ship"]
    with app.testing.inline() as inline:
        first = order.using(then=ship).enqueue(7)
        ship.using(after=[first]).enqueue({"id": 8})
        assert app.seen == [{"id": 7}, {"id": 8}]  # type: ignore[attr-defined]
        failed = order.using(then=ship).enqueue(-1)
        waits = ship.using(after=[failed]).enqueue({"id": 9})
        assert waits.refresh().state is State.CANCELLED
        assert sorted(job.task for job in inline.jobs) == ["order", "order", "ship", "ship", "ship"]
    assert len(app.seen) == 2  # type: ignore[attr-defined]


async def test_inline_in_a_loop(app: Windlass) -> None:
    order, ship = app.tasks["order"], app.tasks["ship"]
    with app.testing.inline():
        first = await order.using(then=ship).aenqueue(7)
        await ship.using(after=[first]).aenqueue({"id": 8})
        assert app.seen == [{"id": 7}, {"id": 8}]  # type: ignore[attr-defined]


def test_manual_what_follows_is_queued_when_its_parent_has_run(app: Windlass) -> None:
    order, ship = app.tasks["order"], app.tasks["ship"]
    with app.testing.manual() as manual:
        first = order.using(then=ship.using(priority=5)).enqueue(7)
        second = ship.using(after=[first]).enqueue({"id": 8})
        assert second.refresh().state is State.BLOCKED
        assert manual.run_one().id == first.id  # type: ignore[union-attr]
        assert second.refresh().state is State.QUEUED
        manual.assert_enqueued(ship, {"id": 7})
        manual.drain()
        assert app.seen == [{"id": 8}, {"id": 7}]  # type: ignore[attr-defined]
        third = order.enqueue(1)
        waits = ship.using(after=[third]).enqueue({"id": 9})
        third.cancel()
        assert waits.refresh().state is State.CANCELLED
