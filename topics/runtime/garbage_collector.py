"""Python's garbage collector, told what the daemon is doing."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

YOUNG_OBJECTS: Final = 100_000
"""Objects that are made between two collections while a start builds what will stay; 2,000 collections of 700 each
would look at the same million objects again and again."""


@contextmanager
def building() -> Iterator[None]:
    """Collect seldom: nearly everything that is made here stays. Cycles are collected still, so memory is bounded."""
    before = gc.get_threshold()
    gc.set_threshold(YOUNG_OBJECTS, 50, 1000)
    try:
        yield
    finally:
        gc.set_threshold(*before)
