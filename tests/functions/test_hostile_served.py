"""Functions that run amok in a real server: each of their jobs ends once, and server and worker stay up."""

import asyncio
import random
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any, Self

import pytest

from tests.support.hostile_functions import RUNS, misdeed, noise
from tests.support.http_servers import Process, process
from tests.support.json_client import Site, calling
from tests.support.patience import PATIENCE
from tests.support.servers import StartServer
from tests.support.worker_harness import until

pytestmark = pytest.mark.timeout(600)

SMALL = {"WINDLASS_FUNCTIONS_OUTPUT": "300000", "WINDLASS_FUNCTIONS_RESULT": "100000"}
HONEST = "def run(payload):\n    return payload\n"


class Mumbler:
    """A web server that answers with noise, sometimes behind a proper head, and now and then hangs up."""

    def __init__(self, seed: int) -> None:
        self._chance = random.Random(seed)
        self._loop = asyncio.new_event_loop()
        self._server = self._loop.run_until_complete(asyncio.start_server(self._serve, "127.0.0.1", 0))
        self.place = f"127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        self.url = f"http://{self.place}/"
        self._thread = threading.Thread(target=self._loop.run_forever)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with closing(writer), suppress(asyncio.IncompleteReadError, ConnectionError):
            while head := await reader.readuntil(b"\r\n\r\n"):
                await reader.readexactly(int(head.lower().partition(b"content-length:")[2].split()[0]))
                writer.write(self._answer())
                await writer.drain()
                if self._chance.random() < 0.5:
                    break

    def _answer(self) -> bytes:
        chance, body = self._chance, noise(self._chance)
        length = chance.choice((len(body), len(body), len(body) // 2, len(body) + 9))
        head = b"HTTP/1.1 %d X\r\ncontent-length: %d\r\n" % (chance.choice((200, 200, 102, 301, 404, 503, 999)), length)
        return chance.choice((b"", head + b"\r\n", head + b"content-type: application/json\r\n\r\n", head)) + body

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        asyncio.run_coroutine_threadsafe(self._hang_up(), self._loop).result(PATIENCE)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _hang_up(self) -> None:
        """Whoever calls us keeps some connections open."""
        self._server.close()
        calls = asyncio.all_tasks() - {asyncio.current_task()}
        for call in calls:
            call.cancel()
        await asyncio.gather(*calls, return_exceptions=True)
        await asyncio.sleep(0)  # transports close in the next round


class Fed(Site):
    """A server that is given functions and lines for them."""

    def upload(self, task: str, lang: str, body: str, **options: Any) -> None:
        limits = {"timeout": 5, "batch": 5, **options}
        self.ask("PUT", f"/handlers/{task}", json={"lang": lang, "body": body, "options": limits})

    def feed(self, task: str, lines: list[bytes]) -> list[str]:
        ids: list[str] = self.ask("POST", f"/tasks/{task}/jobs", content=b"\n".join(lines))["ids"]
        return ids


@contextmanager
def site(served: Process) -> Iterator[Fed]:
    with calling(served) as http:
        yield Fed(http)


def send_in(one: Fed, url: str) -> None:
    for lang, body in RUNS.items():
        one.upload(lang, lang, body)
    one.upload("http", "http", url)
    one.upload("http-whole", "http", url, whole_batch=True)
    for task in ("made", "honest"):
        one.upload(task, "python", HONEST)


@pytest.mark.parametrize("kind", ["sqlite", "redis"])
@pytest.mark.parametrize("number", [8, pytest.param(400, marks=pytest.mark.long)])
def test_each_job_ends_once_and_the_server_stays_up(
    kind: str, number: int, tmp_path: Path, start_server: StartServer
) -> None:
    chance = random.Random(number)
    store = start_server("redis", fsync="no").url if kind == "redis" else None
    with (
        Mumbler(number) as mumbler,
        process(tmp_path, "--allow-upload", "--reach", mumbler.place, store=store, **SMALL) as served,
    ):
        assert served.child is not None
        with site(served) as one:
            send_in(one, mumbler.url)
            wild = {lang: [misdeed(lang, chance) for _ in range(number)] for lang in RUNS}
            wild |= {task: [b"x"] * number for task in ("http", "http-whole")}
            ids = {task: one.feed(task, lines) for task, lines in wild.items()}
            jobs = {task: [one.ended(id) for id in some] for task, some in ids.items()}
            for task, some in jobs.items():
                assert {job["state"] for job in some} <= {"succeeded", "failed"}, task
                for job in some:
                    again = 0 if job["reason"] == "crashed" else 1
                    assert job["attempt"] == job["crashes"] + again, "only those that crash are run again"
            until(lambda: one.ask("GET", "/jobs/count", params={"state": "pending"})["count"] == 0)
            assert one.ask("GET", "/jobs/count", params={"task": "made", "state": "failed"})["count"] == 0
            (well,) = one.feed("honest", [b"still here"])
            assert one.ended(well)["state"] == "succeeded"
        assert served.child.poll() is None
        assert "Traceback" not in (tmp_path / "log").read_text()
