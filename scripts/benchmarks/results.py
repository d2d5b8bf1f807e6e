"""The file that a run leaves behind: the machine, and of every part its figures and the conditions they came about in.

It is written after each part, whole and then moved into place, so that a run that is cut off has lost only the part
that it was at. Parts that were measured on another occasion can be added, if it was the same machine and the same kind
of run.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Literal

import msgspec

FORMAT = 1
NOISY = 0.15
"""A part is noisy if the processor's reference moved by more than this share of itself while the part was measured."""


class Reference(msgspec.Struct, frozen=True):
    """What a figure is to be compared with: how many times as much it is, or why that is not known."""

    id: str
    ratio: float | None
    missing: str | None = None


class Result(msgspec.Struct, frozen=True):
    """A figure, resolved. See `figures.Figure`."""

    id: str
    name: str
    unit: str
    median: float
    low: float
    high: float
    n: int
    target: float | None = None
    aim: Literal["at_least", "at_most"] | None = None
    references: list[Reference] = []

    @property
    def met(self) -> bool | None:
        """None where there is no target."""
        if self.target is None:
            return None
        return self.median >= self.target if self.aim == "at_least" else self.median <= self.target

    @property
    def reference(self) -> Reference | None:
        """The one that counts: the first that was measured."""
        return next((one for one in self.references if one.ratio is not None), None)

    @property
    def ratio(self) -> float | None:
        """To that one."""
        return None if self.reference is None else self.reference.ratio

    @property
    def better(self) -> Literal["higher", "lower"] | None:
        """In which direction it would be better; None where that cannot be said."""
        if self.aim is not None:
            return "higher" if self.aim == "at_least" else "lower"
        if self.unit.endswith("/s"):
            return "higher"
        return "lower" if self.unit.partition("/")[0] in {"s", "ms", "us", "MiB", "KiB", "bytes"} else None


class Cpu(msgspec.Struct, frozen=True):
    """The processor's reference before and after a part, in units of work a second."""

    before: float
    after: float

    @property
    def moved(self) -> float:
        """By which share of itself: 0.1 for a tenth, either way."""
        return abs(self.after / self.before - 1)


class PartResult(msgspec.Struct, frozen=True):
    """What came of one part. `error` is why it has no figures, `problem` what is wrong with those it has."""

    measured_at: str
    seconds: float
    revision: str | None
    cpu: Cpu
    figures: list[Result] = []
    absent: dict[str, str] = {}
    """Ids of what could not be measured here, and why."""
    error: str | None = None
    problem: str | None = None

    @property
    def noisy(self) -> bool:
        return self.cpu.moved > NOISY

    @property
    def failed(self) -> bool:
        return self.error is not None or self.problem is not None


class Document(msgspec.Struct):
    """All of a run. `parts` are in the order in which they were measured."""

    machine: dict[str, str | int]
    versions: dict[str, str]
    quick: bool
    parts: dict[str, PartResult] = {}
    format: int = FORMAT

    def results(self) -> dict[str, Result]:
        """All figures, by id."""
        return {one.id: one for part in self.parts.values() for one in part.figures}

    def noisy(self, id_: str) -> bool:
        part = self.parts.get(id_.partition("/")[0])
        return part is not None and part.noisy


class Unusable(Exception):
    """A file that is no document of ours, or that cannot be added to."""


def load(path: Path) -> Document:
    """Read a document. Raises `Unusable` for anything else, and OSError."""
    try:
        document = msgspec.json.decode(path.read_bytes(), type=Document)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise Unusable(f"{path} was not written by scripts/bench: {error}") from None
    if document.format != FORMAT:
        raise Unusable(f"{path} has format {document.format}, expected is {FORMAT}")
    return document


def save(document: Document, path: Path) -> None:
    """Write it beside, then over the old one."""
    part = path.with_name(path.name + ".part")
    part.write_bytes(msgspec.json.format(msgspec.json.encode(document), indent=2) + b"\n")
    os.replace(part, path)


def merged(old: Document, new: Document) -> Document:
    """The old document with the parts of the new one, which replace those of the same name.

    Raises `Unusable` if they are not of the same machine, or if one of them was quick and the other was not.
    """
    for name in ("cpu", "cores", "memory_mib"):
        if old.machine.get(name) != new.machine.get(name):
            raise Unusable(f"another machine: {name} was {old.machine.get(name)}, is {new.machine.get(name)}")
    if old.quick != new.quick:
        raise Unusable("quick figures and others do not belong into one file")
    kept = {name: part for name, part in old.parts.items() if name not in new.parts}
    return Document(machine=new.machine, versions=new.versions, quick=new.quick, parts={**kept, **new.parts})
