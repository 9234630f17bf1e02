"""Ending a running job by hand over HTTP: the bodies that programs send."""

import pytest

from tests.support.engines import enqueue, register, take
from tests.support.http_servers import Web
from windlass.engine import Engine
from windlass.model.operations import Show

pytestmark = pytest.mark.parametrize("kind", ["sqlite"], indirect=True)


async def test_a_job_is_finished_with_a_json_value_or_none_and_failed_with_a_message(engine: Engine, page: Web) -> None:
    worker = await register(engine)
    for verb, body, result in (
        ("finish", {"result": {"rows": 17}}, {"rows": 17}),
        ("finish", None, None),
        ("fail", None, None),
    ):
        job = await enqueue(engine)
        await take(engine, worker)
        answer = await page.send("POST", f"/jobs/{job.id}/{verb}", body)
        assert (answer.status_code, answer.json()) == (200, {"changed": 1}), answer.text
        again = await page.send("POST", f"/jobs/{job.id}/{verb}", body)
        assert (again.status_code, again.json()["code"]) == (409, "conflict")
        record = await engine(Show(id=job.id))
        assert record.reason == "by_hand"
        if verb == "finish":
            assert (await page.send("GET", f"/jobs/{job.id}/result")).json()["result"] == result
