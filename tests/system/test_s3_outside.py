"""Promises of an older function queue about its parts, seen from outside: real servers, asked over HTTP.

Its scheduler, store, journal and runner are ours under other names: the policy of a queue, the store and the journal of
a server, and the sandbox in which a worker runs functions.
"""

import base64
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.store.test_cluster import QUEUES, two
from tests.support.clusters import PARTITIONS
from tests.support.drained_journals import CLOCK, up
from tests.support.function_harness import let_others_in
from tests.support.http_servers import Process, process
from tests.support.json_client import Site, calling
from tests.support.servers import Server, StartServer
from tests.support.worker_harness import until
from windlass.engine import Engine
from windlass.engine.journal import open_journaled
from windlass.model.new_job import NewJob
from windlass.model.operations import Enqueue, List
from windlass.store.redis import RedisStore
from windlass.system import SystemRandomness

__all__ = ["two"]

pytestmark = pytest.mark.timeout(240)

ECHO = "def run(payload):\n    return payload\n"


class Parts(Site):
    """A server whose parts are looked at."""

    def status(self, path: str) -> int:
        return self.http.get(path).status_code

    def slots(self) -> list[int]:
        """Of the workers that work for everybody."""
        return [worker["slots"] for worker in self.http.get("/v1/-/workers").json()]

    def upload(self, *tasks: str, body: str = ECHO, **options: Any) -> None:
        for task in tasks:
            self.ask("PUT", f"/handlers/{task}", json={"lang": "python", "body": body, "options": options})

    def change_queue(self, **change: Any) -> None:
        self.ask("PATCH", "/queues/default", json=change)

    def feed(self, task: str, number: int) -> list[str]:
        lines = "".join(f"{one}\n" for one in range(number))
        ids: list[str] = self.ask("POST", f"/tasks/{task}/jobs", content=lines)["ids"]
        return ids

    def all_ended(self, ids: list[str]) -> list[Any]:
        return [self.ended(id) for id in ids]

    def output(self, id: str) -> bytes:
        chunks = self.ask("GET", f"/jobs/{id}/output")["chunks"]
        return b"".join(base64.b64decode(chunk["data"]) for chunk in chunks)

    def counts(self, *states: str) -> dict[str, int]:
        """How many jobs of each task are in these states."""
        found = self.ask("GET", "/stats")["queues"]
        return {one["task"]: number for one in found if (number := sum(one["states"].get(s, 0) for s in states))}


@contextmanager
def asked(serving: Process) -> Iterator[Parts]:
    with calling(serving) as http:
        yield Parts(http)


def in_order(jobs: list[Any]) -> list[str]:
    """The tasks of jobs, as they were begun."""
    return [job["task"] for job in sorted(jobs, key=lambda job: job["started_at"])]


@pytest.mark.parametrize("kind", ["sqlite", "redis"])
def test_s3_item_34_waiting_types_are_counted_and_none_waits_for_the_end_of_another(
    kind: str, tmp_path: Path, start_server: StartServer
) -> None:
    """Without any setting; and the one that says whose turn it is can be another: in order of arrival, if the queue is
    set so."""
    store = start_server("redis").url if kind == "redis" else None
    one_at_a_time = {"WINDLASS_WORKER_SLOTS": "1"}
    with process(tmp_path, "--allow-upload", store=store, **one_at_a_time) as serving, asked(serving) as site:
        site.upload("busy", "late", body="import time\ndef run(p):\n    time.sleep(0.01)\n", batch=1)
        for policy in (None, "fair", "priority"):
            site.change_queue(**({"policy": policy} if policy else {}), paused=True)
            ids = site.feed("busy", 60) + site.feed("late", 6)
            assert site.counts("queued") == {"busy": 60, "late": 6}
            site.change_queue(paused=False)
            order = in_order(site.all_ended(ids))
            until(lambda: site.counts("queued", "running") == {})
            if policy == "priority":
                assert order == ["busy"] * 60 + ["late"] * 6
            elif policy == "fair":
                assert order[:12].count("late") >= 4, order
            else:
                # Each claim of one slot begins with either type, by chance: all six last in one of 4 * 10^12 runs.
                assert order[-1] == "busy", order
        assert site.counts("succeeded") == {"busy": 180, "late": 18}, "starts and stops were all reported"


def test_s3_item_34_what_runs_is_listed_apart_from_what_waits(tmp_path: Path) -> None:
    let_go = tmp_path / "go"
    with process(tmp_path, "--allow-upload", WINDLASS_WORKER_SLOTS="1", WINDLASS_WORKER_SANDBOX="limits") as serving:
        let_others_in(tmp_path)
        with asked(serving) as site:
            holds = f"import os, time\ndef run(p):\n    while not os.path.exists({str(let_go)!r}): time.sleep(0.01)\n"
            site.upload("holds", body=holds, batch=1)
            ids = site.feed("holds", 3)
            until(lambda: site.counts("running") == {"holds": 1})
            assert site.counts("queued") == {"holds": 2}
            let_go.touch()
            assert {job["state"] for job in site.all_ended(ids)} == {"succeeded"}
            assert site.counts("running") == {}


PARTS = {
    "a file": ("file", ""),
    "redis and a journal": ("redis", ""),
    "redis alone": ("redis", "--no-journal"),
}


@pytest.mark.parametrize("sandbox", ["limits", "isolated"])
@pytest.mark.parametrize("parts", PARTS)
def test_s3_item_35_each_part_is_replaced_by_configuration(
    parts: str, sandbox: str, tmp_path: Path, start_server: StartServer
) -> None:
    """The same functions and the same requests, whatever is behind them: nothing but settings differs."""
    kind, flag = PARTS[parts]
    store = str(tmp_path / "jobs.db") if kind == "file" else start_server("redis").url
    settings = tmp_path / "windlass.toml"
    settings.write_text(f'[server]\nallow_upload = true\n[worker]\nsandbox = "{sandbox}"\nslots = 3\n')
    flags = [flag] if flag else []
    with process(tmp_path, *flags, store=store, WINDLASS_CONFIG=str(settings)) as serving, asked(serving) as site:
        site.upload("echo")
        jobs = site.all_ended(site.feed("echo", 5))
        assert [(job["state"], job["sandbox"]) for job in jobs] == [("succeeded", sandbox)] * 5
        assert site.slots() == [3]
    assert (tmp_path / "jobs.db").exists() == (kind == "file")
    assert bool(list((tmp_path / "data").glob("journal/*/journal-*.db"))) == (parts == "redis and a journal")


def test_s3_item_36_one_of_two_stores_away_does_not_stop_work_on_the_other(
    tmp_path: Path, start_server: StartServer
) -> None:
    """A queue in two parts: a server, a worker and a store for each."""
    stores = [start_server("redis", fsync="always") for _ in range(2)]
    folders = [tmp_path / "one", tmp_path / "other"]
    for folder in folders:
        folder.mkdir()
    with (
        process(folders[0], "--allow-upload", store=stores[0].url) as left,
        process(folders[1], "--allow-upload", store=stores[1].url) as right,
        asked(left) as away,
        asked(right) as here,
    ):
        for site in (away, here):
            site.upload("echo")
            assert len(site.all_ended(site.feed("echo", 3))) == 3
        stores[0].kill()
        until(lambda: away.status("/readyz") == 503)
        kept = away.feed("echo", 20)
        assert len(set(kept)) == 20, "they are accepted"
        assert {away.ask("GET", f"/jobs/{id}")["reason"] for id in kept} == {"accepted"}
        assert {job["state"] for job in here.all_ended(here.feed("echo", 20))} == {"succeeded"}
        stores[0].start()
        until(lambda: away.status("/readyz") == 200)
        assert {(job["state"], job["attempt"]) for job in away.all_ended(kept)} == {("succeeded", 1)}


async def test_s3_item_36_adds_go_on_while_half_of_a_cluster_is_away(
    two: tuple[Server, Server], tmp_path: Path
) -> None:
    store = await RedisStore.open(two[0].url, partitions=PARTITIONS)
    async with open_journaled(Engine(store, SystemRandomness()), tmp_path, CLOCK) as service:
        two[1].kill()
        accepted = [(await service(Enqueue(job=NewJob(task="t", queue=queue)))).id for queue in QUEUES]
        two[1].start()
        await up(service)
        assert {job.id for job in (await service(List(limit=100))).jobs} == set(accepted)
    await store.close()
