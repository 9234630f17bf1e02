"""Journals as text, and the commands for people: verify, dump, load, drain."""

import os
import subprocess
import sys
from pathlib import Path

import apsw
import msgspec
import pytest
from msgspec import Raw

from tests.support.faulty_disk import filled, journal_file, log_of, opened, overwrite, pages_of_batches
from tests.support.patience import PATIENCE
from tests.support.servers import Server
from windlass.engine.journal.text import Line, Malformed, read_text
from windlass.model.job import TEXT
from windlass.model.names import fresh_id
from windlass.model.new_job import NewJob
from windlass.store.data import Draft
from windlass.system import SystemRandomness


def windlass(*words: str, stdin: str = "", **environment: str) -> "subprocess.CompletedProcess[str]":
    settings = {name: value for name, value in os.environ.items() if not name.startswith("WINDLASS_")} | environment
    command = [sys.executable, "-m", "windlass", *words]
    return subprocess.run(
        command, input=stdin, capture_output=True, text=True, env=settings, check=False, timeout=PATIENCE
    )


TEXTS = """a1|thumb|{"n": 1}
a2|thumb|left|right||end
 a3|thumb|deleted
#:Batch date=2026-01-31T12:00:00Z,bytes=24,jobtype=mail
to: ada

# a remark
 deleted too
to: grace|hopper
#:EndBatch
no record at all
a4||empty
a5|thumb|
"""


def test_s3_item_10_both_forms_are_readable_and_a_payload_may_hold_the_separator() -> None:
    found = list(read_text(TEXTS))
    assert [line for line in found if isinstance(line, Line)] == [
        Line("a1", "thumb", '{"n": 1}'),
        Line("a2", "thumb", "left|right||end"),
        Line("", "mail", "to: ada"),
        Line("", "mail", "to: grace|hopper"),
        Line("a5", "thumb", ""),
    ]


def test_s3_item_8_a_torn_or_malformed_line_is_reported_and_skipped_and_the_rest_is_read() -> None:
    found = list(read_text(TEXTS + "a6|thumb|half of i"))
    assert [line.number for line in found if isinstance(line, Malformed)] == [11, 12, 14]
    assert "torn" in found[-1].why  # type: ignore[union-attr]
    unended = list(read_text("#:Batch jobtype=a\none\n#:Batch jobtype=b\ntwo\n"))
    assert [line for line in unended if isinstance(line, Line)] == [Line("", "a", "one"), Line("", "b", "two")]
    assert [line.number for line in unended if isinstance(line, Malformed)] == [1, 3]


def test_the_lines_of_a_batch_that_does_not_say_its_jobtype_are_not_taken_for_records() -> None:
    found = list(read_text("#:Batch date=1\na|mail|c\n#:EndBatch\nb|mail|d\n"))
    assert found == [
        Malformed(1, "this batch does not say its jobtype: it is skipped"),
        Line("b", "mail", "d"),
    ]


def test_a_line_that_is_no_text_is_reported_and_not_changed(tmp_path: Path) -> None:
    (tmp_path / "text").write_bytes("a|mail|ä\n".encode() + b"b|mail|\xff\xfe\n")
    loaded = windlass("journal", "load", str(tmp_path / "text"), "--store", str(tmp_path / "jobs.db"))
    assert (loaded.returncode, loaded.stdout) == (1, "1 new job of 1\n")
    assert "line 2: not a text in UTF-8" in loaded.stderr


def test_a_folder_without_a_journal_is_not_a_sound_one(tmp_path: Path) -> None:
    for command, folder in (("verify", tmp_path), ("dump", tmp_path), ("verify", tmp_path / "absent")):
        refused = windlass("journal", command, str(folder))
        assert (refused.returncode, refused.stdout) == (3, "")
        assert f"there is no journal in {folder}: name the folder" in refused.stderr
    (tmp_path / "file").touch()
    assert "is a file" in windlass("journal", "verify", str(tmp_path / "file")).stderr


@pytest.mark.parametrize("store", ["file", "redis"])
def test_a_text_is_loaded_once_however_often_it_is_sent(store: str, tmp_path: Path, redis_server: Server) -> None:
    address = str(tmp_path / "jobs.db") if store == "file" else redis_server.url
    file, tenant = tmp_path / "text", f"text-{store}"
    file.write_text(TEXTS)
    place = ("--store", address, "--tenant", tenant)
    first = windlass("journal", "load", str(file), *place)
    assert (first.returncode, first.stdout) == (1, "5 new jobs of 5\n")
    assert "line 11: not of the form" in first.stderr
    again = windlass("journal", "load", "-", *place, stdin="a1|thumb|{}\na9|thumb|new\n")
    assert (again.returncode, again.stdout) == (0, "1 new job of 2\n"), again.stderr
    listed = windlass("jobs", "ls", "--json", *place)
    jobs = [msgspec.json.decode(line) for line in listed.stdout.splitlines()]
    assert sorted(job["task"] for job in jobs) == ["mail", "mail", "thumb", "thumb", "thumb", "thumb"]
    assert {job["content_type"] for job in jobs} == {TEXT}


async def text_journal(folder: Path) -> list[str]:
    payloads = ["plain", "a|b|c", " begins with a blank", "# looks like a remark", "two\nlines", "ünï"]
    journal = opened(folder)
    for payload in payloads:
        new = NewJob(task="mail", payload=Raw(payload.encode()), content_type=TEXT)
        await journal.accept([Draft("shop", fresh_id(SystemRandomness().uuid7(), "default"), new)])
    await journal.close()
    return payloads


@pytest.mark.parametrize("form", ["records", "batches"])
async def test_what_is_dumped_can_be_loaded(form: str, tmp_path: Path) -> None:
    payloads = await text_journal(tmp_path)
    dumped = windlass("journal", "dump", str(tmp_path), "--form", form)
    assert dumped.returncode == 0
    lines = list(read_text(dumped.stdout))
    assert {line.jobtype for line in lines if isinstance(line, Line)} == {"mail"}
    said = [line.payload for line in lines if isinstance(line, Line)]
    assert len(said) == len(payloads)
    for read, written in zip(said, payloads, strict=True):
        assert read == written or msgspec.json.decode(read) == written


async def test_what_is_dumped_in_json_says_everything(tmp_path: Path) -> None:
    await text_journal(tmp_path)
    dumped = windlass("journal", "dump", str(tmp_path))
    jobs = [msgspec.json.decode(line) for line in dumped.stdout.splitlines()]
    assert [job["sequence"] for job in jobs] == [1, 2, 3, 4, 5, 6]
    assert {(job["tenant"], job["task"], job["queue"]) for job in jobs} == {("shop", "mail", "default")}


async def test_verify_reports_damage_with_its_numbers_and_changes_nothing(tmp_path: Path) -> None:
    await filled(tmp_path, 60, size=1000)
    sound = windlass("journal", "verify", str(tmp_path))
    assert (sound.returncode, sound.stdout) == (0, f"{tmp_path}: 60 jobs (1 to 60) in 60 batches\n")
    sound_dump = windlass("journal", "dump", str(tmp_path))
    path = journal_file(tmp_path)
    overwrite(path, pages_of_batches(path)[1])
    before = path.read_bytes()
    broken = windlass("journal", "verify", str(tmp_path))
    assert broken.returncode == 1
    assert "are lost" in broken.stdout
    found = msgspec.json.decode(windlass("journal", "verify", "--json", str(tmp_path)).stdout)
    assert (found["damaged"], found["jobs"] + found["lost"], found["last"]) == (True, 60, 60)
    dumped = windlass("journal", "dump", str(tmp_path))
    assert dumped.stdout.count("\n") == found["jobs"], "what can be read is dumped"
    assert "are lost" in dumped.stderr
    assert (sound_dump.returncode, dumped.returncode) == (0, 1)
    assert path.read_bytes() == before
    assert windlass("journal", "verify", str(tmp_path / "nowhere")).returncode == 3


async def test_a_dump_names_the_jobs_that_it_cannot_read(tmp_path: Path) -> None:
    await filled(tmp_path, 3)
    sql = apsw.Connection(str(journal_file(tmp_path)))
    sql.execute("UPDATE batches SET body = x'c1' WHERE first = 2")
    sql.close()
    for form in ("json", "records", "batches"):
        dumped = windlass("journal", "dump", str(tmp_path), "--form", form)
        assert (dumped.returncode, "job 2 cannot be read" in dumped.stderr) == (1, True), form
        assert "work" in dumped.stdout


async def test_a_journal_that_this_user_may_not_read_is_named_in_one_line(tmp_path: Path) -> None:
    await filled(tmp_path, 3)
    log_of(tmp_path).mkdir()  # root may read everything, but no folder
    for command in ("verify", "dump"):
        refused = windlass("journal", command, str(tmp_path))
        assert (refused.returncode, refused.stdout) == (2, "")
        assert refused.stderr.count("\n") == 1
        assert f"{log_of(tmp_path)} cannot be read" in refused.stderr


async def test_a_journal_of_a_machine_that_is_gone_is_drained_by_hand(tmp_path: Path, redis_server: Server) -> None:
    payloads = await text_journal(tmp_path)
    place = ("--store", redis_server.url)
    drained = windlass("journal", "drain", str(tmp_path), *place)
    assert drained.stdout == f"{tmp_path}: {len(payloads)} jobs drained\n", drained.stderr
    assert windlass("journal", "drain", str(tmp_path), *place).stdout == f"{tmp_path}: 0 jobs drained\n"
    count = windlass("jobs", "ls", "--json", "--tenant", "shop", *place).stdout.count("\n")
    assert count == len(payloads)


APP = """
import asyncio, sys
from windlass import Windlass
app = Windlass(store=sys.argv[1], journal=sys.argv[2], tenant=sys.argv[3])

@app.task
def add(a: int, b: int) -> int:
    return a + b

job = add.enqueue(1, 2)
assert job.state == "queued", job.state
assert len(add.map([(n, n) for n in range(50)])) == 50

async def more() -> None:
    jobs = await asyncio.gather(*(add.aenqueue(n, n) for n in range(20)))
    assert (await jobs[3].arefresh()).state == "queued"

asyncio.run(more())
app.close()
"""


def test_python_code_may_have_a_journal(tmp_path: Path, redis_server: Server) -> None:
    (tmp_path / "app.py").write_text(APP)
    command = [sys.executable, "app.py", redis_server.url, str(tmp_path / "journal"), "withjournal"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=PATIENCE)
    assert done.returncode == 0, done.stderr
    verified = windlass("journal", "verify", "--json", str(tmp_path / "journal"))
    assert msgspec.json.decode(verified.stdout)["jobs"] == 71
    jobs = windlass("jobs", "ls", "--json", "--store", redis_server.url, "--tenant", "withjournal")
    assert jobs.stdout.count("\n") == 71
