"""Processes that a job leaves behind end with it: nothing of them is charged to the next, no zombies are left."""

import asyncio
from typing import Any

import psutil
import pytest

from tests.support.function_harness import alive, bench, handler, results
from tests.support.patience import PATIENCE
from windlass.model.job import JSON

LEAVES = {
    "python": """
import os, subprocess
def run(p):
    left = subprocess.Popen(["sleep", "600"])
    deeper = subprocess.run(["sh", "-c", "setsid sleep 600 >/dev/null 2>&1 & echo $!"], stdout=-1).stdout
    child = os.fork()
    if not child:
        os._exit(0)
    return [left.pid, int(deeper), child]
""",
    "node": """
const {spawn, execSync} = require("node:child_process");
function run(p) {
  const left = spawn("sleep", ["600"], {detached: true, stdio: "ignore"});
  left.unref();
  return [left.pid, +execSync("setsid sleep 600 >/dev/null 2>&1 & echo $!").toString()];
}
""",
    "php": """
function run($p) {
  return [(int) shell_exec('sleep 600 >/dev/null 2>&1 & echo $!'),
          (int) shell_exec('setsid sleep 600 >/dev/null 2>&1 & echo $!')];
}
""",
    "sh": "sleep 600 >/dev/null 2>&1 & a=$!; setsid sleep 600 >/dev/null 2>&1 & printf '[%d,%d]' $a $!",
}


def own(context: int) -> list[psutil.Process]:
    """What there is beside a context's process and what has started it, dead or alive."""
    monitor = psutil.Process(context).parent()
    assert monitor is not None
    return [one for one in monitor.children(recursive=True) if one.pid != context]


@pytest.mark.parametrize("lang", LEAVES)
async def test_what_a_job_leaves_behind_has_ended_when_it_has(lang: str) -> None:
    async with bench() as shop:
        work = handler(lang, LEAVES[lang], recycle=None)
        heard = await shop.run(work, b"1", b"2", content_type=JSON)
        assert heard.codes == [200, 200], heard.outcomes
        (context,) = {pid for pid in heard.pids.values() if pid}
        async with asyncio.timeout(PATIENCE):
            while left := own(context):
                assert {one.status() for one in left} == {psutil.STATUS_ZOMBIE}, "they have ended, and are reaped soon"
                await asyncio.sleep(0.01)
        assert not any(alive(pid) for pids in results(heard) for pid in pids)
        again = await shop.run(work, b"3", content_type=JSON)
        assert set(again.pids.values()) == {context}, "and the context lives on"


BUSY = """
import os, time
def daemon():
    while time.process_time() < 3:
        pass
    open("burned", "w")
    time.sleep(600)
def alive(pid):
    try:
        os.kill(pid, 0)
        return True
    except ProcessLookupError:
        return False
def run(p):
    global left
    if p == "leave":
        left = os.fork() or daemon()
    while p == "wait" and alive(left) and not os.path.exists("burned"):
        time.sleep(0.05)
"""
"""The first job leaves a busy daemon behind; the second one waits until that has ended, or has burned three seconds."""


async def test_the_processor_time_of_a_daemon_is_not_charged_to_the_next_job() -> None:
    async with bench() as shop:
        heard = await shop.run(handler("python", BUSY, cpu=0.3, recycle=None), b"leave", b"wait")
        assert heard.codes == [200, 200], heard.outcomes
        assert len(set(heard.pids.values())) == 1, "in the same context"


@pytest.mark.parametrize("lang", ["python", "sh"])
async def test_sixty_jobs_that_leave_processes_behind_never_run_out_of_them(lang: str) -> None:
    async with bench(processes=10, contexts=1) as shop:
        work = handler(lang, LEAVES[lang], tenant=f"leaves-{lang}", recycle=None)  # whose user nobody else has
        heard = await shop.run(work, *[b"1"] * 60, content_type=JSON)
        assert heard.codes == [200] * 60, [one.message for one in heard.outcomes.values() if one.code != 200][:3]


async def test_in_a_sandbox_with_processes_of_its_own_too() -> None:
    async with bench(tier="isolated") as shop:
        heard = await shop.run(handler("sh", LEAVES["sh"], recycle=None), b"1", b"2", content_type=JSON)
        assert heard.codes == [200, 200]
        (context,) = {pid for pid in heard.pids.values() if pid}
        assert not [one for one in own(context) if one.name() == "sleep"]


STAYS: dict[str, dict[str, Any]] = {
    "python": {
        "before": "import subprocess\nhelper = subprocess.Popen(['sleep', '600'])",
        "body": "def run(p):\n    subprocess.run(['true'])\n    return [helper.pid, helper.poll()]",
    },
    "sh": {"before": "sleep 600 >/dev/null 2>&1 & helper=$!", "body": "kill -0 $helper && printf '[%d,null]' $helper"},
}


@pytest.mark.parametrize("lang", STAYS)
async def test_what_before_has_started_stays_with_the_context(lang: str) -> None:
    async with bench() as shop:
        work = handler(lang, recycle=None, **STAYS[lang])
        first = await shop.run(work, b"1", b"2", content_type=JSON)
        second = await shop.run(work, b"3", content_type=JSON)
        assert first.codes + second.codes == [200, 200, 200], first.outcomes
        told = {tuple(one) for one in [*results(first), *results(second)]}
        ((helper, ended),) = told
        assert (ended, alive(helper)) == (None, True)
    assert not alive(helper)
