"""Two runs beside each other."""

from __future__ import annotations

import io

import pytest
from msgspec import structs
from rich.console import Console

from benchmarks.compare import Change, changes, failing, show
from benchmarks.results import Document
from tests.benchmarks.runs import RESTLESS, document, part, result


def printed(old: Document, new: Document, fail_over: float | None = None) -> tuple[str, bool]:
    out = io.StringIO()
    passed = show(Console(file=out, width=200), old, new, fail_over)
    return out.getvalue(), passed


def line(text: str, id_: str) -> str:
    (found,) = [line for line in text.splitlines() if id_ in line]
    return found


def test_a_change_is_of_the_median_and_of_the_ratio() -> None:
    one = Change(result("a/x", 90, 100, 110, reference=0.5), result("a/x", 190, 200, 210, reference=0.55))
    assert one.raw == pytest.approx(100)
    assert one.ratio == pytest.approx(10)


def test_ratios_to_different_references_are_not_compared() -> None:
    assert Change(result("a/x", 1, reference=0.5), result("a/x", 1)).ratio is None


@pytest.mark.parametrize(
    ("new", "beyond"),
    [((111, 120, 130), True), ((110, 120, 130), False), ((70, 80, 89), True), ((70, 80, 90), False)],
    ids=["above", "touching above", "below", "touching below"],
)
def test_a_change_counts_when_the_spreads_do_not_touch(new: tuple[float, ...], beyond: bool) -> None:
    assert Change(result("a/x", 90, 100, 110), result("a/x", *new)).beyond_spreads is beyond


def test_of_what_was_measured_once_nothing_is_claimed() -> None:
    assert not Change(result("a/x", 90, 100, 110), result("a/x", 500)).beyond_spreads


@pytest.mark.parametrize(
    ("unit", "new", "worse"),
    [("records/s", 80, 20), ("records/s", 120, 0), ("ms", 120, 20), ("ms", 80, 0), ("jobs", 80, 0)],
)
def test_worse_is_lower_for_rates_and_higher_for_times(unit: str, new: float, worse: float) -> None:
    assert Change(result("a/x", 100, unit=unit), result("a/x", new, unit=unit)).worse == pytest.approx(worse)


def test_a_slower_machine_makes_nothing_worse() -> None:
    """Half of the rate beside half of the reference is the same ratio."""
    one = Change(result("a/x", 99, 100, 101, reference=0.5), result("a/x", 49, 50, 51, reference=0.5))
    assert one.beyond_spreads
    assert failing([one], 10) == []


def test_a_slower_reference_is_no_failure() -> None:
    old, new = result("a/x", 99, 100, 101), result("a/x", 49, 50, 51)
    assert len(failing([Change(old, new)], 10)) == 1
    assert failing([Change(old, structs.replace(new, name="reference: a sync"))], 10) == []


def test_the_table_marks_what_is_beyond_spreads_and_what_was_noisy() -> None:
    old = document(a=part(result("a/x", 9, 10, 11), result("a/y", 9, 10, 11)), b=part(result("b/z", 9, 10, 11)))
    new = document(
        a=part(result("a/x", 19, 20, 21), result("a/y", 9, 11, 12)),
        b=part(result("b/z", 19, 20, 21), cpu=RESTLESS),
    )
    text, passed = printed(old, new)
    assert passed
    assert "+100 %" in line(text, "a/x")
    assert "*" in line(text, "a/x")
    assert "*" not in line(text, "a/y")
    assert "*~" in line(text, "b/z")


def test_figures_of_one_run_only_are_named() -> None:
    text, _ = printed(document(a=part(result("a/x", 1), result("a/old", 1))), document(a=part(result("a/x", 1))))
    assert "only in the old run: a/old" in text
    assert "only in the new run" not in text


def test_it_fails_only_over_the_percentage_that_is_given() -> None:
    old, new = document(a=part(result("a/x", 99, 100, 101))), document(a=part(result("a/x", 79, 80, 81)))
    assert [printed(old, new, percent)[1] for percent in (None, 25, 15)] == [True, True, False]
    assert "a/x is 20 % worse" in printed(old, new, 15)[0]


def test_only_figures_of_both_runs_are_compared() -> None:
    old, new = document(a=part(result("a/x", 1))), document(a=part(result("a/x", 1), result("a/y", 1)))
    assert [one.new.id for one in changes(old, new)] == ["a/x"]
