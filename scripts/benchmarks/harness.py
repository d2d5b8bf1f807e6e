"""One run: part after part, each between two looks at the processor, and all of it on disk after each of them.

A part that fails costs its own figures and no others: it is said, kept in the file, and makes the exit code 1 in the
end. What a part measures is its own business, what the figures look like afterwards that of `figures` and `results`.
"""

from __future__ import annotations

import datetime
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from benchmarks.bench import Bench, Part
from benchmarks.figures import BadFigures, print_table, resolve
from benchmarks.machine import git_revision
from benchmarks.references import cpu_figures, cpu_rate
from benchmarks.results import Cpu, Document, PartResult


@dataclass(frozen=True, slots=True)
class Harness:
    """How a run is made."""

    console: Console
    directory: Path
    quick: bool
    revision: str | None
    keep: Callable[[Document], None]
    """Called after each part."""

    def run(self, parts: Sequence[Part], document: Document) -> bool:
        """Measure these parts into the document. Whether nothing failed."""
        for part in parts:
            began = time.monotonic()
            self.console.rule(f"{part.name}{', quick' if self.quick else ''}", align="left")
            result = self._measured(part)
            document.parts.pop(part.name, None)
            document.parts[part.name] = result
            self.keep(document)
            self._report(part, result, time.monotonic() - began)
        return not any(document.parts[part.name].failed for part in parts)

    def _measured(self, part: Part) -> PartResult:
        measured_at = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
        began = time.monotonic()
        bench = Bench(self.directory, self.console, self.quick)
        before = cpu_rate()
        figures, error = [], None
        try:
            figures = part.run(bench)
        except Exception as failure:
            self.console.print(traceback.format_exc(), highlight=False, markup=False)
            error = f"{type(failure).__name__}: {failure}"
        cpu = Cpu(before, cpu_rate())
        results, problem = [], None
        if error is None:
            try:
                results = resolve(part.name, [*cpu_figures(cpu), *figures], bench.absent)
                problem = _problem(part, {one.id for one in results}, bench)
            except BadFigures as failure:
                error = str(failure)
        return PartResult(
            measured_at=measured_at,
            seconds=time.monotonic() - began,
            revision=self.revision,
            cpu=cpu,
            figures=results,
            absent={f"{part.name}/{key}": why for key, why in bench.absent.items()},
            error=error,
            problem=problem,
        )

    def _report(self, part: Part, result: PartResult, seconds: float) -> None:
        if result.figures:
            print_table(self.console, f"{part.name} ({seconds:.0f} s{', quick' if self.quick else ''})", result.figures)
        if result.noisy:
            self.console.print(
                f"[yellow]noisy[/]: the processor did {result.cpu.before:.0f} units/s before and"
                f" {result.cpu.after:.0f} after, so these figures say little",
                highlight=False,
            )
        for text in (result.error, result.problem):
            if text is not None:
                self.console.print(f"{part.name} failed: {text}", style="red", highlight=False, markup=False)


def _problem(part: Part, measured: set[str], bench: Bench) -> str | None:
    """What the document shows has to be there."""
    missing = [key for key in part.shown if f"{part.name}/{key}" not in measured and key not in bench.absent]
    return f"not measured: {', '.join(missing)}" if missing else None


def revision_of_checkout() -> str | None:
    return git_revision(Path(__file__).resolve().parents[2])
