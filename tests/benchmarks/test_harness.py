"""One run: repetitions, parts that fail, and what is kept after each of them."""

from __future__ import annotations

import io
from functools import partial
from pathlib import Path

import pytest
from rich.console import Console

from benchmarks import harness
from benchmarks.bench import Bench, Part
from benchmarks.figures import Figure, figure
from benchmarks.harness import Harness
from benchmarks.results import Document
from tests.benchmarks.runs import document


def console() -> Console:
    return Console(file=io.StringIO(), width=200)


def part_of(name: str, *figures: Figure, shown: tuple[str, ...] = ()) -> Part:
    return Part(name, name, name, lambda _: list(figures), shown, 1)


def broken(_: Bench) -> list[Figure]:
    raise RuntimeError("the daemon is not ready")


BROKEN = Part("broken", "broken", "broken", broken, (), 1)
GOOD = part_of("good", figure("Good", "records/s", [1]))


class Run:
    """What becomes of a run of these parts, on a machine whose speed is what it is told to be."""

    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, *parts: Part, speeds: tuple[float, ...]
    ) -> None:
        given = iter(speeds)
        monkeypatch.setattr(harness, "cpu_rate", lambda: next(given))
        self.document = document()
        self.kept: list[list[str]] = []
        self.console = console()
        one = Harness(self.console, tmp_path, True, "abc", self._keep)
        self.passed = one.run(parts, self.document)

    def _keep(self, whole: Document) -> None:
        self.kept.append(list(whole.parts))

    @property
    def printed(self) -> str:
        assert isinstance(self.console.file, io.StringIO)
        return self.console.file.getvalue()


STEADY = (100.0,) * 8


def test_a_part_that_fails_costs_only_its_own_figures(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    run = Run(monkeypatch, tmp_path, BROKEN, GOOD, speeds=STEADY)
    assert not run.passed
    assert run.document.parts["broken"].error == "RuntimeError: the daemon is not ready"
    assert run.document.results()["good/good"].median == 1
    assert "broken failed: RuntimeError" in run.printed


def test_a_run_without_failures_has_passed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert Run(monkeypatch, tmp_path, GOOD, speeds=STEADY).passed


def test_everything_so_far_is_kept_after_each_part(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    other = part_of("other", figure("Other", "ms", [1]))
    assert Run(monkeypatch, tmp_path, GOOD, BROKEN, other, speeds=STEADY).kept == [
        ["good"],
        ["good", "broken"],
        ["good", "broken", "other"],
    ]


def test_a_figure_that_the_document_shows_has_to_be_measured(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    run = Run(monkeypatch, tmp_path, part_of("some", figure("A", "ms", [1]), shown=("a", "b")), speeds=STEADY)
    assert not run.passed
    assert run.document.parts["some"].problem == "not measured: b"
    assert "some/a" in run.document.results()


def test_what_cannot_be_measured_here_is_no_failure(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def without_redis(bench: Bench) -> list[Figure]:
        bench.absent["redis"] = "not installed"
        return [figure("A", "1/s", [1], references=("redis",))]

    run = Run(monkeypatch, tmp_path, Part("some", "", "", without_redis, ("a", "redis"), 1), speeds=STEADY)
    assert run.passed
    assert run.document.parts["some"].absent == {"some/redis": "not installed"}


def test_figures_that_cannot_be_told_apart_are_a_failure(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    run = Run(monkeypatch, tmp_path, part_of("some", figure("A", "", [1]), figure("A", "", [1])), speeds=STEADY)
    assert not run.passed
    assert run.document.parts["some"].error == "some: twice: ['a']"


def test_a_processor_that_moved_is_reported(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    run = Run(monkeypatch, tmp_path, GOOD, GOOD, speeds=(100, 100, 100, 80))
    assert run.document.parts["good"].noisy
    assert "100 units/s before and 80 after" in run.printed
    rate = run.document.results()["good/cpu-rate"]
    assert (rate.median, rate.low, rate.high) == (90, 80, 100)


def test_a_scratch_directory_is_gone_afterwards_with_all_that_is_in_it(tmp_path: Path) -> None:
    with Bench(tmp_path, console(), True).scratch() as scratch:
        for number in range(20):
            (scratch / "topics" / str(number) / "below").mkdir(parents=True)
            (scratch / "topics" / str(number) / "file").touch()
    with Bench(tmp_path, console(), True).scratch() as empty:
        assert empty.is_dir()
    assert list(tmp_path.iterdir()) == []


# --- repetitions -----------------------------------------------------------------------------------------------------


def bench(*, quick: bool = False, many: bool = False) -> Bench:
    return Bench(Path(), console(), quick, many)


def test_a_repetition_of_warming_up_is_thrown_away() -> None:
    calls: list[int] = []

    def measure(by: int) -> int:
        calls.append(by)
        return len(calls)

    assert bench().repeat(measure, 7, times=2, warm_up=1) == [2, 3]
    assert calls == [7, 7, 7]


@pytest.mark.parametrize(
    ("quick", "many", "times"), [(False, False, 5), (False, True, 3), (True, False, 2), (True, True, 2)]
)
def test_how_often_something_is_repeated_is_up_to_the_kind_of_run(quick: bool, many: bool, times: int) -> None:
    assert len(bench(quick=quick, many=many).repeat(lambda: None)) == times


def test_what_is_compared_is_measured_in_turn() -> None:
    order: list[str] = []

    def measure(name: str) -> int:
        order.append(name)
        return len(order)

    measures = {name: partial(measure, name) for name in "ab"}
    assert bench().in_turn(measures, 2) == {"a": [1, 3], "b": [2, 4]}
    assert order == ["a", "b", "a", "b"]
