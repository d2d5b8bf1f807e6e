"""Bars: as long as they should be, and only where they say something."""

from __future__ import annotations

import pytest

from benchmarks.charts import WIDTH, bar, chart, of_reference, of_target
from benchmarks.results import Reference, Result
from tests.benchmarks.runs import result

HALF = WIDTH // 2


def test_a_bar_at_its_target_ends_at_the_mark() -> None:
    assert bar(of_target(1)) == "█" * HALF + "│" + " " * HALF


def test_a_bar_beyond_twice_its_target_is_cut_and_says_so() -> None:
    assert bar(of_target(2)) == "█" * HALF + "│" + "█" * HALF
    assert bar(of_target(2.1)) == "█" * HALF + "│" + "█" * (HALF - 1) + "▶"


def test_a_bar_counts_eighths_of_a_cell() -> None:
    assert bar(3 / 8 / WIDTH) == "▍" + " " * (HALF - 1) + "│" + " " * HALF


@pytest.mark.parametrize(
    ("ratio", "share"), [(1, 0.5), (0.1, 0.25), (10, 0.75), (0.01, 0), (100, 1)], ids=["1", "0.1", "10", "0.01", "100"]
)
def test_references_are_on_a_logarithmic_line(ratio: float, share: float) -> None:
    assert of_reference(ratio) == pytest.approx(share)


def test_a_chart_has_targets_then_references_and_leaves_the_processor_out() -> None:
    aimed = Result("a/aimed", "", "ms", 3.0, 3.0, 3.0, 1, 2.0, "at_most", [Reference("a/echo", 4.0)])
    compared = result("a/compared", 5, reference=0.5)
    counted = Result("a/counted", "", "s", 5, 5, 5, 1, references=[Reference("a/cpu-time", 900.0)])
    missing = Result("a/missing", "", "s", 5, 5, 5, 1, references=[Reference("a/redis", None, "not installed")])
    lines = [line.split("  ", 1)[0].strip() for line in chart([compared, counted, missing, aimed])]
    assert lines == ["", "aimed", "", "", "compared"]
    text = "\n".join(chart([aimed, compared]))
    assert "150 % of 2 ms, at most: missed" in text
    assert "0.5 x echo" in text


def test_a_target_of_nothing_has_no_bar() -> None:
    assert chart([Result("a/x", "", "", 0, 0, 0, 1, 0, "at_most")]) == []
