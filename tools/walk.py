"""The walk of one job: which files of the package run between enqueue and result, in all processes.

`python -m tools.walk` runs a lone job through an idle worker, on a file and on Redis, and lists the files. A profiler
hook in every process notes calls of the package's own code while a shared flag is up. Frames under the periodic duties
of upkeep, and under those that the supervisor awaits, are left out: they run beside a job, not for it.
"""

import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

MOST_FILES = {"redis": 35, "file": 40}
"""Files that a job may pass through."""

PATIENCE = 60
SETTLE = 1.0
"""Seconds for everything before the job to come to rest."""

HOOK = """
import json, mmap, os, sys, threading, time

folder = os.environ.get("WALK_FOLDER")
if folder:
    flag = mmap.mmap(os.open(os.path.join(folder, "flag"), os.O_RDONLY), 1, access=mmap.ACCESS_READ)
    package = os.sep + "windlass" + os.sep
    calls = {}

    def in_upkeep(frame):
        while frame is not None:
            code = frame.f_code
            if os.path.basename(code.co_filename) == "upkeep.py" or code.co_qualname == "_awaited":
                return True
            frame = frame.f_back
        return False

    def note(frame, event, argument):
        code = frame.f_code
        if event != "call" or flag[0] != 1 or package not in code.co_filename or code.co_name.startswith("<"):
            return
        if not in_upkeep(frame):
            called = code.co_filename.rpartition(package)[2] + ":" + code.co_qualname
            calls[called] = calls.get(called, 0) + 1

    def write_at_the_end():
        while flag[0] != 2:
            time.sleep(0.05)
        with open(os.path.join(folder, "calls-%d" % os.getpid()), "w") as file:
            json.dump(calls, file)

    def watch():
        calls.clear()
        threading.setprofile(None)
        threading.Thread(target=write_at_the_end, daemon=True).start()
        threading.setprofile(note)
        sys.setprofile(note)

    os.register_at_fork(after_in_child=watch)
    watch()
"""

APP = """
import os
from windlass import Windlass

app = Windlass(os.environ["WALK_STORE"])

@app.task
def greet(name: str) -> str:
    return "hello " + name
"""

CALLER = """
import mmap, os, time
from walked_app import greet

flag = mmap.mmap(os.open(os.path.join(os.environ["WALK_FOLDER"], "flag"), os.O_RDWR), 1)
for _ in range(3):
    greet.enqueue("Ada").result(timeout=30)
time.sleep(0.4)  # at rest, but what is read again once a second has just been read
flag[0] = 1
job = greet.enqueue("Ada")
time.sleep(0.12)
flag[0] = 0
time.sleep(0.4)
flag[0] = 1
print(job.result(timeout=30))
flag[0] = 2
time.sleep(0.5)
"""


class Walk(NamedTuple):
    """What one job passed through."""

    files: list[str]
    functions: list[str]
    """As `FILE:FUNCTION`."""
    calls: int


def walk(store: str, folder: Path) -> Walk:
    (folder / "hook").mkdir()
    (folder / "hook" / "sitecustomize.py").write_text(HOOK)
    (folder / "walked_app.py").write_text(APP)
    (folder / "flag").write_bytes(b"\0")
    path = os.pathsep.join([str(folder / "hook"), str(folder)])
    env = os.environ | {"WALK_FOLDER": str(folder), "WALK_STORE": store, "PYTHONPATH": path}
    with (folder / "log").open("wb") as log:
        command = [sys.executable, "-m", "windlass", "worker", "walked_app:app"]
        worker = subprocess.Popen(command, cwd=folder, env=env, stdout=log, stderr=log)
        try:
            # At another moment each time: what a worker does once a second falls into few of several walks.
            time.sleep(SETTLE + random.random())
            command = [sys.executable, "-c", CALLER]
            said = subprocess.run(
                command, cwd=folder, env=env, capture_output=True, text=True, timeout=PATIENCE, check=False
            )
            time.sleep(SETTLE)
        finally:
            worker.terminate()
            worker.wait(PATIENCE)
    if "hello Ada" not in said.stdout:
        raise SystemExit(f"walk: the job has no result: {said.stdout}{said.stderr}{(folder / 'log').read_text()}")
    calls: dict[str, int] = {}
    for file in folder.glob("calls-*"):
        for called, number in json.loads(file.read_text()).items():
            calls[called] = calls.get(called, 0) + number
    return Walk(sorted({called.split(":")[0] for called in calls}), sorted(calls), sum(calls.values()))


@contextmanager
def redis_server(folder: Path) -> Iterator[str]:
    """The address of a server of its own."""
    socket = folder / "redis.sock"
    command = ["redis-server", "--port", "0", "--unixsocket", str(socket), "--dir", str(folder), "--appendonly", "yes"]
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    try:
        until = time.monotonic() + PATIENCE
        while not socket.exists() and time.monotonic() < until:
            time.sleep(0.02)
        yield f"unix://{socket}"
    finally:
        server.terminate()
        server.wait(PATIENCE)


def walks() -> Iterator[tuple[str, Walk]]:
    with tempfile.TemporaryDirectory(prefix="walk") as folder:
        (Path(folder) / "file").mkdir()
        yield "file", walk("walk.db", Path(folder) / "file")
        (Path(folder) / "redis").mkdir()
        with redis_server(Path(folder)) as address:
            yield "redis", walk(address, Path(folder) / "redis")


def main() -> int:
    status = 0
    for store, found in walks():
        print(f"{store}: {len(found.files)} files, {len(found.functions)} functions, {found.calls} calls")
        print("".join(f"  {file}\n" for file in found.files), end="")
        if len(found.files) > MOST_FILES[store]:
            print(f"walk: a job may pass through at most {MOST_FILES[store]} files on {store}", file=sys.stderr)
            status = 1
    return status


if __name__ == "__main__":
    raise SystemExit(main())
