"""One daemon for each module that drives it through the command line."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.cli.canned import CannedDaemon, InProcess, canned_daemon
from tests.cli.command_line import CommandLine
from tests.client.ports import free_port
from tests.conformance.client import Client, Daemon, fresh_name


@pytest.fixture(scope="module")
def daemon(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    """With the settings that the module names `SETTINGS`, if it does; on a port that stays when it is restarted."""
    daemon = Daemon(tmp_path_factory.mktemp("daemon"), port=free_port(), **getattr(request.module, "SETTINGS", {}))
    try:
        daemon.start().close()
        yield daemon
    finally:
        daemon.kill()


@pytest.fixture
def client(daemon: Daemon) -> Iterator[Client]:
    """What looks at the daemon beside the commands."""
    with Client(daemon) as client:
        yield client


@pytest.fixture
def topic() -> str:
    """A name that no topic has yet."""
    return fresh_name()


@pytest.fixture
def topics(daemon: Daemon) -> CommandLine:
    """`topics(*arguments)` runs a command against the daemon to its end."""
    return CommandLine(TOPICS_URL=daemon.url)


@pytest.fixture
def canned() -> Iterator[CannedDaemon]:
    """A daemon that gives the answers it was told to give."""
    with canned_daemon() as daemon:
        yield daemon


@pytest.fixture
def here(canned: CannedDaemon, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> InProcess:
    """`here(*arguments)` runs a command in this process against the canned daemon: quick, and seen by coverage."""
    monkeypatch.setenv("TOPICS_URL", canned.url)
    monkeypatch.delenv("TOPICS_TOKEN", raising=False)
    return InProcess(canned, capsys)
