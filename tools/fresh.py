"""Pages that are made from the code: `python -m tools.fresh` writes them, `--check` says which are out of date."""

import sys
from collections.abc import Callable
from pathlib import Path

from tools.commands import commands
from tools.routes import routes
from windlass.model.job import FINISHED, State
from windlass.model.lifecycle import GONE, TABLE

ROOT = Path(__file__).parent.parent


def lifecycle() -> str:
    """The drawing of the lifecycle, from its table."""
    lines = [
        "# Lifecycle of a job",
        "",
        "Generated from `model/lifecycle.py` by `python -m tools.fresh`; do not edit. That module explains the steps.",
        "",
        "```mermaid",
        "stateDiagram-v2",
        "    direction LR",
        "    [*] --> queued: add",
        "    [*] --> scheduled: add with a delay",
        "    [*] --> blocked: add after other jobs",
    ]
    edges: dict[tuple[str, str], list[str]] = {}
    for (state, step), target in TABLE.items():
        edges.setdefault((state, "[*]" if target == GONE else target), []).append(step)
    lines += [f"    {source} --> {target}: {', '.join(steps)}" for (source, target), steps in edges.items()]
    lines += ["```", "", "| from | step | to |", "|---|---|---|"]
    lines += [f"| {state} | {step} | {target} |" for (state, step), target in TABLE.items()]
    pending = ", ".join(state for state in State if state not in FINISHED)
    finished = ", ".join(state for state in State if state in FINISHED)
    lines += ["", f"Pending: {pending}. Finished: {finished}.", ""]
    return "\n".join(lines)


PAGES: dict[str, Callable[[], str]] = {
    "docs/commands.md": commands,
    "docs/lifecycle.md": lifecycle,
    "docs/routes.md": routes,
}


def main() -> int:
    stale = [name for name, make in PAGES.items() if not (ROOT / name).exists() or (ROOT / name).read_text() != make()]
    if "--check" in sys.argv:
        for name in stale:
            print(f"{name} is out of date: run ./dev run python -m tools.fresh", file=sys.stderr)
        return bool(stale)
    for name in stale:
        (ROOT / name).write_text(PAGES[name]())
        print(f"wrote {name}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
