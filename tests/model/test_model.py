"""The words of the queue: names, ids, durations, matches, errors, the wire, the table of operations."""

import ast
import inspect
import math
import re
import uuid
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta, timezone
from types import ModuleType
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import UNSET, Raw
from msgspec.structs import replace

from windlass.model import errors, names, new_job, operations, wire, worker
from windlass.model import job as job_module
from windlass.model.duration import LONGEST, seconds
from windlass.model.errors import (
    ERRORS,
    Conflict,
    Damaged,
    FilesMissing,
    Full,
    Invalid,
    JournalFull,
    NotReplicated,
    Problem,
    TooLarge,
    Unavailable,
    WindlassError,
    from_problem,
)
from windlass.model.job import JSON, MSGPACK, TEXT, Error, Job, Reason, State
from windlass.model.match import ABSENT, ANY, Match, field, index_only, matches, states
from windlass.model.new_job import LEAST_OWNER_TIMEOUT, NOTHING, NewJob, Terms
from windlass.model.operations import (
    MOST_AT_ONCE,
    OPERATIONS,
    Claimed,
    Enqueue,
    EnqueueMany,
    Finished,
    Operation,
    Result,
    Selection,
)
from windlass.model.outcome import Verdict
from windlass.model.output import OutputPolicy, Progress
from windlass.model.retry import EXPONENTIAL, FROM_START, PRESETS, UNTIL_DEADLINE, RetryPolicy
from windlass.model.worker import NewWorker
from windlass.server import bodies
from windlass.store import protocol

BORN = datetime(2026, 1, 1, 12, 30, 15, 123456, tzinfo=UTC)

FORMATS: tuple[wire.Format, ...] = ("json", "msgpack")

# Names and ids

GOOD_NAMES = ["a", "0", "a.b", "a-b", "a_b", "A9", "a" * 128, "0-._"]
BAD_NAMES = ["", "-", ".a", "_a", "a b", "a/b", "a\n", "\na", "ä", "a" * 129, "a\0", "a:b", "{a}", "\ud800"]


@pytest.mark.parametrize("name", GOOD_NAMES)
def test_a_name_is(name: str) -> None:
    assert names.check_name(name, at="queue") == name
    assert wire.decode(wire.encode({"task": name}), NewJob).task == name


@pytest.mark.parametrize("name", BAD_NAMES, ids=ascii)
def test_no_name_is(name: str) -> None:
    with pytest.raises(Invalid) as fault:
        names.check_name(name, at="queue")
    assert fault.value.at == "queue"


def test_all_tenants_is_no_tenant() -> None:
    with pytest.raises(Invalid):
        names.check_name(names.EVERY_TENANT, at="tenant")


NAMES = st.from_regex(r"[a-zA-Z0-9][a-zA-Z0-9_.-]{0,20}", fullmatch=True)


def test_a_keyed_id_never_changes() -> None:
    # Written down once: another version, machine or language must come to the same id.
    assert names.keyed_id("default", "default", "order-7") == "e95a2894-c182-80db-b878-96ccb98faedf"


@given(NAMES, NAMES, st.text(min_size=1, max_size=50))
def test_the_same_key_is_the_same_job(tenant: str, queue: str, key: str) -> None:
    made = names.keyed_id(tenant, queue, key)
    assert made == names.keyed_id(tenant, queue, key)
    assert uuid.UUID(made).version == 8
    assert uuid.UUID(made).variant == uuid.RFC_4122
    assert names.check_id(made) == made


@given(st.tuples(NAMES, NAMES, st.text(min_size=1)), st.tuples(NAMES, NAMES, st.text(min_size=1)))
def test_another_tenant_queue_or_key_is_another_job(one: tuple[str, str, str], other: tuple[str, str, str]) -> None:
    assert (names.keyed_id(*one) == names.keyed_id(*other)) == (one == other)


def test_parts_of_a_key_do_not_run_into_each_other() -> None:
    assert names.keyed_id("a", "b", "c") != names.keyed_id("a", "bc", "")
    assert names.keyed_id("ab", "c", "d") != names.keyed_id("a", "bc", "d")


@given(st.binary(min_size=16, max_size=16), NAMES)
def test_the_last_byte_of_an_id_is_the_mark_of_its_queue(raw: bytes, queue: str) -> None:
    fresh = names.raw_id(names.fresh_id(raw, queue))
    assert fresh == raw[:15] + bytes([names.queue_mark(queue)])
    assert names.raw_id(names.keyed_id("t", queue, "k"))[15] == names.queue_mark(queue)


def test_marks_never_change_and_differ() -> None:
    assert [names.queue_mark(queue) for queue in ("default", "a", "a.b", "a-b")] == [0xDF, 0x43, 0x5D, 0x9E]


@given(st.uuids())
def test_ids_are_text_or_sixteen_bytes(made: uuid.UUID) -> None:
    assert names.raw_id(str(made)) == made.bytes
    assert names.text_id(made.bytes) == str(made)
    assert names.check_id(str(made)) == str(made)


SOME_ID = "01890a5d-ac96-774b-bcce-b302099a8057"
TOKEN = "0123456789abcdef"  # noqa: S105 - nobody's


NO_IDS = [
    "",
    "x",
    SOME_ID.upper(),
    SOME_ID[:-1],
    SOME_ID[:-2],
    SOME_ID + "0",
    SOME_ID + "57",
    SOME_ID + "\n",
    f"{{{SOME_ID}}}",
    SOME_ID.replace("-", ""),
    SOME_ID.replace("-", " "),
    "é" + SOME_ID[1:],
]


@pytest.mark.parametrize("text", NO_IDS)
def test_no_id_is(text: str) -> None:
    with pytest.raises(Invalid) as fault:
        names.check_id(text, at="ids[3]")
    assert fault.value.at == "ids[3]"


@given(st.uuids(), NAMES)
def test_an_id_is_of_the_queue_whose_mark_it_bears(made: uuid.UUID, queue: str) -> None:
    fresh = names.fresh_id(made.bytes, queue)
    names.check_mark(fresh, queue)
    other = bytes([*made.bytes[:15], names.queue_mark(queue) ^ 1])
    with pytest.raises(Invalid, match="ids of jobs in queue"):
        names.check_mark(names.text_id(other), queue)


# Durations


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        (90, 90.0),
        (0, 0.0),
        (1.5, 1.5),
        ("90", 90.0),
        ("90s", 90.0),
        ("10m", 600.0),
        ("2h 30m", 9000.0),
        ("2h30m", 9000.0),
        (" 2 h ", 7200.0),
        ("7d", 604800.0),
        ("1w", 604800.0),
        ("250ms", 0.25),
        ("1.5h", 5400.0),
        (timedelta(minutes=3, milliseconds=5), 180.005),
    ],
)
def test_a_duration_written_as(written: float | str | timedelta, meant: float) -> None:
    assert seconds(written) == pytest.approx(meant)


@pytest.mark.parametrize(
    "written",
    [
        -1,
        -0.001,
        timedelta(seconds=-1),
        math.nan,
        math.inf,
        LONGEST + 1,
        "",
        " ",
        "soon",
        "10x",
        "m10",
        "10m later",
        "-5s",
        "nan",
        "inf",
        "1e400",
        "2h,30m",
        "ten s",
    ],
)
def test_no_duration_is(written: float | str | timedelta) -> None:
    with pytest.raises(Invalid) as fault:
        seconds(written, at="timeout")
    assert fault.value.at == "timeout"


@given(st.floats(0, LONGEST))
def test_a_number_of_seconds_is_itself(number: float) -> None:
    assert seconds(number) == number
    assert seconds(repr(number)) == number


@given(st.timedeltas(timedelta(0), timedelta(days=36_000)))
def test_a_timedelta_is_its_seconds(span: timedelta) -> None:
    assert seconds(span) == span.total_seconds()


# Matches


def a_job(**fields: Any) -> Job:
    usual: dict[str, Any] = {
        "task": "render",
        "queue": "images",
        "id": SOME_ID,
        "tenant": "default",
        "state": State.FAILED,
        "reason": Reason.ERROR,
        "worker": "w1",
        "node": "n1",
        "key": "k1",
        "tags": ["night", "big"],
        "error": Error(message="disk is full, sorry"),
        "created_at": BORN,
        "updated_at": BORN,
    }
    return Job(**usual | fields)


SECOND = timedelta(seconds=1)

CONDITIONS: list[tuple[Match, Match]] = [
    (Match(state=["failed"]), Match(state=["queued"])),
    (Match(state=["queued", "failed"]), Match(state=["queued", "succeeded"])),
    (Match(state=["finished"]), Match(state=["pending"])),
    (Match(task="render"), Match(task="rende")),
    (Match(queue="images"), Match(queue="image")),
    (Match(tag=["night"]), Match(tag=["day"])),
    (Match(tag=["big", "night"]), Match(tag=["night", "day"])),
    (Match(worker="w1"), Match(worker="w")),
    (Match(node="n1"), Match(node="n")),
    (Match(key="k1"), Match(key="k")),
    (Match(reason=Reason.ERROR), Match(reason=Reason.LOST)),
    (Match(created_after=BORN - SECOND), Match(created_after=BORN)),
    (Match(created_before=BORN + SECOND), Match(created_before=BORN)),
    (Match(text="full"), Match(text="Full")),
]


@pytest.mark.parametrize(("right", "wrong"), CONDITIONS)
def test_one_condition_admits_and_refuses(right: Match, wrong: Match) -> None:
    assert matches(right, a_job())
    assert not matches(wrong, a_job())


@given(st.lists(st.sampled_from(CONDITIONS), min_size=2, unique_by=id), st.data())
def test_every_condition_must_hold(chosen: list[tuple[Match, Match]], data: st.DataObject) -> None:
    def given_by(match: Match) -> dict[str, Any]:
        return {name: getattr(match, name) for name in match.__struct_fields__ if getattr(match, name)}

    right: dict[str, Any] = {}
    for good, _ in chosen:
        right |= given_by(good)
    assert matches(Match(**right), a_job())
    _, bad = data.draw(st.sampled_from(chosen))
    assert not matches(Match(**right | given_by(bad)), a_job())


def test_an_empty_match_means_all() -> None:
    for state in State:
        assert matches(ANY, a_job(state=state))


def test_a_job_without_an_error_has_no_text() -> None:
    assert not matches(Match(text=""), a_job(error=None))


PAYLOAD = {"customer": 7, "order": {"id": "x", "lines": [{"n": 1}, {"n": True}]}, "none": None, "half": 0.5, "a.b": 1}


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("customer", 7),
        ("customer", 7.0),
        ("order.id", "x"),
        ("order.lines.0.n", 1),
        ("order.lines.1.n", True),
        ("none", None),
        ("half", 0.5),
    ],
)
def test_a_payload_field_equals(path: str, value: Any) -> None:
    assert matches(Match(payload={path: value}), a_job(), PAYLOAD)


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("customer", "7"),
        ("customer", 8),
        ("order.lines.0.n", True),  # 1 is not true
        ("order.lines.1.n", 1),  # true is not 1
        ("order.lines.2.n", 1),
        ("order.lines.-1.n", True),
        ("order.lines", 1),
        ("missing", None),  # absent is not null
        ("order.id.x", None),
        ("", None),
        ("a.b", 1),
    ],
)
def test_a_payload_field_does_not_equal(path: str, value: Any) -> None:
    assert not matches(Match(payload={path: value}), a_job(), PAYLOAD)


@pytest.mark.parametrize("payload", [None, 7, "text", b"bytes", [], {}])
def test_a_payload_without_fields_has_none(payload: object) -> None:
    assert field(payload, "customer") is ABSENT


def test_words_for_several_states() -> None:
    assert states(Match(state=["pending"])) == {State.BLOCKED, State.SCHEDULED, State.QUEUED, State.RUNNING}
    assert states(Match(state=["finished", "queued"])) == {
        State.SUCCEEDED,
        State.FAILED,
        State.CANCELLED,
        State.QUEUED,
    }
    assert states(ANY) == set(State)


def test_only_what_counters_know_is_index_only() -> None:
    assert index_only(Match(state=["pending"], task="a", queue="b"))
    for more in ({"tag": ["x"]}, {"worker": "w"}, {"text": "t"}, {"payload": {"a": 1}}, {"reason": Reason.LOST}):
        assert not index_only(Match(queue="b", **more))


@pytest.mark.parametrize("name", ["created_after", "created_before"])
@pytest.mark.parametrize("form", FORMATS)
def test_a_match_on_a_time_without_a_zone_is_refused(name: str, form: wire.Format) -> None:
    with pytest.raises(Invalid) as fault:
        wire.decode(wire.encode({name: "2026-01-01T00:00:00"}, form), Match, form)
    assert fault.value.at == name


# Errors


def test_every_error_has_a_code_and_a_status_of_its_own() -> None:
    every = [kind for kind in WindlassError.__subclasses__() if vars(errors).get(kind.__name__) is kind]
    finer = {Damaged, FilesMissing, JournalFull, NotReplicated}
    assert set(ERRORS.values()) == {*every, *finer}
    assert len({kind.code for kind in (*every, *finer, WindlassError)}) == len(every) + len(finer) + 1
    assert FilesMissing.status == Conflict.status, "only what is missing is told apart"
    assert JournalFull.status == Full.status, "only where there is no room is told apart"
    assert NotReplicated.status == Unavailable.status, "only what has happened by then is told apart"
    assert len({kind.status for kind in every}) == len(every)
    assert {kind.exit_status for kind in every} <= {1, 2, 3, 4, 75}


@pytest.mark.parametrize("kind", [*ERRORS.values(), WindlassError])
@pytest.mark.parametrize("form", FORMATS)
def test_an_error_survives_the_wire(kind: type[WindlassError], form: wire.Format) -> None:
    sent = kind("what was wrong", at="jobs[3].task")
    problem = wire.decode(wire.encode(sent.problem(), form), Problem, form)
    heard = from_problem(problem)
    assert type(heard) is kind
    assert (heard.detail, heard.at, str(heard)) == (sent.detail, sent.at, "jobs[3].task: what was wrong")
    assert (problem.status, problem.code, problem.title) == (kind.status, kind.code, kind.title)


def test_an_unknown_problem_is_still_one_of_ours() -> None:
    heard = from_problem(Problem(title="?", status=418, detail="short and stout", code="teapot"))
    assert type(heard) is WindlassError
    assert str(heard) == "short and stout"


def test_the_tree_in_the_docstring_is_the_tree() -> None:
    drawn = re.findall(r"[├└]── (\w+) +(\d+)", errors.__doc__ or "")
    assert drawn == [(kind.__name__, str(kind.status)) for kind in ERRORS.values()]


# The wire

ODD_RETRY = RetryPolicy(base=1.5, factor=3.0, cap=99.0, jitter=0.25, deadline=1000.0, anchor="start")

ODD_TERMS: dict[str, Any] = {
    "task": "render",
    "queue": "images",
    "key": "ключ",
    "unique": 2.5,
    "unique_key": "ключ",
    "on_duplicate": "reject",
    "priority": -(2**31),
    "tags": ["night", "ü"],
    "timeout": 2.5,
    "tier": "fast",
    "yielding": True,
    "max_retry": None,
    "retry": ODD_RETRY,
    "keep_result": "once",
    "keep_result_for": 60.0,
    "keep_success": None,
    "keep_failure": 0.5,
    "expires": 60.0,
    "owner_timeout": 600.0,
    "isolate": True,
    "on_lost": "fail",
    "output": OutputPolicy(limit=7, over="drop", merged=True),
    "stdin": "terminal",
    "input": True,
    "most_input": 7,
    "headers": {"trace": "1-2-3"},
    "content_type": TEXT,
    "one_argument": True,
    "on_failure": "alert",
    "after": [SOME_ID],
    "after_failure": "run",
    "with_results": "list",
    "follow_up": SOME_ID,
}


def test_the_odd_terms_are_all_terms_and_none_is_a_default() -> None:
    plain = Terms(task="plain")
    assert set(ODD_TERMS) == set(Terms.__struct_fields__)
    assert [name for name, value in ODD_TERMS.items() if value == getattr(plain, name)] == []


def odd_new_job(form: wire.Format) -> NewJob:
    payload = Raw(wire.encode({"a": [1, None, "x"]}, form))
    return NewJob(**ODD_TERMS, payload=payload, id=SOME_ID, delay=3.0, run_at=BORN)


def odd_job(form: wire.Format) -> Job:
    error = Error(type="E", message="m", traceback="t", reason=Reason.ERROR, attempt=2, at=BORN)
    return Job(
        **ODD_TERMS,
        id=SOME_ID,
        tenant="acme",
        state=State.RUNNING,
        reason=Reason.CANCELLED,
        attempt=3,
        crashes=1,
        losses=2,
        worker="w1",
        node="n1",
        pid=4_000_000_000,
        progress=Progress(done=1.5, total=3.0, note="halfway"),
        code=500,
        error=error,
        errors=[replace(error, attempt=1), error],
        created_at=BORN,
        updated_at=BORN + SECOND,
        run_at=BORN + 2 * SECOND,
        started_at=BORN + 3 * SECOND,
        finished_at=BORN + 4 * SECOND,
        deadline=BORN + 5 * SECOND,
        size=11,
        payload=Raw(wire.encode({"a": [1, None, "x"]}, form)),
    )


def plain_fields(struct: msgspec.Struct) -> dict[str, Any]:
    return {name: value for name, value in msgspec.structs.asdict(struct).items() if name != "payload"}


@pytest.mark.parametrize("form", FORMATS)
def test_a_new_job_survives_the_wire(form: wire.Format) -> None:
    sent = odd_new_job(form)
    heard = wire.decode(wire.encode(sent, form), NewJob, form)
    assert plain_fields(heard) == plain_fields(sent)
    assert bytes(heard.payload) == bytes(sent.payload)


@pytest.mark.parametrize("form", FORMATS)
def test_a_job_survives_the_wire(form: wire.Format) -> None:
    sent = odd_job(form)
    heard = wire.decode(wire.encode(sent, form), Job, form)
    assert plain_fields(heard) == plain_fields(sent)
    assert isinstance(heard.payload, Raw)
    assert bytes(heard.payload) == bytes(sent.payload or b"")


@pytest.mark.parametrize("form", FORMATS)
def test_a_result_survives_the_wire_in_both_directions(form: wire.Format) -> None:
    value = Raw(wire.encode({"a": [1, None, "x"]}, form))
    reported = Finished(id=SOME_ID, token=TOKEN, outcome=Verdict.OK, result=value)
    answered = Result(state=State.SUCCEEDED, result=value)
    for sent in (reported, answered):
        heard = wire.decode(wire.encode(sent, form), type(sent), form)
        assert isinstance(heard.result, Raw)
        assert bytes(heard.result) == bytes(value)


@pytest.mark.parametrize("form", FORMATS)
def test_a_report_survives_the_wire(form: wire.Format) -> None:
    sent = Finished(
        id=SOME_ID,
        token=TOKEN,
        outcome=Verdict.ERROR,
        code=503,
        content_type=TEXT,
        message="m",
        error=Error(type="E", message="m", traceback="t"),
        reason=Reason.TIMEOUT,
        delay=2.5,
        finished_at=BORN,
    )
    assert wire.decode(wire.encode(sent, form), Finished, form) == sent


@pytest.mark.parametrize("form", FORMATS)
def test_a_claimed_job_survives_the_wire(form: wire.Format) -> None:
    sent = Claimed(job=replace(odd_job(form), payload=UNSET), token=TOKEN, payload=Raw(wire.encode([7], form)))
    heard = wire.decode(wire.encode(sent, form), Claimed, form)
    assert (heard.job, heard.token, bytes(heard.payload)) == (sent.job, sent.token, bytes(sent.payload))


@pytest.mark.parametrize("form", FORMATS)
def test_a_match_survives_the_wire(form: wire.Format) -> None:
    sent = Match(
        state=["queued", "finished"],
        task="a",
        queue="b",
        tag=["t"],
        worker="w",
        key="k",
        reason=Reason.LOST,
        created_after=BORN,
        created_before=BORN,
        payload={"n": 1, "h": 0.5, "t": True, "s": "x", "z": None},
        text="oops",
    )
    assert wire.decode(wire.encode(sent, form), Match, form) == sent
    assert wire.checked(sent) == sent


@pytest.mark.parametrize("form", FORMATS)
def test_a_match_on_an_unknown_state_is_refused(form: wire.Format) -> None:
    with pytest.raises(Invalid) as fault:
        wire.decode(wire.encode({"state": ["queued", "ended"]}, form), Match, form)
    assert fault.value.at == "state[1]"


@pytest.mark.parametrize("form", FORMATS)
def test_a_time_in_another_zone_is_the_same_time(form: wire.Format) -> None:
    there = BORN.astimezone(timezone(timedelta(hours=-7)))
    assert wire.decode(wire.encode({"task": "a", "run_at": there}, form), NewJob, form).run_at == BORN


def test_a_job_sent_as_json_keeps_its_payload_as_json() -> None:
    new = bodies.decode(b'{"task": "a", "payload": {"x":  1}}', NewJob, "json")
    assert (bytes(new.payload), new.content_type) == (b'{"x":  1}', JSON)
    assert wire.value(new.payload, new.content_type) == {"x": 1}


@pytest.mark.parametrize(("form", "nothing"), [("json", b"null"), ("msgpack", b"\xc0")])
def test_no_payload_is_nothing_in_the_format_of_the_job(form: wire.Format, nothing: bytes) -> None:
    new = bodies.decode(wire.encode({"task": "a"}, form), NewJob, form)
    assert bytes(new.payload) == nothing
    assert wire.value(new.payload, new.content_type) is None


def test_a_payload_that_is_no_value_is_its_bytes() -> None:
    assert wire.value(b"\xff\x00", "image/png") == b"\xff\x00"


FAULTY: list[tuple[str, dict[str, Any], str]] = [
    ("an unknown field", {"task": "a", "prioritty": 1}, "prioritty"),
    ("an unknown field inside", {"task": "a", "retry": {"bass": 1}}, "retry.bass"),
    ("a missing task", {"queue": "a"}, "task"),
    ("a task of the wrong type", {"task": 5}, "task"),
    ("a priority of the wrong type", {"task": "a", "priority": "high"}, "priority"),
    ("a broken priority", {"task": "a", "priority": 1.5}, "priority"),
    ("a priority that is a truth", {"task": "a", "priority": True}, "priority"),
    ("a priority below int32", {"task": "a", "priority": -(2**31) - 1}, "priority"),
    ("a priority above int32", {"task": "a", "priority": 2**31}, "priority"),
    ("a negative delay", {"task": "a", "delay": -1}, "delay"),
    ("a negative timeout", {"task": "a", "timeout": -0.5}, "timeout"),
    ("a duration longer than a century", {"task": "a", "expires": 1e12}, "expires"),
    ("a negative number of re-runs", {"task": "a", "max_retry": -1}, "max_retry"),
    ("a factor below one", {"task": "a", "retry": {"factor": 0.5}}, "retry.factor"),
    ("a negative base", {"task": "a", "retry": {"base": -1}}, "retry.base"),
    ("an unknown anchor", {"task": "a", "retry": {"anchor": "middle"}}, "retry.anchor"),
    ("a time without a zone", {"task": "a", "run_at": "2026-01-01T00:00:00"}, "run_at"),
    ("a time that is none", {"task": "a", "run_at": "tomorrow"}, "run_at"),
    ("an unknown way to keep", {"task": "a", "keep_result": "twice"}, "keep_result"),
    ("a tag of the wrong type", {"task": "a", "tags": ["x", 5]}, "tags[1]"),
    ("an empty tag", {"task": "a", "tags": [""]}, "tags[0]"),
    ("too many tags", {"task": "a", "tags": ["x"] * 33}, "tags"),
    ("an empty key", {"task": "a", "key": ""}, "key"),
    ("a long key", {"task": "a", "key": "k" * 513}, "key"),
    ("an id of the wrong type", {"task": "a", "id": 7}, "id"),
    *((f"a task named {name!a}", {"task": name}, "task") for name in BAD_NAMES if name != "\ud800"),
    *((f"a queue named {name!a}", {"task": "a", "queue": name}, "queue") for name in BAD_NAMES if name != "\ud800"),
]


@pytest.mark.parametrize(("sent", "at"), [row[1:] for row in FAULTY], ids=[row[0] for row in FAULTY])
@pytest.mark.parametrize("form", FORMATS)
def test_the_wire_refuses(sent: dict[str, Any], at: str, form: wire.Format) -> None:
    with pytest.raises(Invalid) as fault:
        wire.decode(wire.encode(sent, form), NewJob, form)
    assert fault.value.at == at
    assert fault.value.detail


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("name", ["delay", "timeout", "expires", "keep_success"])
def test_the_wire_refuses_a_duration_that_is_no_number(name: str, number: float) -> None:
    with pytest.raises(Invalid) as fault:
        wire.decode(wire.encode({"task": "a", name: number}), NewJob)
    assert fault.value.at == name


@pytest.mark.parametrize("name", ["base", "factor", "cap", "jitter"])
def test_the_wire_refuses_a_retry_that_is_no_number(name: str) -> None:
    with pytest.raises(Invalid) as fault:
        wire.decode(wire.encode({"task": "a", "retry": {name: math.nan}}), NewJob)
    assert fault.value.at == f"retry.{name}"


@pytest.mark.parametrize("data", [b"", b"{", b"\xff", b'{"task": "\xff"}', b"nonsense", b"[" * 100_000])
def test_what_is_no_json_is_refused(data: bytes) -> None:
    with pytest.raises(Invalid):
        wire.decode(data, NewJob, "json")


@pytest.mark.parametrize("data", [b"", b"\x81", b"\x81\xa4task\xa1\xff", b"\xc1", b"\x91" * 100_000])
def test_what_is_no_messagepack_is_refused(data: bytes) -> None:
    with pytest.raises(Invalid):
        wire.decode(data, NewJob)


@given(st.binary(max_size=200), st.sampled_from(FORMATS))
def test_whatever_is_sent_is_read_or_refused(data: bytes, form: wire.Format) -> None:
    with suppress(Invalid):
        wire.decode(data, EnqueueMany, form)


def test_a_fault_inside_a_batch_names_its_place() -> None:
    with pytest.raises(Invalid) as fault:
        wire.decode(wire.encode({"jobs": [{"task": "a"}, {"task": "b", "priority": "x"}]}), EnqueueMany)
    assert fault.value.at == "jobs[1].priority"


MADE_WRONG: list[tuple[dict[str, Any], str]] = [
    ({"task": "a b"}, "task"),
    ({"task": "a\n"}, "task"),
    ({"task": "a", "queue": ""}, "queue"),
    ({"task": 5}, "task"),
    ({"task": "a", "priority": 2**31}, "priority"),
    ({"task": "a", "priority": 2**70}, "priority"),
    ({"task": "a", "delay": -1.0}, "delay"),
    ({"task": "a", "delay": math.nan}, "delay"),
    ({"task": "a", "timeout": "2m"}, "timeout"),
    ({"task": "a", "timeout": timedelta(minutes=2)}, "timeout"),
    ({"task": "a", "run_at": BORN.replace(tzinfo=None)}, "run_at"),
    ({"task": "a", "retry": RetryPolicy(base=-1)}, "retry.base"),
    ({"task": "a", "headers": {"x": 5}}, "headers"),
    ({"task": "a", "headers": {"x": object()}}, "headers"),
    ({"task": "a", "tags": [object()]}, "tags"),
    ({"task": "a", "key": "\ud800"}, "key"),
    ({"task": "\ud800"}, "task"),
]


@pytest.mark.parametrize(("fields", "at"), MADE_WRONG, ids=[at for _, at in MADE_WRONG])
def test_a_job_made_in_python_is_refused_like_one_that_was_sent(fields: dict[str, Any], at: str) -> None:
    with pytest.raises(Invalid) as fault:
        wire.checked_job(NewJob(**fields))
    assert fault.value.at.startswith(at)


@given(
    st.builds(
        NewJob,
        task=NAMES,
        queue=NAMES,
        key=st.none() | st.text(st.characters(codec="utf-8"), min_size=1, max_size=20),
        priority=st.integers(-(2**31), 2**31 - 1),
        tags=st.lists(st.text(st.characters(codec="utf-8"), min_size=1, max_size=5), max_size=3),
        delay=st.none() | st.floats(0, LONGEST),
        max_retry=st.none() | st.integers(0, 1_000_000),
        expires=st.none() | st.floats(0, LONGEST),
        owner_timeout=st.none() | st.floats(LEAST_OWNER_TIMEOUT, LONGEST),
        run_at=st.none() | st.datetimes(timezones=st.just(UTC), min_value=datetime(1970, 1, 1)),  # noqa: DTZ001
    )
)
def test_a_sound_job_is_not_changed_by_being_checked(new: NewJob) -> None:
    assert wire.checked_job(new) == new


def test_a_payload_is_not_looked_at() -> None:
    garbage = Raw(b"\xc1\xff")
    assert bytes(wire.checked_job(NewJob(task="a", payload=garbage)).payload) == b"\xc1\xff"


def test_a_payload_may_be_as_large_as_allowed_and_no_larger() -> None:
    wire.check_size(b"x" * 10, 10)
    with pytest.raises(TooLarge) as fault:
        wire.check_size(b"x" * 11, 10, at="jobs[2].payload")
    assert fault.value.at == "jobs[2].payload"


def test_a_finish_with_a_time_without_a_zone_is_refused() -> None:
    item = {"id": SOME_ID, "token": "0" * 16, "outcome": "ok", "finished_at": "2026-01-01T00:00:00"}
    with pytest.raises(Invalid) as fault:
        wire.decode(wire.encode(item, "json"), Finished, "json")
    assert fault.value.at == "finished_at"


@pytest.mark.parametrize(
    ("fields", "at"),
    [
        ({}, "name"),
        ({"name": ""}, "name"),
        ({"name": "w", "queues": []}, "queues"),
        ({"name": "w", "queues": ["a b"]}, "queues[0]"),
        ({"name": "w", "slots": 0}, "slots"),
        ({"name": "w", "slots": 10_001}, "slots"),
    ],
)
def test_a_worker_is_refused(fields: dict[str, Any], at: str) -> None:
    with pytest.raises(Invalid) as fault:
        wire.decode(wire.encode(fields), NewWorker)
    assert fault.value.at == at


# Operations


def every_operation(kind: type[Operation[Any]] = Operation) -> Iterator[type[Operation[Any]]]:
    for below in kind.__subclasses__():
        yield below
        yield from every_operation(below)


def test_every_operation_is_in_the_table() -> None:
    declared = set(every_operation()) - {Selection}
    assert set(OPERATIONS) == declared
    assert len(declared) >= 18


def test_no_two_operations_share_a_route() -> None:
    routes = [(route.verb, route.path) for route in OPERATIONS.values()]
    assert len(set(routes)) == len(routes)


@pytest.mark.parametrize("kind", OPERATIONS, ids=lambda kind: kind.__name__)
def test_an_operation_says_in_one_line_what_it_does(kind: type[Operation[Any]]) -> None:
    assert kind.__doc__
    assert "\n" not in kind.__doc__.strip()


@pytest.mark.parametrize("kind", OPERATIONS, ids=lambda kind: kind.__name__)
def test_what_stands_in_the_path_of_an_operation_is_a_field(kind: type[Operation[Any]]) -> None:
    assert set(re.findall(r"{(\w+)}", OPERATIONS[kind].path)) <= set(kind.__struct_fields__)


@pytest.mark.parametrize("kind", OPERATIONS, ids=lambda kind: kind.__name__)
def test_an_operation_refuses_a_field_it_does_not_have(kind: type[Operation[Any]]) -> None:
    with pytest.raises(Invalid) as fault:
        wire.decode(wire.encode({"no_such_field": 1}), kind)
    assert fault.value.at == "no_such_field"


@pytest.mark.parametrize("most", [MOST_AT_ONCE, MOST_AT_ONCE + 1])
def test_a_batch_is_bounded(most: int) -> None:
    data = wire.encode({"jobs": [{"task": "a"}] * most})
    if most <= MOST_AT_ONCE:
        assert len(wire.decode(data, EnqueueMany).jobs) == most
        return
    with pytest.raises(Invalid) as fault:
        wire.decode(data, EnqueueMany)
    assert fault.value.at == "jobs"


def test_an_operation_is_for_the_default_tenant_unless_it_says_otherwise() -> None:
    assert Enqueue(job=NewJob(task="a")).tenant == "default"


# What is written down


def undocumented(module: ModuleType, *classes: str) -> list[str]:
    """Annotated fields of these classes that no docstring follows."""
    tree = ast.parse(inspect.getsource(module))
    found = []
    for node in tree.body:
        if not (isinstance(node, ast.ClassDef) and node.name in classes):
            continue
        for statement, following in zip(node.body, [*node.body[1:], None], strict=True):
            if isinstance(statement, ast.AnnAssign) and not is_text(following):
                found.append(f"{node.name}.{ast.unparse(statement.target)}")
    return found


def is_text(node: ast.stmt | None) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


def test_every_field_of_a_job_says_what_it_is() -> None:
    assert undocumented(new_job, "JobOptions", "Terms", "NewJob") == undocumented(job_module, "Job") == []


def test_every_field_of_a_worker_says_what_it_is() -> None:
    assert undocumented(worker, "NewWorker", "Worker") == []


def test_the_check_for_undocumented_fields_finds_some() -> None:
    assert "Page.jobs" in undocumented(operations.jobs, "Page")


def test_every_method_of_a_store_is_documented() -> None:
    facets = [one for _, one in inspect.getmembers(protocol, inspect.isclass) if one.__module__ == protocol.__name__]
    methods = [
        method for facet in facets for name, method in inspect.getmembers(facet, inspect.isfunction) if name[0] != "_"
    ]
    assert len(methods) > 30
    assert [method.__qualname__ for method in methods if not method.__doc__] == []


# Retry presets


def test_the_presets_have_names() -> None:
    assert PRESETS == {"exponential": EXPONENTIAL, "from-start": FROM_START, "until-deadline": UNTIL_DEADLINE}
    assert Terms(task="a").retry == EXPONENTIAL


@pytest.mark.parametrize("preset", PRESETS.values(), ids=PRESETS.keys())
def test_a_preset_could_have_been_sent(preset: RetryPolicy) -> None:
    assert wire.checked(preset) == preset


def test_the_presets_say_what_they_promise() -> None:
    assert (EXPONENTIAL.base, EXPONENTIAL.factor, EXPONENTIAL.cap, EXPONENTIAL.anchor) == (10, 2, 3600, "end")
    assert (FROM_START.base, FROM_START.factor, FROM_START.jitter, FROM_START.anchor) == (20, 2, 0, "start")
    assert (UNTIL_DEADLINE.base, UNTIL_DEADLINE.factor, UNTIL_DEADLINE.deadline) == (300, 1, 21600)


def test_nothing_is_messagepack_nil() -> None:
    assert wire.value(NOTHING, MSGPACK) is None
