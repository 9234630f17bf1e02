"""Jobs that are queued in a transaction of the user's own database, by the connections that people have."""

import asyncio
import os
import sqlite3
from base64 import b64encode
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import aiosqlite
import pytest
from django.db import transaction
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session

from tests.support.databases import (
    CONNECTIONS,
    RolledBack,
    make_database,
    roll_back,
    sqlalchemy_engine,
    transaction_of,
    use_django,
)
from tests.support.servers import Server
from tests.support.worker_harness import until
from windlass import Invalid, Missing, TooLarge, Unavailable, Windlass, outbox
from windlass.app import Task
from windlass.model.new_job import NewJob
from windlass.run_outbox import OutboxFile
from windlass.store.encoding import pack_then
from windlass.system import SystemClock

Mail = Task[..., None, None]
ON_COMMIT = ("django", "sqlalchemy session", "scoped session")


@pytest.fixture(params=["file", "redis"])
def app(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Windlass]:
    if request.param == "file":
        found = Windlass(str(tmp_path / "jobs.db"))
    else:
        server = request.getfixturevalue("redis_server")
        assert isinstance(server, Server)
        found = Windlass(server.url, tenant=f"o{os.getpid()}x{os.urandom(3).hex()}")
    yield found
    found.close()


@pytest.fixture
def mail(app: Windlass) -> Mail:
    def send_mail(order: int) -> None: ...

    return app.task(name="mail")(send_mail)


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    return make_database(tmp_path / "shop.db")


def relay(mail: Mail, shop: Path) -> int:
    with closing(sqlite3.connect(shop)) as connection:
        return mail.app.relay(connection)


def rows(shop: Path) -> list[Any]:
    with closing(sqlite3.connect(shop)) as connection:
        return connection.execute("SELECT task, error FROM windlass_outbox ORDER BY id").fetchall()


def queued(mail: Mail) -> list[str]:
    return [job.id for job in mail.app.jobs()]


@pytest.mark.parametrize("kind", CONNECTIONS)
def test_a_job_is_queued_if_and_only_if_its_transaction_commits(kind: str, mail: Mail, shop: Path) -> None:
    with transaction_of(kind, shop) as connection:
        kept = mail.enqueue_in(connection, 1)
    with transaction_of(kind, shop) as connection:
        lost = mail.enqueue_in(connection, 2)
        roll_back()
    assert rows(shop) == [("mail", None)]
    assert kept.created
    with pytest.raises(Missing):
        kept.refresh()  # until it is relayed
    with transaction_of(kind, shop) as connection:
        pass
    assert relay(mail, shop) == 1
    assert queued(mail) == [kept.id] != [lost.id]
    assert rows(shop) == []


@pytest.mark.parametrize("kind", CONNECTIONS)
def test_any_connection_relays(kind: str, mail: Mail, shop: Path) -> None:
    with closing(sqlite3.connect(shop)) as connection:
        jobs = [mail.enqueue_in(connection, number) for number in range(5)]
        connection.commit()
    if kind == "django":
        assert mail.app.relay(use_django(shop)) == 5
    elif kind == "sqlite3":
        assert relay(mail, shop) == 5
    else:
        with sqlalchemy_engine(shop) as engine:
            opened = Session(engine) if "session" in kind else engine.connect()
            with opened as connection:
                assert mail.app.relay(connection) == 5
    assert queued(mail) == [job.id for job in jobs], "in the order of the calls"
    assert rows(shop) == []


def test_a_job_that_is_relayed_twice_is_one_job(mail: Mail, shop: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A relay dies between the queue's answer and its own commit, and the job has even run meanwhile."""
    with transaction_of("sqlite3", shop) as connection:
        jobs = [mail.enqueue_in(connection, number) for number in range(3)]

    def die(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(outbox, "settle", die)
        with pytest.raises(KeyboardInterrupt):
            relay(mail, shop)
    assert len(rows(shop)) == 3
    assert queued(mail) == [job.id for job in jobs]
    jobs[0].cancel()
    assert relay(mail, shop) == 3
    assert [job.state for job in jobs] == ["cancelled", "queued", "queued"]
    assert (len(queued(mail)), rows(shop)) == (3, [])


def test_a_job_keeps_its_options(mail: Mail, shop: Path) -> None:
    def pack(order: int) -> int:
        return order

    packed = mail.app.task(name="pack", queue="store", tags=["vip"])(pack)
    with transaction_of("sqlite3", shop) as connection:
        first = packed.using(delay="1h", then=mail, headers={"trace": "7"}).enqueue_in(connection, 1)
        after = mail.using(after=[first]).enqueue_in(connection, order=2)
        keyed = [mail.using(key="k").enqueue_in(connection, 3) for _ in range(2)]
    assert keyed[0] == keyed[1]
    assert keyed[0].created is None
    assert relay(mail, shop) == 4
    record = first.refresh()
    assert (record.queue, record.tags, record.state, record.headers) == ("store", ["vip"], "scheduled", {"trace": "7"})
    assert (after.state, after.refresh().after) == ("blocked", [first.id])
    assert len(queued(mail)) == 3


def test_a_follow_up_that_went_through_the_outbox_gets_the_result(shop: Path) -> None:
    app = Windlass()
    got: list[list[int]] = []

    @app.task
    def pack(order: int) -> list[int]:
        return [order, 2]

    @app.task
    def ship(parts: list[int]) -> None:
        got.append(parts)

    with transaction_of("sqlite3", shop) as connection:
        pack.using(then=ship).enqueue_in(connection, 1)
    with app.testing.manual() as testing, closing(sqlite3.connect(shop)) as connection:
        assert app.relay(connection) == 1
        testing.drain()
    assert got == [[1, 2]]


def test_what_the_queue_refuses_stays_with_its_error_and_holds_up_nothing(mail: Mail, shop: Path) -> None:
    with transaction_of("sqlite3", shop) as connection:
        jobs = [mail.enqueue_in(connection, number) for number in range(7)]
        wrong = NewJob(task="mail", id=jobs[0].id[:-2] + "00")  # of no queue of this name
        packed = b64encode(pack_then(mail.app.tenant, wrong)).decode()
        for id, job in (("0", "rubbish"), ("1", packed)):
            insert = "INSERT INTO windlass_outbox (id, tenant, task, job) VALUES (?, ?, 'mail', ?)"
            connection.execute(insert, [id, mail.app.tenant, job])
    assert relay(mail, shop) == 7
    assert queued(mail) == [job.id for job in jobs]
    (first, second) = rows(shop)
    assert "is no job" in first[1]
    assert "id" in second[1]
    assert relay(mail, shop) == 0
    assert len(rows(shop)) == 2


def test_what_can_never_be_queued_is_refused_in_the_transaction(mail: Mail, shop: Path) -> None:
    with transaction_of("sqlite3", shop) as connection:
        with pytest.raises(TooLarge):
            mail.using(files={"a": b"x" * (2 << 20)}).enqueue_in(connection, 1)
        with pytest.raises(Invalid, match="cannot wait for a transaction"):
            mail.using(yielding=True).enqueue_in(connection, 1)
        with pytest.raises(Invalid, match="arguments"):
            mail.enqueue_in(connection, "seven")
    assert rows(shop) == []


async def test_asynchronous_connections(mail: Mail, shop: Path) -> None:
    engine = create_async_engine(f"sqlite+aiosqlite:///{shop}")
    async with engine.begin() as connection:
        await mail.aenqueue_in(connection, 1)
    async with AsyncSession(engine) as session, session.begin():
        await mail.aenqueue_in(session, 2)
    async with AsyncSession(engine) as session:
        await mail.aenqueue_in(session, 3)
        await session.rollback()
    async with engine.connect() as connection, aiosqlite.connect(shop) as driver:
        with pytest.raises(Invalid, match="await aenqueue_in"):
            mail.enqueue_in(connection, 4)
        with pytest.raises(Invalid, match="await aenqueue_in"):
            mail.enqueue_in(AsyncSession(engine), 4)
        with pytest.raises(Invalid, match="await aenqueue_in"):
            mail.enqueue_in(driver, 4)
        await mail.aenqueue_in(driver, 5)
        await driver.commit()
    with closing(sqlite3.connect(shop)) as plain:
        await mail.aenqueue_in(plain, 6)
        plain.commit()
    await engine.dispose()
    assert await asyncio.to_thread(relay, mail, shop) == 4


def test_what_is_no_connection_is_named(mail: Mail, shop: Path) -> None:
    with sqlalchemy_engine(shop) as engine:
        for wrong in (engine, "shop.db", None):
            with pytest.raises(Invalid, match=f"a {type(wrong).__name__} is no connection"):
                mail.enqueue_in(wrong, 1)
        with engine.connect() as connection, pytest.raises(Invalid, match="use enqueue_in"):
            mail.enqueue_on_commit(connection, 1)
    with closing(sqlite3.connect(shop)) as connection, pytest.raises(Invalid, match="use enqueue_in"):
        mail.enqueue_on_commit(connection, 1)


async def test_an_asynchronous_session_does_not_queue_on_commit(mail: Mail, shop: Path) -> None:
    with pytest.raises(Invalid, match="use aenqueue_in"):
        mail.enqueue_on_commit(AsyncSession(create_async_engine(f"sqlite+aiosqlite:///{shop}")), 1)


# On commit, without a table


@pytest.mark.parametrize("kind", ON_COMMIT)
def test_a_call_on_commit_is_queued_after_the_commit_and_not_after_a_rollback(
    kind: str, mail: Mail, shop: Path
) -> None:
    with transaction_of(kind, shop) as connection:
        kept = mail.enqueue_on_commit(connection, 1)
        assert queued(mail) == []
    assert queued(mail) == [kept.id]
    with transaction_of(kind, shop) as connection:
        mail.enqueue_on_commit(connection, 2)
        roll_back()
    with transaction_of(kind, shop) as connection:
        pass
    assert queued(mail) == [kept.id]
    assert rows(shop) == []


def test_a_session_queues_what_belongs_to_each_of_its_transactions(mail: Mail, shop: Path) -> None:
    with sqlalchemy_engine(shop) as engine, Session(engine) as session:
        mail.enqueue_on_commit(session, 1)
        session.rollback()
        first = mail.enqueue_on_commit(session, 2)
        session.commit()
        assert queued(mail) == [first.id]
        mail.enqueue_on_commit(session, 3)
        session.close()  # without a commit
        second = mail.enqueue_on_commit(session, 4)
        session.commit()
        session.commit()
        assert queued(mail) == [first.id, second.id]


def test_what_a_savepoint_takes_back_is_not_queued(mail: Mail, shop: Path) -> None:
    with sqlalchemy_engine(shop) as engine, Session(engine) as session, session.begin():
        outer = mail.enqueue_on_commit(session, 1)
        with session.begin_nested():
            inner = mail.enqueue_on_commit(session, 2)
        lost = session.begin_nested()
        with session.begin_nested():
            mail.enqueue_on_commit(session, 3)  # released, but what is around it is not
        lost.rollback()
        last = mail.enqueue_on_commit(session, 4)
        assert queued(mail) == []
    assert queued(mail) == [outer.id, inner.id, last.id]
    connection = use_django(shop)
    with transaction.atomic():
        with suppress(RolledBack), transaction.atomic():
            mail.enqueue_on_commit(connection, 5)
            roll_back()
        django = mail.enqueue_on_commit(connection, 6)
    connection.close()
    assert queued(mail)[3:] == [django.id]


def test_a_queue_that_does_not_answer_after_the_commit_is_an_error(shop: Path) -> None:
    """The transaction stays committed, and the session can be used again."""
    mail = Windlass("redis://localhost:1/0").task(name="mail")(lambda: None)
    with sqlalchemy_engine(shop) as engine, Session(engine) as session:
        session.connection().exec_driver_sql("INSERT INTO orders VALUES (7)")
        mail.enqueue_on_commit(session)
        with pytest.raises(Unavailable):
            session.commit()
        assert session.connection().exec_driver_sql("SELECT number FROM orders").fetchall() == [(7,)]
        session.commit()


# The file's own relay


async def test_a_file_that_is_not_there_yet_is_waited_for(
    mail: Mail, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "late.db"
    relaying = asyncio.create_task(OutboxFile(str(path), mail.app.tenant).relay(mail.app.aask, SystemClock()))
    await asyncio.to_thread(until, lambda: "No such file" in caplog.text)
    sqlite3.connect(path).close()
    path.touch()
    await asyncio.to_thread(until, lambda: "make it with windlass.OUTBOX_TABLE" in caplog.text)
    make_database(path)
    with transaction_of("sqlite3", path) as connection:
        job = mail.enqueue_in(connection, 1)
    await asyncio.to_thread(until, lambda: rows(path) == [])
    assert [one.id async for one in mail.app.jobs()] == [job.id]
    relaying.cancel()
    await asyncio.gather(relaying, return_exceptions=True)
    await mail.app.aclose()
