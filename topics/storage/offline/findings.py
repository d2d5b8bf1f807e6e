"""The findings of `verify`: one `Finding` for each problem."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, Literal, NamedTuple

Severity = Literal["damage", "note"]
"""Damage is lost or wrong data, now or after the next start. A note needs no action: files that the next start removes,
derived files that will be rebuilt, files that nothing needs."""

DAMAGE: Final[Severity] = "damage"
NOTE: Final[Severity] = "note"

SECTOR: Final = 512
"""A disk writes whole sectors: the rest of a torn write begins at the beginning of a sector, or of the write."""

MAX_PER_FILE: Final = 20
"""Findings of one kind about one file that are listed; further ones are only counted."""


class Finding(NamedTuple):
    """One problem. `offset` is where it begins in the file of `path`, None if it is about the whole file."""

    path: str
    offset: int | None
    problem: str
    severity: Severity


def bounded(path: str, problems: Sequence[tuple[int | None, str]], severity: Severity) -> Iterator[Finding]:
    """Yield findings about one file: the first ones, and the number of further ones."""
    for offset, problem in problems[:MAX_PER_FILE]:
        yield Finding(path, offset, problem, severity)
    if len(problems) > MAX_PER_FILE:
        yield Finding(path, None, f"and {len(problems) - MAX_PER_FILE} more like these", severity)
