"""A connection with HTTP/2."""

from __future__ import annotations

import pytest


@pytest.fixture(params=[False, True], ids=["h1", "h2"])
def http2(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)
