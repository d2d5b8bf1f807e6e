"""A connection with HTTP/2."""

from __future__ import annotations

import pytest

from tests.conformance.client import Client


@pytest.fixture(params=[False, True], ids=["h1", "h2"])
def http2(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


@pytest.fixture(scope="module")
def crowd(client: Client) -> list[str]:
    """257 topics with names as long as names can be."""
    names = [f"crowd-{number:03}-".ljust(255, "x") for number in range(257)]
    for name in names:
        client.append(name, "first")
    return names
