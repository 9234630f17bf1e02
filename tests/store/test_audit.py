"""The audit log, on every store."""

import asyncio

import pytest

from windlass.model.audit import MOST_LINES_KEPT
from windlass.model.errors import Invalid
from windlass.model.names import EVERY_TENANT
from windlass.store.optional import AuditRow, AuditStore
from windlass.store.protocol import Store


@pytest.fixture
def audit(store: Store) -> AuditStore:
    assert store.audit is not None
    return store.audit


async def _all(audit: AuditStore, tenant: str, limit: int) -> list[AuditRow]:
    found, after = [], None
    while True:
        page = await audit.list(tenant, after, limit)
        assert len(page.rows) <= limit
        found += page.rows
        if (after := page.next) is None:
            return found


async def test_lines_are_read_newest_first_and_by_tenant(store: Store, audit: AuditStore) -> None:
    assert (await audit.list("acme", None, 10)).rows == []
    for number, tenant in enumerate(["acme", "shop", "acme", EVERY_TENANT, "shop"]):
        await audit.add(tenant, b"\x00\xff%d" % number)
    now = (await store.jobs.read([])).now
    for limit in (1, 2, 3, 10):
        assert [row.data[2:] for row in await _all(audit, "acme", limit)] == [b"2", b"0"]
        every = await _all(audit, EVERY_TENANT, limit)
        assert [(row.tenant, row.data[2:]) for row in every] == [
            ("shop", b"4"), (EVERY_TENANT, b"3"), ("acme", b"2"), ("shop", b"1"), ("acme", b"0"),
        ]  # fmt: skip
        assert all(abs((now - row.at).total_seconds()) < 60 for row in every)


async def test_a_line_that_comes_meanwhile_changes_no_following_page(audit: AuditStore) -> None:
    for number in range(4):
        await audit.add("acme", b"%d" % number)
    page = await audit.list("acme", None, 2)
    await audit.add("acme", b"new")
    assert [row.data for row in (await audit.list("acme", page.next, 2)).rows] == [b"1", b"0"]


@pytest.mark.parametrize("after", ["", "x", "-1", "1.5", "9" * 40, "²"])
async def test_what_is_no_cursor_is_refused(audit: AuditStore, after: str) -> None:
    with pytest.raises(Invalid, match="cursor"):
        await audit.list("acme", after, 1)


async def test_the_newest_lines_of_each_tenant_are_kept(audit: AuditStore) -> None:
    await audit.add("shop", b"kept")
    for start in range(0, MOST_LINES_KEPT + 5, 500):
        numbers = range(start, min(start + 500, MOST_LINES_KEPT + 5))
        await asyncio.gather(*(audit.add("acme", b"%d" % number) for number in numbers))
    assert sorted(int(row.data) for row in await _all(audit, "acme", 1000)) == list(range(5, MOST_LINES_KEPT + 5))
    assert [row.data for row in await _all(audit, "shop", 10)] == [b"kept"]
    assert len(await _all(audit, EVERY_TENANT, 1000)) == MOST_LINES_KEPT + 1
