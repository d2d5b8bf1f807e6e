"""The command line of `scripts/bench`."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from benchmarks.__main__ import main
from benchmarks.parts import PARTS
from benchmarks.report import render
from benchmarks.results import save
from tests.benchmarks.runs import document, part, result


def call(*words: str | Path) -> Result:
    return CliRunner().invoke(main, [str(word) for word in words])


@pytest.fixture
def runs(tmp_path: Path) -> tuple[Path, Path]:
    """An old run and a new one that is 20 % slower."""
    paths = tmp_path / "old.json", tmp_path / "new.json"
    for path, rate in zip(paths, (100, 80), strict=True):
        save(document(append=part(result("append/plain-1000", rate - 1, rate, rate + 1))), path)
    return paths


def test_the_list_names_every_part_and_the_time_of_all() -> None:
    listed = call("--list")
    assert listed.exit_code == 0
    assert [line.split()[0] for line in listed.output.splitlines()] == [*PARTS, "together"]


def test_a_whole_run_takes_at_most_75_minutes() -> None:
    assert sum(one.minutes for one in PARTS.values()) <= 75


def test_a_part_that_is_not_there_is_refused() -> None:
    assert call("apend").exit_code == 2


@pytest.mark.parametrize("words", [("--fail-over", "10"), ("--add",)])
def test_an_option_that_needs_another_is_refused_without_it(words: tuple[str, ...]) -> None:
    refused = call(*words)
    assert refused.exit_code == 2
    assert "needs" in refused.output


def test_two_runs_are_compared_from_their_files(runs: tuple[Path, Path]) -> None:
    compared = call("compare", *runs)
    assert compared.exit_code == 0
    assert "-20 %" in compared.output


def test_a_comparison_fails_over_a_percentage_only(runs: tuple[Path, Path]) -> None:
    assert [call("compare", *runs, "--fail-over", percent).exit_code for percent in ("25", "15")] == [0, 1]


def test_the_document_is_written_from_a_file(runs: tuple[Path, Path], tmp_path: Path) -> None:
    assert call("report", "--from", runs[0], "--out", tmp_path / "page.md").exit_code == 0
    whole = document(append=part(result("append/plain-1000", 99, 100, 101)))
    assert (tmp_path / "page.md").read_text() == render(whole)


def test_a_file_that_is_no_run_is_refused(tmp_path: Path) -> None:
    (tmp_path / "other.json").write_text("{}")
    refused = call("report", "--from", tmp_path / "other.json", "--out", tmp_path / "page.md")
    assert refused.exit_code == 1
    assert "was not written by scripts/bench" in refused.output
