"""A backlog on a server, over HTTP alone: sent in as lines, listed as lines, claimed and finished in batches.

One client on one connection, so the figures are those of a server that answers one question at a time.
"""

import http.client
import json
import time
from typing import Any, NamedTuple

import msgspec

from bench.processes import Program

AT_ONCE = 1000
SENT_AT_ONCE = 10_000
READ_AT_ONCE = 1 << 16
NDJSON = "application/x-ndjson"


class Backlog(NamedTuple):
    """What the server did with it."""

    listed: float
    """Rows a second."""
    first: float
    """Milliseconds until the first of them."""
    growth: float
    """Megabytes that the server grew by meanwhile."""
    worked: float
    """Jobs a second, claimed and finished."""


class Caller:
    """One connection to a server."""

    def __init__(self, port: int, token: str) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", port)
        self._token = token

    def send(self, verb: str, path: str, body: bytes = b"", **headers: str) -> http.client.HTTPResponse:
        said = {"Authorization": f"Bearer {self._token}", "Content-Type": "application/json", **headers}
        self._connection.request(verb, f"/v1/default{path}", body, said)
        response = self._connection.getresponse()
        if response.status >= http.client.BAD_REQUEST:
            raise RuntimeError(response.read().decode())
        return response

    def ask(self, verb: str, path: str, body: object = None) -> Any:
        data = b"" if body is None else msgspec.json.encode(body)
        return msgspec.json.decode(self.send(verb, path, data).read())


def measured(program: Program, port: int, token: str, number: int) -> Backlog:
    caller = Caller(port, token)
    _fill(caller, number)
    before = program.weight().rss
    listed, first, after = _list(caller, program, number)
    return Backlog(listed, first * 1000, after - before, _work(caller, number))


def _fill(caller: Caller, number: int) -> None:
    """Send jobs of a task that no other caller uses, and wait until the store has all of them."""
    line = json.dumps({"task": "backlog", "queue": "backlog", "payload": "x" * 100})
    for start in range(0, number, SENT_AT_ONCE):
        body = "\n".join([line] * min(SENT_AT_ONCE, number - start)).encode()
        caller.send("POST", "/jobs/batch", body, **{"Content-Type": NDJSON}).read()
    while caller.ask("GET", "/jobs/count?queue=backlog")["count"] < number:
        time.sleep(0.1)


def _list(caller: Caller, program: Program, number: int) -> tuple[float, float, float]:
    """Rows a second, seconds until the first, and what the server weighed at its heaviest."""
    begun = time.perf_counter()
    response = caller.send("GET", "/jobs?queue=backlog", Accept=NDJSON)
    data = response.read1(READ_AT_ONCE)
    first, rows, heaviest, looked = time.perf_counter() - begun, 0, 0.0, 0.0
    while data:
        rows += data.count(b"\n")
        if time.perf_counter() - looked > 0.5:
            heaviest, looked = max(heaviest, program.weight().rss), time.perf_counter()
        data = response.read1(READ_AT_ONCE)
    if rows != number:
        raise RuntimeError(f"{rows} rows of {number}")
    return rows / (time.perf_counter() - begun), first, heaviest


def _work(caller: Caller, number: int) -> float:
    worker = caller.ask("POST", "/workers", {"name": "bench", "queues": ["backlog"], "slots": AT_ONCE})["worker"]
    begun, done = time.perf_counter(), 0
    while done < number:
        claimed = caller.ask("POST", f"/workers/{worker}/claim", {"slots": AT_ONCE})
        ended = [{"id": one["job"]["id"], "token": one["token"], "outcome": "ok"} for one in claimed]
        done += len(caller.ask("POST", f"/workers/{worker}/finish", ended)["applied"])
        if not claimed:
            raise RuntimeError(f"{done} jobs of {number}")
    return done / (time.perf_counter() - begun)
