"""Records beside the jobs, on every store."""

from typing import cast

from windlass.store import Store
from windlass.store.beside import Records


async def test_a_record_is_kept_under_its_kind_and_name(store: Store) -> None:
    records_of = cast("Records", store)
    assert await records_of.list_records("token") == {}
    await records_of.put("token", "a", b"1")
    await records_of.put("token", "b", b"\x00\xff")
    await records_of.put("limit", "a", b"3")
    assert await records_of.list_records("token") == {"a": b"1", "b": b"\x00\xff"}


async def test_a_newer_record_takes_the_place_of_the_older_and_nothing_of_it(store: Store) -> None:
    records_of = cast("Records", store)
    await records_of.put("token", "a", b"1")
    await records_of.put("token", "a", b"2")
    assert await records_of.list_records("token") == {"a": b"2"}
    await records_of.put("token", "a", None)
    await records_of.put("token", "a", None)
    assert await records_of.list_records("token") == {}
