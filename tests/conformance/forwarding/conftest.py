"""A pair of topics that a router joins, and the durability of each."""

from __future__ import annotations

import pytest

from tests.conformance.client import CLASSES, Client
from tests.conformance.router_pairs import Pair, paired


@pytest.fixture
def pair(client: Client) -> Pair:
    return paired(client)


@pytest.fixture(params=CLASSES, ids=lambda name: f"into-{name}")
def dest_class(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(params=CLASSES, ids=lambda name: f"from-{name}")
def source_class(request: pytest.FixtureRequest) -> str:
    return str(request.param)
