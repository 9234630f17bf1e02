"""The document that the server shows of itself, held against what it does."""

from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from tests.serving import Process, named, process
from windlass.model.job import JSON, MSGPACK
from windlass.model.shapes import SHAPES, Shape
from windlass.server.openapi import document

CHECKS = [not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance]

DESCRIBED = schemathesis.openapi.from_dict(document("test"))


@schemathesis.serializer(MSGPACK)
def packed(_: schemathesis.SerializationContext, value: Any) -> bytes:
    try:
        return msgspec.msgpack.encode(value)
    except OverflowError:
        return b"\xc1"  # a number that it does not have


@schemathesis.deserializer(MSGPACK, "application/problem+msgpack")
def unpacked(_: schemathesis.DeserializationContext, response: schemathesis.Response) -> Any:
    """As JSON would show it: the schemas speak of that."""
    return msgspec.json.decode(msgspec.json.encode(msgspec.msgpack.decode(response.content)))


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Process]:
    with process(tmp_path_factory.mktemp("serve"), "--no-worker") as found:
        yield found


@pytest.fixture(scope="module")
def known(running: Process) -> dict[str, str]:
    """A job, a worker and a token that are there."""
    auth = _token(running)
    base = f"{running.address}/v1/default"
    return {
        "id": requests.post(f"{base}/jobs", json={"task": "a"}, headers=auth, timeout=5).json()["id"],
        "worker": requests.post(f"{base}/workers", json={"name": "w"}, headers=auth, timeout=5).json()["worker"],
        "key": requests.post(f"{base}/tokens", json={}, headers=auth, timeout=5).json()["key"],
        "task": "work",
        "queue": "default",
        "name": requests.put(f"{base}/limits/some", json={"running": 9}, headers=auth, timeout=5).json()["name"],
    }


def test_the_document_is_openapi() -> None:
    DESCRIBED.validate()


@pytest.mark.parametrize("shape", SHAPES, ids=named)
def test_what_is_described_is_what_happens(shape: Shape, running: Process, known: dict[str, str]) -> None:
    """S2 35."""
    operation = DESCRIBED[f"/v1/{{tenant}}{shape.path}"][shape.route.verb]
    session = requests.Session()
    session.trust_env = False

    @settings(
        max_examples=20,
        deadline=None,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
        derandomize=True,
    )
    @given(case=operation.as_strategy())
    def ask(case: schemathesis.Case[Any]) -> None:
        case.path_parameters = {**case.path_parameters, "tenant": "default"}
        if len(str(case.body)) % 2:
            case.path_parameters |= {name: known[name] for name in shape.names}
        if "wait" in case.query:
            case.query["wait"] = 0
        accept = (JSON, MSGPACK)[len(str(case.query)) % 2]
        headers = {"authorization": f"Bearer {running.token}", "accept": accept}
        response = case.call(base_url=running.address, session=session, headers=headers, timeout=20)
        case.validate_response(response, checks=CHECKS)

    with session:
        ask()


SEEN: list[tuple[str, str, int, dict[str, Any]]] = [
    ("POST", "/jobs", 201, {"json": {"task": "a", "key": "k"}}),
    ("POST", "/jobs", 200, {"json": {"task": "a", "key": "k"}}),
    ("POST", "/jobs", 413, {"json": {"task": "a", "payload": "x" * 2**20}}),
    ("POST", "/jobs", 415, {"data": "x", "headers": {"content-type": "text/csv"}}),
    ("POST", "/jobs", 406, {"json": {"task": "a"}, "headers": {"accept": "text/html"}}),
    ("POST", "/jobs", 401, {"json": {"task": "a"}, "headers": {"authorization": "Bearer x"}}),
    ("POST", "/jobs", 403, {"json": {"task": "a"}, "headers": {"host": "evil.example"}}),
    ("GET", "/jobs", 400, {"params": {"limit": 0}}),
    ("GET", "/jobs", 200, {"headers": {"accept": "application/x-ndjson"}}),
    ("GET", "/jobs/{id}/result", 408, {}),
    ("POST", "/jobs/{id}/output", 409, {"params": {"token": "x", "stream": "log"}, "data": b"x"}),
    ("POST", "/jobs", 429, {"json": {"task": "a"}}),
    ("DELETE", "/jobs", 200, {"json": {"state": ["cancelled"]}}),
]
"""What is rare, and must be described all the same."""


@pytest.mark.parametrize(("verb", "path", "status", "sent"), SEEN, ids=[f"{one[0]}{one[1]}-{one[2]}" for one in SEEN])
def test_what_is_rare_is_described(verb: str, path: str, status: int, sent: dict[str, Any], running: Process) -> None:
    jobs = f"{running.address}/v1/default/jobs"
    if status == 200 and verb == "POST":
        requests.post(jobs, headers=_token(running), timeout=5, **sent)
    fresh = requests.post(jobs, headers=_token(running), timeout=5, json={"task": "b"}).json()["id"]
    if status == 429:
        quota = f"{running.address}/v1/full/quota"
        requests.put(quota, headers=_token(running), timeout=5, json={"stored_jobs": 0}).raise_for_status()
    headers = {**_token(running), **sent.get("headers", {})}
    tenant = "full" if status == 429 else "default"
    address = f"{running.address}/v1/{tenant}{path.format(id=fresh)}"
    response = requests.request(verb, address, timeout=5, **{**sent, "headers": headers})
    assert response.status_code == status, response.text
    described = document("test")["paths"][f"/v1/{{tenant}}{path}"][verb.lower()]
    assert response.headers["content-type"] in described["responses"][str(status)]["content"]


def _token(running: Process) -> dict[str, str]:
    return {"authorization": f"Bearer {running.token}"}


def test_a_change_of_the_rules_may_conflict_with_another_one() -> None:
    paths = document("test")["paths"]
    for path, method in (("/limits/{name}", "put"), ("/queues/{queue}", "patch"), ("/tasks/{task}", "patch")):
        assert "409" in paths[f"/v1/{{tenant}}{path}"][method]["responses"]
