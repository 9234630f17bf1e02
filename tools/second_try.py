"""Runs the tests; a few that failed among all the others get one second try, alone.

`python -m tools.second_try COMMAND...`: the command runs pytest, with whatever is put behind it. A crash, an error
before the tests began, or more failures than a handful fail at once. What passed only on a second try is listed at the
very end: each is a bug to find.
"""

import json
import subprocess
import sys
import tempfile
from pathlib import Path

MOST = 5
"""Failures that may be chance; more of them are not."""

FAILED = 1
"""How pytest ends when tests failed; anything else is no matter of luck."""

LAST_FAILED = Path(".pytest_cache/v/cache/lastfailed")


def main(command: list[str]) -> int:
    LAST_FAILED.unlink(missing_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder, "report.xml")
        status = subprocess.run([*command, f"--junitxml={report}"], check=False).returncode
        if status != FAILED or not report.exists():
            return status
        crashed = "crashed while running" in report.read_text(errors="replace")
    failed = sorted(json.loads(LAST_FAILED.read_text())) if LAST_FAILED.exists() else []
    if crashed or not 0 < len(failed) <= MOST or not all("::" in test for test in failed):
        return status
    say(f"{len(failed)} failed; once more, alone")
    alone = ["-n", "0", "--last-failed", "--last-failed-no-failures", "none"]
    status = subprocess.run([*command, *alone], check=False).returncode
    if status == 0:
        say("!" * 80)
        say("!! passed only on a second try (each of these is a bug to find):")
        for test in failed:
            say(f"!!   {test}")
        say("!" * 80)
    return status


def say(text: str) -> None:
    print(text, flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
