"""Figures: what was measured of one thing, how far it spread, what it should be and what it is to be compared with.

A part of the benchmark makes a list of them. `resolve` gives each its id, `part/key`, by which it is found again in
another run and in the document, its whole name, and the ratio to each of its references. How a figure came about is
the business of the parts; files and comparisons are that of `results` and `compare`.
"""

from __future__ import annotations

import re
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from rich.console import Console
from rich.table import Table

from benchmarks.results import Reference, Result

REFERENCE = "reference: "
"""How the name of a reference begins: what the machine or another program does. Those have no reference themselves."""

CPU_RATE, CPU_TIME = "cpu-rate", "cpu-time"
"""Keys of the processor's reference, which every part has (`references.CpuReference`)."""

_SECONDS = {"s": 1.0, "ms": 1e-3, "us": 1e-6}
"""Units of time, by what comes before any slash: `us/record` is a time, too."""


@dataclass(frozen=True, slots=True)
class Figure:
    """The median of some repetitions and the lowest and the highest of them.

    `target` is the aim of the design (`at_least` or `at_most`), not a condition: nothing fails because of it. A name
    that begins with "... " goes on with the last one that does not, and so does the key. `references` are keys of the
    same part; None stands for what is usual for the unit, which is also added where none of them can be measured.
    """

    name: str
    unit: str
    median: float
    low: float
    high: float
    n: int
    target: float | None = None
    aim: Literal["at_least", "at_most"] = "at_most"
    key: str | None = None
    references: tuple[str, ...] | None = None


def figure(
    name: str,
    unit: str,
    values: Sequence[float],
    *,
    key: str | None = None,
    at_least: float | None = None,
    at_most: float | None = None,
    references: tuple[str, ...] | None = None,
) -> Figure:
    """A figure of these repetitions. Without a `key` the name is made into one."""
    target = at_most if at_least is None else at_least
    aim: Literal["at_least", "at_most"] = "at_most" if at_least is None else "at_least"
    median = statistics.median(values)
    return Figure(name, unit, median, min(values), max(values), len(values), target, aim, key, references)


def slug(text: str) -> str:
    """Words of a key: lower case, joined by hyphens, numbers without their commas."""
    return re.sub(r"[^a-z0-9]+", "-", re.sub(r"(?<=\d),(?=\d)", "", text.lower())).strip("-")


class BadFigures(Exception):
    """Figures that cannot be told apart, or that refer to what is not there: a mistake in the benchmark."""


def resolve(part: str, figures: Sequence[Figure], absent: Mapping[str, str]) -> list[Result]:
    """Ids, whole names and ratios. `absent` is what could not be measured, by key, and why.

    Raises `BadFigures` for an id that occurs twice and for a reference that is neither measured nor absent.
    """
    named = _named(figures)
    medians = {key: one for key, _, one, _ in named}
    if len(medians) != len(named):
        keys = [key for key, *_ in named]
        raise BadFigures(f"{part}: twice: {sorted({key for key in keys if keys.count(key) > 1})}")
    results = []
    for key, name, one, is_reference in named:
        wanted = one.references
        if wanted is None:
            wanted = () if is_reference else _usual(key, one.unit, medians)
        elif wanted and all(other in absent for other in wanted):
            wanted += _usual(key, one.unit, medians)
        references = []
        for other in wanted:
            if other in medians:
                references.append(Reference(f"{part}/{other}", _ratio(one, medians[other])))
            elif other in absent:
                references.append(Reference(f"{part}/{other}", None, absent[other]))
            else:
                raise BadFigures(f"{part}/{key}: there is no reference {other}")
        results.append(
            Result(
                id=f"{part}/{key}",
                name=name,
                unit=one.unit,
                median=one.median,
                low=one.low,
                high=one.high,
                n=one.n,
                target=one.target,
                aim=None if one.target is None else one.aim,
                references=references,
            )
        )
    return results


def _named(figures: Sequence[Figure]) -> list[tuple[str, str, Figure, bool]]:
    """Key, whole name, and whether it is a reference."""
    named = []
    base_key = base_name = ""
    is_reference = False
    for one in figures:
        if one.name.startswith("... "):
            rest = one.name.removeprefix("... ")
            name, key = f"{base_name}, {rest}", f"{base_key}-{one.key or slug(rest)}"
        else:
            is_reference = one.name.startswith(REFERENCE)
            name, key = one.name, one.key or slug(one.name)
            base_name, base_key = name.removesuffix(", p50"), key.removesuffix("-p50")
        named.append((key, name, one, is_reference))
    return named


def _usual(key: str, unit: str, medians: Mapping[str, Figure]) -> tuple[str, ...]:
    """Answers beside those of a bare server, other times and rates beside the processor; sizes and shares are what
    they are on any machine."""
    if unit == "ms" and "echo-p50" in medians:
        return ("echo-p99",) if key.endswith(("p99", "longest")) else ("echo-p50",)
    if CPU_TIME not in medians:
        return ()
    if unit.partition("/")[0] in _SECONDS:
        return (CPU_TIME,)
    return (CPU_RATE,) if unit.endswith("/s") else ()


def _ratio(one: Figure, other: Figure) -> float | None:
    if not other.median:
        return None
    return (one.median * _scale(one.unit)) / (other.median * _scale(other.unit))


def _scale(unit: str) -> float:
    return _SECONDS.get(unit.partition("/")[0], 1.0)


# --- how they look ---------------------------------------------------------------------------------------------------


def number(value: float) -> str:
    """Three digits that matter, or all before the point."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def ratio_text(reference: Reference) -> str:
    """What a figure is of its reference, or why that is not known."""
    return f"{number(reference.ratio)} x" if reference.ratio is not None else reference.missing or "?"


def aim_text(result: Result) -> str:
    """The target, with its direction."""
    return "" if result.target is None else f"{'>=' if result.aim == 'at_least' else '<='} {number(result.target)}"


def print_table(console: Console, title: str, results: Sequence[Result]) -> None:
    """For a terminal: every figure, with the reference that counts."""
    table = Table(title=title, title_justify="left")
    table.add_column("id", overflow="fold")
    table.add_column("median", justify="right")
    table.add_column("unit")
    table.add_column("spread", justify="right")
    table.add_column("n", justify="right")
    table.add_column("target", justify="right")
    table.add_column("")
    table.add_column("to reference", justify="right")
    for one in results:
        table.add_row(
            one.id,
            number(one.median),
            one.unit,
            f"{number(one.low)} to {number(one.high)}" if one.n > 1 else "",
            str(one.n),
            aim_text(one),
            {None: "", True: "[green]met[/]", False: "[yellow]missed[/]"}[one.met],
            "" if one.reference is None else f"{ratio_text(one.reference)} {one.reference.id.partition('/')[2]}",
        )
    console.print(table)
