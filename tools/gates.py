"""Gates on how the code reads: its words, its names, the size of the store's protocol, the path of one job.

`python -m tools.gates` checks all of them and lists every fault; `./dev check` runs it. Exceptions are listed here,
each with its reason.
"""

import ast
import re
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

from tools import walk

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src" / "windlass"
GLOSSARY = ROOT / "docs" / "glossary.md"

STORE = SOURCE / "store"

MOST_STORE_METHODS = 32

SIX, MOST_LINES_FIRST = 6, 1200
READ_FIRST = re.compile(r"\]\((src/windlass/[\w/]+\.py)\)")

MOST_SAME_NAMES = 10
TRIES = 8

SAME_NAMES: dict[str, str] = {
    "Connection": "each store has one; neither knows the other",
    "EventBus": "the same",
    "PreparedAdd": "the same",
    "Subscriber": "the same",
    "Job": "a user's handle of a job, and its record",
    "Fail": "a signal of Python tasks, and its twin in the bootstrap of functions, which imports nothing of ours",
    "Retry": "the same",
}
"""Class names that are defined more than once, and why."""

RETIRED = re.compile(r"^- `(?P<word>[^`]+)` → ", re.MULTILINE)

PROGRAMS = ("src", "bench", "tools")
"""Folders whose sentences are checked, too; tests only for names."""


def retired_words() -> tuple[list[str], list[str]]:
    """Names, and words of sentences, as docs/glossary.md lists them."""
    names, _, prose = GLOSSARY.read_text().partition("## Retired words")[2].partition("In prose:")
    return RETIRED.findall(names), RETIRED.findall(prose)


def texts() -> Iterator[Path]:
    """Every file that must not use a retired word. Decisions and the changelog may: they tell of the past."""
    for folder in (*PROGRAMS, "tests"):
        for ending in ("*.py", "*.lua", "*.sql", "*.js", "*.php", "*.sh"):
            yield from sorted((ROOT / folder).rglob(ending))
    yield from sorted(page for page in (ROOT / "docs").rglob("*.md") if "decisions" not in page.parts)
    yield from (ROOT / name for name in ("README.md", "ARCHITECTURE.md", "CONTRIBUTING.md"))


def words() -> Iterator[str]:
    # Behind a colon or a slash stands the name of a stored key or a topic: those stay as they are stored.
    names, prose = ("|".join(map(re.escape, some)) for some in retired_words())
    everywhere = re.compile(rf"(?<![A-Za-z:/])(?:{names})(?![A-Za-z])")
    in_programs = re.compile(rf"(?<![A-Za-z:/])(?:{names}|{prose})(?![A-Za-z])")
    for file in texts():
        if file in (GLOSSARY, Path(__file__)):
            continue
        pattern = everywhere if "tests" in file.relative_to(ROOT).parts else in_programs
        for number, line in enumerate(file.read_text().splitlines(), start=1):
            for found in pattern.finditer(line):
                yield f"{file.relative_to(ROOT)}:{number}: {found[0]!r} is retired: see docs/glossary.md"


def names() -> Iterator[str]:
    places = defaultdict(list)
    for file in sorted(SOURCE.rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places[node.name].append(file.relative_to(SOURCE).as_posix())
    same = {name: found for name, found in places.items() if len(found) > 1}
    for name, found in sorted(same.items()):
        if name not in SAME_NAMES:
            yield f"class {name} is defined {len(found)} times: {', '.join(found)}"
    for name in sorted(SAME_NAMES.keys() - same.keys()):
        yield f"tools/gates.py: class {name} is defined once now: remove it from the list"
    if len(SAME_NAMES) > MOST_SAME_NAMES:
        yield f"tools/gates.py: {len(SAME_NAMES)} names mean several things, {MOST_SAME_NAMES} are allowed"


def path() -> Iterator[str]:
    passed: dict[str, set[str]] = {}
    for _ in range(TRIES):  # periodic work beside the job may fall into a walk: a file of the path is in each of them
        for store, found in walk.walks():
            passed[store] = passed.get(store, set(found.files)) & set(found.files)
        if all(len(files) <= walk.MOST_FILES[store] for store, files in passed.items()):
            return
    for store, files in passed.items():
        if len(files) > walk.MOST_FILES[store]:
            yield f"one job passes through {len(files)} files on {store}, {walk.MOST_FILES[store]} are allowed"


def _is_method(node: ast.stmt) -> bool:
    """Whether a store must write a method for it; a property is an attribute."""
    return isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and not node.decorator_list


def _protocols() -> dict[str, ast.ClassDef]:
    return {
        node.name: node
        for file in sorted(STORE.glob("*.py"))
        for node in ast.parse(file.read_text()).body
        if isinstance(node, ast.ClassDef) and any(ast.unparse(base) == "Protocol" for base in node.bases)
    }


def _parts(protocol: ast.ClassDef) -> Iterator[str]:
    """What an implementation must have, by name: its attributes that cannot be null, and what its methods return."""
    for node in protocol.body:
        if isinstance(node, ast.AnnAssign):
            attribute = ast.unparse(node.annotation)
            yield from () if attribute.endswith("| None") else re.findall(r"\w+", attribute)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.returns is not None:
            yield from re.findall(r"\w+", ast.unparse(node.returns))


def store() -> Iterator[str]:
    """The methods that a new store must write. Capabilities that it may lack are attributes that may be null."""
    protocols = _protocols()
    required = ["Store"]
    for name in required:
        required += [part for part in _parts(protocols[name]) if part in protocols and part not in required]
    numbers = {name: sum(map(_is_method, protocol.body)) for name, protocol in protocols.items()}
    number = sum(numbers[name] for name in required)
    if number > MOST_STORE_METHODS:
        yield (
            f"a store must write {number} methods, {MOST_STORE_METHODS} are allowed"
            f" (besides {sum(numbers.values()) - number} of optional capabilities)"
        )


def six_files() -> Iterator[str]:
    """The files that ARCHITECTURE.md says to read first."""
    _, _, section = (ROOT / "ARCHITECTURE.md").read_text().partition("## What to read first")
    listed = READ_FIRST.findall(section.partition("Then one store")[0])
    lines = sum(len((ROOT / name).read_text().splitlines()) for name in listed)
    if len(listed) != SIX or lines > MOST_LINES_FIRST:
        yield f"{len(listed)} files to read first have {lines} lines; {SIX} with {MOST_LINES_FIRST} are allowed"


def main() -> int:
    faults = [fault for gate in (words, names, store, six_files, path) for fault in gate()]
    for fault in faults:
        print(fault)
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
