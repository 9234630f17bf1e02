"""The options that select jobs: the fields of a `Match` as flags.

Knows how people write times and payload fields; asks no store.
"""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Annotated

from cyclopts import Group, Parameter

from windlass.cli import values
from windlass.model import duration
from windlass.model.errors import Invalid
from windlass.model.job import Reason
from windlass.model.match import Match, Scalar, StateWord
from windlass.system import SystemClock

SELECT = Group("Select jobs", help="A job must match all given options. Names match exactly.", sort_key=10)


@Parameter(name="*", group=SELECT)
@dataclass(frozen=True, kw_only=True)
class MatchOptions:
    """Selects jobs."""

    state: Annotated[
        list[StateWord] | None,
        Parameter(
            metavar="STATE",
            help="In this state; repeat for several. `pending` and `finished` stand for several states.",
        ),
    ] = None
    task: Annotated[str | None, Parameter(metavar="NAME", help="Of this task.")] = None
    queue: Annotated[str | None, Parameter(name=("--queue", "-q"), metavar="NAME", help="In this queue.")] = None
    tag: Annotated[list[str] | None, Parameter(metavar="TAG", help="With this tag; repeat to require several.")] = None
    worker: Annotated[str | None, Parameter(metavar="ID", help="Run by this worker, now or last.")] = None
    key: Annotated[str | None, Parameter(metavar="KEY", help="With this key.")] = None
    reason: Annotated[Reason | None, Parameter(metavar="REASON", help="Ended, or to be retried, for this reason.")] = (
        None
    )
    created_after: Annotated[
        str | None,
        Parameter(metavar="TIME", help="Created after this time (2026-01-31T12:00:00Z) or within this age (2h)."),
    ] = None
    created_before: Annotated[str | None, Parameter(metavar="TIME", help="Created before this time or age.")] = None
    payload: Annotated[
        list[str] | None,
        Parameter(metavar="FIELD=VALUE", help="With this value in this field of the payload (order.id=7)."),
    ] = None
    text: Annotated[str | None, Parameter(metavar="TEXT", help="With this text in the message of the last error.")] = (
        None
    )

    def match(self) -> Match:
        return Match(
            state=self.state or [],
            task=self.task,
            queue=self.queue,
            tag=self.tag or [],
            worker=self.worker,
            key=self.key,
            reason=self.reason,
            created_after=_time(self.created_after, at="--created-after"),
            created_before=_time(self.created_before, at="--created-before"),
            payload=dict(_field(text) for text in self.payload or []),
            text=self.text,
        )


ANY_JOB = MatchOptions()


def _time(text: str | None, *, at: str) -> datetime | None:
    """A time as people write it: a date, with or without hour and zone, or an age."""
    if text is None:
        return None
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
    return SystemClock().now() - timedelta(seconds=age)


def _field(text: str) -> tuple[str, Scalar]:
    name, equals, wanted = text.partition("=")
    value = values.read(wanted)
    if not equals or not name or isinstance(value, (dict, list)):
        raise Invalid(f"{text!r} is not FIELD=VALUE with a single value, such as order.id=7", at="--payload")
    return name, value
