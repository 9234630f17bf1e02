"""An app with hooks of every kind, for workers in tests: each hook notes what it does."""

import os
from collections.abc import AsyncIterator, Generator, Iterator
from pathlib import Path
from typing import Annotated

from windlass import Depends, Fail, Retry, RunningJob, TaskOutcome, Windlass, current

app = Windlass(tenant=os.environ["HARNESS_TENANT"])

HERE = Path(__file__).parent
NOTES = HERE / "notes"


def note(*words: object) -> None:
    """Written at once and whole, whatever happens next."""
    file = os.open(NOTES, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(file, (" ".join(map(str, words)) + "\n").encode())
    os.close(file)


def is_down(what: str) -> bool:
    return (HERE / f"{what} is down").exists()


zygote = os.getpid()


@app.before_fork
def before() -> None:
    if is_down("before"):
        raise RuntimeError("not ready to fork")
    note("before", os.getpid() == zygote)


@app.after_fork
def after() -> None:
    if is_down("after"):
        os._exit(3)
    note("after", os.getppid() == zygote)


class Pool:
    """Something that belongs to one process."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self.used = 0


@app.lifespan
async def pool() -> AsyncIterator[Pool]:
    if is_down("pool"):
        note("trying", os.getpid())
        raise ConnectionRefusedError("the database is down")
    note("opened", os.getpid())
    yield Pool()
    note("closed", os.getpid())
    while is_down("closing"):
        pass


@app.lifespan
def model(pool: Annotated[Pool, Depends(pool)]) -> Iterator[str]:
    note("model", pool.pid == os.getpid())
    yield f"model of {pool.pid}"
    note("unloaded", pool.pid == os.getpid())


@app.around
def hooked(job: RunningJob) -> Generator[None, TaskOutcome, None]:
    note("begin", job.task, job.attempt)
    outcome = yield
    note("end", job.task, outcome.result, type(outcome.error).__name__)
    if isinstance(outcome.error, KeyError):
        raise Retry("a key is missing", after=0)
    if isinstance(outcome.error, ValueError):
        raise Fail("it cannot be")


def session(pool: Annotated[Pool, Depends(pool)]) -> Iterator[Pool]:
    pool.used += 1
    yield pool
    note("used", pool.used)


Db = Annotated[Pool, Depends(session)]


@app.task
def plain(word: str, db: Db = None, model: str = Depends(model)) -> tuple[bool, str]:  # type: ignore[assignment]
    return db.pid == os.getpid(), model.replace(str(db.pid), word)


@app.task
async def co(word: str, db: Db = None, model: str = Depends(model)) -> tuple[bool, str]:  # type: ignore[assignment]
    return db.pid == os.getpid(), model.replace(str(db.pid), word)


@app.task(isolate=True)
def alone(word: str, db: Db = None, model: str = Depends(model)) -> tuple[bool, str]:  # type: ignore[assignment]
    return db.pid == os.getpid(), model.replace(str(db.pid), word)


@app.task(isolate=True)
async def alone_co(word: str, db: Db = None, model: str = Depends(model)) -> tuple[bool, str]:  # type: ignore[assignment]
    return db.pid == os.getpid(), model.replace(str(db.pid), word)


@app.task(on_lost="adopt")
def lasting(word: str, model: str = Depends(model)) -> str:
    return word if model else ""


@app.task(max_retry=3)
def fail(how: str) -> str:
    if how == "value":
        raise ValueError(how)
    if current.job.attempt == 1:
        raise KeyError(how)
    return "found"


@app.task
def stay() -> None:
    note("staying", os.getpid())
    while not (HERE / "let go").exists():
        if current.cancelled:
            return
