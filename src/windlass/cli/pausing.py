"""How long a pause is, and what is said of it."""

from datetime import datetime, timedelta
from typing import Annotated

from cyclopts import Parameter

from windlass.model import duration
from windlass.model.limit import Limit, Pause
from windlass.system import SystemClock

For = Annotated[
    str | None, Parameter(name="--for", metavar="TIME", help="How long: 10m, 2h (until somebody resumes it).")
]
Why = Annotated[str, Parameter(metavar="TEXT", help="A reason, for whoever looks.")]


def until(text: str | None) -> datetime | None:
    return None if text is None else SystemClock().now() + timedelta(seconds=duration.seconds(text, at="--for"))


def paused(how_long: str | None, why: str) -> Pause:
    return Pause(paused=True, until=until(how_long), why=why)


def told(pause: Pause | Limit) -> str:
    if not pause.paused:
        return ""
    end = f" until {pause.until.astimezone():%Y-%m-%d %H:%M:%S}" if pause.until else ""
    since = f" (since {pause.since.astimezone():%Y-%m-%d %H:%M:%S})" if pause.since else ""
    return f"paused{end}{': ' if pause.why else ''}{pause.why}{since}"
