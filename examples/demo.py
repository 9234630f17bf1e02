"""A queue in one file, and a worker: some jobs succeed, one fails and is retried, one is cancelled.

Run it with `./dev demo`. There is no server: the jobs are in a temporary SQLite file.
"""

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from windlass import Windlass, current
from windlass.model.operations import GetOutput, GetStats

app = Windlass()  # WINDLASS_STORE


@app.task(max_retry=2, retry={"base": 0.2})
def render(scene: int) -> str:
    """Scene 3 fails at the first attempt."""
    if scene == 3 and current.job.attempt == 1:
        raise OSError("no space left on the render disk")
    return f"scene-{scene}.png"


@app.task(isolate=True)
def film(frames: int) -> int:
    """Runs in its own process, and much too long unless it is cancelled."""
    for frame in range(frames):
        print(f"frame {frame}")
        current.progress(frame, frames)
        time.sleep(0.05)
    return frames


def show() -> None:
    jobs = render.map(range(1, 6))
    print(f"queued {len(jobs)} jobs")
    for job in jobs:
        value, record = job.result(timeout=30), job.refresh()
        errors = "; ".join(error.message for error in record.errors)
        print(f"  {job.id}  {record.state:10} {value}  after {record.attempt} runs  {errors}")
    endless = film.enqueue(1_000_000)
    while not (printed := app.link.ask(GetOutput(id=endless.id)).chunks):
        time.sleep(0.05)
    began = time.monotonic()
    endless.cancel()
    while endless.state == "running":
        time.sleep(0.01)
    said = printed[0].data.decode().splitlines()[0]
    print(f"a film had printed {said!r}; cancelled, it was stopped within {time.monotonic() - began:.1f} s")
    for queue in app.link.ask(GetStats()).queues:
        print(f"in the end, {queue.task}: " + ", ".join(f"{count} {state}" for state, count in queue.states.items()))
    app.close()


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        settings = os.environ | {"WINDLASS_STORE": str(Path(folder) / "demo.db")}
        here = Path(__file__).parent
        worker = subprocess.Popen([sys.executable, "-m", "windlass", "worker", "demo:app"], cwd=here, env=settings)
        try:
            subprocess.run([sys.executable, "demo.py", "show"], cwd=here, env=settings, check=True)
        finally:
            worker.terminate()
            worker.wait()


if __name__ == "__main__":
    show() if sys.argv[1:] == ["show"] else main()
