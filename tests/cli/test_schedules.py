"""`windlass schedules`."""

import json

from tests.support.worker_harness import WorkerHarness


def test_schedules_are_made_shown_paused_run_and_removed(harness: WorkerHarness) -> None:
    def ok(*words: str) -> str:
        done = harness.run("schedules", *words, "--tenant", harness.tenant)
        assert done.returncode == 0, done.stderr
        return done.stdout + done.stderr

    ok("set", "nightly", "add", "[1, 2]", "--cron", "0 3 * * *", "--tz", "Europe/Rome", "-q", "night")
    ok("set", "often", "add", "[1, 2]", "--every", "90s", "--overlap", "queue")
    table = ok("ls")
    assert "0 3 * * * Europe/Rome" in table
    assert "every 1 min 30 s" in table
    shown = ok("show", "nightly")
    assert shown.count("  next  ") == 5
    assert "paused" in ok("pause", "nightly", "--for", "2h", "--why", "the bank is down")
    assert "the bank is down" in ok("show", "nightly")
    ok("resume", "nightly")
    id = ok("run", "nightly").strip()
    assert id in ok("show", "nightly")
    (card,) = [one for one in json.loads(ok("ls", "--json")) if one["name"] == "nightly"]
    assert (card["job"]["queue"], card["runs"][0]["job"]) == ("night", id)
    ok("rm", "nightly")
    ok("rm", "often")
    assert "no schedules" in ok("ls")


def test_what_cannot_be_a_schedule_is_one_clear_error(harness: WorkerHarness) -> None:
    def refused(*words: str) -> str:
        done = harness.run("schedules", *words)
        assert done.returncode in (2, 3)
        assert done.stderr.count("\n") == 1
        return done.stderr

    assert "either cron or every" in refused("set", "s", "add")
    assert "no cron expression" in refused("set", "s", "add", "--cron", "0 3 * *")
    assert "no time zone 'Rome'" in refused("set", "s", "add", "--cron", "0 3 * * *", "--tz", "Rome")
    assert "there is no schedule 'nope'" in refused("show", "nope")
