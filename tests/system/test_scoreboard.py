"""The scoreboard: what is promised about jobs holds while workers, servers and replies are taken away."""

import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.freezing import freeze
from tests.support.patience import PATIENCE
from tests.support.scoreboard import Board, Relay, await_, killing
from tests.support.servers import StartServer
from windlass.model.errors import Unavailable
from windlass.model.job import State
from windlass.model.match import Match
from windlass.model.operations import Count, GetStats, List

pytestmark = pytest.mark.timeout(180)


@pytest.fixture(params=["sqlite", "redis"])
def board(request: pytest.FixtureRequest, tmp_path: Path, start_server: StartServer) -> Iterator[Board]:
    store = str(tmp_path / "jobs.db") if request.param == "sqlite" else start_server("redis").url
    made = Board(tmp_path, store)
    yield made
    made.close()


def states(board: Board) -> dict[State, int]:
    found: dict[State, int] = {}
    for queue in board.app.link.ask(GetStats()).queues:
        for state, count in queue.states.items():
            found[state] = found.get(state, 0) + count
    return found


def all_succeeded(board: Board, number: int) -> bool:
    return states(board) == {State.SUCCEEDED: number}


def test_killed_workers_lose_nothing_and_complete_nothing_twice(board: Board) -> None:
    number = 1500
    for _ in range(3):
        board.start()
    await_("a first job", lambda: bool(board.task("work").enqueue(-1, 0.0).result(PATIENCE)))
    with killing(board, every=0.7, seed=1) as killed:
        for start in range(0, number, 50):
            board.task("work").map([(one, 0.005) for one in range(start, start + 50)])
            time.sleep(0.15)
    await_("all succeeded", lambda: all_succeeded(board, number + 1))
    starts, ends = board.starts(), board.ends()
    assert all(ends[one] >= 1 for one in range(number)), "lost"
    again = sum(starts.values()) - len(starts)
    assert killed
    assert again <= 8 * len(killed), "only what was running at a kill runs again"
    done = board.app.link.ask(Count(match=Match(state=["succeeded"]))).count
    assert done == number + 1


@pytest.mark.parametrize("kind", ["until", "auntil", "alone"])
def test_a_worker_that_was_away_for_longer_than_its_lease_can_write_nothing(board: Board, kind: str) -> None:
    number = 8
    away = board.start()
    task = board.task("until").using(isolate=True) if kind == "alone" else board.task(kind)
    jobs = task.map([(one, "go") for one in range(number)])
    await_("all run", lambda: len(board.starts()) == number)
    freeze(away.pid, board.store)
    other = board.start()
    await_("all run again", lambda: sum(board.starts().values()) == 2 * number)
    others = {entry.pid for entry in board.diary() if entry.what == "start" and entry.attempt == 2}
    away.send_signal(signal.SIGCONT)
    await_("the first runs are stopped", lambda: all(e.pid in others for e in board.diary()[-20:] if e.what == "beat"))
    (board.folder / "go").touch()
    assert [job.result(PATIENCE) for job in jobs] == [2] * number
    assert {e.attempt for e in board.diary() if e.what == "end"} == {2}
    assert other.poll() is None
    assert away.poll() is None, "it goes on working"


def test_workers_that_are_replaced_gracefully_run_nothing_twice(board: Board) -> None:
    number = 300
    board.start()
    jobs = board.task("work").map([(one, 0.05) for one in range(number)])
    for _ in range(3):
        enough = len(board.starts()) + 20
        await_("it works", lambda enough=enough: len(board.starts()) > enough)  # type: ignore[misc]
        old = board.workers[-1]
        board.start()
        old.terminate()
        assert old.wait(PATIENCE) == 0
    assert [job.result(PATIENCE) for job in jobs] == [1] * number
    assert set(board.starts().values()) == {1}


def test_workers_outlive_a_killed_server(tmp_path: Path, start_server: StartServer) -> None:
    server = start_server("redis", fsync="always")
    board = Board(tmp_path, server.url, lease=5.0)
    try:
        workers = [board.start(), board.start()]
        accepted: list[int] = []
        for round_ in range(3):
            for one in range(round_ * 100, round_ * 100 + 100):
                board.task("work").enqueue(one, 0.01)
                accepted.append(one)
            server.kill()
            with pytest.raises(Unavailable):
                board.task("work").enqueue(-1, 0.0)
            server.start()
            marker = 10_000 + round_
            board.task("work").using(priority=-1).enqueue(marker, 0.0)
            accepted.append(marker)
            await_("a worker takes jobs again", lambda m=marker: board.ends()[m] > 0)  # type: ignore[misc]
        await_("everything accepted has run", lambda: all(board.ends()[one] for one in accepted))
        await_("and is known to", lambda: states(board).get(State.SUCCEEDED, 0) >= len(accepted))
        assert all(worker.poll() is None for worker in workers), "none was restarted by hand"
    finally:
        board.close()


def test_lost_replies_make_no_duplicates(tmp_path: Path, start_server: StartServer) -> None:
    server = start_server("redis")
    with Relay(server.port, loss=0.05, seed=7) as relay:
        through = f"redis://127.0.0.1:{relay.port}/0"
        board = Board(tmp_path, through)
        direct = Board(tmp_path, server.url)
        try:
            board.start()
            board.start()
            accepted = []
            for one in range(1500):
                try:
                    board.task("awork").enqueue(one, 0.0)
                    accepted.append(one)
                except Unavailable:
                    continue  # its enqueue was not answered: it may be there or not
            await_(
                "all ended",
                lambda: states(direct).keys() <= {State.SUCCEEDED} and len(board.ends()) >= len(accepted),
                60,
            )
            assert relay.lost > 20
            assert set(accepted) <= set(board.ends()), "lost"
            assert states(direct)[State.SUCCEEDED] == len(board.ends()), "one job for each number"
            assert not direct.app.link.ask(List(match=Match(state=["running"]))).jobs
        finally:
            board.close()
            direct.close()


def test_a_job_far_longer_than_its_lease_runs_once(board: Board) -> None:
    board.start()
    job = board.task("work").enqueue(1, 4.0)
    assert job.result(PATIENCE) == 1
    assert board.starts() == {1: 1}


@pytest.mark.parametrize("isolate", [False, True])
def test_a_dead_workers_job_is_gone_before_it_is_run_again(board: Board, isolate: bool) -> None:
    first = board.start()
    job = board.task("until").using(isolate=isolate).enqueue(1, "go")
    await_("it runs", lambda: bool(board.starts()))
    first.kill()
    board.start()
    await_("it runs again", lambda: board.starts()[1] == 2)
    (board.folder / "go").touch()
    assert job.result(PATIENCE) == 2
    old = [entry for entry in board.diary() if entry.attempt == 1]
    new = [entry for entry in board.diary() if entry.attempt == 2]
    assert max(entry.at for entry in old) < min(entry.at for entry in new)
