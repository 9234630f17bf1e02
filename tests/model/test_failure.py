"""Fingerprints of failures: the same for the same failure, whatever the numbers; different for different ones."""

from datetime import UTC, datetime, timedelta

import pytest

from windlass.model.failure import FailureGroup, fingerprint_of, group_of, in_order, merge
from windlass.model.job import Error, Job, Reason, State

AT = datetime(2026, 1, 1, tzinfo=UTC)

TRACEBACK = """Traceback (most recent call last):
  File "/srv/{release}/shop/orders.py", line {line}, in charge
    pay(order)
  File "/srv/{release}/shop/cards.py", line {line}, in {name}
    raise Declined(f"card {{card}} declined")
{what}
"""
NODE = "Error: no\n    at pick ({folder}/handler.js:{line}:9)\n    at run (node:internal:5:3)"


def failed(error: Error | None, *, task: str = "pay", id: str = "a", seconds: float = 0.0) -> Job:
    at = AT + timedelta(seconds=seconds)
    return Job(task=task, id=id, tenant="t", state=State.FAILED, error=error, created_at=AT, updated_at=at)


def error(message: str, *, kind: str = "ValueError", traceback: str = "", reason: Reason = Reason.ERROR) -> Error:
    return Error(type=kind, message=message, traceback=traceback, reason=reason)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("card 17 declined after 2.5 s", "card 18,000 declined after 0.125 s"),
        ("no row 01936f2e-1111-7000-8000-000000000001", "no row 01936f2e-2222-7abc-8000-0000000000ff"),
        ("<Order at 0x7f3a90>", "<Order at 0x7F3B10>"),
        ("KeyError: 'ada'", "KeyError: 'bob'"),
        ('no user "ada"', 'no user "bob"'),
        ("blob 0123456789abcdef0123 is gone", "blob fedcba98765432100123 is gone"),
        ("broken\nat line 1", "broken\nsomewhere else"),
        ("2026-01-01 12:00:01 too late", "2026-02-03 07:30:59 too late"),
    ],
)
def test_what_differs_from_job_to_job_does_not_count(one: str, other: str) -> None:
    assert fingerprint_of(failed(error(one))) == fingerprint_of(failed(error(other)))


def test_task_error_message_and_place_count() -> None:
    def trace(name: str = "authorize", line: int = 7, release: str = "r1") -> str:
        return TRACEBACK.format(name=name, line=line, release=release, what="Declined: card 17 declined")

    found = [
        failed(error("declined", traceback=trace())),
        failed(error("declined", traceback=trace()), task="refund"),
        failed(error("declined", traceback=trace(), kind="Declined")),
        failed(error("refused", traceback=trace())),
        failed(error("declined", traceback=trace(name="capture"))),
        failed(error("declined", reason=Reason.TIMEOUT)),
        failed(None),
    ]
    assert len({fingerprint_of(job) for job in found}) == len(found)
    moved = failed(error("declined", traceback=trace(line=93, release="r2")))
    assert fingerprint_of(moved) == fingerprint_of(found[0])
    assert group_of(moved).where == "authorize, cards.py"


def test_where_a_run_happened_to_be_stopped_does_not_count() -> None:
    stopped = [
        error("it ran longer than 5 s", reason=Reason.TIMEOUT, traceback=TRACEBACK.format(name=name, **more))
        for name in ("read", "write")
        for more in [{"line": 1, "release": "r", "what": "Timeout"}]
    ]
    first, second = (fingerprint_of(failed(one)) for one in stopped)
    assert first == second


def test_the_place_of_an_error_in_node_is_its_first_frame() -> None:
    group = group_of(failed(error("no", kind="Error", traceback=NODE.format(folder="/x/1", line=3))))
    assert group.where == "pick, handler.js"
    elsewhere = failed(error("no", kind="Error", traceback=NODE.format(folder="/y/2", line=44)))
    assert fingerprint_of(elsewhere) == group.fingerprint


def test_groups_add_up() -> None:
    groups: dict[tuple[str, str], FailureGroup] = {}
    for place, message in enumerate(["a 1", "b", "a 2", "a 3"]):
        merge(groups, [group_of(failed(error(message), id=str(place), seconds=place))])
    first, second = in_order(groups.values())
    assert (first.count, first.sample, first.message) == (3, "3", "a 3")
    assert (first.first_at, first.last_at) == (AT, AT + timedelta(seconds=3))
    assert (second.count, second.sample) == (1, "1")
