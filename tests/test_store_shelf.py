"""Records beside the jobs, on every store."""

from typing import cast

from windlass.store import Store
from windlass.store.beside import Shelf


async def test_a_record_is_kept_under_its_kind_and_name(store: Store) -> None:
    shelf = cast("Shelf", store)
    assert await shelf.shelved("token") == {}
    await shelf.put("token", "a", b"1")
    await shelf.put("token", "b", b"\x00\xff")
    await shelf.put("limit", "a", b"3")
    assert await shelf.shelved("token") == {"a": b"1", "b": b"\x00\xff"}


async def test_a_newer_record_takes_the_place_of_the_older_and_nothing_of_it(store: Store) -> None:
    shelf = cast("Shelf", store)
    await shelf.put("token", "a", b"1")
    await shelf.put("token", "a", b"2")
    assert await shelf.shelved("token") == {"a": b"2"}
    await shelf.put("token", "a", None)
    await shelf.put("token", "a", None)
    assert await shelf.shelved("token") == {}
