"""Jobs that were looked at once are not looked at again, unless less is allowed where they come to."""

import pytest
from msgspec import Raw

from windlass.model.admission import ValidatedJobs, check_all
from windlass.model.errors import Invalid, TooLarge
from windlass.model.new_job import NewJob

SMALL, LARGE = 10, 100


def at(place: int) -> str:
    return f"jobs[{place}]"


def test_jobs_that_were_looked_at_are_taken_as_they_are() -> None:
    sound = check_all([NewJob(task="a"), NewJob(task="b")], LARGE, at)
    assert check_all(sound, LARGE, at) is sound


def test_part_of_them_is_as_sound_as_all() -> None:
    part = check_all([NewJob(task="a"), NewJob(task="b")], LARGE, at).part(1, 2)
    assert check_all(part, LARGE, at) is part
    assert [new.task for new in part] == ["b"]


def test_where_less_is_allowed_they_are_looked_at_again() -> None:
    sound = check_all([NewJob(task="a", payload=Raw(b'"' + b"x" * 20 + b'"'))], LARGE, at)
    with pytest.raises(TooLarge) as refused:
        check_all(sound, SMALL, at)
    assert refused.value.at == "jobs[0].payload"


def test_a_list_that_was_not_checked_is_checked() -> None:
    assert isinstance(check_all([NewJob(task="a")], LARGE, at), ValidatedJobs)
    with pytest.raises(Invalid):
        check_all([NewJob(task="not a name")], LARGE, at)
