"""A worker that is started before its store or its server: it waits, says so, and begins when they are there."""

import signal
from pathlib import Path

import pytest

from tests.support.http_servers import Process
from tests.support.patience import PATIENCE
from tests.support.servers import Server, StartServer
from tests.support.worker_harness import MakeHarness, Worker
from windlass.model.job import State


@pytest.fixture
def server(start_server: StartServer) -> Server:
    return start_server("redis")


def test_a_worker_waits_for_a_store_that_is_not_there_yet(server: Server, make_harness: MakeHarness) -> None:
    shop = make_harness(store=server.url)
    server.stop()
    worker = shop.start_raw()
    worker.hear("waits for the store: the store does not answer")
    assert worker.running
    server.start()
    worker.hear("the store answers")
    worker.hear(r" runs .* at once\n")
    assert shop.ended(shop.tasks.add.enqueue(1, 2)).state is State.SUCCEEDED
    assert worker.said.count("waits for the store") == 1
    assert worker.stop() == 0


def test_a_worker_that_waits_for_its_store_can_be_stopped(server: Server, make_harness: MakeHarness) -> None:
    shop = make_harness(store=server.url)
    server.stop()
    worker = shop.start_raw()
    worker.hear("waits for the store")
    worker.send(signal.SIGTERM)
    assert worker.ended() == 0


def refused(worker: Worker) -> str:
    """What a worker says that gives up at once."""
    assert worker.ended(within=PATIENCE) in (2, 75)
    assert "waits for" not in worker.said
    assert "Traceback" not in worker.said
    return worker.said


@pytest.mark.parametrize("password", ["", ":wrong@"], ids=["no password", "a wrong password"])
def test_a_worker_that_is_not_let_in_does_not_wait(server: Server, make_harness: MakeHarness, password: str) -> None:
    server.ask("CONFIG", "SET", "requirepass", "right")
    shop = make_harness(store=server.url.replace("redis://", f"redis://{password}"))
    assert refused(shop.start_raw()).count("the store does not let us in") == 1


def test_an_address_that_means_nothing_is_refused_at_once(make_harness: MakeHarness) -> None:
    shop = make_harness(store="redis://127.0.0.1:none")
    assert "windlass: " in refused(shop.start_raw())


def test_a_worker_waits_for_a_server_that_is_not_there_yet(tmp_path: Path, make_harness: MakeHarness) -> None:
    shop = make_harness()
    serving = Process(tmp_path, "--no-worker")
    serving.start()
    serving.kill()
    worker = shop.start_raw("--server", serving.address, WINDLASS_TOKEN=serving.token)
    worker.hear("cannot claim: ")
    assert worker.running
    try:
        serving.start()
        worker.hear("claims are answered")
        worker.hear(r" runs .* at once\n")
        assert worker.stop() == 0
    finally:
        serving.kill()
