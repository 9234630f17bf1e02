"""`.ci/run`: a test that failed among others gets one second try alone; real failures and crashes fail."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.patience import PATIENCE
from tools.second_try import MOST

ROOT = Path(__file__).parents[2]

GOOD = "def test_good():\n    pass\n"
FLAKY = """
from pathlib import Path
def test_flaky():
    mark = Path(__file__).with_name("was here")
    first = not mark.exists()
    mark.touch()
    assert not first
"""
BROKEN = "def test_broken():\n    assert False\n"
CRASH = FLAKY.replace("assert not first", "import os\n    if first:\n        os._exit(3)")
MANY = FLAKY.replace(
    "def test_flaky():", f"import pytest\n@pytest.mark.parametrize('n', range({MOST + 1}))\ndef test_flaky(n):"
).replace('"was here"', 'f"was here {n}"')
UNREADABLE = "import nothing_of_this_name\n"


def tried(folder: Path, *sources: str) -> subprocess.CompletedProcess[str]:
    (folder / "pytest.ini").write_text("[pytest]\n")
    for number, source in enumerate(sources):
        (folder / f"test_{number}.py").write_text(source)
    command = [
        sys.executable,
        "-m",
        "tools.second_try",
        sys.executable,
        "-m",
        "pytest",
        "-p",
        "xdist.plugin",
        "-n",
        "1",
    ]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    return subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=PATIENCE, check=False
    )


def test_what_fails_in_the_crowd_alone_passes_and_is_named_at_the_very_end(tmp_path: Path) -> None:
    done = tried(tmp_path, GOOD, FLAKY)
    assert done.returncode == 0, done.stdout
    *_, title, name, _ = done.stdout.splitlines()
    assert "passed only on a second try" in title
    assert name.endswith("test_1.py::test_flaky")
    assert "test_good" not in done.stdout.rpartition("once more, alone")[2]


@pytest.mark.parametrize("beside", [GOOD, FLAKY])
def test_what_fails_twice_fails(tmp_path: Path, beside: str) -> None:
    done = tried(tmp_path, BROKEN, beside)
    assert done.returncode == 1, done.stdout
    assert "once more, alone" in done.stdout
    assert "passed only" not in done.stdout


@pytest.mark.parametrize(("source", "status"), [(CRASH, {1}), (MANY, {1}), (UNREADABLE, {1, 2})])
def test_a_crash_or_an_error_or_many_failures_get_no_second_try(tmp_path: Path, source: str, status: set[int]) -> None:
    done = tried(tmp_path, source, GOOD)
    assert done.returncode in status, done.stdout
    assert "once more" not in done.stdout


def test_where_all_is_well_nothing_is_said(tmp_path: Path) -> None:
    done = tried(tmp_path, GOOD)
    assert (done.returncode, "try" in done.stdout) == (0, False)
