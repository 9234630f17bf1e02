"""Fixtures for pytest: `windlass_inline` and `windlass_manual`, for the app that `windlass_app` gives.

Loaded by every pytest that finds Windlass installed, so it imports nothing of it before a fixture is asked for.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from windlass.app import Windlass
    from windlass.testing import Inline, Manual

SETTING = "windlass_app"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addini(SETTING, "the app whose jobs the fixtures of Windlass run, as module:name")


@pytest.fixture
def windlass_app(pytestconfig: pytest.Config) -> "Windlass":
    """The app under test, as the setting `windlass_app` names it. Define a fixture of this name to choose another."""
    from windlass.worker.contexts.zygote import load_app  # noqa: PLC0415

    target = pytestconfig.getini(SETTING)
    if not target:
        raise pytest.UsageError(f"say which app is meant: {SETTING} = module:name, or a fixture {SETTING}")
    app: Windlass = load_app(target)
    return app


@pytest.fixture
def windlass_inline(windlass_app: "Windlass") -> Iterator["Inline"]:
    """While the test runs, each job of the app runs as it is queued."""
    with windlass_app.testing.inline() as inline:
        yield inline


@pytest.fixture
def windlass_manual(windlass_app: "Windlass") -> Iterator["Manual"]:
    """While the test runs, jobs of the app are kept until the test runs them."""
    with windlass_app.testing.manual() as manual:
        yield manual
