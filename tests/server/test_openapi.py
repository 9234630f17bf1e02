"""The document that the server shows of itself, held against what it does."""

import json
import re
from collections import Counter
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

from tests.support.http_servers import Process, named, process
from tests.support.patience import PATIENCE
from windlass.dialect import s2, s3, s4
from windlass.model.job import JSON, MSGPACK
from windlass.model.shapes import SHAPES, Shape
from windlass.server.openapi import RouteSpec, document

CHECKS = [not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance]

DIALECTS = (*s2.SPECS, *s3.SPECS, *s4.SPECS)
DOCUMENT = document("test", DIALECTS)
DESCRIBED = schemathesis.openapi.from_dict(DOCUMENT)

PACKED = (MSGPACK, "application/msgpack")


@schemathesis.serializer(*PACKED)
def packed(_: schemathesis.SerializationContext, value: Any) -> bytes:
    try:
        return msgspec.msgpack.encode(value)
    except OverflowError:
        return b"\xc1"  # a number that it does not have


@schemathesis.deserializer(*PACKED, "application/problem+msgpack")
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
        "id": requests.post(f"{base}/jobs", json={"task": "a"}, headers=auth, timeout=PATIENCE).json()["id"],
        "worker": requests.post(f"{base}/workers", json={"name": "w"}, headers=auth, timeout=PATIENCE).json()["worker"],
        "key": requests.post(f"{base}/tokens", json={}, headers=auth, timeout=PATIENCE).json()["key"],
        "task": "work",
        "queue": "default",
        "name": requests.put(f"{base}/limits/some", json={"running": 9}, headers=auth, timeout=PATIENCE).json()["name"],
    }


def test_the_document_is_openapi() -> None:
    DESCRIBED.validate()


def test_nothing_is_referred_to_that_is_not_there() -> None:
    names = re.findall(r'"#/components/schemas/([^"]*)"', json.dumps(DOCUMENT))
    assert set(names) <= set(DOCUMENT["components"]["schemas"])


def inner(value: Any, path: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    """All maps in the document, each with its path."""
    if isinstance(value, dict):
        yield path, value
    pairs = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for name, one in pairs:
        yield from inner(one, f"{path}/{name}")


def test_nothing_in_the_document_breaks_generators() -> None:
    """S2 35: what has fields has a name; patterns have neither line breaks nor looks ahead; operations are named."""
    assert "webhooks" not in DOCUMENT
    nameless = [path for path, one in inner(DOCUMENT["paths"]) if "properties" in one and "/example" not in path]
    assert nameless == []
    patterns = [one["pattern"] for _, one in inner(DOCUMENT) if isinstance(one.get("pattern"), str)]
    assert patterns
    for pattern in patterns:
        re.compile(pattern)
        assert pattern.isprintable()
        assert "(?" not in pattern
    assert not [path for path, one in inner(DOCUMENT) if isinstance(one.get("enum"), list) and True in one["enum"]]
    assert not [path for path, one in inner(DOCUMENT) if one.get("type") == "array" and "items" not in one]
    for path, verbs in DOCUMENT["paths"].items():
        for operation in verbs.values():
            assert operation.get("operationId"), path


def test_what_some_generators_cannot_read_is_not_in_the_document() -> None:
    """TypeScript: a discriminator beside the tags of its schemas. Python: a route that takes nothing but text."""
    assert "discriminator" not in json.dumps(DOCUMENT)
    for path, verbs in DOCUMENT["paths"].items():
        for verb, route in verbs.items():
            assert list(route.get("requestBody", {}).get("content", ())) != ["text/plain"], (verb, path)


def test_the_document_describes_deliveries_to_workers() -> None:
    """S2 35: the other side of push is a callback of the registration, and its answer has a name."""
    ((path, called),) = DOCUMENT["paths"]["/v1/{tenant}/workers"]["post"]["callbacks"]["job"].items()
    assert path == "{$request.body#/url}"
    answers = called["post"]["responses"]["200"]["content"]
    assert {one["schema"]["$ref"] for one in answers.values()} == {"#/components/schemas/Outcome"}
    outcome = DOCUMENT["components"]["schemas"]["Outcome"]
    assert outcome["required"] == ["outcome"]
    assert not {"id", "token", "tenant"} & set(outcome["properties"])
    assert "later than 30 s or longer than 32 MiB" in " ".join(called["post"]["description"].split())


def test_every_route_documents_the_limit_of_its_head() -> None:
    for shape in SHAPES:
        described = DOCUMENT["paths"][f"/v1/{{tenant}}{shape.path}"][shape.route.verb.lower()]
        assert "431" in described["responses"]
        assert ("406" in described["responses"]) == ("204" not in described["responses"])


def test_no_two_operations_have_one_name() -> None:
    named = [operation.get("operationId") for verbs in DOCUMENT["paths"].values() for operation in verbs.values()]
    given = [name for name in named if name]
    assert len(set(given)) == len(given)


@pytest.mark.parametrize("shape", SHAPES, ids=named)
def test_what_is_described_is_what_happens(shape: Shape, running: Process, known: dict[str, str]) -> None:
    """S2 35."""
    try_out(f"/v1/{{tenant}}{shape.path}", shape.route.verb, running, known, {"accept": MSGPACK})


@pytest.mark.long
@pytest.mark.parametrize("shape", SHAPES, ids=named)
def test_what_is_described_is_what_happens_in_many_cases(shape: Shape, running: Process, known: dict[str, str]) -> None:
    """S2 35."""
    try_out(f"/v1/{{tenant}}{shape.path}", shape.route.verb, running, known, {"accept": MSGPACK}, examples=40)


ROUTES = [(verb, entry) for entry in DIALECTS for verb in entry.verbs]


@pytest.mark.parametrize(("verb", "entry"), ROUTES, ids=[f"{verb} {entry.path}" for verb, entry in ROUTES])
def test_so_is_what_is_described_of_other_dialects(
    verb: str, entry: RouteSpec, running: Process, known: dict[str, str]
) -> None:
    """S2 35."""
    try_out(entry.path, verb, running, known, {"worker-id": known["worker"], "accept": MSGPACK})


def test_the_document_describes_deliveries_of_a_dialect() -> None:
    """S2 35: of the other side, as it is served."""
    (called,) = DOCUMENT["paths"]["/worker"]["post"]["callbacks"]["job"].items()
    path, delivery = called[0], called[1]["post"]
    assert path == "{$request.body#/url}/worker-job"
    sent = DOCUMENT["components"]["schemas"]["DeliveredJob"]
    assert set(sent["properties"]) == {"id", "name", "argument", "timeout"}
    assert set(delivery["requestBody"]["content"]) == {"application/msgpack", JSON}
    assert set(delivery["responses"]) == {"202", "400", "404"}


def test_the_server_shows_its_dialects(running: Process) -> None:
    shown = requests.get(f"{running.address}/openapi.json", timeout=PATIENCE).json()
    tags = [tag for verbs in shown["paths"].values() for one in verbs.values() for tag in one.get("tags", [])]
    assert {"dialect-s2": 8, "dialect-s3": 6, "dialect-s4": 9}.items() <= Counter(tags).items()
    assert shown["paths"].keys() == DOCUMENT["paths"].keys()


def try_out(
    path: str, verb: str, running: Process, known: dict[str, str], now_and_then: dict[str, str], *, examples: int = 8
) -> None:
    """Ask at random for what is described; half of the time for things that are there, with headers of their own."""
    session = requests.Session()
    session.trust_env = False

    @settings(
        max_examples=examples,
        deadline=None,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
        derandomize=True,
    )
    @given(case=DESCRIBED[path][verb].as_strategy())
    def ask(case: schemathesis.Case[Any]) -> None:
        there = {name: known[name] for name in case.path_parameters if name in known and len(str(case.body)) % 2}
        tenant = {"tenant": "default"} if "tenant" in case.path_parameters else {}
        case.path_parameters = {**case.path_parameters, **there, **tenant}
        # No request waits, which would take up to a minute.
        case.query |= {name: 0 for name in ("wait", "timeout") if name in case.query}
        if isinstance(case.body, dict) and "wait" in case.body:
            case.body["wait"] = 0
        headers = {"authorization": f"Bearer {running.token}", "accept": JSON}
        if len(str(case.query)) % 2 or case.headers:
            headers |= now_and_then
        response = case.call(base_url=running.address, session=session, headers=headers, timeout=PATIENCE)
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
    ("POST", "/jobs/{id}/input", 409, {"data": b"x"}),
    ("GET", "/jobs/{id}/output", 200, {"headers": {"accept": "text/plain"}}),
    ("DELETE", "/jobs", 200, {"json": {"state": ["cancelled"]}}),
]
"""What is rare, and must be described all the same."""


@pytest.mark.parametrize(("verb", "path", "status", "sent"), SEEN, ids=[f"{one[0]}{one[1]}-{one[2]}" for one in SEEN])
def test_what_is_rare_is_described(verb: str, path: str, status: int, sent: dict[str, Any], running: Process) -> None:
    jobs = f"{running.address}/v1/rare/jobs"  # the tenant `default` may have got a quota at random
    if status == 200 and verb == "POST":
        requests.post(jobs, headers=_token(running), timeout=PATIENCE, **sent)
    fresh = requests.post(jobs, headers=_token(running), timeout=PATIENCE, json={"task": "b"}).json()["id"]
    if status == 429:
        quota = f"{running.address}/v1/full/quota"
        requests.put(quota, headers=_token(running), timeout=PATIENCE, json={"stored_jobs": 0}).raise_for_status()
    headers = {**_token(running), **sent.get("headers", {})}
    tenant = "full" if status == 429 else "rare"
    address = f"{running.address}/v1/{tenant}{path.format(id=fresh)}"
    response = requests.request(verb, address, timeout=PATIENCE, **{**sent, "headers": headers})
    assert response.status_code == status, response.text
    described = document("test")["paths"][f"/v1/{{tenant}}{path}"][verb.lower()]
    media = response.headers["content-type"].partition(";")[0]
    assert media in described["responses"][str(status)]["content"]


def _token(running: Process) -> dict[str, str]:
    return {"authorization": f"Bearer {running.token}"}


def test_a_change_of_the_rules_may_conflict_with_another_one() -> None:
    paths = document("test")["paths"]
    for path, method in (("/limits/{name}", "put"), ("/queues/{queue}", "patch"), ("/tasks/{task}", "patch")):
        assert "409" in paths[f"/v1/{{tenant}}{path}"][method]["responses"]
