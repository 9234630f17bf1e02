"""The pipes beside a file, by which processes hear of each other."""

import asyncio
from pathlib import Path

import pytest

from tests.pace import stretched
from windlass.store.sqlite import SqliteStore, notices
from windlass.system import SystemClock


def pipes(path: Path) -> set[str]:
    return {pipe.name for pipe in Path(f"{path}-wake").iterdir()}


async def test_an_idle_worker_that_comes_back_finds_its_pipe(tmp_path: Path) -> None:
    path = tmp_path / "jobs.db"
    store = SqliteStore.open(path, SystemClock())
    async with store.listen(["work/a"]):
        first = pipes(path)
    async with store.listen(["work/b"]):
        assert pipes(path) == first
    await store.close()
    assert pipes(path) == set(), "it goes with the store"


async def test_a_pipe_that_nobody_comes_back_to_is_taken_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notices, "LINGER", 0.05)
    path = tmp_path / "jobs.db"
    store = SqliteStore.open(path, SystemClock())
    async with store.listen(["work/a"]), store.listen(["end/b"]):
        assert len(pipes(path)) == 2
    assert {name.partition("-")[0] for name in pipes(path)} == {"work"}, "an end is waited for once"
    await asyncio.sleep(stretched(0.2))
    assert pipes(path) == set()
    await store.close()
