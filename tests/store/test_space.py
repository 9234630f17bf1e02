"""What a store says of the room that it takes, on every store."""

from tests.support.engines import enqueue, packed
from tests.support.stores import StoreKind
from windlass.engine import Engine
from windlass.model.operations import GetHealth
from windlass.store.protocol import Store

KINDS = {"sqlite": "SQLite", "file": "SQLite", "redis": "Redis", "cluster": "Redis", "valkey": "Valkey"}


async def test_a_store_says_what_it_takes_and_grows_with_its_jobs(
    kind: StoreKind, store: Store, engine: Engine
) -> None:
    assert store.space is not None
    before = await store.space.read()
    assert before.kind == KINDS[kind]
    for _ in range(40):
        await enqueue(engine, payload=packed("x" * 100_000))
    after = (await engine(GetHealth(tenant="-"))).store
    assert after is not None
    assert after.used > before.used + 2_000_000
    assert (await engine(GetHealth())).store is None
    if kind == "file":
        assert after.free is not None
        assert after.free > 0
