"""One daemon for each module, with the settings that the module names `SETTINGS`, if it does."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conformance.client import CLASSES, Client, Daemon, fresh_name, running


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Modules with `BOTH_WAYS` run twice: with plain HTTP/1.1 requests on the lane, and with hypercorn for all."""
    if getattr(metafunc.module, "BOTH_WAYS", False):
        metafunc.parametrize("http_lane", [True, False], ids=["lane", "hypercorn"], scope="module", indirect=True)


@pytest.fixture(scope="module", autouse=True)
def http_lane(request: pytest.FixtureRequest) -> Iterator[bool]:
    """True if the daemons of the test serve plain HTTP/1.1 requests on the lane."""
    lane: bool = getattr(request, "param", True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Daemon, "defaults", {"http_lane": int(lane)})
        yield lane


@pytest.fixture(scope="module")
def client(
    http_lane: bool, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Client]:
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
