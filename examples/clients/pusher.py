"""Enqueues a job over HTTP and waits for its result. Needs the standard library and the package msgpack.

WINDLASS_TOKEN=… python pusher.py greet '{"name": "Ada"}'
"""

import json
import os
import sys
import uuid
import zlib
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.request import Request, urlopen

import msgpack  # type: ignore[import-untyped]

SERVER = os.environ.get("WINDLASS_SERVER", "http://127.0.0.1:7717")
BASE = f"{SERVER}/v1/{os.environ.get('WINDLASS_TENANT', 'default')}"
MSGPACK = "application/vnd.msgpack"

UNFINISHED = 408


class Refused(Exception):
    def __init__(self, status: int, problem: dict[str, Any]) -> None:
        super().__init__(f"{problem.get('title')}: {problem.get('detail')} {problem.get('at', '')}".strip())
        self.status = status


def ask(verb: str, path: str, body: object = None, *, within: float = 30) -> Any:
    """Send one request and return the answer."""
    headers = {"authorization": f"Bearer {os.environ['WINDLASS_TOKEN']}", "content-type": MSGPACK, "accept": MSGPACK}
    data = None if body is None else msgpack.packb(body)
    try:
        with urlopen(Request(BASE + path, data, headers, method=verb), timeout=within) as response:  # noqa: S310
            said = response.read()
            return msgpack.unpackb(said, timestamp=3) if said else None
    except HTTPError as fault:
        raise Refused(fault.code, msgpack.unpackb(fault.read(), timestamp=3)) from None


def new_id(queue: str) -> str:
    """Our own id, so that a job that is sent twice is still one job. Its last byte must fit the queue."""
    return str(uuid.UUID(bytes=uuid.uuid4().bytes[:15] + bytes([zlib.crc32(queue.encode()) & 0xFF])))


def enqueue(task: str, payload: object, **options: object) -> str:
    job = {"id": new_id("default"), "task": task, "payload": payload, **options}
    for last in (False, True):
        try:
            return str(ask("POST", "/jobs", job)["id"])
        except URLError:  # it may have arrived: with an id it is safe to send it again
            if last:
                raise
    raise AssertionError


def result(id: str) -> Any:
    """Wait until a job has ended and return its result."""
    while True:
        try:
            return ask("GET", f"/jobs/{id}/result?wait=30", within=40)
        except Refused as fault:
            if fault.status != UNFINISHED:
                raise


def main() -> int:
    task, payload = sys.argv[1], json.loads(sys.argv[2]) if len(sys.argv) > 2 else None
    id = enqueue(task, payload, timeout=60, max_retry=3)
    print(f"queued {id}", file=sys.stderr)
    ended = result(id)
    print(json.dumps(ended["result"] if ended["state"] == "succeeded" else ended["error"], default=str))
    return 0 if ended["state"] == "succeeded" else 1


if __name__ == "__main__":
    sys.exit(main())
