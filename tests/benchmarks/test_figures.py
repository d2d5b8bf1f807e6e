"""Figures: what is made of repetitions, how ids come about, and what a ratio is."""

from __future__ import annotations

import pytest

from benchmarks.figures import BadFigures, Figure, figure, resolve, slug
from benchmarks.results import Reference, Result


def by_key(figures: list[Figure], absent: dict[str, str] | None = None) -> dict[str, Result]:
    return {one.id.removeprefix("part/"): one for one in resolve("part", figures, absent or {})}


def test_a_figure_is_the_median_with_the_lowest_and_the_highest() -> None:
    one = figure("appends", "records/s", [5.0, 1.0, 9.0, 3.0], at_least=4)
    assert (one.median, one.low, one.high, one.n) == (4.0, 1.0, 9.0, 4)
    assert (one.target, one.aim) == (4, "at_least")


def test_a_slug_is_of_words_and_of_numbers_without_commas() -> None:
    assert slug("1,000,000 records: GET /v0/health, p50") == "1000000-records-get-v0-health-p50"


def test_an_id_goes_on_with_the_name_before_it() -> None:
    found = by_key(
        [
            figure("append, one record, p50", "ms", [1], key="one-p50"),
            figure("... p99", "ms", [2]),
            figure("... the ack, longest", "ms", [3], key="ack"),
            figure("Another Thing", "ms", [4]),
        ]
    )
    assert list(found) == ["one-p50", "one-p99", "one-ack", "another-thing"]
    assert found["one-p99"].name == "append, one record, p99"
    assert found["one-ack"].name == "append, one record, the ack, longest"


def test_two_figures_of_one_id_are_refused() -> None:
    with pytest.raises(BadFigures, match="'same'"):
        by_key([figure("a", "ms", [1], key="same"), figure("b", "ms", [1], key="same")])


def test_a_ratio_is_to_the_median_of_the_reference_in_the_same_unit() -> None:
    found = by_key(
        [
            figure("reference: bare", "ms", [4, 2, 3], key="bare"),
            figure("slow", "s", [0.006], references=("bare",)),
            figure("per record", "us/record", [300], references=("bare",)),
        ]
    )
    assert found["slow"].ratio == pytest.approx(2)
    assert found["per-record"].ratio == pytest.approx(0.1)
    assert found["bare"].references == []


def test_a_figure_may_have_several_references_and_the_first_one_counts() -> None:
    figures = [
        figure("reference: a", "1/s", [10], key="a"),
        figure("reference: b", "1/s", [40], key="b"),
        figure("c", "1/s", [20], references=("b", "a")),
    ]
    found = by_key(figures)["c"]
    assert found.references == [Reference("part/b", 0.5), Reference("part/a", 2.0)]
    assert found.ratio == 0.5


def test_a_reference_that_cannot_be_measured_here_says_why() -> None:
    found = by_key([figure("c", "1/s", [20], references=("redis",))], {"redis": "not installed"})
    assert found["c"].references == [Reference("part/redis", None, "not installed")]
    assert found["c"].ratio is None


def test_where_no_reference_of_its_own_can_be_measured_the_usual_one_counts() -> None:
    figures = [
        figure("reference: processor", "units/s", [10], key="cpu-rate"),
        figure("reference: a unit", "ms", [100], key="cpu-time"),
        figure("c", "1/s", [20], references=("redis",)),
    ]
    one = by_key(figures, {"redis": "not installed"})["c"]
    assert [reference.id for reference in one.references] == ["part/redis", "part/cpu-rate"]
    assert one.reference == Reference("part/cpu-rate", 2.0)
    assert one.ratio == 2.0


def test_a_reference_that_nobody_knows_is_refused() -> None:
    with pytest.raises(BadFigures, match="no reference other"):
        by_key([figure("c", "1/s", [20], references=("other",))])


def test_without_a_reference_of_its_own_a_figure_has_the_usual_one() -> None:
    found = by_key(
        [
            figure("reference: processor", "units/s", [100], key="cpu-rate"),
            figure("reference: a unit", "ms", [10], key="cpu-time"),
            figure("reference: bare, p50", "ms", [1], key="echo-p50"),
            figure("... p99", "ms", [4]),
            figure("answer, p50", "ms", [2], key="answer-p50"),
            figure("... p99", "ms", [2]),
            figure("copies", "copies/s", [300]),
            figure("start", "s", [2]),
            figure("memory", "MiB", [2]),
        ]
    )
    assert found["answer-p50"].references == [Reference("part/echo-p50", 2.0)]
    assert found["answer-p99"].references == [Reference("part/echo-p99", 0.5)]
    assert found["copies"].references == [Reference("part/cpu-rate", 3.0)]
    assert found["start"].references == [Reference("part/cpu-time", 200.0)]
    assert found["memory"].references == []


@pytest.mark.parametrize(
    ("aim", "median", "met"),
    [("at_least", 100, True), ("at_least", 99, False), ("at_most", 100, True), ("at_most", 101, False)],
)
def test_a_target_is_met_at_its_value_and_on_its_good_side(aim: str, median: float, met: bool) -> None:
    one = figure("a", "", [median], at_least=100) if aim == "at_least" else figure("a", "", [median], at_most=100)
    assert by_key([one])["a"].met is met
