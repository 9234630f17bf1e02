"""Type checkers see what users write: the right things pass, each wrong one is refused, in the very line."""

import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

SOURCES = sorted(path for path in (Path(__file__).parent / "typing").glob("*.py") if path.name != "__init__.py")
IGNORED = re.compile(r"  # (type: ignore|pyright: ignore)\[[^]]*\]")

PYRIGHT = {
    "typeCheckingMode": "strict",
    "enableTypeIgnoreComments": False,
    "reportUnnecessaryTypeIgnoreComment": True,
    "reportUnusedCoroutine": False,
    "reportUnusedExpression": False,
    "reportUnknownMemberType": False,
    "reportAny": False,
    "reportExplicitAny": False,
    "reportUnusedCallResult": False,
    "pythonPlatform": "Linux",
}

Refused = set[int]


def mypy(source: Path) -> Refused:
    """The lines that it refuses."""
    folder = source.parent
    program = [sys.executable, "-m", "mypy", "--strict", "--no-error-summary", "--no-incremental", "--no-pretty"]
    ran = subprocess.run(
        [*program, "--config-file=", source.name], cwd=folder, capture_output=True, text=True, timeout=100, check=False
    )
    assert ran.returncode in (0, 1), ran.stdout + ran.stderr
    return {int(line) for line in re.findall(rf"^{source.name}:(\d+): error", ran.stdout, re.MULTILINE)}


def basedpyright(source: Path) -> Refused:
    """The same."""
    folder = source.parent
    settings = PYRIGHT | {"include": [source.name], "pythonVersion": f"3.{sys.version_info.minor}"}
    (folder / "pyrightconfig.json").write_text(json.dumps(settings))
    ran = subprocess.run(
        [sys.executable, "-m", "basedpyright", "--outputjson", "--pythonpath", sys.executable],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    told = json.loads(ran.stdout)
    assert told["summary"]["filesAnalyzed"] == 1, ran.stdout
    refusals = [one for one in told["generalDiagnostics"] if one["severity"] == "error"]
    return {one["range"]["start"]["line"] + 1 for one in refusals}


@pytest.mark.parametrize("check", [mypy, basedpyright])
@pytest.mark.parametrize("source", SOURCES, ids=lambda path: path.stem)
def test_exactly_the_lines_that_say_so_are_refused(
    tmp_path: Path, source: Path, check: Callable[[Path], Refused]
) -> None:
    lines = source.read_text().splitlines()
    wrong = {number for number, line in enumerate(lines, start=1) if IGNORED.search(line)}
    assert len(wrong) > 10
    bare = tmp_path / "bare.py"
    bare.write_text("\n".join(IGNORED.sub("", line) for line in lines))
    assert check(bare) == wrong
