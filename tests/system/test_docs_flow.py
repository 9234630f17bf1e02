"""The page on flow control is true: its commands and its Python run as they stand, and its pictures are there."""

import re
import shlex
from pathlib import Path

import pytest

from tests.system.test_docs import ROOT
from windlass import Windlass
from windlass.cli import run
from windlass.model.new_job import NewJob
from windlass.model.operations import Claim, Enqueue, GetLimit, Limits, Queues, Register
from windlass.model.worker import NewWorker

PAGE = (ROOT / "docs" / "flow.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)


@pytest.fixture
def app(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Windlass:
    """An app on `./windlass.db`, where its commands look too."""
    monkeypatch.chdir(tmp_path)
    return Windlass()


def test_the_commands_of_the_page_work_as_they_stand(app: Windlass, capsys: pytest.CaptureFixture[str]) -> None:
    id = app.ask(Enqueue(job=NewJob(task="plot"))).id
    worker = app.ask(Register(worker=NewWorker(name="w"))).worker
    assert [claimed.job.id for claimed in app.ask(Claim(worker=worker))] == [id]
    app.close()
    lines = [line for block in blocks("sh") for line in block.splitlines() if line.startswith("windlass ")]
    assert len(lines) > 10
    for line in lines:
        words = shlex.split(line, comments=True)[1:]
        assert run([id if word == "ID" else word for word in words]) == 0, f"{line}: {capsys.readouterr().err}"
    assert {limit.name for limit in app.ask(Limits())} == {"mailer", "api"}
    queues = {card.queue: card for card in app.ask(Queues())}
    assert [tier.name for tier in queues["web"].tiers] == ["fast", "medium", "slow"]
    assert not queues["mail"].paused
    app.close()


def test_the_limit_in_python_is_the_one_on_the_command_line(app: Windlass) -> None:
    (code,) = [block for block in blocks("python") if "limits.set" in block]
    exec(compile(code, "flow.md", "exec"), {"app": app})  # noqa: S102 - our own page
    made = app.ask(GetLimit(name="api"))
    app.close()
    assert made.rate is not None
    assert (made.rate.count, made.rate.per, made.key, made.match.task) == (100, 60, "payload.customer", "call_api")


def test_each_part_has_a_picture_with_a_description() -> None:
    for part in ("limits", "fairness", "tiers", "estimates"):
        assert f"(pictures/{part}.svg)" in PAGE
        drawn = (ROOT / "docs" / "pictures" / f"{part}.svg").read_text()
        assert re.search(r'role="img" aria-label="[^"]{10,}"', drawn)


def test_links_inside_the_page_lead_somewhere() -> None:
    titles = re.findall(r"^#+ (.*)$", PAGE, re.MULTILINE)
    headings = {re.sub(r"[^a-z -]", "", title.lower()).replace(" ", "-") for title in titles}
    for target in re.findall(r"\]\(#([^)]+)\)", PAGE):
        assert target in headings
