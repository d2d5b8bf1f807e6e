"""What a mutation is: one line of the daemon changed, left out or moved, so that a promise is broken.

Responsible for making the text of the broken file and for saying whether a mutation is one at all. Which there are is
in `table`; who applies them, in `copies`.
"""

from __future__ import annotations

import textwrap
from collections import Counter
from dataclasses import dataclass
from typing import Literal, get_args

Subsystem = Literal[
    "wal",
    "directories",
    "ceilings",
    "eviction",
    "filters",
    "raw_bytes",
    "checkpoint",
    "recovery",
    "reclaimer",
    "relocator",
    "packing",
    "evidence",
    "routers",
    "queues",
    "groups",
    "staging",
    "transactions",
    "conditions",
    "schedules",
    "tables",
    "idempotency",
    "classes",
    "reading",
    "delivery",
    "pressure",
    "sockets",
    "takeover",
    "standby",
]
SUBSYSTEMS: tuple[Subsystem, ...] = get_args(Subsystem)

Proof = Literal["unit", "crash", "life"]
"""What is expected to notice: a test of the module alone, a crash at the right moment, or a life of the engine."""


@dataclass(frozen=True, slots=True)
class Mutation:
    """One broken build. `old` is text that occurs exactly once in `file`, whole lines with their indentation left out;
    of those one is different in `new`, missing, or in another place. `breaks` says which promise that is: items of
    `docs/spec/semantics.md` section 8, rules of `docs/spec/crash.md`, or sections of `docs/spec/speed.md`,
    `docs/spec/consumers.md`, `docs/spec/evidence.md` or `docs/spec/bucket.md`."""

    name: str
    subsystem: Subsystem
    file: str
    old: str
    new: str
    breaks: str
    expected: Proof

    def applied(self, text: str) -> str:
        """The broken file. Raises ValueError if `old` is not there exactly once."""
        places = self._places(text.splitlines())
        if len(places) != 1:
            raise ValueError(f"{self.name}: the old lines occur {len(places)} times in {self.file}, not once")
        lines, at = text.splitlines(keepends=True), places[0]
        old, new = _lines(self.old), _lines(self.new)
        indent = " " * (len(lines[at].rstrip("\n")) - len(old[0]))
        return "".join([*lines[:at], *(f"{indent}{line}\n" for line in new), *lines[at + len(old) :]])

    def _places(self, lines: list[str]) -> list[int]:
        old = _lines(self.old)
        n = len(old)
        return [i for i in range(len(lines) - n + 1) if _lines("\n".join(lines[i : i + n])) == old]

    @property
    def module(self) -> str:
        """What Python calls the file."""
        return self.file.removesuffix(".py").replace("/", ".")

    @property
    def lines_changed(self) -> int:
        """How many lines are different; one that has moved counts as one."""
        old, new = Counter(map(str.strip, _lines(self.old))), Counter(map(str.strip, _lines(self.new)))
        if old == new:
            return 1 if self.old != self.new else 0
        return max((old - new).total(), (new - old).total())


def _lines(text: str) -> list[str]:
    """Lines without what all of them are indented by, and without empty ones around them."""
    return textwrap.dedent(text).strip("\n").splitlines()
