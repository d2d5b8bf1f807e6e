"""One browser for all tests of this directory, which is gone when they are; for each test a wire to its daemon."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.browser.chromium import Browser
from tests.browser.wire import Wire, wire_to
from tests.conformance.client import Client, fresh_name, running


@pytest.fixture(scope="package")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    browser = Browser(tmp_path_factory.mktemp("browser") / "home")
    try:
        yield browser
    finally:
        browser.end()


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    with running(tmp_path_factory.mktemp("daemon")) as client:
        yield client


@pytest.fixture
def wire(client: Client) -> Iterator[Wire]:
    with wire_to(lambda: client.daemon.port) as wire:
        yield wire


@pytest.fixture
def topic() -> str:
    """A name that no topic has yet."""
    return fresh_name()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A browser is not for the quick part."""
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.slow)
