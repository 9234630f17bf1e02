"""`windlass worker --reload`: after a change the worker runs the new code, and a mistake does not end it."""

import os
import signal
from pathlib import Path

from tests.support.worker_harness import MakeHarness, until
from windlass.worker.reload import versions

SOURCE = """
import os, time
from pathlib import Path
from windlass import Windlass, current

app = Windlass(tenant=os.environ["HARNESS_TENANT"])


@app.task
def version() -> int:
    return 1


@app.task
def stay() -> int:
    Path("begun").touch()
    while not Path("let go").exists():
        time.sleep(0.01)
    return version()
"""


def write(file: Path, text: str) -> None:
    """With a time of its own: Python takes bytecode of the same second for that of this text."""
    later = file.stat().st_mtime + 2
    file.write_text(text)
    os.utime(file, (later, later))


def test_a_worker_runs_the_new_code_after_a_change(make_harness: MakeHarness) -> None:
    harness = make_harness(SOURCE)
    tasks = harness.folder / "tasks.py"
    worker = harness.start("--reload")
    assert harness.app.tasks["version"].enqueue().result(timeout=60) == 1
    lasting = harness.app.tasks["stay"].enqueue()
    until((harness.folder / "begun").exists)
    write(tasks, SOURCE.replace("return 1", "return 2"))
    worker.hear("tasks.py changed: the worker starts again")
    until(lambda: harness.app.tasks["version"].enqueue().result(timeout=60) == 2)  # the old one may claim once more
    (harness.folder / "let go").touch()
    record = harness.ended(lasting)
    assert (lasting.result(), record.attempt, record.losses) == (2, 1, 0), "it ran again, with the new code"

    write(tasks, "this is no Python")
    worker.hear("the worker ended with status 1: it starts again when a file changes")
    job = harness.app.tasks["version"].enqueue()
    write(tasks, SOURCE.replace("return 1", "return 3"))
    assert job.result(timeout=60) == 3
    assert worker.stop() == 0


def test_a_signal_ends_a_worker_whose_app_is_broken(make_harness: MakeHarness) -> None:
    harness = make_harness(SOURCE)
    (harness.folder / "tasks.py").write_text("this is no Python")
    worker = harness.start_raw("--reload")
    worker.hear("it starts again when a file changes")
    worker.send(signal.SIGINT)
    assert worker.ended() == 0


def test_a_burst_ends_by_itself(make_harness: MakeHarness) -> None:
    harness = make_harness(SOURCE)
    harness.app.tasks["version"].enqueue()
    harness.burst("--reload")
    assert harness.app.jobs(state="succeeded").count() == 1


def test_only_code_of_the_project_is_looked_at(tmp_path: Path) -> None:
    for name in ("a.py", "lib/b.py", "c.txt", ".git/d.py", "venv/e.py", "venv/pyvenv.cfg", "lib/__pycache__/f.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / "gone.py").symlink_to(tmp_path / "nothing.py")
    assert sorted(Path(one).name for one in versions(tmp_path)) == ["a.py", "b.py"]
