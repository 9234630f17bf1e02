"""What every test may ask for. The servers have their own module."""

import importlib
import signal
from pathlib import Path

import pytest

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # As in the background of a shell: what tests start would inherit that, and some of it is to be interrupted.
    signal.signal(signal.SIGINT, signal.default_int_handler)

LONGEST = (
    "test_walk_against_model",
    "test_flow_walk_against_model",
    "test_live_load",
    "test_load",
    "test_scoreboard",
    "test_reclaim_guard",
    "test_killed_schedulers",
    "test_steps",
    "test_blueque",
)
"""Modules with tests of many seconds. They come first, so that no long test is left when all others are done."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: item.path.stem not in LONGEST)


def pytest_sessionstart(session: pytest.Session) -> None:
    """Before a whole run, each of its processes imports a share of the tests.

    All processes need all modules. In a new clone each would compile all of them at the same moment; so each compiles
    a share first, and finds the others' bytecode when it collects.
    """
    share: dict[str, str | int] | None = getattr(session.config, "workerinput", None)
    if share is None or session.config.args_source is not pytest.Config.ArgsSource.TESTPATHS:
        return
    here = Path(__file__).parent
    modules = sorted(here.glob("*/test_*.py"))
    for module in modules[int(str(share["workerid"]).removeprefix("gw")) :: int(share["workercount"])]:
        importlib.import_module(f"tests.{module.parent.name}.{module.stem}")


pytest_plugins = [
    "tests.support.servers",
    "tests.support.stores",
    "tests.support.engines",
    "tests.support.worker_harness",
    "tests.support.blueque_clients",
    "tests.support.http_servers",
    "tests.support.push_servers",
    "tests.support.dashboards",
]
