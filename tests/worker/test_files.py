"""The folder of a job: what came with it is there, what it leaves is kept, and nothing stays on the disk."""

import fcntl
import os
import signal
import tempfile
from pathlib import Path

import pytest

from tests.support.stored import holds
from tests.support.worker_harness import WorkerHarness, until
from windlass.model.job import State
from windlass.worker.contexts import folders

SCENE = {"scene.txt": b"cube"}


def test_every_kind_of_task_finds_its_files_in_a_folder_and_leaves_others(harness: WorkerHarness) -> None:
    harness.start()
    jobs = {
        word: getattr(harness.tasks, task).using(files=SCENE).enqueue(word)
        for word, task in (("thread", "draw"), ("loop", "co_draw"), ("alone", "alone_draw"))
    }
    failing = harness.tasks.draw.using(files=SCENE).enqueue("fail")
    for word, job in jobs.items():
        assert job.result(60) == ["out", "scene.txt"]
        assert job.files() == {"copied": b"cubecube", f"{word}.svg": f"<svg>{word}</svg>".encode()}
    assert harness.ended(failing).state is State.FAILED
    assert set(failing.files()) == {"copied", "fail.svg"}
    folders = [Path(line) for line in harness.noted("folder", 4)]
    assert len(set(folders)) == 4
    assert not any(folder.exists() for folder in folders)


@pytest.mark.parametrize("on_lost", ["fail", "adopt"])
def test_s0_30_the_files_of_a_process_that_was_killed_are_gone_from_its_folder_and_from_the_store(
    harness: WorkerHarness, on_lost: str
) -> None:
    scene = {"scene.txt": os.urandom(64)}
    job = harness.tasks.alone_draw.using(files=scene, on_lost=on_lost).enqueue("stay")
    assert holds(harness.store, scene["scene.txt"])
    harness.start()
    (line,) = harness.noted("folder")
    pid = until(lambda: job.refresh().pid)
    assert (Path(line) / "scene.txt").read_bytes() == scene["scene.txt"]
    assert not holds(harness.store, scene["scene.txt"]), "while it runs"
    os.kill(pid, signal.SIGKILL)
    assert harness.ended(job).state is State.FAILED
    until(lambda: not Path(line).exists())
    assert job.retry()
    assert harness.ended(job).error.type == "FileNotFoundError"  # type: ignore[union-attr]


def test_folders_of_processes_that_are_gone_are_swept_but_not_one_that_is_in_use(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    here = folders.JobFolder(1, {})
    (gone, kept, used) = (here.path.parent.with_name(name) for name in ("4194305", "notes", "4194306"))
    for folder in (gone, kept, used):
        (folder / "1").mkdir(parents=True)
    lock = os.open(used / "1", os.O_RDONLY)
    fcntl.flock(lock, fcntl.LOCK_EX)
    folders.sweep()
    assert [folder.exists() for folder in (gone, kept, used, here.path)] == [False, True, True, True]
    os.close(lock)
    folders.sweep()
    assert not used.exists()
    here.remove()
    assert not here.path.exists()


def test_the_command_line_lists_and_saves_them(harness: WorkerHarness, tmp_path: Path) -> None:
    job = harness.tasks.draw.using(files=SCENE).enqueue("cli")
    harness.burst()
    tenant = ("--tenant", harness.tenant)
    assert "cli.svg" in harness.run("jobs", "files", job.id, *tenant).stdout
    assert harness.run("jobs", "files", job.id, "cli.svg", *tenant).stdout == "<svg>cli</svg>"
    saved = tmp_path / "saved"
    assert harness.run("jobs", "files", job.id, "--all", "-o", str(saved), *tenant).returncode == 0
    assert {path.name: path.read_bytes() for path in saved.iterdir()} == job.files()
    assert harness.run("jobs", "files", job.id, "other", *tenant).returncode == 3
