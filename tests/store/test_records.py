"""Records beside the jobs, on every store."""

from windlass.store.data import ANYTHING
from windlass.store.protocol import Store


async def test_a_record_is_kept_under_its_kind_and_name(store: Store) -> None:
    records_of = store.records
    assert await records_of.list("token") == {}
    await records_of.swap("token", "a", ANYTHING, b"1")
    await records_of.swap("token", "b", ANYTHING, b"\x00\xff")
    await records_of.swap("limit", "a", ANYTHING, b"3")
    assert await records_of.list("token") == {"a": b"1", "b": b"\x00\xff"}


async def test_a_newer_record_takes_the_place_of_the_older_and_nothing_of_it(store: Store) -> None:
    records_of = store.records
    await records_of.swap("token", "a", ANYTHING, b"1")
    await records_of.swap("token", "a", ANYTHING, b"2")
    assert await records_of.list("token") == {"a": b"2"}
    await records_of.swap("token", "a", ANYTHING, None)
    await records_of.swap("token", "a", ANYTHING, None)
    assert await records_of.list("token") == {}
