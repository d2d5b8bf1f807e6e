"""Names of topics and routers that are not there yet."""

from __future__ import annotations

import pytest

from tests.conformance.client import fresh_name


@pytest.fixture
def source() -> str:
    """A name that no topic has yet."""
    return fresh_name("source")


@pytest.fixture
def dest() -> str:
    """A name that no topic has yet."""
    return fresh_name("dest")


@pytest.fixture
def router() -> str:
    """A name that no router has yet."""
    return fresh_name("router")
