"""docs/performance.md: made of figures and of prose, the same of the same, and not stale in what it shows."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import report
from benchmarks.parts import PARTS
from benchmarks.report import BadProse, filled, placeholders, prose, render
from benchmarks.results import Document, PartResult, Result
from tests.benchmarks import REPOSITORY
from tests.benchmarks.runs import RESTLESS, document, part, result

SHOWN = [id_ for one in PARTS.values() for id_ in one.ids]
MISSED = Result("append/plain-1000", "appends", "records/s", 300_000, 280_000, 310_000, 5, 400_000, "at_least")
MET = Result("append/one-disk-p99", "one append, p99", "ms", 2.0, 1.5, 2.2, 5, 2.5, "at_most")


def run(**parts: PartResult) -> Document:
    whole = document()
    whole.parts |= parts or {"append": part(MISSED, MET)}
    return whole


def rows(text: str, id_: str) -> list[str]:
    return [line for line in text.splitlines() if line.startswith(f"| `{id_}` |")]


def test_the_same_figures_make_the_same_document(tmp_path: Path) -> None:
    pages = []
    for name in ("one.md", "other.md"):
        report.write(run(), tmp_path / name)
        pages.append((tmp_path / name).read_text())
    assert pages[0] == pages[1] == render(run())


def test_the_document_of_the_repository_shows_every_figure_that_it_should() -> None:
    page = (REPOSITORY / "docs" / "performance.md").read_text()
    assert [id_ for id_ in SHOWN if f"| `{id_}` |" not in page] == []


def test_the_document_of_the_repository_shows_no_figure_that_is_not_registered() -> None:
    page = (REPOSITORY / "docs" / "performance.md").read_text()
    found = [line.split("`")[1] for line in page.splitlines() if line.startswith("| `") and "/" in line.split("`")[1]]
    assert sorted({id_ for id_ in found if ":" not in id_} - set(SHOWN)) == []


def test_no_figure_is_shown_twice() -> None:
    assert len(SHOWN) == len(set(SHOWN))


@pytest.mark.parametrize("name", ["questions", "introduction", *PARTS])
def test_prose_speaks_only_of_figures_that_are_shown(name: str) -> None:
    assert [id_ for id_ in placeholders(prose(name)) if id_ not in SHOWN] == []


def test_every_chapter_of_prose_belongs_to_a_part() -> None:
    assert {path.stem for path in report.PROSE.glob("*.md")} == {"questions", "introduction", *PARTS}


def test_a_figure_is_a_row_with_spread_target_and_references() -> None:
    one = Result("append/plain-1000", "appends", "records/s", 5e5, 4e5, 6e5, 5, 400_000, "at_least")
    with_reference = result("append/full-1000", 1000, reference=0.25)
    page = render(run(append=part(one, with_reference)))
    expected = "| `append/plain-1000` | appends | 500,000 records/s | 400,000 to 600,000 | 5 | >= 400,000 met |  |  |"
    assert rows(page, "append/plain-1000") == [expected]
    assert "| `echo` | 0.25 x |" in rows(page, "append/full-1000")[0]


def test_the_document_opens_with_the_questions_that_the_run_can_answer() -> None:
    values = {"disk-1-p50": 0.25, "disk-1-p99": 1, "fsync-1-p50": 0.5, "fsync-1-p99": 2}
    times = [result(f"small/append-{key}", value, unit="ms") for key, value in values.items()]
    page = render(run(append=part(MISSED), small=part(*times)))
    opening, _, _ = page.partition("## How it is measured")
    assert [line for line in opening.splitlines() if line.startswith("|")] == [
        "| question | measured, in this run, on this machine |",
        "|---|---|",
        "| How long does one append take, p50 / p99? | `disk` 0.25 ms / 1 ms, `fsync` 0.5 ms / 2 ms |",
        "| How many records a second in batches of 1000, 4 connections? | `disk` 300,000 records/s |",
    ]


def test_a_run_that_answers_no_question_has_no_table_of_them() -> None:
    assert "question" not in render(run(append=part(MET)))


def test_missed_targets_come_first_and_met_ones_are_counted() -> None:
    page = render(run())
    before, _, _ = page.partition("## Conditions")
    assert "1 of 2 targets are met. These are missed:" in before
    assert [line for line in before.splitlines() if "append/plain-1000" in line] == [
        "| `append/plain-1000`: appends | 300,000 records/s | 280,000 to 310,000 | >= 400,000 | 25 % |  |"
    ]
    assert "one-disk-p99" not in before
    assert "**missed**" in rows(page, "append/plain-1000")[0]


def test_a_run_that_missed_nothing_says_so() -> None:
    assert "1 of 1 targets are met. None is missed." in render(run(append=part(MET)))


def test_what_was_not_measured_is_a_row_that_says_so() -> None:
    page = render(run(append=part(MET, absent={"append/redis-1000": "not installed"})))
    assert rows(page, "append/plain-1000") == ["| `append/plain-1000` | not measured | | | | | | |"]
    assert rows(page, "append/redis-1000") == ["| `append/redis-1000` | not installed | | | | | | |"]
    assert rows(page, "queue/client") == ["| `queue/client` | not measured | | | | | | |"]


def test_a_noisy_part_is_marked_wherever_it_is_spoken_of() -> None:
    page = render(run(append=part(MISSED, cpu=RESTLESS)))
    assert "appends (noisy) |" in page
    assert "| 30 % | noisy |" in page
    assert "This part was noisy." in page


def test_a_part_that_failed_says_why() -> None:
    failed = PartResult("2026-11-22T10:00:00+00:00", 1.0, None, RESTLESS, error="RuntimeError: a | b")
    assert "| 30 % | noisy; RuntimeError: a / b |" in render(run(append=failed))


def test_a_quick_run_is_called_one() -> None:
    assert "Made from a quick run" in render(document(quick=True, append=part(MET)))
    assert "Made from a quick run" not in render(run())


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("{append/plain-1000.median}", "300,000 records/s"),
        ("{append/plain-1000.spread}", "280,000 to 310,000"),
        ("{append/plain-1000.target}", ">= 400,000"),
        ("{append/plain-1000.n}", "5"),
        ("{append/full-1000.ratio}", "0.25"),
        ("{append/plain-100.median}", "(not measured)"),
        ("{machine.cores} cores, Redis {versions.redis}", "2 cores, Redis 7.0"),
        ('{"data": 1} and {braces}', '{"data": 1} and {braces}'),
    ],
)
def test_a_placeholder_is_replaced_by_what_was_measured(text: str, expected: str) -> None:
    whole = run(append=part(MISSED, result("append/full-1000", 7, reference=0.25)))
    assert filled(text, whole) == expected


@pytest.mark.parametrize("text", ["{append/plain-1000.mean}", "{machine.colour}", "{machines.cpu}"])
def test_a_placeholder_that_stands_for_nothing_is_refused(text: str) -> None:
    with pytest.raises(BadProse):
        filled(text, run())
