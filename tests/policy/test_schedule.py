"""The ticks of a schedule, against a second implementation where clocks change."""

from datetime import UTC, datetime, timedelta
from itertools import islice
from zoneinfo import ZoneInfo

import pytest

from windlass.model.errors import Invalid
from windlass.model.schedule import Timing
from windlass.policy.schedule import jitter_of, last_tick, next_tick, ticks

NOON = datetime(2026, 11, 18, 12, tzinfo=UTC)


def first(timing: Timing, count: int, after: datetime = NOON) -> list[str]:
    return [f"{tick:%m-%d %H:%M:%S}" for tick in islice(ticks(timing, after), count)]


def test_ticks_of_cron_are_in_its_time_zone() -> None:
    assert first(Timing(cron="0 3 * * *", tz="Europe/Rome"), 2) == ["11-19 02:00:00", "11-20 02:00:00"]
    assert first(Timing(cron="0 3 * * *"), 2) == ["11-19 03:00:00", "11-20 03:00:00"]
    assert first(Timing(cron="*/20 12 * * 3"), 3) == ["11-18 12:20:00", "11-18 12:40:00", "11-25 12:00:00"]


def test_ticks_of_every_are_counted_from_its_start_or_from_1970() -> None:
    assert first(Timing(every=90), 2) == ["11-18 12:01:30", "11-18 12:03:00"]
    late = Timing(every=3600, start=NOON + timedelta(minutes=7))
    assert first(late, 2) == ["11-18 12:07:00", "11-18 13:07:00"]


def test_no_tick_is_outside_of_start_and_end() -> None:
    timing = Timing(cron="0 * * * *", start=NOON + timedelta(hours=2), end=NOON + timedelta(hours=4))
    assert first(timing, 9) == ["11-18 14:00:00", "11-18 15:00:00", "11-18 16:00:00"]
    assert next_tick(timing, NOON + timedelta(hours=4)) is None


@pytest.mark.parametrize(
    ("zone", "night"),
    [
        ("Europe/Rome", datetime(2026, 3, 28, 12, tzinfo=UTC)),
        ("Europe/Rome", datetime(2026, 10, 24, 12, tzinfo=UTC)),
        ("America/New_York", datetime(2026, 3, 7, 12, tzinfo=UTC)),
        ("America/New_York", datetime(2026, 10, 31, 12, tzinfo=UTC)),
        ("Australia/Lord_Howe", datetime(2026, 10, 3, 0, tzinfo=UTC)),
        ("Asia/Kolkata", datetime(2026, 3, 28, 12, tzinfo=UTC)),
    ],
)
@pytest.mark.parametrize("minute", [0, 30, 45])
@pytest.mark.parametrize("hour", [0, 1, 2, 3])
def test_a_daily_tick_comes_once_a_day_also_when_clocks_change(
    zone: str, night: datetime, hour: int, minute: int
) -> None:
    """R18. Day by day: the local time itself, the first of two, or the end of the gap that it falls into."""
    local = ZoneInfo(zone)
    found = list(islice(ticks(Timing(cron=f"{minute} {hour} * * *", tz=zone), night), 3))
    wanted: list[datetime] = []
    day = night.astimezone(local).replace(hour=0, minute=0)
    while len(wanted) < 3:
        wall = day.replace(hour=hour, minute=minute, fold=0)
        exact = wall.astimezone(UTC)
        if exact.astimezone(local).replace(tzinfo=None) != wall.replace(tzinfo=None):
            exact = _end_of_gap(exact, local)
        if exact > night:
            wanted.append(exact)
        day += timedelta(days=1)
    assert found == wanted


def _end_of_gap(inside: datetime, local: ZoneInfo) -> datetime:
    """The instant near it at which the offset changes, minute by minute."""
    at = inside - timedelta(hours=3)
    while at.astimezone(local).utcoffset() == (at + timedelta(minutes=1)).astimezone(local).utcoffset():
        at += timedelta(minutes=1)
    return at + timedelta(minutes=1)


def test_the_last_tick_is_found_however_long_ago_the_first_was() -> None:
    every_second, yearly = Timing(every=1), Timing(cron="0 0 1 1 *")
    assert last_tick(every_second, datetime(1999, 1, 1, tzinfo=UTC), NOON) == NOON
    assert last_tick(yearly, datetime(1999, 1, 1, tzinfo=UTC), NOON) == datetime(2026, 1, 1, tzinfo=UTC)
    assert last_tick(yearly, datetime(2026, 5, 1, tzinfo=UTC), NOON) is None
    assert last_tick(every_second, NOON, NOON) is None


def test_what_cannot_be_read_is_one_clear_error() -> None:
    with pytest.raises(Invalid, match="no cron expression"):
        next_tick(Timing(cron="0 3 * *"), NOON)
    with pytest.raises(Invalid, match="no time zone 'Europe/Roma'"):
        next_tick(Timing(cron="0 3 * * *", tz="Europe/Roma"), NOON)
    with pytest.raises(Invalid, match="Bad day-of-month"):
        next_tick(Timing(cron="0 0 30 2 *"), NOON)


def test_jitter_spreads_and_is_the_same_everywhere() -> None:
    found = [jitter_of(f"schedule:a:{number}", 60) for number in range(500)]
    assert found == [jitter_of(f"schedule:a:{number}", 60) for number in range(500)]
    assert min(found) < 5
    assert 55 < max(found) < 60
