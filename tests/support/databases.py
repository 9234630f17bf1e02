"""Databases of users: one SQLite file, and each kind of connection by which a program may write to it."""

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import django
import sqlalchemy
from django.conf import settings
from django.db import connection as django_connection
from django.db import transaction
from sqlalchemy.orm import Session, scoped_session, sessionmaker

from windlass import OUTBOX_TABLE

CONNECTIONS = ("sqlite3", "django", "sqlalchemy connection", "sqlalchemy session", "scoped session")


class RolledBack(Exception):
    """Ends a transaction that is not to be committed."""


def roll_back() -> None:
    raise RolledBack


def make_database(path: Path) -> Path:
    """With the outbox, and a table of the user's own."""
    with sqlite3.connect(path) as connection:
        connection.execute(OUTBOX_TABLE)
        connection.execute("CREATE TABLE orders (number INTEGER)")
    connection.close()
    return path


def numbers(path: Path) -> list[int]:
    """What the user's own table holds."""
    connection = sqlite3.connect(path)
    found = [number for (number,) in connection.execute("SELECT number FROM orders ORDER BY number")]
    connection.close()
    return found


@contextmanager
def transaction_of(kind: str, path: Path) -> Iterator[Any]:
    """One that is committed at the end, or rolled back by an error: `RolledBack` goes no further."""
    try:
        with _KINDS[kind](path) as connection:
            yield connection
    except RolledBack:
        pass


@contextmanager
def _driver(path: Path) -> Iterator[Any]:
    connection = sqlite3.connect(path)
    try:
        with connection:
            yield connection
    finally:
        connection.close()


def use_django(path: Path) -> Any:
    """Its connection to this file."""
    if not settings.configured:
        settings.configure(DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": str(path)}})
        django.setup()
    django_connection.close()
    django_connection.settings_dict["NAME"] = str(path)
    return django_connection


@contextmanager
def _django(path: Path) -> Iterator[Any]:
    connection = use_django(path)
    try:
        with transaction.atomic():
            yield connection
    finally:
        connection.close()


@contextmanager
def sqlalchemy_engine(path: Path) -> Iterator[sqlalchemy.Engine]:
    engine = sqlalchemy.create_engine(f"sqlite:///{path}")
    try:
        yield engine
    finally:
        engine.dispose()


@contextmanager
def _connection(path: Path) -> Iterator[Any]:
    with sqlalchemy_engine(path) as engine, engine.begin() as connection:
        yield connection


@contextmanager
def _session(path: Path) -> Iterator[Any]:
    with sqlalchemy_engine(path) as engine, Session(engine) as session, session.begin():
        yield session


@contextmanager
def _scoped(path: Path) -> Iterator[Any]:
    with sqlalchemy_engine(path) as engine:
        session = scoped_session(sessionmaker(engine))
        try:
            with session.begin():
                yield session
        finally:
            session.remove()


_KINDS = {
    "sqlite3": _driver,
    "django": _django,
    "sqlalchemy connection": _connection,
    "sqlalchemy session": _session,
    "scoped session": _scoped,
}
