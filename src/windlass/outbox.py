"""Jobs that are queued in a transaction of a database of the user's own.

A row of the table `windlass_outbox` is a job that the queue does not know yet. The user's own connection writes it, so
it is there if, and only if, the transaction was committed. A relay sends it to the queue and then deletes it: the job
has its id already, so sent twice it is one job. Knows SQL that every database reads, and tells the connections of
drivers, Django and SQLAlchemy apart by what they can do. Imports SQLAlchemy only when it is given a session, and Django
never.
"""

import inspect
import logging
import re
from base64 import b64decode, b64encode
from collections.abc import Awaitable, Callable, Sequence
from itertools import groupby
from typing import Any, NamedTuple

import msgspec

from windlass.connection import run_sync
from windlass.model.admission import check_new
from windlass.model.errors import Conflict, Invalid, Missing, TooLarge
from windlass.model.names import EVERY_TENANT
from windlass.model.new_job import NewJob
from windlass.model.operations import EnqueueMany
from windlass.store.encoding import pack_then, unpack_then
from windlass.system import SystemRandomness, nanoseconds

log = logging.getLogger("windlass.outbox")

OUTBOX_TABLE = """\
CREATE TABLE IF NOT EXISTS windlass_outbox (
    id CHAR(32) PRIMARY KEY,
    tenant VARCHAR(128) NOT NULL,
    task VARCHAR(128) NOT NULL,
    job TEXT NOT NULL,
    error TEXT
)"""
"""The table, for a migration or for `connection.execute`."""

STEP = 200
"""Rows that are read at once."""

REFUSED = (Invalid, TooLarge, Missing, Conflict)
"""What the queue will say again, however often such a job is sent."""

MOST_ERROR = 500

_chance = SystemRandomness()

# Statements have no parameters, because drivers write them in five ways. None of the values can end a literal: an id is
# hexadecimal, a job is Base64, tenants and tasks are names, and `_literal` leaves nothing else of an error.


def put(tenant: str, new: NewJob, most_payload: int) -> str:
    """The statement that writes a job into the outbox, checked as the queue would check it."""
    new = check_new(new, most_payload, "")
    if new.yielding:
        raise Invalid("a yielding job starts at once or not at all: it cannot wait for a transaction", at="yielding")
    # Rows are relayed in the order of these ids: a job comes behind those of the same process that it waits for.
    id = f"{nanoseconds():016x}{_chance.token().hex()}"
    job = b64encode(pack_then(tenant, new)).decode()  # with the jobs that follow it
    return (
        "INSERT INTO windlass_outbox (id, tenant, task, job) "  # noqa: S608
        f"VALUES ('{id}', '{tenant}', '{new.task}', '{job}')"
    )


def execute(connection: Any, statement: str) -> Any:
    """Run a statement in the transaction of a connection; what a query found has `fetchall`."""
    driver = connection.connection() if hasattr(connection, "get_bind") else connection  # a session of SQLAlchemy
    if hasattr(driver, "exec_driver_sql"):
        return _at_once(driver.exec_driver_sql(statement))
    if not hasattr(_at_once(driver), "cursor"):
        raise Invalid(
            f"a {type(connection).__name__} is no connection: give one of a driver, of Django, or a connection or "
            "session of SQLAlchemy",
            at="connection",
        )
    cursor = _at_once(driver.cursor())
    cursor.execute(statement)
    return cursor


def _at_once(answer: Any) -> Any:
    if not inspect.isawaitable(answer):
        return answer
    if inspect.iscoroutine(answer):
        answer.close()
    raise Invalid("this connection is asynchronous: await aenqueue_in(…)", at="connection")


async def aexecute(connection: Any, statement: str) -> None:
    """The same by an asynchronous connection."""
    driver = await _awaited(connection.connection()) if hasattr(connection, "get_bind") else connection
    run = getattr(driver, "exec_driver_sql", None) or getattr(driver, "execute", None)
    if run is None:
        execute(driver, statement)
    else:
        await _awaited(run(statement))


async def _awaited(answer: Any) -> Any:
    return await answer if inspect.isawaitable(answer) else answer


# After the commit, without a table


def after_commit(connection: Any, send: Callable[[], object]) -> None:
    """Call this once the transaction is committed, and not at all if it is rolled back."""
    if hasattr(connection, "on_commit"):  # of Django
        connection.on_commit(send)
        return
    if callable(registry := getattr(connection, "registry", None)):  # a scoped session
        connection = registry()
    if not hasattr(connection, "get_bind"):
        raise Invalid(f"a {type(connection).__name__} does not say when it commits: use enqueue_in", at="connection")
    if hasattr(connection, "sync_session"):
        raise Invalid("an AsyncSession cannot wait for the queue when it commits: use aenqueue_in", at="connection")
    if (waiting := connection.info.get(SessionSends)) is None:
        waiting = connection.info[SessionSends] = SessionSends(connection)
    waiting.add(connection, send)


class SessionSends:
    """What is to be sent when a session of SQLAlchemy commits."""

    def __init__(self, session: Any) -> None:
        from sqlalchemy import event  # noqa: PLC0415 - there is a session, so it is installed

        self._waiting: list[tuple[list[Any], Callable[[], object]]] = []
        """Each with the transactions that it depends on: a savepoint, and those around it."""
        self._committed = False
        event.listen(session, "after_commit", self._note_commit)
        event.listen(session, "after_soft_rollback", self._drop)
        event.listen(session, "after_transaction_end", self._end)

    def add(self, session: Any, send: Callable[[], object]) -> None:
        transaction = session.get_nested_transaction() or session.get_transaction() or session.begin()
        around = []
        while transaction is not None:
            around.append(transaction)
            transaction = transaction.parent
        self._waiting.append((around, send))

    def _note_commit(self, session: Any) -> None:
        self._committed = not session.in_nested_transaction()

    def _drop(self, _: Any, rolled_back: Any) -> None:
        self._waiting = [one for one in self._waiting if rolled_back not in one[0]]

    def _end(self, _: Any, transaction: Any) -> None:
        """A session that is closed without a commit ends its transaction too."""
        if transaction.parent is not None:
            return
        committed, waiting = self._committed, self._waiting
        self._committed, self._waiting = False, []
        for _, send in waiting if committed else []:
            send()


# The relay


class OutboxRow(NamedTuple):
    """A job in the outbox."""

    id: str
    tenant: str
    job: NewJob


class Relayed(NamedTuple):
    """What became of some rows."""

    done: list[str]
    """Ids of those that the queue has now."""
    refused: dict[str, str]
    """Those that it will never take, and why."""


Send = Callable[[EnqueueMany], Awaitable[object]]


def read(connection: Any, tenant: str) -> list[Any]:
    """The first rows that wait to be relayed; `-` = of all tenants."""
    whose = "" if tenant == EVERY_TENANT else f" AND tenant = '{tenant}'"
    found = execute(
        connection,
        f"SELECT id, tenant, job FROM windlass_outbox WHERE error IS NULL{whose} ORDER BY id LIMIT {STEP}",  # noqa: S608
    )
    return list(found.fetchall())


async def send_all(found: Sequence[Any], send: Send) -> Relayed:
    """Send the jobs of these rows. What cannot be sent now raises, and stays for the next time."""
    rows, refused = list[OutboxRow](), dict[str, str]()
    for id, tenant, job in found:
        try:
            rows.append(OutboxRow(id, tenant, unpack_then(b64decode(job))[1]))
        except (msgspec.MsgspecError, ValueError) as fault:
            refused[id] = f"this is no job: {fault}"
    for _, some in groupby(rows, lambda row: row.tenant):
        refused |= await _send(list(some), send)
    return Relayed([row.id for row in rows if row.id not in refused], refused)


async def _send(rows: list[OutboxRow], send: Send) -> dict[str, str]:
    """Send jobs of one tenant; those that are refused by themselves, and why."""
    try:
        await send(EnqueueMany(tenant=rows[0].tenant, jobs=[row.job for row in rows], exact=True))
    except REFUSED as fault:
        if len(rows) == 1:
            return {rows[0].id: str(fault)}
        half = len(rows) // 2
        return {**await _send(rows[:half], send), **await _send(rows[half:], send)}
    return {}


def settle(connection: Any, relayed: Relayed) -> None:
    """Delete what was relayed, and note why the rest was refused."""
    for id, error in relayed.refused.items():
        log.error("job refused; its row %s of windlass_outbox stays, with the error: %s", id, error)
        execute(connection, f"UPDATE windlass_outbox SET error = '{_literal(error)}' WHERE id = '{id}'")  # noqa: S608
    if relayed.done:
        ids = ", ".join(f"'{id}'" for id in relayed.done)
        execute(connection, f"DELETE FROM windlass_outbox WHERE id IN ({ids})")  # noqa: S608
    connection.commit()


def _literal(text: str) -> str:
    return re.sub(r"[^\w .,:;()\[\]<>=/+-]", "_", text, flags=re.ASCII)[:MOST_ERROR]


def relay(connection: Any, tenant: str, ask: Callable[[EnqueueMany], object]) -> int:
    """Relay all that waits, by a connection of the user's; how many jobs the queue has got."""

    async def send(operation: EnqueueMany) -> None:
        ask(operation)

    done = 0
    while True:
        found = read(connection, tenant)
        relayed = run_sync(send_all(found, send))
        settle(connection, relayed)
        done += len(relayed.done)
        if len(found) < STEP:
            return done
