"""Bars of Unicode blocks, which look the same in a terminal and on any page that shows text as it is.

A target is drawn on a scale of its own: the mark is the target, the end of the line twice of it. A reference is drawn
on a logarithmic one: the mark is as much as the reference, each half of the line a factor of `DECADES`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from benchmarks.figures import CPU_RATE, CPU_TIME, number
from benchmarks.results import Result

WIDTH = 32
"""Cells of a line; the mark is in the middle."""

DECADES = 100.0
_EIGHTHS = " ▏▎▍▌▋▊▉█"
_MARK, _BEYOND = "│", "▶"


def bar(share: float) -> str:
    """A line of `WIDTH` cells, so much of it filled: 0 to 1, more is cut off and says so. The mark is at a half."""
    eighths = round(8 * WIDTH * min(max(share, 0.0), 1.0))
    whole, part = divmod(eighths, 8)
    cells = (_EIGHTHS[8] * whole + (_EIGHTHS[part] if part else "")).ljust(WIDTH)
    if share > 1:
        cells = cells[:-1] + _BEYOND
    middle = WIDTH // 2
    return cells[:middle] + _MARK + cells[middle:]


def of_target(share: float) -> float:
    """Where on the line so many times the target is."""
    return share / 2


def of_reference(ratio: float) -> float:
    """Where on the line so many times the reference is."""
    return 0.5 + math.log(ratio) / math.log(DECADES) / 2 if ratio > 0 else 0.0


def chart(results: Sequence[Result]) -> list[str]:
    """Lines for those figures that have a target, then for those others whose reference says something by itself."""
    targets = [one for one in results if one.target]
    others = [one for one in results if one.target is None and _telling(one)]
    width = max((len(_key(one)) for one in [*targets, *others]), default=0)
    lines = []
    if targets:
        lines.append(f"{'':{width}}  {'target':^{WIDTH + 1}}")
    for one in targets:
        assert one.target is not None
        share = one.median / one.target
        aim = "at least" if one.aim == "at_least" else "at most"
        told = f"{100 * share:,.0f} % of {number(one.target)} {one.unit}, {aim}: {'met' if one.met else 'missed'}"
        lines.append(f"{_key(one):{width}}  {bar(of_target(share))}  {told}")
    if targets and others:
        lines.append("")
    if others:
        scale = f"1/{DECADES:.0f}{'reference':^{WIDTH - 6}}x {DECADES:.0f}"
        lines.append(f"{'':{width}}  {scale}")
    for one in others:
        reference = one.reference
        assert reference is not None
        assert reference.ratio is not None
        told = f"{number(reference.ratio)} x {reference.id.partition('/')[2]}"
        lines.append(f"{_key(one):{width}}  {bar(of_reference(reference.ratio))}  {told}")
    return lines


def _key(one: Result) -> str:
    return one.id.partition("/")[2]


def _telling(one: Result) -> bool:
    """The processor's reference makes runs comparable; how many of its units something is means nothing."""
    reference = one.reference
    return reference is not None and reference.id.partition("/")[2] not in {CPU_RATE, CPU_TIME}
