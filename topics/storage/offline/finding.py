"""What `verify` has found: one `Finding` per thing that is not as it should be."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, Literal, NamedTuple

Severity = Literal["damage", "note"]
"""Damage is lost or untrue data, or will be after the next start. A note is worth knowing and no reason to act: what a
start clears away by itself, what is derived and will be made anew, what nobody needs."""

DAMAGE: Final[Severity] = "damage"
NOTE: Final[Severity] = "note"

SECTOR: Final = 512
"""A disk writes sectors: what is left of a write that was torn begins where one does, or where the write did."""

MAX_PER_FILE: Final = 20
"""Findings of one kind about one file that are listed; the rest is counted."""


class Finding(NamedTuple):
    """`offset` is where in the file of `path` the problem begins, None if it is about the whole of it."""

    path: str
    offset: int | None
    problem: str
    severity: Severity


def bounded(path: str, problems: Sequence[tuple[int | None, str]], severity: Severity) -> Iterator[Finding]:
    """Findings about one file; of many the first ones, and how many more there are."""
    for offset, problem in problems[:MAX_PER_FILE]:
        yield Finding(path, offset, problem, severity)
    if len(problems) > MAX_PER_FILE:
        yield Finding(path, None, f"and {len(problems) - MAX_PER_FILE} more like these", severity)
