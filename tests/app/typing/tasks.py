"""What type checkers see of tasks and jobs. Never run: `test_typing.py` has it checked, and counts the refusals.

A line that must be refused says so in both tongues; a checker that does not refuse it complains of the comment.
"""

from collections.abc import AsyncIterator, Coroutine, Generator, Sequence
from typing import Annotated, Any, assert_type

from windlass import Depends, Job, RetryPolicy, RunningJob, Task, TaskOutcome, Windlass, current, step
from windlass.model.job import Job as Record
from windlass.model.job import State

app = Windlass("never.db", defaults={"queue": "all"})


@app.task
def add(a: int, b: int = 2, *, note: str = "") -> int:
    return a + b


@app.task(queue="slow", max_retry=3, retry="from-start", timeout="2m", name="shop.pay")
def pay(order: int, /) -> str | None:
    return str(order)


@app.task(max_retry=3, retry_on=(ConnectionError, TimeoutError), never_on=ValueError)
async def fetch(url: str) -> list[bytes]:
    return [url.encode()]


@app.task(isolate=True, tags=["x"], keep_result="once", keep_result_for="1h", retry=RetryPolicy(base=1.0))
async def fetch_alone(url: str) -> bytes:
    return url.encode()


app.task(retry_on="ConnectionError")  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType, reportCallIssue]


# Decorated functions keep their signature


assert_type(add(1), int)
assert_type(add(1, 2, note="x"), int)
assert_type(pay(1), str | None)
awaited = assert_type(fetch("x"), Coroutine[Any, Any, list[bytes]])
awaited_too = assert_type(fetch_alone("x"), Coroutine[Any, Any, bytes])
add("1")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
add(1, 2, "x")  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
pay(order=1)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]


# Batches: a plain call has the list, what is queued is one call


@app.task(batch=10, within="1s", max_retry=3)
def index(docs: list[str]) -> list[int]:
    return [len(doc) for doc in docs]


async def found(url: str) -> list[bytes]:
    return [url.encode()]


@app.task(batch=10)
async def embed(docs: list[str], db: str = Depends(str)) -> None:
    assert_type(await step("a", found, "x"), list[bytes])
    assert_type(await step("b", len, docs), int)
    await step("c", found, 5)  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType, reportCallIssue]
    await step.sleep("3d")


assert_type(index(["a"]), Sequence[int])
assert_type(index.enqueue("a"), Job[int])
assert_type(index.map(["a"]), list[Job[int]])
assert_type(embed.enqueue("a"), Job[None])
index.enqueue(["a"])  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
index("a")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
app.task(within=1.0)  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue]
assert_type(step.sync("a", add.function, 1, note="x"), int)
step.sync("a", len, 5)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


# What is queued is checked like a call


assert_type(add.enqueue(1, note="x"), Job[int])
assert_type(add.delay(1), Job[int])
assert_type(pay.enqueue(1), Job[str | None])
assert_type(fetch.enqueue("x"), Job[list[bytes]])
assert_type(fetch_alone.enqueue("x"), Job[bytes])
add.enqueue()  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
add.enqueue("1")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
add.enqueue(1, c=3)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
add.delay(None)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
fetch.enqueue(1)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
fetch_alone.enqueue("x", 1)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]


# Options are known by name and type


assert_type(add.using(delay="10m").enqueue(1), Job[int])
assert_type(fetch.using(priority=1, key="x").enqueue("x"), Job[list[bytes]])
add.using(delay="10m").enqueue("1")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
add.using(dely="10m")  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
add.using(priority="high")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
add.using(keep_result="maybe")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
app.task(queu="x")  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue]
app.task(delay="1m")  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue]
app.task(needs=3)  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue, reportArgumentType]
app.task(soft_timeout="50s", timeout="60s")
app.task(soft_timeout=[1])  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue, reportArgumentType]
app.task(max_retry="3")  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue, reportArgumentType]
Windlass(defaults={"queu": "x"})  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


# Jobs know their result


def results(job: Job[int]) -> None:
    assert_type(job.result(), int)
    assert_type(job.result(timeout="10s"), int)
    assert_type(job.state, State)
    assert_type(job.refresh(), Record)
    assert_type(job.cancel(), bool)
    assert_type(add.map([1, (2, 3)]), list[Job[int]])
    assert_type(pay.enqueue(1).result(), str | None)
    assert_type(app.job("x").result(), Any)
    assert_type([*job.values(int)], list[int])
    assert_type([*job.values()], list[Any])
    job.values(1)  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue, reportArgumentType]
    job.result("x", 1)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    add.map(1)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


async def in_a_loop() -> None:
    assert_type(await fetch("x"), list[bytes])
    assert_type(await add.aenqueue(1), Job[int])
    assert_type(await (await fetch.aenqueue("x")).aresult(), list[bytes])
    assert_type(await fetch.amap(["x"]), list[Job[list[bytes]]])
    assert_type(await (await fetch_alone.using(delay=1.5).aenqueue("x")).aresult(timeout=2), bytes)
    await fetch.aenqueue(1)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    await add.enqueue(1)  # type: ignore[misc]  # pyright: ignore[reportGeneralTypeIssues]


# Passing tasks on


def takes(task: Task[[str], bytes, Coroutine[Any, Any, bytes]]) -> Job[bytes]:
    return task.enqueue("x")


takes(fetch_alone)
takes(fetch)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


def inside() -> None:
    current.progress(1, 2, "note")
    current.log("x", 1)
    assert_type(current.cancelled, bool)
    assert_type(current.job.attempt, int)
    assert_type(current.spawn(add, 1), str)
    current.progress("half")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


def in_tests() -> None:
    with app.testing.inline(raises=True) as inline:
        assert_type(inline.jobs, list[Record])
    with app.testing.manual() as manual:
        assert_type(manual.run_one(), Record | None)
        assert_type(manual.drain(within="1h"), list[Record])
        assert_type(manual.assert_enqueued(add, 1), Record)
        manual.advance("soon", 2)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]

    @app.testing.inline()
    def decorated(number: int) -> str:
        return str(number)

    assert_type(decorated(1), str)
    decorated("x")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


# Dependencies and hooks


def get_pool() -> list[str]:
    return []


@app.lifespan
async def client() -> AsyncIterator[bytes]:
    yield b""


@app.task
def store(order: int, pool: list[str] = Depends(get_pool), key: bytes = Depends(client)) -> str:
    return pool[order]


@app.task
def demand(order: int, pool: Annotated[list[str], Depends(get_pool)]) -> str:
    return pool[order]


assert_type(store.enqueue(1), Job[str])
assert_type(store(1, ["x"]), str)
store.enqueue("1")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
store(1, [2])  # type: ignore[list-item]  # pyright: ignore[reportArgumentType]
demand.enqueue(1)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]


@app.around
def measured(job: RunningJob) -> Generator[None, TaskOutcome, None]:
    outcome = yield
    assert_type(outcome, TaskOutcome)
    assert_type(job.attempt, int)


@app.around  # type: ignore[type-var]  # pyright: ignore[reportArgumentType]
def measured_wrongly(job: RunningJob) -> None: ...
