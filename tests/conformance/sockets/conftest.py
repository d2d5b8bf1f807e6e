"""An open WebSocket."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.conformance.client import Client
from tests.conformance.websocket import WebSocket


@pytest.fixture
def ws(client: Client) -> Iterator[WebSocket]:
    with WebSocket(client) as opened:
        yield opened
