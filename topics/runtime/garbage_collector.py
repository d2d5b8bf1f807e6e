"""How often Python's garbage collector runs while the daemon starts."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

YOUNG_OBJECTS: Final = 100_000
"""Allocations between two young collections while a start builds the state that stays. With the default (700) the
collector would visit the same million objects again and again."""


@contextmanager
def building() -> Iterator[None]:
    """Collect garbage less often inside the block, for code whose objects nearly all stay. Cycles are still collected,
    so memory stays bounded."""
    before = gc.get_threshold()
    gc.set_threshold(YOUNG_OBJECTS, 50, 1000)
    try:
        yield
    finally:
        gc.set_threshold(*before)
