"""Contexts of uploaded functions: shared and kept apart, replaced in time, ended when they are told to."""

import asyncio
import errno
import os
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.support.function_harness import (
    LANGUAGES,
    WITH_VALUES,
    Bench,
    Heard,
    bench,
    family,
    handler,
    jobs,
    note_who_is_there,
    results,
    there,
    until_gone,
)
from tests.support.patience import PATIENCE
from windlass.model.job import JSON
from windlass.worker.functions.sandbox.folders import Folders


@pytest.fixture(autouse=True)
def _newcomers() -> None:
    note_who_is_there()


EVERY = pytest.mark.parametrize("lang", LANGUAGES)
VALUED = pytest.mark.parametrize("lang", WITH_VALUES)

PID = {
    "python": "import os\ndef run(payload):\n    return os.getpid()",
    "node": "function run(payload) { return process.pid }",
    "php": "function run($payload) { return getmypid(); }",
    "sh": "echo $PPID",
}


@pytest.fixture
async def shop() -> AsyncIterator[Bench]:
    async with bench() as found:
        yield found


# Shared and kept apart


@EVERY
async def test_a_context_is_used_again_and_makes_way_after_so_many_jobs(shop: Bench, lang: str) -> None:
    work = handler(lang, PID[lang], recycle=4)
    pids = [pid for _ in range(4) for pid in results(await shop.run(work, b"", b""))]
    assert pids[0] == pids[1] == pids[2] == pids[3] != pids[4] == pids[5] == pids[6] == pids[7]


async def test_batches_at_the_same_time_have_contexts_of_their_own(shop: Bench) -> None:
    work = handler("python", "import os, time\ndef run(payload):\n    time.sleep(0.3)\n    return os.getpid()")
    found = await asyncio.gather(*(shop.run(work, b"") for _ in range(3)))
    assert len({heard.pids["0000"] for heard in found}) == 3


async def test_there_are_no_more_contexts_than_allowed_and_all_get_their_turn() -> None:
    async with bench(contexts=2) as shop:
        works = [handler("python", PID["python"], task=f"t{number}") for number in range(5)]
        found = await asyncio.gather(*(shop.run(work, b"") for work in works for _ in range(2)))
        assert [heard.codes for heard in found] == [[200]] * 10
        assert len(shop.functions._living) <= 2


async def test_a_tenant_may_have_all_contexts_at_once() -> None:
    """Code without a user of its own is counted together with what else this user runs just now."""
    work = handler("sh", "sleep 1", batch=1)
    async with bench(contexts=6, processes=4 if os.getuid() == 0 else 100) as shop:
        ran = await asyncio.gather(*(shop.run(work, b"") for _ in range(6)))
    assert [heard.codes for heard in ran] == [[200]] * 6


async def test_tenants_share_nothing(shop: Bench) -> None:
    body = """
import os
import sys
from pathlib import Path
seen = []
def run(payload):
    seen.append(payload)
    Path('mine').write_text(payload)
    return [os.getpid(), os.getuid(), os.getcwd(), seen]
"""
    a, b = handler("python", body, tenant="a", eid="same"), handler("python", body, tenant="b", eid="same")
    ((pid, uid, folder, seen),) = results(await shop.run(a, b"of a"))
    ((other_pid, other_uid, other_folder, other_seen),) = results(await shop.run(b, b"of b"))
    assert (seen, other_seen) == (["of a"], ["of b"])
    assert pid != other_pid
    assert folder != other_folder
    assert uid != other_uid or os.getuid() != 0
    peek = handler("python", f"def run(p):\n    return open({folder + '/mine'!r}).read()", tenant="b", task="peek")
    outcome = (await shop.run(peek, b"")).one
    assert (outcome.code, outcome.type) == (500, "PermissionError")


@VALUED
async def test_handlers_of_one_eid_share_a_context_and_its_scope(shop: Bench, lang: str) -> None:
    first = {
        "python": "import os\nkept = 'of the first'\ndef run(p):\n    return [os.getpid(), kept]",
        "node": "var kept = 'of the first'; function run(p) { return [process.pid, kept] }",
        "php": "$kept = 'of the first'; function run($p) { global $kept; return [getmypid(), $kept]; }",
    }
    second = {
        "python": "def run(p):\n    return [os.getpid(), kept + ' and second']",
        "node": "function run(p) { return [process.pid, kept + ' and second'] }",
        "php": "class X { function run() {} } "
        "function run($p) { global $kept; return [getmypid(), $kept . ' and second']; }",
    }
    one = handler(lang, first[lang], task="one", eid="shared")
    two = handler(lang, second[lang], task="two", eid="shared")
    ((pid, text),) = results(await shop.run(one, b""))
    ((again, both),) = results(await shop.run(two, b""))
    ((back, text_again),) = results(await shop.run(one, b""))
    assert (pid, text) == (again, "of the first") == (back, text_again)
    assert both == "of the first and second"


async def test_handlers_without_an_eid_do_not_share_one(shop: Bench) -> None:
    found = [await shop.run(handler("python", PID["python"], task=task), b"") for task in ("one", "two")]
    assert found[0].pids != found[1].pids


async def test_a_newer_version_gets_a_fresh_context_while_the_old_one_finishes(shop: Bench) -> None:
    waits = """
import os, time
def run(p):
    print(os.getcwd())
    while not os.path.exists("on"):
        time.sleep(0.01)
    return "old"
"""
    old = handler("python", waits, eid="e")
    new = handler("python", "def run(p):\n    return 'new'", version=2, eid="e")
    heard = Heard()
    running = asyncio.create_task(shop.functions.run(old, jobs(b"", b""), heard))
    await heard.until("0000", b"\n")
    fresh = await shop.run(new, b"")
    assert results(fresh) == ["new"]
    assert not running.done()
    Path(heard.output["0000", "stdout"].decode().strip(), "on").touch()  # noqa: ASYNC240 - the sign it waits for
    await running
    assert results(heard) == ["old", "old"]
    assert results(await shop.run(new, b"")) == ["new"]
    assert fresh.pids["0000"] != heard.pids["0000"]


async def test_a_context_without_work_is_ended_after_a_while_with_its_folder() -> None:
    async with bench(idle=0.2) as shop:
        where = await shop.run(handler("python", "import os\ndef run(p):\n    return os.getcwd()"), b"")
        (folder,) = results(where)
        assert there(folder)
        pid = where.pids["0000"]
        assert pid is not None
        await until_gone(f"/proc/{pid}")
        await until_gone(folder)
    assert not family()


# They are stopped


async def test_a_running_job_can_be_stopped_and_the_others_go_on(shop: Bench) -> None:
    work = handler("python", "import time\ndef run(p):\n    print('go')\n    time.sleep(0 if p == 'quick' else 60)")
    heard = Heard()
    running = asyncio.create_task(shop.functions.run(work, jobs(b"slow", b"quick"), heard))
    await heard.until("0000", b"go")
    shop.functions.stop("0000", "acme", "somebody cancelled it")
    await asyncio.wait_for(running, PATIENCE)
    stopped = heard.outcomes["0000"]
    assert (stopped.code, stopped.message, stopped.unrun) == (500, "somebody cancelled it", False)
    assert heard.outcomes["0001"].code == 200


async def test_a_job_that_waits_for_its_turn_can_be_stopped_unrun(shop: Bench) -> None:
    work = handler("python", "import time\ndef run(p):\n    print('go')\n    time.sleep(0.3)")
    heard = Heard()
    batch = jobs(*[b""] * 3)
    running = asyncio.create_task(shop.functions.run(work, batch, heard))
    await heard.until("0000", b"go")
    shop.functions.stop("0002", "acme", "not needed")
    await asyncio.wait_for(running, PATIENCE)
    assert [heard.outcomes[id].code for id in ("0000", "0001")] == [200, 200]
    assert heard.outcomes["0002"].message == "not needed"


async def test_a_job_that_waits_for_a_context_can_be_stopped() -> None:
    async with bench(contexts=1) as shop:
        heard, other = Heard(), Heard()
        slow = handler("python", "import time\ndef run(p):\n    print('go')\n    time.sleep(0.5)", task="slow")
        first = asyncio.create_task(shop.functions.run(slow, jobs(b""), heard))
        await heard.until("0000", b"go")
        waits = jobs(b"", b"")[1:]
        second = asyncio.create_task(shop.functions.run(handler("python", PID["python"]), waits, other))
        await asyncio.sleep(0)
        shop.functions.stop("0001", "acme", "not needed")
        await asyncio.gather(first, second)
        assert (other.one.unrun, other.one.message) == (True, "not needed")


async def test_closing_ends_everything_and_tells_of_it() -> None:
    heard = Heard()
    async with bench() as shop:
        work = handler("python", "import time\ndef run(p):\n    print('go')\n    time.sleep(60)")
        running = asyncio.create_task(shop.functions.run(work, jobs(b"", b""), heard))
        await heard.until("0000", b"go")
    await asyncio.wait_for(running, PATIENCE)
    assert {one.message for one in heard.outcomes.values()} == {"its worker stopped"}
    assert [heard.outcomes[id].unrun for id in ("0000", "0001")] == [False, True]
    assert not family()


async def test_a_run_that_is_cancelled_leaves_nothing(shop: Bench) -> None:
    heard = Heard()
    work = handler("python", "import time\ndef run(p):\n    print('go')\n    time.sleep(60)")
    running = asyncio.create_task(shop.functions.run(work, jobs(b""), heard))
    await heard.until("0000", b"go")
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    pid = heard.pids["0000"]
    assert pid is not None
    await until_gone(f"/proc/{pid}")


async def test_a_context_that_could_not_be_started_takes_no_place_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_room(*_: object, **__: object) -> None:
        raise OSError(errno.EAGAIN, "no room")

    for place, name in ((asyncio, "create_subprocess_exec"), (os, "pipe2"), (Folders, "make")):
        async with bench(contexts=1) as shop:
            with monkeypatch.context() as broken:
                broken.setattr(place, name, no_room)
                heard = await shop.run(handler("python", PID["python"]), b"")
            assert (heard.one.unrun, "no room" in heard.one.message) == (True, True)
            assert (await shop.run(handler("python", PID["python"]), b"")).codes == [200]


async def test_what_cannot_be_executed_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "python").write_text("no program")
    async with bench(contexts=1) as shop:
        with monkeypatch.context() as broken:
            broken.setattr(sys, "executable", str(tmp_path / "python"))
            heard = await shop.run(handler("python", PID["python"]), b"")
    assert heard.one.unrun
    assert heard.one.message == f"no process could be started: [Errno 13] Permission denied: '{tmp_path}/python'"


async def test_a_run_that_is_cancelled_while_its_context_starts_leaves_nothing() -> None:
    async with bench(contexts=1) as shop:
        running = asyncio.create_task(shop.functions.run(handler("python", PID["python"]), jobs(b""), Heard()))
        while not family():  # noqa: ASYNC110 - nobody gives a sign
            await asyncio.sleep(0)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert (await shop.run(handler("python", PID["python"]), b"")).codes == [200]
    assert not family()


async def test_a_batch_of_ten_thousand_goes_through_one_context(shop: Bench) -> None:
    work = handler("python", "def run(p):\n    return p + 1", recycle=None)
    heard = await shop.run(work, *(b"%d" % number for number in range(10_000)), content_type=JSON)
    assert results(heard) == list(range(1, 10_001))
    assert len(set(heard.pids.values())) == 1
