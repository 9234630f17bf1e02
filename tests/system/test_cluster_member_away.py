"""One member of a cluster is away: work goes on with what lies on the others, and with all of it when it is back.

Three members: of two, one that is left alone has no majority, and refuses everything after a while.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal

import pytest

from tests.support.clusters import PARTITIONS, home, joined, queues_of
from tests.support.http_servers import Process, process
from tests.support.json_client import Site, calling
from tests.support.patience import PATIENCE
from tests.support.servers import Server, StartServer
from tests.support.worker_harness import MakeHarness, WorkerHarness, tell, until
from windlass.engine import Engine
from windlass.engine.upkeep import resolve_dependencies
from windlass.model.errors import PartAway, Unavailable
from windlass.model.handler import NewHandler
from windlass.model.new_job import JobOptions, NewJob
from windlass.model.operations import (
    Alive,
    Claim,
    Claimed,
    Enqueue,
    EnqueueLines,
    Finish,
    Finished,
    GetResult,
    GetStats,
    PutHandler,
    Register,
    Renew,
    Renewed,
)
from windlass.model.outcome import Verdict
from windlass.model.worker import NewWorker
from windlass.store.redis import RedisStore
from windlass.system import SystemRandomness

pytestmark = pytest.mark.timeout(240)

MEMBERS = 3
NODE_TIMEOUT = 2000
"""Milliseconds after which the others know that a member is away."""

LEASE = 5.0

A_WHILE = 2.0
"""Seconds that jobs go on coming after it is back."""

APP = """
import os, time
from pathlib import Path
from windlass import Windlass, current
app = Windlass(token=os.environ.get("HARNESS_TOKEN"))
HERE = Path(__file__).parent

def note(*words):
    file = os.open(HERE / "notes", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(file, (" ".join(map(str, words)) + "\\n").encode())
    os.close(file)

@app.task
def quick(word: str) -> None:
    note("ran", word)

@app.task
def stay(word: str) -> None:
    note("begun", word)
    while not (HERE / f"let go {word}").exists():
        time.sleep(0.01)
    note("ended", word)
"""

Lost = Literal["home", "other", "entry"]


class Broken:
    """A cluster, of which one member is about to go."""

    def __init__(self, members: list[Server], lost: Lost) -> None:
        place = home(MEMBERS) if lost == "home" else (home(MEMBERS) + 1) % MEMBERS
        self.member = members[place]
        self.entry = self.member if lost == "entry" else members[(place + 1) % MEMBERS]
        """The member whose address clients are given."""
        self.lost, self.kept = queues_of(place, MEMBERS)[0], queues_of((place + 2) % MEMBERS, MEMBERS)[0]
        self.queues = f"{self.lost},{self.kept}"


@pytest.fixture(params=["home", "other", "entry"])
def cluster(request: pytest.FixtureRequest, start_server: StartServer) -> Broken:
    """Away is the member with the records of workers and the rules, another, or the one whose address clients have."""
    return Broken(joined(start_server, MEMBERS, NODE_TIMEOUT), request.param)


@pytest.fixture
def serving(cluster: Broken, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Process]:
    folder = tmp_path / "server"
    folder.mkdir()
    with process(folder, "--no-worker", store=cluster.entry.url, WINDLASS_ENGINE_LEASE=f"{LEASE}s") as running:
        monkeypatch.setenv("HARNESS_TOKEN", running.token)
        yield running


def enqueue(task: Any, queue: str, *words: str) -> list[str]:
    return [task.using(queue=queue).enqueue(word).id for word in words]


def words(kind: str, number: int) -> list[str]:
    return [f"{kind}{place}" for place in range(number)]


def ran(shop: WorkerHarness, expected: list[str], since: float) -> None:
    """Wait until all of these have run, though a member is away."""
    until(lambda: set(expected) <= set(shop.notes("ran")))
    tell(f"{expected[0]}: {time.monotonic() - since:.2f} s")


def let_go(shop: WorkerHarness, *words: str) -> None:
    for word in words:
        (shop.folder / f"let go {word}").touch()


def test_s3_item_36_a_member_of_a_cluster_is_away_and_work_goes_on(
    cluster: Broken, serving: Process, make_harness: MakeHarness
) -> None:
    shop = make_harness(APP, store=serving.address)
    worker = shop.start("-q", cluster.queues, "-c", "6")
    quick, stay = shop.tasks.quick, shop.tasks.stay
    with calling(serving) as http:
        site = Site(http)
        ids = [id for queue in (cluster.lost, cluster.kept) for id in enqueue(quick, queue, f"first-{queue}")]
        held = enqueue(stay, cluster.kept, "kept") + enqueue(stay, cluster.lost, "ends", "outlasts")
        shop.noted("ran", 2)
        shop.noted("begun", 3)

        cluster.member.kill()
        killed = time.monotonic()
        ids += enqueue(quick, cluster.kept, *words("at-once", 20))
        ran(shop, words("at-once", 20), killed)
        waiting = enqueue(quick, cluster.lost, *words("waiting", 20))
        assert {site.ask("GET", f"/jobs/{id}")["reason"] for id in waiting} == {"accepted"}
        assert f":{cluster.member.port}" in http.get("/readyz").text

        until(lambda: time.monotonic() - killed > 2 * LEASE + NODE_TIMEOUT / 1000)
        began = time.monotonic()
        ids += enqueue(quick, cluster.kept, *words("later", 20))
        ran(shop, words("later", 20), began)  # when all know of it, too
        let_go(shop, "kept", "ends")
        assert site.ended(held[0])["attempt"] == 1, "it was renewed all the time"
        shop.noted("ended", 2)
        said = (serving.folder / "log").read_text()
        assert said.count(f"nothing is claimed from {cluster.lost}") == 1, said
        assert said.count("of the store stay in the journal") <= 2, said

        cluster.member.start()
        back = time.monotonic()
        while http.get("/readyz").text != "ok\n" or time.monotonic() - back < A_WHILE:
            waiting += enqueue(quick, cluster.lost, f"meanwhile{len(waiting)}")
            time.sleep(0.01)
        tell(f"{len(waiting)} jobs waited for it, or came when it was just back")
        ended = [site.ended(id) for id in (*ids, *waiting, *held[:-1])]
        tell(f"all had ended {time.monotonic() - back:.2f} s after it was back")
        assert {(job["state"], job["attempt"]) for job in ended} == {("succeeded", 1)}
        listed = site.ask("GET", "/jobs", params={"queue": cluster.lost, "limit": 1000})["jobs"]
        assert [job["id"] for job in listed if job["id"] in waiting] == waiting, "in order"
        until(lambda: f"{cluster.lost} can be claimed from again" in (serving.folder / "log").read_text())

        until(lambda: time.monotonic() - back > 2 * LEASE)
        let_go(shop, "outlasts")
        assert site.ended(held[-1])["attempt"] == 1, "it stayed with a worker that could not renew it"
        assert sorted(shop.notes("ran")) == sorted({*shop.notes("ran")}), "once each"
        assert len(shop.notes("ended")) == 3
        assert "reports refused" not in worker.said, "nothing was reported twice"
        assert worker.said.count("updates of running jobs are late") <= 2, worker.said


@pytest.mark.parametrize("cluster", ["home"], indirect=True)
def test_a_member_that_falls_silent_is_left_alone_by_a_worker_of_the_cluster(
    cluster: Broken, make_harness: MakeHarness
) -> None:
    """And not only one that refuses connections: it takes as long as an answer may take."""
    shop = make_harness(APP, store=cluster.entry.url)
    worker = shop.start("-q", cluster.queues, "-c", "4", lease="6s")
    quick = shop.tasks.quick
    for queue in (cluster.lost, cluster.kept):
        enqueue(quick, queue, f"first-{queue}")
    shop.noted("ran", 2)
    cluster.member.freeze()
    try:
        began = time.monotonic()
        enqueue(quick, cluster.kept, *words("at-once", 5))
        ran(shop, words("at-once", 5), began)
        worker.hear(f"nothing is claimed from {cluster.lost}, .* does not answer")
        for turn in range(3):
            began = time.monotonic()
            enqueue(quick, cluster.kept, *words(f"later{turn}-", 5))
            ran(shop, words(f"later{turn}-", 5), began)
    finally:
        cluster.member.thaw()
    worker.hear(f"{cluster.lost} can be claimed from again")
    enqueue(quick, cluster.lost, "last")
    ran(shop, ["last"], began)
    assert worker.stop() == 0


@pytest.mark.parametrize("cluster", ["home"], indirect=True)
def test_s3_item_36_functions_whose_code_is_at_the_worker_run_though_the_part_that_keeps_code_is_away(
    cluster: Broken, make_harness: MakeHarness
) -> None:
    shop = make_harness(APP, store=cluster.entry.url)
    shop.handlers = True
    worker = shop.start("-q", cluster.queues, "-c", "4", lease="6s")
    ask = shop.app.link.ask
    body = "def run(payload):\n    return payload.upper()\n"
    ask(PutHandler(task="shout", handler=NewHandler(lang="python", body=body)))

    def feed(*lines: str) -> list[str]:
        options = JobOptions(queue=cluster.kept)
        ids: list[str] = ask(EnqueueLines(task="shout", text="\n".join(lines), options=options)).ids
        return ids

    def results(ids: list[str]) -> list[bytes]:
        found = [ask(GetResult(id=id, wait=60.0)) for id in ids]
        return [bytes(one.result or b"") for one in found]

    assert results(feed("first")) == [b'"FIRST"']
    cluster.member.kill()
    assert results(feed("a", "b", "c")) == [b'"A"', b'"B"', b'"C"']
    worker.hear(f"nothing is claimed from {cluster.lost}")
    until(lambda: results(feed("later")) == [b'"LATER"'])
    cluster.member.start()
    assert worker.stop() == 0


# Step by step


@pytest.fixture
async def engine(cluster: Broken) -> AsyncIterator[Engine]:
    store = await RedisStore.open(cluster.entry.url, partitions=PARTITIONS)
    yield Engine(store, SystemRandomness())
    await store.close()


async def worker_of(engine: Engine, cluster: Broken) -> str:
    about = NewWorker(name="w", queues=[cluster.lost, cluster.kept], slots=100)
    return (await engine(Register(worker=about))).worker


async def taken(engine: Engine, worker: str) -> dict[str, Claimed]:
    """By queue the last job of it that is claimed now."""
    return {one.job.queue: one for one in await engine(Claim(worker=worker, slots=100))}


async def is_away(engine: Engine, cluster: Broken) -> None:
    """Until it is known that a member is away."""
    cluster.member.kill()
    async with asyncio.timeout(PATIENCE):
        while True:
            try:
                await engine(GetStats())
            except PartAway:
                return
            except Unavailable:
                await asyncio.sleep(0.01)


async def is_back(engine: Engine, cluster: Broken) -> None:
    cluster.member.start()
    async with asyncio.timeout(PATIENCE):
        while True:
            with suppress(Unavailable):
                await engine(GetStats())
                return
            await asyncio.sleep(0.01)


def well(*claimed: Claimed) -> list[Finished]:
    return [Finished(id=one.job.id, token=one.token, outcome=Verdict.OK) for one in claimed]


async def test_reports_of_which_some_cannot_be_taken_are_not_taken_in_part(engine: Engine, cluster: Broken) -> None:
    worker = await worker_of(engine, cluster)
    for queue in (cluster.lost, cluster.kept):
        await engine(Enqueue(job=NewJob(task="t", queue=queue)))
    held = await taken(engine, worker)
    lost, kept = held[cluster.lost], held[cluster.kept]
    await is_away(engine, cluster)
    alive = [Alive(id=one.job.id, token=one.token) for one in (lost, kept)]
    assert await engine(Renew(worker=worker, jobs=alive)) == Renewed(), "a sign of life asks for nothing"
    for both in ((lost, kept), (kept, lost)):
        with pytest.raises(PartAway):
            await engine(Finish(worker=worker, jobs=well(*both)))
    assert (await engine(Finish(worker=worker, jobs=well(kept)))).applied == [kept.job.id]
    await is_back(engine, cluster)
    again = await worker_of(engine, cluster)
    assert (await engine(Finish(worker=again, jobs=well(lost)))).applied == [lost.job.id]


async def test_what_follows_into_a_part_that_is_away_holds_up_no_other(engine: Engine, cluster: Broken) -> None:
    worker = await worker_of(engine, cluster)
    for queue in (cluster.lost, cluster.kept):
        then = NewJob(task="then", queue=queue)
        await engine(Enqueue(job=NewJob(task="first", queue=cluster.kept, then=then)))
    first = await engine(Claim(worker=worker, slots=100))
    await is_away(engine, cluster)
    assert len((await engine(Finish(worker=worker, jobs=well(*first)))).applied) == 2
    with pytest.raises(PartAway, match="the children of 1 jobs wait"):
        await resolve_dependencies(engine)
    assert list(await taken(engine, worker)) == [cluster.kept]
    await is_back(engine, cluster)
    await resolve_dependencies(engine)
    assert list(await taken(engine, await worker_of(engine, cluster))) == [cluster.lost]
