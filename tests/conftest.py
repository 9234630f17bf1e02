"""What every test may ask for. The servers have their own module."""

import signal

import pytest

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # As in the background of a shell: what tests start would inherit that, and some of it is to be interrupted.
    signal.signal(signal.SIGINT, signal.default_int_handler)

LONGEST = (
    "test_machine",
    "test_store_flow_walk",
    "test_live_load",
    "test_http_load",
    "test_journal_board",
    "test_vigil",
)
"""Modules with tests of many seconds. They begin, so that nobody waits for the last of them when all else is done."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: item.path.stem not in LONGEST)


pytest_plugins = ["tests.servers", "tests.worlds", "tests.engines", "tests.workers", "tests.serving", "tests.stations"]
