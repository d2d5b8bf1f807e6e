"""Two runs beside each other: what changed, and whether that is more than their spreads.

The raw values of two runs differ by the mood of the machine as well; the ratio to a reference of the same run does so
less, and decides. Figures that were measured once have no spread, so of them nothing is claimed.
"""

from __future__ import annotations

from dataclasses import dataclass

from rich.console import Console
from rich.table import Table

from benchmarks.figures import REFERENCE, number
from benchmarks.results import Document, Result


@dataclass(frozen=True, slots=True)
class Change:
    """One figure in both runs."""

    old: Result
    new: Result

    @property
    def raw(self) -> float | None:
        """Percent by which the median is higher; None from 0 on."""
        return _percent(self.old.median, self.new.median)

    @property
    def ratio(self) -> float | None:
        """The same of the ratio to the reference; None if it was not the same one, or not measured."""
        old, new = self.old.reference, self.new.reference
        if old is None or new is None or old.id != new.id:
            return None
        return _percent(self.old.ratio, self.new.ratio)

    @property
    def beyond_spreads(self) -> bool:
        """All repetitions of the one are above all of the other."""
        if min(self.old.n, self.new.n) < 2:
            return False
        return self.new.low > self.old.high or self.new.high < self.old.low

    @property
    def worse(self) -> float:
        """By how many percent it is worse, its ratio if it has one; 0 if it is better or cannot be said."""
        change = self.raw if self.ratio is None else self.ratio
        if change is None or self.new.better is None:
            return 0.0
        return max(-change if self.new.better == "higher" else change, 0.0)


def _percent(old: float | None, new: float | None) -> float | None:
    if old is None or new is None or not old:
        return None
    return 100 * (new / old - 1)


def changes(old: Document, new: Document) -> list[Change]:
    """Of all figures that are in both, in the order of the new run."""
    before = old.results()
    return [Change(before[id_], one) for id_, one in new.results().items() if id_ in before]


def failing(found: list[Change], percent: float) -> list[Change]:
    """Those that got worse by more than that, and by more than their spreads; references are the machine's business."""
    ours = [one for one in found if not one.new.name.startswith(REFERENCE)]
    return [one for one in ours if one.beyond_spreads and one.worse > percent]


def show(console: Console, old: Document, new: Document, fail_over: float | None) -> bool:
    """Print it. False if `fail_over` percent are given and something got worse by more."""
    if old.quick != new.quick:
        console.print("one of the runs was quick, the other was not: sizes differ, so figures do", style="yellow")
    found = changes(old, new)
    console.print(_table(found, old, new))
    for title, ids in (
        ("only in the old run", old.results().keys() - new.results().keys()),
        ("only in the new run", new.results().keys() - old.results().keys()),
    ):
        shown = {id_ for id_ in ids if id_.partition("/")[0] in old.parts and id_.partition("/")[0] in new.parts}
        if shown:
            console.print(f"{title}: {', '.join(sorted(shown))}", highlight=False, soft_wrap=True)
    failed = [] if fail_over is None else failing(found, fail_over)
    for one in failed:
        console.print(f"{one.new.id} is {one.worse:.0f} % worse", style="red", highlight=False)
    return not failed


def _table(found: list[Change], old: Document, new: Document) -> Table:
    table = Table(
        title="changes: * is beyond the spreads of both runs, ~ is of a part that was noisy", title_justify="left"
    )
    table.add_column("id", overflow="fold")
    for name in ("old", "new"):
        table.add_column(name, justify="right")
    table.add_column("unit")
    for name in ("change", "of the ratio"):
        table.add_column(name, justify="right")
    table.add_column("")
    for one in found:
        noisy = old.noisy(one.new.id) or new.noisy(one.new.id)
        table.add_row(
            one.new.id,
            number(one.old.median),
            number(one.new.median),
            one.new.unit,
            _signed(one.raw),
            _signed(one.ratio),
            "*" * one.beyond_spreads + "~" * noisy,
        )
    return table


def _signed(percent: float | None) -> str:
    return "" if percent is None else f"{percent:+.0f} %"
