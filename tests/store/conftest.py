"""Tests of stores run on every kind of them, each time."""

import pytest

from tests.support.stores import STORES, StoreKind


@pytest.fixture(params=STORES)
def kind(request: pytest.FixtureRequest) -> StoreKind:
    found: StoreKind = request.param
    return found
