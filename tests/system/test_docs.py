"""What the pages say is true: their examples run, and what is made from the code is fresh."""

import re
import subprocess
import sys
from pathlib import Path

from tests.support.patience import PATIENCE
from tools.fresh import PAGES

ROOT = Path(__file__).parents[2]


def run(*command: str, cwd: Path) -> str:
    return subprocess.run(command, cwd=cwd, check=True, capture_output=True, text=True, timeout=PATIENCE).stdout


def test_the_start_in_the_readme_greets(tmp_path: Path) -> None:
    code = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)[0]
    (tmp_path / "shop.py").write_text(code)
    worker = subprocess.Popen([sys.executable, "-m", "windlass", "worker", "shop:app"], cwd=tmp_path)
    try:
        assert run(sys.executable, "shop.py", cwd=tmp_path) == "hello Ada, hello Ada\n"
        asked = run(sys.executable, "-m", "windlass", "enqueue", "greet", '["Bob"]', "--wait", cwd=tmp_path)
        assert asked == '"hello Bob"\n'
        assert "succeeded" in run(sys.executable, "-m", "windlass", "jobs", "ls", cwd=tmp_path)
    finally:
        worker.terminate()
        assert worker.wait(PATIENCE) == 0


def test_the_demonstration_runs_to_its_end(tmp_path: Path) -> None:
    said = run(sys.executable, str(ROOT / "examples" / "demo.py"), cwd=tmp_path)
    assert "in the end, render: 5 succeeded" in said
    assert "in the end, film: 1 cancelled" in said
    assert not list(tmp_path.iterdir()), "it leaves nothing behind"


def test_pages_made_from_the_code_are_fresh() -> None:
    for name, make in PAGES.items():
        assert (ROOT / name).read_text() == make(), f"{name} is out of date: run python -m tools.fresh"


def prose(page: Path) -> str:
    """A page without its code blocks."""
    return re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    titles = re.findall(r"^#+ (.*)$", prose(page), re.MULTILINE)
    return {re.sub(r"[^a-z0-9 _-]", "", title.lower()).replace(" ", "-") for title in titles}


def test_links_between_pages_lead_to_files_and_headings_that_exist() -> None:
    for page in (*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")):
        for link in re.findall(r"\]\((?!https?:)([^)\s]+)\)", prose(page)):
            path, _, heading = link.partition("#")
            target = page.parent / path if path else page
            assert target.exists(), f"{page.name} links to {link}"
            assert not heading or target.suffix != ".md" or heading in anchors(target), f"{page.name} links to {link}"


def test_every_function_that_the_architecture_names_exists() -> None:
    page = (ROOT / "ARCHITECTURE.md").read_text()
    named = re.findall(r"`((?:\w+/)*\w+\.(?:py|lua))::([\w.]+)`", page)
    assert len(named) > 50
    assert [f"{path}::{name}" for path, name in named if not defines(path, name)] == []


def defines(path: str, name: str) -> bool:
    """Whether a file has a function, or a class with such a method, of this name."""
    file = ROOT / "src" / "windlass" / path
    if not file.exists():
        return False
    text = file.read_text()
    if file.suffix == ".lua":
        return f"function {name}(" in text or f"\nregister('{name}'" in text
    kind, _, method = name.rpartition(".")
    if kind:
        text = re.split(rf"^class {kind}\b", text, maxsplit=1, flags=re.MULTILINE)[-1].partition("\nclass ")[0]
        return re.search(rf"^    (async )?def {method}\(", text, re.MULTILINE) is not None
    return re.search(rf"^((async )?def|class) {name}\b", text, re.MULTILINE) is not None
