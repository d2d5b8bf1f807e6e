"""An engine, and watchers of its topics."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
import trio

from tests.engine.delivery.client import Streams
from tests.engine.life import Life, living


@pytest.fixture
async def life(autojump_clock: Any) -> AsyncIterator[Life]:
    async with living() as one:
        yield one


@pytest.fixture
async def streams(life: Life, nursery: trio.Nursery) -> Streams:
    return Streams(life, nursery)
