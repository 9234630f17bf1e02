"""The folders of contexts: what one worker has is not another's to sweep away, and what is left behind goes."""

import asyncio
import os
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.support.function_harness import there
from tests.support.worker_harness import alive, until
from windlass.worker.functions.sandbox.folders import PREFIX, Folders, end_leftovers

ROUNDS = 80


async def come_and_go(parent: str) -> int:
    """As workers do, one after the other; how many of them found their folder swept away."""
    missing = 0
    for _ in range(ROUNDS):
        folders = Folders(parent)
        await folders.sweep()
        try:
            folders.make(None, "bootstrap", b"")
        except FileNotFoundError:
            missing += 1
        await folders.close()
    return missing


def test_workers_that_start_at_the_same_moment_do_not_sweep_each_other_away(tmp_path: Path) -> None:
    with ThreadPoolExecutor(4) as workers:
        missing = list(workers.map(lambda _: asyncio.run(come_and_go(str(tmp_path))), range(4)))
    assert missing == [0] * 4
    assert not list(tmp_path.iterdir())


async def sweep_beside_another(folder: str) -> bool:
    """Whether what another worker has is still there when one that comes has swept."""
    other, mine = Folders(folder), Folders(folder)
    kept = other.make(None, "bootstrap", b"")
    await mine.sweep()
    await mine.close()
    found = there(kept)
    await other.close()
    return found


def test_what_a_killed_worker_has_left_is_swept_away_but_nothing_of_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    left = tmp_path / f"{PREFIX}left"
    (left / "1").mkdir(parents=True)
    with monkeypatch.context() as patch:
        patch.setattr(os, "geteuid", lambda: left.stat().st_uid + 1)  # a worker of another user
        assert asyncio.run(sweep_beside_another(str(tmp_path)))
    assert list(tmp_path.iterdir()) == [left]
    assert asyncio.run(sweep_beside_another(str(tmp_path)))
    assert list(tmp_path.iterdir()) == []


def test_what_has_no_user_of_its_own_is_ended_by_its_home(tmp_path: Path) -> None:
    homes = [str(tmp_path / name) for name in ("this", "other")]
    left, other = (
        subprocess.Popen(["/bin/sleep", "600"], env={"HOME": home}, start_new_session=True) for home in homes
    )
    try:
        end_leftovers(None, homes[0])
        until(lambda: not alive(left.pid))
        assert alive(other.pid)
    finally:
        for one in (left, other):
            one.kill()
            one.wait()
