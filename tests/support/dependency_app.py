"""An app whose jobs make jobs, wait for jobs, and carry files; copied into the folder of a harness."""

import os

from windlass import Fail, Windlass, current

app = Windlass(tenant=os.environ["HARNESS_TENANT"])


@app.task
def double(n: int) -> int:
    return 2 * n


@app.task
def refuse(n: int) -> int:
    raise Fail(f"not {n}")


@app.task
def begin(n: int) -> str:
    """Queues another job with its own success, and says which."""
    return current.spawn(double, n)


@app.task(max_retry=1, retry={"base": 0.05})
def begin_twice(n: int) -> str:
    """Breaks after it has spawned, the first time."""
    id = current.spawn(double, n)
    if current.job.attempt == 1:
        raise OSError("too early")
    return id


@app.task
def weigh() -> dict[str, int]:
    return {name: len(data) for name, data in current.files.items()}
