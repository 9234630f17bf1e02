"""What a store has in it, whatever it is called there: read past all of Windlass, from its tables or its keys."""

import socket
from collections.abc import Iterator
from contextlib import closing
from typing import Any
from urllib.parse import urlsplit

import apsw
import hiredis

from tests.support.patience import PATIENCE

PIECE = 8
"""Bytes that a server keeps together, also in what it compresses."""


def holds(store: str, data: bytes) -> bool:
    """Whether any part of these bytes is anywhere in a store. Give random ones: a server compresses others."""
    pieces = [data[start : start + PIECE] for start in range(0, len(data) - PIECE + 1, PIECE // 2)]
    values = _dumps(store) if store.startswith("redis:") else _rows(store)
    return any(piece in value for value in values for piece in pieces)


def _rows(file: str) -> Iterator[bytes]:
    """The values of all tables."""
    # The library that has it open here: one file and two libraries in a process are beyond what SQLite's locks protect.
    with closing(apsw.Connection(file, flags=apsw.SQLITE_OPEN_READONLY)) as database:
        tables: list[Any] = list(database.execute("select name from sqlite_master where type = 'table'"))
        for (table,) in tables:
            for row in database.execute(f'select * from "{table}"'):  # noqa: S608 - the file names its tables
                yield from (value for value in row if isinstance(value, bytes))


def _dumps(url: str) -> Iterator[bytes]:
    """All keys, as the server would write them to its disk."""
    with socket.create_connection(("127.0.0.1", urlsplit(url).port or 6379), timeout=PATIENCE) as connection:
        cursor = b"0"
        while True:
            cursor, keys = _asked(connection, [(b"SCAN", cursor, b"COUNT", b"1000")])[0]
            yield from (dump for dump in _asked(connection, [(b"DUMP", key) for key in keys]) if dump is not None)
            if cursor == b"0":
                return


def _asked(connection: socket.socket, commands: list[Any]) -> list[Any]:
    connection.sendall(b"".join(hiredis.pack_command(words) for words in commands))
    reader = hiredis.Reader()
    answers: list[Any] = []
    while len(answers) < len(commands):
        if (answer := reader.gets()) is not False:
            answers.append(answer)
        else:
            reader.feed(connection.recv(1 << 16))
    return answers
