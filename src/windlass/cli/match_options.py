"""The options that select jobs: the fields of a `Match` as flags.

Knows how people write times and payload fields; asks no store.
"""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Annotated

from cyclopts import Group, Parameter

from windlass.cli import values
from windlass.cli.options import given, option
from windlass.model import duration
from windlass.model.errors import Invalid
from windlass.model.job import Reason
from windlass.model.match import Match, Scalar, StateWord

SELECT = Group("Select jobs", help="A job must match all given options. Names match exactly.", sort_key=10)


@Parameter(name="*", group=SELECT)
@dataclass(frozen=True, kw_only=True)
class MatchOptions:
    """Selects jobs."""

    state: Annotated[
        list[StateWord] | None,
        option("STATE", "In this state; repeat for several. `pending` and `finished` stand for several states."),
    ] = None
    task: Annotated[str | None, option("NAME", "Of this task.")] = None
    queue: Annotated[str | None, option("NAME", "In this queue.", "--queue", "-q")] = None
    tag: Annotated[list[str] | None, option("TAG", "With this tag; repeat to require several.")] = None
    worker: Annotated[str | None, option("ID", "Run by this worker, now or last.")] = None
    node: Annotated[str | None, option("NAME", "Run on this node, now or last.")] = None
    key: Annotated[str | None, option("KEY", "With this key.")] = None
    reason: Annotated[Reason | None, option("REASON", "Ended, or to be retried, for this reason.")] = None
    created_after: Annotated[
        str | None, option("TIME", "Created after this time (2026-01-31T12:00:00Z) or within this age (2h).")
    ] = None
    created_before: Annotated[str | None, option("TIME", "Created before this time or age.")] = None
    payload: Annotated[
        list[str] | None, option("FIELD=VALUE", "With this value in this field of the payload (order.id=7).")
    ] = None
    text: Annotated[str | None, option("TEXT", "With this text in the message of the last error.")] = None
    fingerprint: Annotated[str | None, option("HEX", "With this failure: see `windlass failures`.")] = None

    def match(self, now: datetime) -> Match:
        """`now`: the store's time, by which ages are meant."""
        fields = given(self)
        for name in fields.keys() & {"created_after", "created_before"}:
            fields[name] = _time(fields[name], now, at=f"--{name.replace('_', '-')}")
        if "payload" in fields:
            fields["payload"] = dict(map(_field, fields["payload"]))
        return Match(**fields)


ANY_JOB = MatchOptions()


def _time(text: str, now: datetime, *, at: str) -> datetime:
    """A time as people write it: a date, with or without hour and zone, or an age."""
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        pass
    else:
        return found.astimezone(UTC)  # without a zone: local time
    try:
        age = duration.seconds(text, at=at)
    except Invalid:
        raise Invalid(f"{text!r} is not a time: write 2026-01-31T12:00:00Z, or an age such as 2h", at=at) from None
    return now - timedelta(seconds=age)


def _field(text: str) -> tuple[str, Scalar]:
    name, equals, wanted = text.partition("=")
    value = values.read(wanted)
    if not equals or not name or isinstance(value, (dict, list)):
        raise Invalid(f"{text!r} is not FIELD=VALUE with a single value, such as order.id=7", at="--payload")
    return name, value
