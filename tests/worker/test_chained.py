"""Jobs that a function asks for are on the terms of the one that asked; their clocks begin when they may run."""

from datetime import UTC, datetime

import pytest

from windlass.model.job import Job, State
from windlass.worker.runs import chained_job

NOW = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.mark.parametrize(("expires", "delay", "then"), [(60.0, 30.0, 90.0), (60.0, 0.0, 60.0), (None, 30.0, None)])
def test_a_delayed_link_expires_as_long_after_its_delay(
    expires: float | None, delay: float, then: float | None
) -> None:
    job = Job(
        id="x", tenant="t", task="a", queue="q", created_at=NOW, updated_at=NOW, state=State.RUNNING, expires=expires
    )
    made = chained_job(job, "b", "payload", delay)
    assert (made.expires, made.delay, made.queue) == (then, delay or None, "q")
