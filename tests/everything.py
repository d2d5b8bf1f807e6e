"""Whether a run is to leave nothing out, however long that takes: TOPICS_TEST_EVERYTHING=1 in the environment."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any, Final

import pytest

EVERYTHING_VARIABLE: Final = "TOPICS_TEST_EVERYTHING"
EVERYTHING: Final = bool(os.environ.get(EVERYTHING_VARIABLE))


def slow_after(quick: int, values: Iterable[Any]) -> list[Any]:
    """Parameters of a test: the first ones are in the quick tests, those behind them are slow."""
    return [value if i < quick else pytest.param(value, marks=pytest.mark.slow) for i, value in enumerate(values)]
