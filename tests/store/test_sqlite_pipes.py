"""The pipes beside a file, by which processes wake each other."""

import asyncio
import os
from pathlib import Path

import pytest

from tests.support.patience import PATIENCE
from windlass.store.sqlite import SqliteStore, events
from windlass.system import SystemClock


def pipes(path: Path) -> set[str]:
    return {pipe.name for pipe in Path(f"{path}-wake").iterdir()}


async def test_an_idle_worker_that_comes_back_finds_its_pipe(tmp_path: Path) -> None:
    path = tmp_path / "jobs.db"
    store = SqliteStore.open(path, SystemClock())
    async with store.events.listen(["work/a"]):
        first = pipes(path)
    async with store.events.listen(["work/b"]):
        assert pipes(path) == first
    await store.close()
    assert pipes(path) == set(), "it goes with the store"


async def test_a_pipe_without_a_listener_is_removed_after_a_while(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(events, "IDLE_UNSUBSCRIBE", 0.05)
    path = tmp_path / "jobs.db"
    store = SqliteStore.open(path, SystemClock())
    async with store.events.listen(["work/a"]), store.events.listen(["end/b"]):
        assert len(pipes(path)) == 2
    assert {name.partition("-")[0] for name in pipes(path)} == {"work"}, "an end is waited for once"
    async with asyncio.timeout(PATIENCE):
        while pipes(path):  # noqa: ASYNC110 - there is no signal to wait for
            await asyncio.sleep(0.02)
    await store.close()


async def test_pipes_of_killed_processes_are_removed_by_the_next_listener(tmp_path: Path) -> None:
    path = tmp_path / "jobs.db"
    folder = Path(f"{path}-wake")
    os.mkdir(folder)  # noqa: PTH102
    for kind in ("work", "order", "end", "feed", "house"):
        os.mkfifo(folder / f"{kind}-1-1")  # they have no reader
    os.mkfifo(folder / ".work-2-2")  # never named: it may be about to be
    os.mkfifo(folder / ".work-3-3")
    os.utime(folder / ".work-3-3", (0, 0))
    store = SqliteStore.open(path, SystemClock())
    other = SqliteStore.open(path, SystemClock())
    async with store.events.listen(["work/a"]), other.events.listen(["work/a"]):
        assert len(pipes(path) - {".work-2-2"}) == 2, "theirs alone"
        assert ".work-2-2" in pipes(path)
    await store.close()
    await other.close()
