"""What a plan says of those who do something: actors, and their steps."""

from __future__ import annotations

from typing import Any

import msgspec


class Step(msgspec.Struct, frozen=True):
    """One thing that an actor does, after a pause (ms)."""

    do: str
    after: int
    what: dict[str, Any] = {}


class Actor(msgspec.Struct, frozen=True):
    """Somebody who does one thing after another, beside the others."""

    name: str
    steps: list[Step]
