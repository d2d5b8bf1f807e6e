"""Daemons for the recipes, and a directory to run them in."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.client.ports import free_port
from tests.conformance.client import Daemon, fresh_name
from tests.end_to_end.recipes.terminals import Place
from topics.client import Client


@pytest.fixture(scope="module")
def two_daemons(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Daemon]]:
    """Their ports stay when they are killed and started again."""
    with ExitStack() as stack:
        daemons = [Daemon(tmp_path_factory.mktemp("daemon"), port=free_port()) for _ in range(2)]
        for daemon in daemons:
            stack.callback(daemon.kill)
            daemon.start().close()
        yield daemons


@pytest.fixture
def daemons(two_daemons: list[Daemon]) -> list[Daemon]:
    """Two of them, as if they were new."""
    for daemon in two_daemons:
        with Client(daemon.url) as client:
            for found in client.list_all():
                client.delete_topic(found.topic)
    return two_daemons


@pytest.fixture
def daemon(daemons: list[Daemon]) -> Daemon:
    return daemons[0]


@pytest.fixture
def open_place(tmp_path: Path) -> Iterator[Callable[..., Place]]:
    """`open_place(title, url)`: the directory of a recipe."""
    with ExitStack() as stack:

        def opened(title: str, url: str, **environ: str) -> Place:
            root = tmp_path / fresh_name("place")
            root.mkdir()
            return stack.enter_context(Place(root, title, TOPICS_URL=url, **environ))

        yield opened
