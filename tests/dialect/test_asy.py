"""The protocol of `asy`, each promise of its checklist, over both stores; the worker is the test itself."""

import asyncio
from contextlib import AsyncExitStack
from typing import Any

import msgspec
import pytest
from websockets.exceptions import InvalidStatus

from tests.support.asy_client import PLAIN, RESTORE, SHELL, asy, sha
from tests.support.engines import enqueue, finish
from tests.support.http_servers import served, web
from tests.support.push_servers import until
from tests.support.stores import VirtualClock
from windlass.dialect.asy import MOST_INPUT, AsyOptions
from windlass.engine import Engine
from windlass.model.job import Job, Reason, State
from windlass.model.operations import (
    Alive,
    Audit,
    Began,
    Begin,
    ChangeQueue,
    Claim,
    Claimed,
    Count,
    GetEstimate,
    List,
    Register,
    Renew,
    Show,
)
from windlass.model.outcome import Verdict
from windlass.model.output import NewChunk, OutputPolicy
from windlass.model.queue import QueueChange, Tier
from windlass.model.stdin import Typed, decode
from windlass.model.worker import NewWorker

TIERS = [Tier(name="fast", seconds=3), Tier(name="medium", seconds=10), Tier(name="slow", seconds=30)]


class Backend:
    """A worker of the queue."""

    def __init__(self, engine: Engine, id: str) -> None:
        self._engine = engine
        self._claims = 0
        self.id = id

    @property
    def nonce(self) -> str:
        """Of the last claim."""
        return f"{self._claims:016x}"

    async def take(self) -> Claimed:
        self._claims += 1
        (claimed,) = await self._engine(Claim(worker=self.id, wait=30.0, nonce=self.nonce))
        begun = Began(id=claimed.job.id, token=claimed.token, pid=7, files_loaded=bool(claimed.files))
        await self._engine(Begin(worker=self.id, jobs=[begun]))
        return claimed

    async def say(self, claimed: Claimed, stream: Any, data: bytes) -> None:
        chunk = NewChunk(stream=stream, data=data)
        await self._engine(Renew(worker=self.id, jobs=[Alive(id=claimed.job.id, token=claimed.token, output=[chunk])]))

    async def finish(self, claimed: Claimed, outcome: Verdict = Verdict.OK, **more: Any) -> None:
        await finish(self._engine, self.id, claimed, outcome, **more)


@pytest.fixture
async def backend(engine: Engine) -> Backend:
    new = NewWorker(name="backend", queues=["asy"], slots=1)
    return Backend(engine, (await engine(Register(worker=new))).worker)


@pytest.fixture
async def tiers(engine: Engine) -> None:
    await engine(ChangeQueue(queue="asy", change=QueueChange(tiers=TIERS)))


async def job_of(engine: Engine, tenant: str = "default") -> Job:
    """The only job, once it is there."""

    async def is_there() -> bool:
        return bool((await engine(List(tenant=tenant))).jobs)

    await until(is_there)
    return (await engine(List(tenant=tenant))).jobs[-1]


async def vanished(engine: Engine) -> None:
    async def is_empty() -> bool:
        return (await engine(Count())).count == 0

    await until(is_empty)


# From start to end


async def test_a_task_is_drawn_and_nothing_of_it_stays(engine: Engine, site: str, backend: Backend) -> None:
    async with asy(site) as client:
        assert client.socket.subprotocol == PLAIN
        await client.add("base.asy", b"base")
        await client.draw(b"import base;", format="pdf", verbosity=2, stderrRedir=False)
        claimed = await backend.take()
        assert claimed.files == {"base.asy": b"base", "main.asy": b"import base;"}
        assert msgspec.msgpack.decode(claimed.payload) == {
            "main": "main.asy",
            "format": "pdf",
            "verbosity": 2,
            "interactive": False,
        }
        assert (claimed.job.isolate, claimed.job.on_lost, claimed.job.max_retry) == (True, "fail", 0)
        assert claimed.job.output == OutputPolicy(merged=False)
        await backend.say(claimed, "stdout", b"one\n")
        await backend.say(claimed, "stderr", b"two\n")
        await backend.finish(claimed, files={"result.pdf": b"%PDF"})
        heard = [frame for frame in await client.rest() if frame.verb != "queue"]
    assert [(frame.verb, frame.value, frame.data) for frame in heard] == [
        ("output", {"stream": "stdout"}, b""),
        ("output", {"stream": "stdout"}, b"one\n"),
        ("output", {"stream": "stderr"}, b"two\n"),
        ("result", {"format": "pdf"}, b"%PDF"),
        ("complete", {}, None),
    ]
    await vanished(engine)


async def test_a_waiting_client_hears_how_long_it_waits(
    engine: Engine, site: str, backend: Backend, tiers: None
) -> None:
    """S0 17."""
    async with asy(site) as first, asy(site) as second:
        await first.draw(duration=10)
        claimed = await backend.take()
        await second.draw(duration=3)
        frame = await second.until("queue")
        assert isinstance(frame.value["estimate"], float)
        assert 0 < frame.value["estimate"] <= 10
        await backend.finish(claimed)
        await backend.finish(await backend.take())
        assert (await second.rest())[-1].verb == "complete"


async def test_s0_17_without_a_worker_a_client_gets_the_longest_duration_for_each_task_ahead(
    engine: Engine, site: str, tiers: None
) -> None:
    async with asy(site) as first, asy(site) as second:
        await first.draw()
        assert (await first.until("queue")).value == {"estimate": 30.0}
        await second.draw(duration=3)
        assert (await second.until("queue")).value == {"estimate": 60.0}
        await first.socket.close()
        assert (await second.until("queue")).value == {"estimate": 30.0}, "the next frame is another estimate"


async def test_s0_17_behind_a_run_that_may_take_any_time_a_client_gets_the_longest_duration(
    engine: Engine, site: str
) -> None:
    new = NewWorker(name="backend", queues=["asy", "other"], slots=1)
    worker = (await engine(Register(worker=new))).worker
    await enqueue(engine, queue="other")
    assert await engine(Claim(worker=worker))
    async with asy(site) as client:
        await client.draw()
        assert (await client.until("queue")).value == {"estimate": 30.0}
        assert (await engine(GetEstimate(id=(await job_of(engine)).id))).seconds is None


async def test_s0_17_a_client_whose_task_starts_at_once_gets_zero(site: str, backend: Backend, tiers: None) -> None:
    async with asy(site) as client:
        await client.draw()
        assert (await client.until("queue")).value == {"estimate": 0.0}
        await backend.finish(await backend.take())
        assert (await client.rest())[-1].verb == "complete"


async def test_a_task_whose_client_leaves_before_it_runs_never_runs(
    engine: Engine, site: str, backend: Backend
) -> None:
    """S0 20."""
    async with asy(site) as client:
        await client.draw()
        job = await job_of(engine)
        assert job.state is State.QUEUED
    await vanished(engine)
    assert await engine(Claim(worker=backend.id)) == []


async def test_a_task_whose_client_leaves_while_it_runs_is_stopped(engine: Engine, site: str, backend: Backend) -> None:
    """S0 21."""
    async with asy(site) as client:
        await client.draw()
        claimed = await backend.take()

    async def is_cancelled() -> bool:
        return any(order.order == "cancel" for order in (await renewed(engine, backend, claimed)).orders)

    await until(is_cancelled)
    await backend.finish(claimed, Verdict.ERROR)
    await vanished(engine)


async def renewed(engine: Engine, backend: Backend, claimed: Claimed) -> Any:
    return await engine(Renew(worker=backend.id, jobs=[Alive(id=claimed.job.id, token=claimed.token)]))


async def test_a_task_whose_server_has_died_is_cancelled_in_time(engine: Engine, clock: VirtualClock) -> None:
    """S0 22."""
    async with served(engine, clock, drawing=AsyOptions(owner_timeout=50.0)) as site, asy(site) as client:
        await client.draw()
        assert (await job_of(engine)).owner_timeout == 50.0


async def test_files_are_gone_once_the_program_has_them(engine: Engine, site: str, backend: Backend) -> None:
    """S0 30."""
    async with asy(site) as client:
        await client.draw()
        claimed = await backend.take()
        assert claimed.files
        again = await engine(Claim(worker=backend.id, nonce=backend.nonce))
        assert [one.files for one in again] == [{}]


# Streams and limits


async def test_the_streams_are_apart_and_an_empty_frame_marks_the_start(site: str, backend: Backend) -> None:
    """S0 33."""
    async with asy(site) as client:
        await client.draw(stderrRedir=False)
        claimed = await backend.take()
        first = await client.until("output")
        assert (first.value, first.data) == ({"stream": "stdout"}, b"")
        await backend.say(claimed, "stderr", b"warning")
        await backend.say(claimed, "stdout", b"said")
        await backend.finish(claimed)
        await client.rest()
        assert (client.output("stdout"), client.output("stderr")) == (b"said", b"warning")


ENDS = {
    "time": (
        Reason.TIMEOUT,
        "ran longer than its time limit of 3 s",
        "time limit: ran longer than its time limit of 3 s",
    ),
    "output": (Reason.OUTPUT, "printed more than 524288 bytes", "output limit: printed more than 524288 bytes"),
    "crash": (Reason.CRASHED, "killed by SIGKILL", "the process was stopped: killed by SIGKILL"),
    "failure": (None, "execution failed: exit status 1", "execution failed: exit status 1"),
}


@pytest.mark.parametrize("kind", ["sqlite"], indirect=True)
@pytest.mark.parametrize("how", ENDS)
async def test_the_client_hears_why_its_task_did_not_succeed(how: str, site: str, backend: Backend) -> None:
    """S0 1, 34."""
    reason, message, told = ENDS[how]
    async with asy(site) as client:
        await client.draw(duration=3)
        claimed = await backend.take()
        outcome = Verdict.ERROR if reason else Verdict.FAILED
        await backend.finish(claimed, outcome, reason=reason, message=message)
        assert (await client.rest())[-1] == ("complete", {"error": told}, None)


async def test_an_error_of_the_server_is_not_shown(site: str, backend: Backend) -> None:
    async with asy(site) as client:
        await client.draw()
        await backend.finish(await backend.take(), Verdict.ERROR, message="KeyError: 'secret'")
        assert (await client.rest())[-1].value == {"error": "server error"}


async def test_a_duration_is_a_tier_and_without_one_a_task_is_flexible(
    engine: Engine, site: str, backend: Backend, tiers: None
) -> None:
    """S0 1, 2."""
    for duration, assigned in ((3, "fast"), (10, "medium"), (30, "slow"), (None, "slow")):
        async with asy(site) as client:
            await client.draw(b"circle", **({} if duration is None else {"duration": duration}))
            claimed = await backend.take()
            assert claimed.job.assigned == assigned
            await backend.finish(claimed)
            await client.rest()


@pytest.mark.parametrize("kind", ["sqlite"], indirect=True)
async def test_without_tiers_a_duration_is_a_time_limit(site: str, backend: Backend) -> None:
    for duration, limit in ((3.0, 3), (None, 30)):
        async with asy(site) as client:
            await client.draw(b"circle", **({} if duration is None else {"duration": duration}))
            claimed = await backend.take()
            assert claimed.job.timeout == limit
            await backend.finish(claimed)
            await client.rest()


async def limit_of(engine: Engine, job: Job) -> float | None:
    shown = await engine(Show(id=job.id))
    if shown.deadline is None or shown.started_at is None:
        return None
    return (shown.deadline - shown.started_at).total_seconds()


async def test_a_duration_sent_after_start_lowers_the_limit_and_a_longer_one_does_not(
    engine: Engine, site: str, backend: Backend, tiers: None
) -> None:
    """S0 32."""
    async with asy(site) as client:
        await client.draw(duration=30)
        claimed = await backend.take()
        await client.until("output")
        assert await limit_of(engine, claimed.job) == 30
        for duration, limit in ((10, 10), (30, 10), (3, 3)):
            await client.say("options", {"duration": duration})
            await until(lambda limit=limit: is_limit(engine, claimed.job, limit))  # type: ignore[misc]
        await backend.finish(claimed)
        await client.rest()
    assert (await engine(Audit())).entries[0].action == "change-queue", "what a task does to itself is no management"


async def is_limit(engine: Engine, job: Job, limit: float) -> bool:
    return await limit_of(engine, job) == limit


async def test_a_duration_sent_while_it_waits_holds_from_the_start(
    engine: Engine, site: str, backend: Backend, tiers: None
) -> None:
    """S0 32."""
    async with asy(site) as first, asy(site) as second:
        await first.draw(duration=3)
        claimed = await backend.take()
        await second.draw(duration=30)
        await second.until("queue")
        await second.say("options", {"duration": 3})
        await backend.finish(claimed)
        claimed = await backend.take()
        await until(lambda: is_limit(engine, claimed.job, 3))
        await backend.finish(claimed)
        await second.rest()


async def test_tasks_behind_do_not_raise_an_estimate(engine: Engine, site: str, backend: Backend, tiers: None) -> None:
    """S0 18, 31: and ids are unique and grow with time."""
    async with AsyncExitStack() as opened:
        clients = [await opened.enter_async_context(asy(site)) for _ in range(5)]
        for number, client in enumerate(clients):
            await client.draw(duration=10)
            if number == 0:
                await backend.take()
            await until(lambda number=number: has_jobs(engine, number + 1))  # type: ignore[misc]
        first = (await clients[1].until("queue")).value["estimate"]
        shown = [job.id for job in (await engine(List())).jobs]
        card = await engine(GetEstimate(id=shown[1]))
        assert card.at_most is not None
        assert card.at_most <= first
        ids = [int(id.replace("-", ""), 16) >> 8 for id in shown]
        assert sorted(set(ids)) == ids, "each is greater than those before it"


async def has_jobs(engine: Engine, number: int) -> bool:
    return (await engine(Count())).count == number


# Refused


def add(name: str) -> tuple[str, bytes]:
    return f'add {{"filename": "{name}"}}', b"x"


START = 'start {"main": "main.asy"}'
DENIED: dict[str, list[str | bytes]] = {
    "a path": [*add("../main.asy")],
    "dots": [*add("..")],
    "a control character": [*add("a\\nb")],
    "no name": [*add("")],
    "the folder of results": [*add("out")],
    "bad JSON": ['add {"filename": '],
    "no JSON": ["add"],
    "another type": ['options {"duration": "long"}'],
    "another duration": ['options {"duration": 5}'],
    "another format": ['options {"format": "exe"}'],
    "an unknown verb": ["draw {}"],
    "no bytes": ['add {"filename": "a"}', "start {}"],
    "bytes alone": [b"x"],
    "no main": [*add("main.asy"), "start {}"],
    "another main": [*add("a"), START],
    "restore without its protocol": ['add {"filename": "a", "hash": "' + "0" * 64 + '", "restore": true}'],
    "another hash": ['add {"filename": "a", "hash": "' + "0" * 64 + '"}', b"x"],
    "a double start": [*add("main.asy"), START, START],
    "add after start": [*add("main.asy"), START, *add("b")],
    "input to a batch task": [*add("main.asy"), START, "input {}", b"x"],
    "a format after start": [*add("main.asy"), START, 'options {"format": "pdf"}'],
}


@pytest.mark.parametrize("kind", ["sqlite"], indirect=True)
@pytest.mark.parametrize("what", DENIED)
async def test_what_the_protocol_does_not_have_is_denied(what: str, engine: Engine, site: str) -> None:
    """S0 35."""
    async with asy(site) as client:
        for frame in DENIED[what]:
            await client.socket.send(frame)
        heard = [frame for frame in await client.rest() if frame.verb not in ("queue", "output")]
        assert [frame.verb for frame in heard] == ["deny"]
        assert heard[0].value["error"]
    await vanished(engine)


async def test_input_of_128_kib_passes_and_more_is_denied(engine: Engine, site: str, backend: Backend) -> None:
    """S0 38."""
    async with asy(site) as client:
        await client.add("a", b"x" * (MOST_INPUT - 6))
        await client.draw(b"circle")
        await backend.finish(await backend.take())
        assert (await client.rest())[-1].verb == "complete"
    async with asy(site) as client:
        await client.add("a", b"x" * (MOST_INPUT - 6))
        await client.add("main.asy", b"circles")
        assert (await client.until("deny")).value == {"error": f"more than {MOST_INPUT} bytes of input"}
        assert await client.hear() is None


async def test_s0_38_restored_files_count_as_input(engine: Engine, site: str, backend: Backend) -> None:
    half = MOST_INPUT // 2
    files = {"a": b"a" * half, "b": b"b" * half}
    for name, data in files.items():
        async with asy(site, RESTORE) as client:
            await client.add(name, data, hash=sha(data))
            await client.say("start", {"main": name})
            await backend.finish(await backend.take())
            assert (await client.rest())[-1].verb == "complete"
    async with asy(site, RESTORE) as client:
        for name, data in files.items():
            await client.say("add", {"filename": name, "hash": sha(data), "restore": True})
        await client.say("start", {"main": "a"})
        claimed = await backend.take()
        assert claimed.files == files, "exactly as much as is allowed"
        await backend.finish(claimed)
        assert (await client.rest())[-1] == ("complete", {}, None)
    async with asy(site, RESTORE) as client:
        for name, data in files.items():
            await client.say("add", {"filename": name, "hash": sha(data), "restore": True})
        await client.add("c", b"c")
        await client.say("start", {"main": "a"})
        told = f"{MOST_INPUT + 1} bytes of files, at most {MOST_INPUT} are allowed here"
        assert await client.rest() == [("deny", {"error": told}, None)]
    await vanished(engine)


@pytest.mark.parametrize("kind", ["sqlite"], indirect=True)
async def test_a_handshake_without_a_known_protocol_is_refused(site: str) -> None:
    for protocols, path in ((("chat",), "/asy"), ((PLAIN,), "/asy/interactive"), ((SHELL,), "/asy")):
        with pytest.raises(InvalidStatus) as refused:
            async with asy(site, *protocols, path=path):
                pass
        assert refused.value.response.status_code == 400
    async with asy(site, PLAIN, RESTORE) as client:
        assert client.socket.subprotocol == RESTORE


# Restore


async def test_a_known_file_is_not_sent_again(engine: Engine, site: str, backend: Backend) -> None:
    """S0 36."""
    text, base = b"import base;", b"base"
    async with asy(site, RESTORE) as client:
        await client.add("base.asy", base, hash=sha(base))
        await client.add("main.asy", text, hash=sha(text))
        await client.say("start", {"main": "main.asy"})
        await backend.finish(await backend.take())
        assert [frame.verb for frame in await client.rest() if frame.verb != "queue"] == ["output", "complete"]
    new = b"import base; circle;"
    async with asy(site, RESTORE) as client:
        await client.say("add", {"filename": "base.asy", "hash": sha(base), "restore": True})
        await client.say("add", {"filename": "main.asy", "hash": sha(new), "restore": True})
        await client.say("start", {"main": "main.asy"})
        missing = await client.until("missing")
        assert missing.value == [{"filename": "main.asy", "hash": sha(new)}]
        await client.add("main.asy", new, hash=sha(new))
        await client.say("start", {"main": "main.asy"})
        claimed = await backend.take()
        assert claimed.files == {"base.asy": base, "main.asy": new}
        await backend.finish(claimed)
        heard = await client.rest()
    assert [frame.verb for frame in heard].count("missing") == 1
    assert heard[-1] == ("complete", {}, None)


async def test_files_that_are_missing_twice_are_denied(engine: Engine, site: str) -> None:
    async with asy(site, RESTORE) as client:
        for _ in range(2):
            await client.say("add", {"filename": "main.asy", "hash": sha(b"x"), "restore": True})
            await client.say("start", {"main": "main.asy"})
        assert [frame.verb for frame in await client.rest()] == ["missing", "deny"]


# Status and access


async def test_announcements_are_in_the_status_and_arrive_on_open_connections(
    engine: Engine, site: str, backend: Backend, clock: VirtualClock
) -> None:
    """S0 40."""
    async with web(site) as http, asy(site) as client:
        assert (await http.get("/asy/status")).json() == {"status": {"announcement": ""}}
        await client.draw()
        await backend.take()
        await client.until("output")
        await engine(ChangeQueue(queue="asy", change=QueueChange(announcement="closed at ten")))
        clock.advance(2)
        assert (await client.until("status")).value == {"announcement": "closed at ten"}
        assert (await http.get("/asy/status")).json() == {"status": {"announcement": "closed at ten"}}


@pytest.mark.parametrize("kind", ["sqlite"], indirect=True)
async def test_a_connection_needs_a_token_unless_the_operator_names_a_public_tenant(
    engine: Engine, clock: VirtualClock
) -> None:
    async with served(engine, clock) as site:
        for given, protocols in ((None, (PLAIN,)), ("wrong", (PLAIN,)), (None, (PLAIN, "token.wrong"))):
            with pytest.raises(InvalidStatus) as refused:
                async with asy(site, *protocols, token=given):
                    pass
            assert refused.value.response.status_code == 401
        async with asy(site, PLAIN, "token.wl_local_of-the-tests", token=None) as client:
            await client.draw()
            assert (await job_of(engine)).tenant == "default"
    async with served(engine, clock, drawing=AsyOptions(public="visitors")) as site:
        async with asy(site, token=None) as client:
            await client.draw()
            await job_of(engine, tenant="visitors")
        with pytest.raises(InvalidStatus):
            async with asy(site, token="wrong"):  # noqa: S106
                pass


# Shells


async def test_a_shell_gets_what_is_typed_and_says_what_it_prints(
    engine: Engine, site: str, backend: Backend, tiers: None
) -> None:
    """S0 37."""
    async with asy(site, SHELL, path="/asy/interactive") as client:
        await client.say("start", {})
        claimed = await backend.take()
        assert (claimed.job.yielding, claimed.job.stdin) == (True, "pipe")
        heard = 0
        for number in range(3):
            await client.say("input", {}, b"say %d\n" % number)
            item = Alive(id=claimed.job.id, token=claimed.token, heard=heard)
            async with asyncio.timeout(30):
                while not (messages := (await engine(Renew(worker=backend.id, jobs=[item], wait=1.0))).messages):
                    pass
            heard = messages[-1].n
            assert decode(messages[-1].data) == Typed(b"say %d\n" % number)
            await backend.say(claimed, "stdout", b"%d\n" % number)
            while client.output("stdout").count(b"\n") <= number:
                await client.until("output")
        await backend.finish(claimed)
        assert (await client.rest())[-1] == ("complete", {}, None)


async def test_a_halted_shell_gets_a_last_message_and_its_place_goes_to_the_next_task(
    engine: Engine, site: str, backend: Backend, tiers: None
) -> None:
    """S0 16."""
    async with asy(site, SHELL, path="/asy/interactive") as shell, asy(site) as client:
        await shell.say("start", {})
        claimed = await backend.take()
        await client.draw(duration=3)

        async def is_halted() -> bool:
            return any(order.order == "halt" for order in (await renewed(engine, backend, claimed)).orders)

        await until(is_halted)
        await backend.finish(claimed, Verdict.ERROR)
        assert "halted" in (await shell.rest())[-1].value["error"]
        await backend.finish(await backend.take())
        assert (await client.rest())[-1] == ("complete", {}, None)


async def test_a_shell_without_a_free_place_is_denied_at_once(
    engine: Engine, site: str, backend: Backend, tiers: None
) -> None:
    """S0 15."""
    async with asy(site) as busy, asy(site, SHELL, path="/asy/interactive") as client:
        await busy.draw()
        claimed = await backend.take()
        await client.say("start", {})
        assert "no place is free" in (await client.until("deny")).value["error"]
        assert await client.hear() is None
        await backend.finish(claimed)
        await busy.rest()
    await vanished(engine)
