"""Modules that a library imports only because they are there, and that a command does without."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def withheld(*names: str) -> Iterator[None]:
    """Inside the block these modules look as if they were not installed, but for those that are loaded already. Use it
    around imports of libraries that work without them."""
    unneeded = [name for name in names if name not in sys.modules]
    modules: dict[str, Any] = sys.modules  # None in it: the import of that module fails
    modules.update(dict.fromkeys(unneeded))
    try:
        yield
    finally:
        for name in unneeded:
            del modules[name]
