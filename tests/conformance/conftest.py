"""One daemon for each module, with the settings that the module names `SETTINGS`, if it does."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conformance.client import CLASSES, Client, fresh_name, running


@pytest.fixture(scope="module")
def client(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    settings = getattr(request.module, "SETTINGS", {})
    with running(tmp_path_factory.mktemp("daemon"), **settings) as client:
        yield client


@pytest.fixture
def topic() -> str:
    """A name that no topic has yet."""
    return fresh_name()


@pytest.fixture(params=CLASSES)
def durability(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The whole contract against real daemons takes over a minute: not for the quick part."""
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.slow)
