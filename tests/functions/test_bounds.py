"""What uploaded functions may take of the machine: each bound ends a job with its own reason, and no other job."""

import pytest

from tests.support.function_harness import LANGUAGES, bench, handler
from windlass.model.job import Reason
from windlass.worker.functions.sandbox.monitor import CpuTime, ProcessUsage

BUSY = {
    "python": "def run(p):\n    while p == 'bad':\n        pass\n    return 'fine'",
    "node": "function run(p) { while (p === 'bad'); return 'fine' }",
    "php": "function run($p) { while ($p === 'bad'); return 'fine'; }",
    "sh": "p=$(cat); while [ $p = bad ]; do :; done; printf '\"fine\"'",
}


@pytest.mark.parametrize("lang", LANGUAGES)
async def test_a_busy_loop_is_ended_by_its_processor_time_and_the_next_job_runs(lang: str) -> None:
    async with bench() as shop:
        heard = await shop.run(handler(lang, BUSY[lang], cpu=0.5), b"bad", b"good", timeout=600.0)
        outcome = heard.outcomes["0000"]
        assert (outcome.code, outcome.reason, outcome.type) == (500, Reason.TIMEOUT, "Timeout")
        assert outcome.message == "took more than 0.5 s of processor time"
        assert heard.outcomes["0001"].code == 200


async def test_an_operator_bounds_what_a_handler_may_ask_for() -> None:
    async with bench(cpu=0.4) as shop:
        heard = await shop.run(handler("python", BUSY["python"], cpu=500), b"bad", timeout=600.0)
        assert heard.one.message == "took more than 0.4 s of processor time"


async def test_a_job_that_sleeps_takes_no_processor_time() -> None:
    async with bench() as shop:
        sleeps = "import time\ndef run(p):\n    time.sleep(1.5)\n    return 1"
        assert (await shop.run(handler("python", sleeps, cpu=0.3), b"")).codes == [200]


SPENDS = """
import time
def run(p):
    end = time.process_time() + 0.5
    while time.process_time() < end:
        pass
"""


async def test_no_job_pays_for_those_before_it() -> None:
    async with bench() as shop:
        heard = await shop.run(handler("python", SPENDS, cpu=1.0, recycle=None), *[b""] * 5)
        assert heard.codes == [200] * 5
        assert len(set(heard.pids.values())) == 1


SPREAD = """
import os, time
def run(p):
    while True:
        if os.fork() == 0:
            os.fork() and os._exit(0)
            end = time.process_time() + 0.3
            while time.process_time() < end:
                pass
            os._exit(0)
        os.wait()
        time.sleep(0.3)
"""


async def test_processes_that_have_ended_count_too() -> None:
    async with bench() as shop:
        heard = await shop.run(handler("python", SPREAD, cpu=1.0), b"", timeout=60.0)
        assert heard.one.message == "took more than 1 s of processor time"


def test_the_time_of_a_process_is_counted_once_however_it_ends() -> None:
    spent, nobody = CpuTime(), ProcessUsage(0, 1.0, 0.0)
    assert spent.so_far({1: nobody, 2: ProcessUsage(0, 3.0, 0.0)}) == 4.0
    assert spent.so_far({1: nobody}) == 4.0, "its parent did not want to know"
    assert spent.so_far({1: nobody, 3: ProcessUsage(0, 2.0, 0.0)}) == 6.0
    assert spent.so_far({1: ProcessUsage(0, 1.0, 2.5)}) == 6.5, "its parent waited for it"
    assert spent.so_far({1: ProcessUsage(0, 1.0, 2.5), 4: ProcessUsage(0, 1.0, 0.0)}) == 7.5
    spent.reaped += 1.5
    assert spent.so_far({1: ProcessUsage(0, 1.0, 2.5)}) == 8.0, "it was left to its monitor"
    assert spent.so_far({1: ProcessUsage(0, 1.0, 2.5)}) == 8.0


async def test_an_idle_context_is_not_ended_for_what_it_once_spent() -> None:
    async with bench() as shop:
        spends = handler("python", "import time\ndef run(p):\n    sum(range(10**7))", cpu=5)
        first = await shop.run(spends, b"")
        second = await shop.run(spends, b"")
        assert first.codes == second.codes == [200]
        assert first.pids == second.pids
