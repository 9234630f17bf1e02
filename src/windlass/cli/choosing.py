"""The options that say which jobs are meant: a `Match`, spelled as flags."""

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

WHICH = Group("Which jobs", help="All that are given must hold; names match exactly.", sort_key=10)


@Parameter(name="*", group=WHICH)
@dataclass(frozen=True, kw_only=True)
class Chosen:
    """Which jobs are meant."""

    state: Annotated[
        list[StateWord] | None,
        Parameter(
            metavar="STATE",
            help="In this state; several times = in any of them. `pending` and `finished` stand for several.",
        ),
    ] = None
    task: Annotated[str | None, Parameter(metavar="NAME", help="Of this task.")] = None
    queue: Annotated[str | None, Parameter(name=("--queue", "-q"), metavar="NAME", help="In this queue.")] = None
    tag: Annotated[
        list[str] | None, Parameter(metavar="TAG", help="With this tag; several times = with all of them.")
    ] = None
    worker: Annotated[str | None, Parameter(metavar="ID", help="Held by this worker, now or last.")] = None
    key: Annotated[str | None, Parameter(metavar="KEY", help="With this key.")] = None
    reason: Annotated[Reason | None, Parameter(metavar="REASON", help="Ended, or waiting again, for this reason.")] = (
        None
    )
    created_after: Annotated[
        str | None, Parameter(metavar="TIME", help="Newer than a time (2026-01-31T12:00:00Z) or an age (2h).")
    ] = None
    created_before: Annotated[str | None, Parameter(metavar="TIME", help="Older than that.")] = None
    payload: Annotated[
        list[str] | None,
        Parameter(metavar="FIELD=VALUE", help="Whose payload has this value in this field (order.id=7)."),
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


ANY_JOB = Chosen()


def _time(text: str | None, *, at: str) -> datetime | None:
    """A time as it was typed: a date, with or without hour and zone, or an age."""
    if text is None:
        return None
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        pass
    else:
        return found.astimezone(UTC)  # without a zone: by the clock on the wall here
    try:
        age = duration.seconds(text, at=at)
    except Invalid:
        raise Invalid(f"{text!r} is no time: write 2026-01-31T12:00:00Z, or an age such as 2h", at=at) from None
    return SystemClock().now() - timedelta(seconds=age)


def _field(text: str) -> tuple[str, Scalar]:
    name, equals, wanted = text.partition("=")
    value = values.read(wanted)
    if not equals or not name or isinstance(value, (dict, list)):
        raise Invalid(f"{text!r} is not FIELD=VALUE with a single value", at="--payload")
    return name, value
