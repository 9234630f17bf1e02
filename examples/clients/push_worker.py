"""A worker that receives jobs by HTTP push, in MessagePack. Needs the standard library and the package msgpack.

WINDLASS_TOKEN=… python push_worker.py
"""

import hashlib
import hmac
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import msgpack  # type: ignore[import-untyped]
from pusher import Refused, ask


def greet(name: str) -> str:
    return f"hello, {name}"


def count(to: int) -> int:
    for _ in range(to):
        time.sleep(0.1)
    return to


TASKS: dict[str, Callable[..., Any]] = {"greet": greet, "count": count}
QUICK = {"greet"}
"""Answered at once; the others are reported when they are done."""


def outcome(claimed: dict[str, Any]) -> dict[str, Any]:
    """What a task returns is the result."""
    try:
        return {"outcome": "ok", "result": TASKS[claimed["job"]["task"]](**claimed["payload"])}
    except Exception as fault:  # noqa: BLE001 - every exception of a task is reported
        error = {"type": type(fault).__name__, "message": str(fault), "traceback": traceback.format_exc()}
        return {"outcome": "error", "error": error}


class Worker:
    """The registration of this worker, and its running jobs."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.running: dict[str, str] = {}
        self.register()

    def register(self) -> None:
        about = {"name": "python", "pid": os.getpid(), "slots": 4, "tasks": list(TASKS), "url": self.url}
        answer = ask("POST", "/workers", about)
        self.id, self.secret, self.lease = answer["worker"], answer["secret"].encode(), answer["lease"]
        print(f"registered as {self.id}", flush=True)

    def renew_forever(self) -> None:
        """A worker that does not renew within a lease counts as lost. The answer names the jobs to stop."""
        while True:
            time.sleep(self.lease / 3)
            try:
                jobs = [{"id": id, "token": token} for id, token in list(self.running.items())]
                ask("POST", f"/workers/{self.id}/renew", jobs)  # threads cannot be stopped, so the answer is ignored
            except (Refused, OSError) as fault:
                print(fault, file=sys.stderr)
                if isinstance(fault, Refused) and fault.status == 404:
                    self.register()

    def run_and_report(self, claimed: dict[str, Any]) -> None:
        id, token = claimed["job"]["id"], claimed["token"]
        self.running[id] = token
        ended = outcome(claimed)
        del self.running[id]
        ask("POST", f"/workers/{self.id}/finish", [{"id": id, "token": token, **ended}])

    def is_from_server(self, headers: Any, body: bytes) -> bool:
        timestamp = headers.get("windlass-timestamp", "")
        wanted = hmac.new(self.secret, timestamp.encode() + b"." + body, hashlib.sha256).hexdigest()
        is_fresh = timestamp.isdecimal() and abs(time.time() - int(timestamp)) < 300
        return is_fresh and hmac.compare_digest(wanted, headers.get("windlass-signature", ""))

    def answer(self, headers: Any, body: bytes) -> tuple[int, object]:
        if not self.is_from_server(headers, body):
            return 403, None
        claimed = msgpack.unpackb(body, timestamp=3)
        if claimed["job"]["task"] not in TASKS:
            return 404, None
        if claimed["job"]["task"] in QUICK:
            return 200, outcome(claimed)
        threading.Thread(target=self.run_and_report, args=[claimed], daemon=True).start()
        return 202, None


class Handler(BaseHTTPRequestHandler):
    worker: Worker

    def do_POST(self) -> None:
        status, said = self.worker.answer(self.headers, self.rfile.read(int(self.headers["content-length"])))
        data = b"" if said is None else msgpack.packb(said)
        self.send_response(status)
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


def main() -> None:
    listener = ThreadingHTTPServer(("127.0.0.1", int(os.environ.get("PORT", "0"))), Handler)
    Handler.worker = Worker(os.environ.get("WORKER_URL", f"http://127.0.0.1:{listener.server_port}/jobs"))
    threading.Thread(target=Handler.worker.renew_forever, daemon=True).start()
    signal.signal(signal.SIGTERM, lambda *_: threading.Thread(target=listener.shutdown).start())
    listener.serve_forever()
    ask("DELETE", f"/workers/{Handler.worker.id}")


if __name__ == "__main__":
    main()
