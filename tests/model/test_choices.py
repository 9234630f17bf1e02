"""Where a field is one of a few words, whoever sends another one is told them, and which field is meant."""

from typing import Annotated, Any

import pytest
from msgspec import Meta

from windlass.config import combine
from windlass.model import wire
from windlass.model.errors import Invalid
from windlass.model.handler import NewHandler
from windlass.model.match import Match
from windlass.model.new_job import NewJob
from windlass.model.operations import AddToken, Finished
from windlass.model.queue import QueueChange
from windlass.model.wire import choices
from windlass.server import bodies

WRONG: list[tuple[type[Any], dict[str, Any], str, str]] = [
    (NewHandler, {"lang": "perl", "body": "x"}, "lang", "'perl' is none of: python, node, php, sh, http"),
    (QueueChange, {"policy": "mine"}, "policy", "'mine' is none of: priority, fair"),
    (NewJob, {"task": "work", "on_lost": "inherit"}, "on_lost", "'inherit' is none of: retry, requeue, fail, adopt"),
    (QueueChange, {"on_lost": "cry"}, "on_lost", "'cry' is none of: retry, requeue, fail, adopt"),
    (NewJob, {"task": "a", "keep_result": "no"}, "keep_result", "'no' is none of: keep, once, none"),
    (NewJob, {"task": "a", "then": {"task": "b", "keep_result": "no"}}, "then.keep_result", "'no' is none of: keep,"),
    (NewJob, {"task": "a", "retry": {"anchor": "middle"}}, "retry.anchor", "'middle' is none of: end, start"),
    (Match, {"state": ["queued", "lost"]}, "state[1]", "'lost' is none of: blocked, scheduled, queued, running,"),
    (AddToken, {"scopes": ["sing"]}, "scopes[0]", "'sing' is none of: enqueue, work, read, operate, admin"),
]

REPORTS = Annotated[list[Finished], Meta(max_length=1000)]


@pytest.mark.parametrize("form", ["json", "msgpack"])
@pytest.mark.parametrize(("kind", "sent", "at", "said"), WRONG)
def test_a_word_that_is_no_choice_is_answered_with_those_that_are(
    kind: type[Any], sent: dict[str, Any], at: str, said: str, form: wire.Format
) -> None:
    with pytest.raises(Invalid) as caught:
        wire.decode(wire.encode(sent, form), kind, form)
    assert caught.value.at == at
    assert caught.value.detail.startswith(said)


def test_in_a_list_the_place_is_named() -> None:
    with pytest.raises(Invalid, match="is none of: keep, once, none") as caught:
        wire.decode(b'[{"task": "a"}, {"task": "b", "keep_result": "x"}]', list[NewJob], "json")
    assert caught.value.at == "[1].keep_result"


def test_in_a_body_with_many_reports_too() -> None:
    with pytest.raises(Invalid, match="'fine' is none of: ok, failed, retry, error") as caught:
        bodies.decode(b'[{"id": "a", "token": "b", "outcome": "fine"}]', REPORTS, "json")
    assert caught.value.at == "[0].outcome"


@pytest.mark.parametrize(
    ("kind", "path"), [(NewJob, "nowhere.at[0].all"), (NewJob, "task"), ("nothing", ""), (None, "x")]
)
def test_where_it_is_not_a_matter_of_words_there_are_none(kind: Any, path: str) -> None:
    assert choices(kind, path) == []


def test_a_setting_says_what_it_may_be() -> None:
    with pytest.raises(Invalid, match="'none' is none of: limits, confined, isolated"):
        combine("", {"WINDLASS_WORKER_SANDBOX": "none"}, {})


@pytest.mark.parametrize("form", ["json", "msgpack"])
def test_what_is_incomplete_is_refused_in_plain_words(form: wire.Format) -> None:
    whole = wire.encode(NewHandler(lang="sh", body="cat"), form)
    for part in (b"", whole[:-1]):
        with pytest.raises(Invalid) as fault:
            wire.decode(part, NewHandler, form)
        assert "empty, or ends too soon" in str(fault.value)
