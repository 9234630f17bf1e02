"""Two formats on every route, each way: which one a request is in, which one its answer, and what each can say."""

import math
from datetime import UTC, datetime
from typing import Any

import httpx2
import msgpack  # type: ignore[import-untyped]
import msgspec
import pytest

from tests.support.engines import packed
from tests.support.http_servers import Web, decoded, named
from tests.support.sample_requests import GOOD, UNKNOWN_ID, asked, made
from windlass.engine import Engine
from windlass.model import wire
from windlass.model.job import JSON, MSGPACK, TEXT
from windlass.model.new_job import NewJob
from windlass.model.operations import (
    OPERATIONS,
    Count,
    Enqueue,
    EnqueueLines,
    GetFile,
    GetResult,
    Output,
    PutFile,
    Send,
    answer_type,
)
from windlass.model.shapes import SHAPES, Shape
from windlass.server.formats import prefers, response_format

pytestmark = pytest.mark.parametrize("kind", ["sqlite"], indirect=True)

NDJSON = "application/x-ndjson"
PROBLEMS = {JSON: "application/problem+json", MSGPACK: "application/problem+msgpack"}
FORMS = (JSON, MSGPACK)


def test_every_operation_has_a_good_request(kind: str) -> None:
    assert set(GOOD) == set(OPERATIONS)


async def send(page: Web, shape: Shape, names: dict[str, str], form: str, accept: str = "") -> httpx2.Response:
    query, body, media = asked(shape, names)
    return await page.send(
        shape.route.verb, shape.path.format(**names), body, form=media or form, accept=accept, params=query
    )


# Every route


@pytest.mark.parametrize("shape", SHAPES, ids=named)
async def test_every_route_reads_and_writes_both_formats(shape: Shape, engine: Engine, page: Web) -> None:
    """S2 34."""
    answers = []
    for form in FORMS:
        for accept in ("", *FORMS):
            names = await made(engine, ended=shape.kind is GetResult)
            response = await send(page, shape, names, form, accept)
            assert response.status_code == shape.route.status, response.text
            if shape.route.status == 204:
                assert response.content == b""
                continue
            if shape.kind is GetFile and not accept:
                assert (response.content, response.headers["content-type"]) == (b"left", "application/octet-stream")
                continue
            _, body, media = asked(shape, names)
            own = form if body is not None and media is None else JSON
            assert response.headers["content-type"] == (accept or own)
            answers.append(decoded(response))
            answer: wire.Format = "json" if (accept or own) == JSON else "msgpack"
            wire.decode(response.content, answer_type(shape.kind), answer)
    assert len({str(sorted(one)) for one in answers if isinstance(one, dict)}) <= 1, "the fields differ"


@pytest.mark.parametrize("shape", SHAPES, ids=named)
@pytest.mark.parametrize("form", FORMS)
async def test_every_route_answers_errors_in_the_accepted_format(shape: Shape, form: str, page: Web) -> None:
    names = dict.fromkeys(("id", "worker", "key", "task", "queue", "name", "hash"), "-no-")
    response = await send(page, shape, {**names, "token": "x"}, form, form)
    if response.status_code < 400:
        assert not shape.names
        return
    problem = decoded(response)
    assert response.headers["content-type"] == PROBLEMS[form]
    assert problem["status"] == response.status_code
    assert {"title", "detail", "code"} <= set(problem)


@pytest.mark.parametrize("shape", SHAPES, ids=named)
async def test_every_route_refuses_formats_that_it_does_not_have(shape: Shape, engine: Engine, page: Web) -> None:
    if shape.kind is GetFile:
        return  # a file may be anything
    names = await made(engine)
    response = await send(page, shape, names, JSON, "image/png")
    if answer_type(shape.kind) is type(None):
        assert (response.status_code, response.content) == (204, b"")
    else:
        assert (response.status_code, decoded(response)["code"]) == (406, "not_acceptable")
    _, body, _ = asked(shape, names)
    if body is None or shape.kind in (Output, PutFile, Send):
        return
    for media in ("application/xml", "text/json+x", ""):
        wrong = await page.send(shape.route.verb, shape.path.format(**names), b"<a/>", form=media)
        if (shape.kind, media) != (EnqueueLines, ""):
            assert (wrong.status_code, decoded(wrong)["code"]) == (415, "unsupported"), media


async def test_what_is_refused_for_its_format_does_nothing(engine: Engine, page: Web) -> None:
    assert (await page.send("POST", "/jobs", {"task": "a"}, accept="text/html")).status_code == 406
    assert (await page.send("POST", "/jobs", b'{"task": "a"}', form="text/csv")).status_code == 415
    assert (await engine(Count())).count == 0


# Negotiation

ACCEPTS = [
    ("", JSON, "json"),
    ("", MSGPACK, "msgpack"),
    ("*/*", MSGPACK, "msgpack"),
    ("*/*", JSON, "json"),
    ("application/*", MSGPACK, "msgpack"),
    ("application/json", MSGPACK, "json"),
    ("APPLICATION/JSON ; Q=1", MSGPACK, "json"),
    ("application/msgpack", JSON, "msgpack"),
    ("application/x-msgpack", JSON, "msgpack"),
    ("text/json", MSGPACK, "json"),
    ("application/json;q=0.5, application/vnd.msgpack", JSON, "msgpack"),
    ("application/json;q=0.5, application/vnd.msgpack;q=0.4", MSGPACK, "json"),
    ("application/json, application/vnd.msgpack", MSGPACK, "msgpack"),
    ("application/json, application/vnd.msgpack", JSON, "json"),
    ("application/json;q=0, */*", JSON, "msgpack"),
    ("application/vnd.msgpack;q=0, */*;q=0.1", MSGPACK, "json"),
    ("*/*;q=0.1, application/*;q=0.9, application/json;q=0.2", JSON, "msgpack"),
    ("text/html, application/xhtml+xml, */*;q=0.8", MSGPACK, "msgpack"),
    ("application/json;q=nonsense, application/vnd.msgpack;q=0.1", JSON, "msgpack"),
    ("application/json;q=0", JSON, None),
    ("*/*;q=0", JSON, None),
    ("text/*", MSGPACK, None),
    ("image/png, text/html", JSON, None),
]


@pytest.mark.parametrize(("accept", "sent", "told"), ACCEPTS)
async def test_the_answer_is_in_the_format_accepted_best(accept: str, sent: str, told: str | None, page: Web) -> None:
    response = await page.send("POST", "/jobs", {"task": "a"}, form=sent, accept=accept)
    if told is None:
        assert response.status_code == 406
        assert response.headers["content-type"] == PROBLEMS[JSON]
        return
    assert response.status_code == 201
    assert response.headers["content-type"] == {"json": JSON, "msgpack": MSGPACK}[told]


async def test_a_request_without_body_and_accept_is_answered_in_json(page: Web) -> None:
    assert (await page.send("GET", "/jobs")).headers["content-type"] == JSON


def test_lines_are_wanted_only_by_name_and_no_less_than_the_rest(kind: str) -> None:
    assert prefers(NDJSON, NDJSON)
    assert prefers(f"{NDJSON}, application/json;q=0.9, */*;q=0.1", NDJSON)
    for accept in ("*/*", "application/*", f"{NDJSON};q=0", f"application/json, {NDJSON};q=0.5"):
        assert not prefers(accept, NDJSON)
        assert accept == f"{NDJSON};q=0" or response_format(accept, "json") == "json"


# Any value

EPOCH = datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=UTC)
VALUES: list[tuple[str, Any, Any]] = [
    ("nil", None, None),
    ("true", True, True),
    ("int64-lowest", -(2**63), -(2**63)),
    ("int64-highest", 2**63 - 1, 2**63 - 1),
    ("uint64-highest", 2**64 - 1, 2**64 - 1),
    ("float", 1.5, 1.5),
    ("float-tiny", 5e-324, 5e-324),
    ("nan", math.nan, None),
    ("infinity", [math.inf, -math.inf], [None, None]),
    ("str", "snow ☃ \0 \U0001f600", "snow ☃ \0 \U0001f600"),
    ("bin", b"\x00\xff", "AP8="),
    ("array", [1, [2, [None]]], [1, [2, [None]]]),
    ("nested-map", {"a": {"b": [{"c": b"x"}]}}, {"a": {"b": [{"c": "eA=="}]}}),
    ("timestamp", EPOCH, "2026-01-02T03:04:05.678901Z"),
    ("timestamps-inside", {"at": [EPOCH]}, {"at": ["2026-01-02T03:04:05.678901Z"]}),
    ("ext", msgspec.msgpack.Ext(5, b"x"), {"ext": 5, "data": "eA=="}),
    ("ext-inside", [msgspec.msgpack.Ext(-100, b"")], [{"ext": -100, "data": ""}]),
    ("int-keys", {1: "a", -2: "b"}, {"1": "a", "-2": "b"}),
    ("odd-keys", {None: 1, True: 2, (1, "x"): 3, b"k": 4}, {"null": 1, "true": 2, '[1,"x"]': 3, "aw==": 4}),
]
"""A value, and what JSON shows of it."""


def same(one: Any, other: Any) -> bool:
    return packed_bytes(one) == packed_bytes(other)


def packed_bytes(value: Any) -> bytes:
    return msgspec.msgpack.encode(value)


@pytest.mark.parametrize(("value", "shown"), [tuple(rest) for _, *rest in VALUES], ids=[name for name, *_ in VALUES])
async def test_any_value_comes_back_as_it_went_in(value: Any, shown: Any, engine: Engine, page: Web) -> None:
    """S2 4: as a payload and as a result, in its own format and in the other."""
    raw = packed_bytes(value)
    body = b"\x82\xa4task\xa1a\xa7payload" + raw
    job = decoded(await page.send("POST", "/jobs", body, form=MSGPACK))
    worker = decoded(await page.send("POST", "/workers", {"name": "w"}))["worker"]
    claim = await page.send("POST", f"/workers/{worker}/claim", b"\x80", form=MSGPACK)
    assert raw in claim.content
    held = decoded(claim)[0]
    report = b"\x91\x84\xa2id" + packed_bytes(job["id"]) + b"\xa5token" + packed_bytes(held["token"])
    report += b"\xa7outcome\xa2ok\xa6result" + raw
    assert decoded(await page.send("POST", f"/workers/{worker}/finish", report, form=MSGPACK))["applied"]
    for path, field in ((f"/jobs/{job['id']}?payload=true", "payload"), (f"/jobs/{job['id']}/result", "result")):
        own = await page.send("GET", path, accept=MSGPACK)
        assert raw in own.content
        assert same(decoded(own)[field], value)
        other = await page.send("GET", path, accept=JSON)
        assert decoded(other)[field] == shown
        assert decoded(other)["content_type"] == JSON


JSONS: list[tuple[bytes, Any]] = [
    (b"null", None),
    (b"123456789012345678901234567890", 123456789012345678901234567890.0),
    (b"-9223372036854775808", -(2**63)),
    (b"18446744073709551615", 2**64 - 1),
    (b"[1e308, -0.0]", [1e308, -0.0]),
    (b'{"a": "\\u2603", "": [[]]}', {"a": "☃", "": [[]]}),
    (b"1e999", "1e999"),
    (b'{"deep": ' + b"[" * 500 + b"]" * 500 + b"}", None),
]


@pytest.mark.parametrize(("text", "shown"), JSONS, ids=[text[:20].decode() for text, _ in JSONS])
async def test_any_json_comes_back_as_it_went_in(text: bytes, shown: Any, page: Web) -> None:
    job = decoded(await page.send("POST", "/jobs", b'{"task": "a", "payload": ' + text + b"}"))
    own = await page.send("GET", f"/jobs/{job['id']}?payload=true")
    assert b'"payload":' + text in own.content
    other = await page.send("GET", f"/jobs/{job['id']}?payload=true", accept=MSGPACK)
    assert other.status_code == 200
    if not text.startswith(b'{"deep"'):
        assert same(decoded(other)["payload"], shown)


UNREADABLE = [
    (b"\xc7\x0c\xff\0\0\0\0\x7f\xff\xff\xff\xff\xff\xff\xff", "a time after the year 9999"),
    (b"\x81\x80\x01", "a key that is a map"),
    (b"\xa2\xff\xfe", "a str that is no text"),
    (b"\xc7\x03\xffabc", "a broken timestamp"),
]


@pytest.mark.parametrize("raw", [raw for raw, _ in UNREADABLE], ids=[said for _, said in UNREADABLE])
async def test_an_unreadable_value_does_not_keep_a_worker_from_the_others(raw: bytes, page: Web) -> None:
    body = b"\x92\x82\xa4task\xa1a\xa7payload" + raw + b"\x82\xa4task\xa1b\xa7payload\x07"
    assert (await page.send("POST", "/jobs/batch", body, form=MSGPACK)).status_code == 201
    worker = decoded(await page.send("POST", "/workers", {"name": "w", "slots": 2}))["worker"]
    response = await page.send("POST", f"/workers/{worker}/claim", {"slots": 2})
    odd, plain = decoded(response)
    assert plain["payload"] == 7
    assert isinstance(odd["payload"], str)


async def test_what_others_pack_is_read_and_what_we_pack_others_read(page: Web) -> None:
    """S2 34: with the msgpack library, which is not ours."""
    body = msgpack.packb({"task": "a", "payload": [1, b"x", msgpack.Timestamp(5, 6)], "delay": 3}, use_bin_type=True)
    response = await page.send("POST", "/jobs", body, form="application/x-msgpack")
    answer = msgpack.unpackb(response.content, timestamp=3)
    assert answer["run_at"] - answer["created_at"] == datetime(1970, 1, 1, 0, 0, 3) - datetime(1970, 1, 1)  # noqa: DTZ001
    shown = await page.send("GET", f"/jobs/{answer['id']}?payload=1", accept=MSGPACK)
    assert msgpack.unpackb(shown.content)["payload"] == [1, b"x", msgpack.Timestamp(5, 6)]


async def test_a_text_travels_with_its_type(engine: Engine, page: Web) -> None:
    for form, payload in ((JSON, "plain ☃"), (MSGPACK, "plain ☃".encode()), (MSGPACK, "plain ☃")):
        job = decoded(
            await page.send("POST", "/jobs", {"task": "a", "payload": payload, "content_type": TEXT}, form=form)
        )
        for accept in FORMS:
            shown = decoded(await page.send("GET", f"/jobs/{job['id']}?payload=true", accept=accept))
            assert shown["payload"] == "plain ☃"
    for wrong in ({"a": 1}, None, [b"x"]):
        body = {"task": "a", "payload": wrong, "content_type": TEXT}
        assert (await page.send("POST", "/jobs", body, form=MSGPACK)).status_code == 400


async def test_a_payload_is_what_its_type_says(engine: Engine, page: Web) -> None:
    """A body that carries it could otherwise not be read."""
    body = {"task": "a", "payload": "{not", "content_type": JSON}
    assert (await page.send("POST", "/jobs", body, form=MSGPACK)).status_code == 400
    assert (await page.send("POST", "/jobs", b'{"task": "a", "payload": "\xff"}')).status_code == 400
    job = await engine(Enqueue(job=NewJob(task="a", content_type=JSON, payload=msgspec.Raw(b"{not"))))
    shown = await page.send("GET", f"/jobs/{job.id}?payload=true")
    assert decoded(shown)["payload"] == "{not"


# Lines


async def test_each_line_of_ndjson_is_a_job(engine: Engine, page: Web) -> None:
    lines = b'{"task": "a", "payload": 1}\n\n  \r\n{"task": "b", "key": "k"}\r\n{"task": "b", "key": "k"}'
    response = await page.send("POST", "/jobs/batch", lines, form=NDJSON)
    assert response.status_code == 201
    answer = decoded(response)
    assert (len(answer["ids"]), answer["created"]) == (3, 2)
    packed_answer = await page.send("POST", "/jobs/batch", lines, form=f"{NDJSON}; charset=utf-8", accept=MSGPACK)
    assert packed_answer.headers["content-type"] == MSGPACK


BAD_LINES = [
    (b'{"task": 5}', "line 1501.task"),
    (b"{", "line 1501"),
    (b"\xff", "line 1501"),
    (b"[]", "line 1501"),
    (b'{"task": "a", "tenant": "x"}', "line 1501.tenant"),
    (b'{"task": "a", "id": "x"}', "line 1501.id"),
    (b'{"task": "a", "key": "k", "id": "' + UNKNOWN_ID.encode() + b'"}', "line 1501.key"),
    (b'{"task": "a", "payload": "' + b"x" * 2**20 + b'"}', "line 1501.payload"),
    (b'{"task": "a", "payload": ' + b"[" * 2000 + b"]" * 2000 + b"}", "line 1501"),
]


@pytest.mark.parametrize(("line", "at"), BAD_LINES, ids=[line[:30].decode(errors="replace") for line, _ in BAD_LINES])
async def test_a_bad_line_is_named_by_number_and_nothing_is_queued(
    line: bytes, at: str, engine: Engine, page: Web
) -> None:
    good = b'{"task": "a"}\n' * 1500
    response = await page.send("POST", "/jobs/batch", good + line + b"\n" + good, form=NDJSON)
    assert response.status_code in (400, 413)
    assert decoded(response)["at"] == at
    assert (await engine(Count())).count == 0


async def test_more_lines_than_a_request_may_have_are_refused(engine: Engine, page: Web) -> None:
    assert (await page.send("POST", "/jobs/batch", b"\n" * 100_001, form=NDJSON)).status_code == 413
    assert (await page.send("POST", "/tasks/a/jobs", b"a\n" * 100_001, form=TEXT)).status_code == 413
    assert (await engine(Count())).count == 0


async def test_each_line_of_a_text_is_a_job(engine: Engine, page: Web) -> None:
    text = "one\n# two\n\n three\r\n☃".encode()
    response = await page.send("POST", "/tasks/line/jobs?priority=-3&tags=a&tags=b&retry.base=5", text, form=TEXT)
    ids = decoded(response)["ids"]
    shown = [decoded(await page.send("GET", f"/jobs/{id}?payload=true")) for id in ids]
    assert [job["payload"] for job in shown] == ["one", " three", "☃"]
    assert {(job["priority"], tuple(job["tags"]), job["retry"].get("base")) for job in shown} == {(-3, ("a", "b"), 5)}
    broken = await page.send("POST", "/tasks/line/jobs", b"one\n\xff", form=TEXT)
    assert (broken.status_code, decoded(broken)["at"]) == (400, "body")


async def test_a_text_may_be_sent_as_bytes_for_clients_that_know_no_text(page: Web) -> None:
    sent = await page.send("POST", "/tasks/a/jobs", b"one\ntwo\n", form="application/octet-stream")
    assert (sent.status_code, len(decoded(sent)["ids"])) == (201, 2)


async def test_a_listing_as_lines_has_each_job_once(engine: Engine, page: Web) -> None:
    for n in range(3):
        await engine(Enqueue(job=NewJob(task="a", payload=packed(n))))
    response = await page.send("GET", "/jobs?limit=1", accept=NDJSON)
    assert response.headers["content-type"] == NDJSON
    jobs = [msgspec.json.decode(line) for line in response.content.splitlines()]
    assert len({job["id"] for job in jobs}) == 3
    empty = await page.send("GET", "/jobs?task=none", accept=NDJSON)
    assert (empty.status_code, empty.content) == (200, b"")
    wrong = await page.send("GET", "/jobs?after=nonsense", accept=NDJSON)
    assert (wrong.status_code, wrong.headers["content-type"]) == (400, PROBLEMS[JSON])
