"""What every test may ask for. The servers have their own module."""

import signal

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
)
"""Modules with tests of many seconds. They begin, so that nobody waits for the last of them when all else is done."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: item.path.stem not in LONGEST)


pytest_plugins = [
    "tests.support.servers",
    "tests.support.stores",
    "tests.support.engines",
    "tests.support.worker_harness",
    "tests.support.http_servers",
    "tests.support.push_servers",
]
