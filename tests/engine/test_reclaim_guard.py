"""Jobs are taken back only from workers that could have been heard."""

import os
import re
import signal
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from tests.support.patience import PATIENCE
from tests.support.scoreboard import Board, await_
from tests.support.servers import Server, StartServer
from windlass.engine.upkeep import AWAY, SETTLE, ReclaimGuard
from windlass.system import SystemClock

START = datetime(2026, 1, 31, tzinfo=UTC)
CLOCK = SystemClock()


def answers(guard: ReclaimGuard, *times: float) -> list[bool]:
    return [guard.may_reclaim(START + timedelta(seconds=time)) for time in times]


def test_an_engine_that_has_just_started_waits_before_it_reclaims() -> None:
    assert answers(ReclaimGuard(1.0), 0, 1, SETTLE, 3, 4) == [False, False, True, True, True]


def test_a_short_lived_engine_does_not_wait() -> None:
    assert answers(ReclaimGuard(1.0, trust_first=True), 0, 1, 20, 21, 22) == [True, True, False, False, True]


def test_after_a_break_workers_get_their_time() -> None:
    back = 60.0
    guard = ReclaimGuard(1.0)
    assert answers(guard, 0, 1, 2, 3) == [False, False, True, True]
    assert answers(guard, back, back + 1, back + SETTLE) == [False, False, True]


def test_a_lost_answer_is_no_break() -> None:
    assert answers(ReclaimGuard(1.0), 0, 1, 2, 2 + AWAY, 6) == [False, False, True, True, True]


def test_with_a_long_lease_a_short_break_does_not_matter_and_workers_get_more_time() -> None:
    guard = ReclaimGuard(30.0)
    assert answers(guard, *range(14), 15, 24, 33) == [False] * 14 + [True] * 3
    assert answers(guard, 44, 50, 58, 59) == [False, False, False, True]


def test_a_clock_that_is_set_forwards_ends_nothing_and_one_that_is_set_back_stops_nothing() -> None:
    guard = ReclaimGuard(1.0)
    assert answers(guard, 0, 1, 2) == [False, False, True]
    assert answers(guard, 3600, 3601, 3602) == [False, False, True]
    assert answers(guard, 10, 11, 12) == [False, False, True]


# With real workers


@contextmanager
def killed(server: Server) -> Iterator[None]:
    server.kill()
    yield
    server.start()


@contextmanager
def stopped(server: Server) -> Iterator[None]:
    found = re.search(r"process_id:(\d+)", server.ask("INFO", "server"))
    assert found
    os.kill(int(found[1]), signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(int(found[1]), signal.SIGCONT)


LEASE = 6.0


@pytest.mark.timeout(240)
@pytest.mark.parametrize("away", [killed, stopped])
def test_a_job_whose_lease_ran_out_while_the_store_was_away_goes_on(
    away: Callable[[Server], AbstractContextManager[None]], tmp_path: Path, start_server: StartServer
) -> None:
    """Its worker is not the first to notice that the store is back: others keep house, old ones and new ones."""
    server = start_server("redis", fsync="always")
    board = Board(tmp_path, server.url, lease=LEASE)
    try:
        slow = board.start()
        kept = board.task("until").enqueue(1, "go")
        await_("it runs", lambda: board.starts()[1] == 1)
        dead, _ = board.start("--queues", "other"), board.start("--queues", "third")
        lost = board.task("until").using(queue="other").enqueue(2, "go")
        await_("the other one runs", lambda: board.starts()[2] == 1)
        with away(server):
            dead.kill()
            dead.wait()
            passed(LEASE + 1)
            beats = len(board.diary())
            await_("it goes on meanwhile", lambda: len(board.diary()) > beats)
            slow.send_signal(signal.SIGSTOP)
        board.start("--queues", "other,default")
        passed(1.5)
        slow.send_signal(signal.SIGCONT)
        await_("the dead worker's job runs again", lambda: board.starts()[2] == 2)
        (board.folder / "go").touch()
        assert lost.result(PATIENCE) == 2
        assert kept.result(PATIENCE) == 1
        assert board.starts()[1] == board.ends()[1] == 1
    finally:
        board.close()


def passed(seconds: float) -> None:
    began = CLOCK.monotonic()
    await_(f"{seconds:g} s", lambda: CLOCK.monotonic() - began > seconds)
