"""Runs of the benchmark that nobody made: documents with the figures that a test wants."""

from __future__ import annotations

from benchmarks.results import Cpu, Document, PartResult, Reference, Result

STEADY = Cpu(1000, 1010)
RESTLESS = Cpu(1000, 700)


def result(id_: str, *values: float, unit: str = "records/s", reference: float | None = None) -> Result:
    """The middle one of these values is the median; `reference` is the ratio to `PART/echo`."""
    ordered = sorted(values)
    return Result(
        id=id_,
        name=f"what {id_} is",
        unit=unit,
        median=ordered[len(ordered) // 2],
        low=ordered[0],
        high=ordered[-1],
        n=len(ordered),
        references=[] if reference is None else [Reference(f"{id_.partition('/')[0]}/echo", reference)],
    )


def part(*figures: Result, cpu: Cpu = STEADY, absent: dict[str, str] | None = None) -> PartResult:
    return PartResult(
        measured_at="2026-11-22T10:00:00+00:00",
        seconds=12.5,
        revision="abcdef012345",
        cpu=cpu,
        figures=list(figures),
        absent=absent or {},
    )


def document(*, quick: bool = False, cpu: str = "a processor", **parts: PartResult) -> Document:
    machine: dict[str, str | int] = {
        "date": "2026-11-22",
        "cpu": cpu,
        "cores": 2,
        "memory_mib": 8000,
        "kernel": "6.1",
        "filesystem": "ext4",
    }
    return Document(machine=machine, versions={"python": "3.11", "redis": "7.0"}, quick=quick, parts=parts)
