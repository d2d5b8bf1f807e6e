"""What comes out of a benchmark: figures with their spread, printed as a table and written as JSON."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Literal

from rich.console import Console
from rich.table import Table


@dataclass(frozen=True, slots=True)
class Figure:
    """The median of some repetitions, how far they spread, and what to compare it with.

    `target` is the aim of the design (`at_least` or `at_most`), not a condition: nothing fails because of it.
    """

    name: str
    unit: str
    median: float
    low: float
    high: float
    repetitions: int
    target: float | None = None
    aim: Literal["at_least", "at_most"] = "at_most"

    @property
    def met(self) -> bool | None:
        if self.target is None:
            return None
        return self.median >= self.target if self.aim == "at_least" else self.median <= self.target


def figure(
    name: str,
    unit: str,
    values: Sequence[float],
    *,
    at_least: float | None = None,
    at_most: float | None = None,
) -> Figure:
    target = at_most if at_least is None else at_least
    aim: Literal["at_least", "at_most"] = "at_most" if at_least is None else "at_least"
    return Figure(name, unit, statistics.median(values), min(values), max(values), len(values), target, aim)


def as_json(figures: Sequence[Figure]) -> list[dict[str, object]]:
    return [{**asdict(one), "met": one.met} for one in figures]


def print_table(console: Console, title: str, figures: Sequence[Figure]) -> None:
    table = Table(title=title, title_justify="left")
    table.add_column("what")
    table.add_column("median", justify="right")
    table.add_column("unit")
    table.add_column("spread", justify="right")
    table.add_column("n", justify="right")
    table.add_column("target", justify="right")
    table.add_column("")
    for one in figures:
        sign = ">=" if one.aim == "at_least" else "<="
        table.add_row(
            one.name,
            _number(one.median),
            one.unit,
            f"{_number(one.low)} to {_number(one.high)}" if one.repetitions > 1 else "",
            str(one.repetitions),
            "" if one.target is None else f"{sign} {_number(one.target)}",
            {None: "", True: "[green]met[/]", False: "[yellow]missed[/]"}[one.met],
        )
    console.print(table)


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
