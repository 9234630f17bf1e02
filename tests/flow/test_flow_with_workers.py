"""Flow control with real workers, on each kind of store: what the checklists of S0, S2 and S3 ask for under load."""

import itertools
import random
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.flow.test_tiers_with_workers import FAST, SLOW, assigned, regulate, run, started, took
from tests.support.freezing import freeze
from tests.support.patience import PATIENCE
from tests.support.servers import Server, StartServer
from tests.support.worker_harness import STORES, TASKS, MakeHarness, WorkerHarness, tell, until
from windlass.job_handle import Job
from windlass.model.errors import Busy, Missing
from windlass.model.job import Job as Record
from windlass.model.job import Reason, State
from windlass.model.limit import NewLimit, Rate, Which
from windlass.model.match import Match
from windlass.model.new_job import NewJob
from windlass.model.operations import ChangeQueue, Enqueue, List, PutLimit, Show
from windlass.model.queue import QueueChange, Tier


def records(harness: WorkerHarness, jobs: list[Job[Any]], within: float = PATIENCE) -> list[Any]:
    return [harness.ended(job, within) for job in jobs]


def wait_of(record: Any) -> float:
    return float((record.started_at - record.created_at).total_seconds())


# Tiers


def test_s0_1_a_slow_job_is_stopped_at_the_longest_tiers_time(harness: WorkerHarness) -> None:
    regulate(harness)
    harness.start("-c", "1")
    record = harness.ended(run(harness, tier="slow"))
    assert (record.state, record.reason) == (State.FAILED, Reason.TIMEOUT)
    assert record.error is not None
    assert f"time limit of {SLOW:g} s" in record.error.message
    assert took(record) >= SLOW


def test_s0_11_caps_hold_at_every_look_under_random_load(harness: WorkerHarness) -> None:
    regulate(harness)
    harness.start("-c", "2")
    harness.start("-c", "1")
    chance = random.Random(7)
    tiers_asked = ["fast", "medium", "slow", None]
    jobs = [run(harness, chance.uniform(0, 0.4), tier=chance.choice(tiers_asked)) for _ in range(40)]
    looks = 0
    while any(job.state is not State.SUCCEEDED for job in jobs[-3:]) or looks < 20:
        running = harness.app.ask(List(match=Match(state=["running"]), limit=100)).jobs
        tiers = [job.assigned for job in running]
        assert tiers.count("slow") <= 1
        assert tiers.count("slow") + tiers.count("medium") <= 2
        looks += 1
    runs = records(harness, jobs)
    assert all(record.state is State.SUCCEEDED for record in runs)
    steps = [1 if line.startswith("start") else -1 for line in harness.notes()]
    assert max(itertools.accumulate(steps)) == 3, "in all no more run than there are slots, and no fewer"
    tell(f"{looks} looks")


def test_s0_14_which_flexible_job_pays_for_a_denied_one_is_random(harness: WorkerHarness) -> None:
    regulate(harness, slow=2, medium=2, times=100)
    harness.start("-c", "2")
    hit = set()
    for trial in range(20):
        flexible = [run(harness) for _ in range(2)]
        assert [started(job).assigned for job in flexible] == ["slow", "slow"]
        with pytest.raises(Busy):
            run(harness, yielding=True)
        hit.add(next(place for place, job in enumerate(flexible) if assigned(job) == "medium"))
        for job in flexible:
            job.cancel()
            harness.ended(job)
        if len(hit) == 2:
            tell(f"both were hit within {trial + 1} trials")
            return
    pytest.fail(f"only the one at place {hit} was ever hit")


@pytest.mark.parametrize("kind", STORES)
def test_s0_17_and_18_each_job_that_waits_has_a_bound_that_later_jobs_do_not_raise(
    kind: str, make_harness: MakeHarness, start_server: StartServer
) -> None:
    """That it holds is seen where time is the test's own: `tests/estimate/test_bounds.py`."""
    # A server of its own: what others have left in a queue of this name would wait there too.
    harness = make_harness(store="" if kind == "file" else start_server("redis").url)
    regulate(harness)
    worker = harness.start("-c", "2", lease="60s")
    freeze(worker.pid, harness.store)  # so that jobs come faster than they are run, on any machine
    chance = random.Random(3)
    bounds: dict[str, float] = {}
    for _ in range(14):
        tier = chance.choice(["fast", "medium", None])
        plan = harness.tasks.co_nap.plan
        new = NewJob(task="co_nap", tier=tier, payload=plan.pack((chance.uniform(0, 0.7), "x"), {}), max_retry=0)
        accepted = harness.app.ask(Enqueue(job=new))
        assert accepted.estimate_at_most is not None, "every enqueue gets one"
        bounds[accepted.id] = accepted.estimate_at_most
    for id, first in bounds.items():
        again = harness.app.job(id).estimate()
        assert again.at_most is None or again.at_most <= first + 0.01, "what came behind has not raised it"
    worker.send(signal.SIGCONT)
    ended = records(harness, [harness.app.job(id) for id in bounds])
    late = [wait_of(record) - bounds[record.id] for record in ended]
    tell(f"waits beyond the first bound: {max(late):.2f} s at most")
    assert max(bounds.values()) > 2 * FAST, "there was something to wait for"


def test_s0_25_a_killed_workers_job_ends_with_an_error_and_its_place_comes_back(harness: WorkerHarness) -> None:
    tiers = [Tier(name="fast", seconds=3), Tier(name="slow", seconds=60, cap=1)]
    harness.app.ask(ChangeQueue(queue="default", change=QueueChange(tiers=tiers, on_lost="fail")))
    doomed = harness.start("-c", "1", lease="4s")
    lost = run(harness, tier="slow")
    started(lost)
    waiting = run(harness, 0.1, tier="slow")
    harness.start("-c", "3", lease="4s")
    assert waiting.state is State.QUEUED, "the only place at slow is taken"
    doomed.send(signal.SIGKILL)
    record = harness.ended(lost)
    assert (record.state, record.reason) == (State.FAILED, Reason.LOST)
    assert harness.ended(waiting).state is State.SUCCEEDED


# Queues that share a worker


def test_two_queues_on_one_worker_wait_as_long_as_estimated(harness: WorkerHarness) -> None:
    """The worker takes from its first queue while there are jobs, and the estimates say so."""
    harness.start("-c", "1", "-q", "mail,bulk", "--strict")
    nap = harness.tasks.co_nap
    for _ in range(4):
        harness.ended(nap.using(queue="mail").enqueue(0.5, "learn"))
    started(nap.using(queue="mail").enqueue(5.0, "first"))
    bulk = [nap.using(queue="bulk").enqueue(0.5, f"bulk{number}") for number in range(3)]
    mail = [nap.using(queue="mail").enqueue(0.5, f"mail{number}") for number in range(3)]
    until(lambda: seconds(mail[1]) - seconds(mail[0]) > 0.3)  # what was seen is written down now
    asked_at = time.time()
    estimates = {job.id: seconds(job) for job in [*mail, *bulk]}
    ended: dict[str, Any] = {record.id: record for record in records(harness, [*mail, *bulk])}
    real = {id: record.started_at.timestamp() - asked_at for id, record in ended.items()}
    tell({id[-4:]: (round(estimates[id], 2), round(real[id], 2)) for id in estimates})
    order = sorted(estimates, key=lambda id: real[id])
    assert order == [job.id for job in [*mail, *bulk]], "the dearer queue first"
    assert sorted(estimates, key=lambda id: estimates[id]) == order
    for one, two in itertools.pairwise(order):
        assert estimates[two] - estimates[one] > 0.3, "each waits for the run before it"


def seconds(job: Job[Any]) -> float:
    found = job.estimate().seconds
    assert found is not None
    return found


# Limits


def test_s2_28_a_rate_holds_in_any_window_and_other_jobs_pass_by(harness: WorkerHarness) -> None:
    limit = NewLimit(match=Which(task="co_nap"), rate=Rate(count=3, per=1.0))
    harness.app.ask(PutLimit(name="slowly", limit=limit))
    harness.start("-c", "4")
    harness.start("-c", "4")
    slow = [harness.tasks.co_nap.enqueue(0.0, "x") for _ in range(10)]
    others = [harness.tasks.co_add.enqueue(1, 2) for _ in range(10)]
    passed = max(record.finished_at for record in records(harness, others))
    times = sorted(record.started_at.timestamp() for record in records(harness, slow))
    assert passed.timestamp() < times[-1], "they did not wait for the limit"
    for first, fourth in zip(times, times[3:], strict=False):
        assert fourth - first >= 1.0 - 0.001
    tell(f"ten starts in {times[-1] - times[0]:.2f} s")


def test_s2_29_and_30_a_limit_on_a_task_and_a_field_is_never_exceeded_by_many_workers(harness: WorkerHarness) -> None:
    """Only jobs of this task with this word are bound; those with another word are not."""
    limit = NewLimit(match=Which(task="co_nap", payload={"word": "bound"}), running=2)
    harness.app.ask(PutLimit(name="two", limit=limit))
    bound = [harness.tasks.co_nap.enqueue(0.1, word="bound") for _ in range(10)]
    free = [harness.tasks.co_nap.enqueue(0.6, word="free") for _ in range(4)]
    for _ in range(2):
        harness.start("-c", "4")
    runs = records(harness, bound)
    assert most_at_once(runs) == 2
    assert most_at_once([*runs, *records(harness, free)]) > 2, "others ran meanwhile"


def most_at_once(runs: list[Any]) -> int:
    moments = sorted(
        [(record.started_at, 1) for record in runs] + [(record.finished_at, -1) for record in runs],
        key=lambda moment: (moment[0], moment[1]),
    )
    return max(itertools.accumulate(step for _, step in moments))


# Tenants and turns


@pytest.fixture(params=STORES)
def neighbours(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[WorkerHarness, WorkerHarness]]:
    """Two tenants of one store, with the same tasks, and names of which one begins like the other."""
    store = str(tmp_path / "jobs.db")
    if request.param == "redis":
        server = request.getfixturevalue("redis_server")
        assert isinstance(server, Server)
        store = server.url
    made = []
    for number, tenant in enumerate(("acme-east", "acme-east-2")):
        folder = tmp_path / str(number)
        folder.mkdir()
        made.append(WorkerHarness(folder, store, f"{tenant}.{tmp_path.name[-40:]}", TASKS.read_text()))
    yield made[0], made[1]
    for harness in made:
        harness.close()


def test_s3_11_jobs_of_one_tenant_are_neither_seen_nor_run_by_another(
    neighbours: tuple[WorkerHarness, WorkerHarness],
) -> None:
    one, other = neighbours
    other.start("-c", "2")
    job = one.tasks.add.enqueue(1, 2)
    other.ended(other.tasks.add.enqueue(3, 4))
    other.ended(other.tasks.add.enqueue(5, 6))
    assert job.state is State.QUEUED, "a worker of another tenant knows the task, and leaves it alone"
    with pytest.raises(Missing):
        other.app.ask(Show(id=job.id))
    assert all(seen.id != job.id for seen in other.app.ask(List()).jobs)
    one.start("-c", "1")
    assert one.ended(job).state is State.SUCCEEDED
    assert len(one.notes("add")) == 1
    assert len(other.notes("add")) == 2


def test_s3_34_with_two_busy_tasks_both_progress(harness: WorkerHarness) -> None:
    harness.app.ask(ChangeQueue(queue="default", change=QueueChange(policy="fair")))
    crowd = [harness.tasks.co_nap.enqueue(0.02, "crowd") for _ in range(60)]
    few = [harness.tasks.co_add.enqueue(number, 1) for number in range(6)]
    harness.start("-c", "1")
    last: Any = max(records(harness, few), key=ended_at)
    done = sum(record.finished_at <= last.finished_at for record in records(harness, crowd))
    tell(f"{done} of the many ended before the last of the few")
    assert 3 <= done <= 12, "they took turns"


def ended_at(record: Record) -> float:
    assert record.finished_at is not None
    return record.finished_at.timestamp()
