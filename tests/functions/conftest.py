"""Workers in these tests run handlers."""

import pytest


@pytest.fixture
def handlers() -> bool:
    return True
