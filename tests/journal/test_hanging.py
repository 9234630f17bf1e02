"""A store that hangs: it neither answers nor refuses, and those who enqueue do not wait for it."""

import time
from pathlib import Path

import pytest

from tests.journal.test_scoreboard import Body, stored
from tests.support.http_servers import process
from tests.support.relays import Crowd, Wire
from tests.support.scoreboard import Board, await_
from tests.support.servers import StartServer
from windlass.model.operations import AddToken, PutQuota
from windlass.model.quota import Quota

pytestmark = pytest.mark.timeout(120)


def test_who_enqueues_hardly_notices_a_store_that_hangs(tmp_path: Path, start_server: StartServer) -> None:
    """Also with a token and a quota that only the store knows: what was known a moment ago counts."""
    server = start_server("redis")
    board = Board(tmp_path, server.url)
    try:
        token = board.app.link.ask(AddToken(scopes=["enqueue"])).token
        board.app.link.ask(PutQuota(quota=Quota(stored_jobs=100_000)))
        with (
            Wire(server.port) as wire,
            process(tmp_path, store=f"redis://127.0.0.1:{wire.port}/0") as serving,
        ):
            crowd = Crowd(serving.port, token, Body(board))

            def hang() -> None:
                time.sleep(0.5)
                wire.cut()
                time.sleep(3)
                wire.mend()

            crowd.run(900, 200, hang)
            assert {one.status for one in crowd.sent} == {201}
            assert max(one.took for one in crowd.sent) < 1.5, "no caller waited for the store"
            await_("all are there", lambda: stored(board) == 900)
    finally:
        board.close()
