"""Whether what clients saw of conditional appends can have happened one after another (linearizability).

In general that needs a search over all orders. Here the topic itself says in which order appends took effect: by seq.
So it is enough to check this one order, in O(n log n):

- each append is in the log whole or not at all, where its answer says; one that was refused is not
- each append that is in the log, replayed in the order of seqs, finds its conditions fulfilled
- one that was answered before another was sent has smaller seqs
- a refusal tells of a state that the topic was in at some moment between the call and its answer

If a history passes, its order by seq, with each refusal put at such a moment, is a sequential execution that clients
cannot tell from what they saw. If it does not, there is none: an append's seqs are in its answer and in the log, so no
other order of appends is possible.

Conditions judge by three registers: the head, the newest seq of each tag, the highest token of each fence. Nothing is
deleted or evicted in such a history.
"""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate, count
from typing import Any

from topics.model import Conditions


@dataclass
class Attempt:
    """One append, as its client knows it. Moments are numbers that grow."""

    number: int
    conditions: Conditions
    tag: str | None
    records: int
    invoked: int
    answered: int | None = None
    """None as long as the outcome is not known."""
    first_seq: int | None = None
    """Where it is, if it was acked."""
    refused: tuple[str, Mapping[str, Any]] | None = None
    """Code and detail of a refusal."""


@dataclass
class History:
    """What all clients saw. May be used from several threads."""

    attempts: list[Attempt] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _moments: Any = field(default_factory=lambda: count(1))

    def begin(self, conditions: Conditions, tag: str | None, records: int) -> Attempt:
        with self._lock:
            attempt = Attempt(len(self.attempts), conditions, tag, records, next(self._moments))
            self.attempts.append(attempt)
            return attempt

    def acked(self, attempt: Attempt, first_seq: int) -> None:
        with self._lock:
            attempt.answered, attempt.first_seq = next(self._moments), first_seq

    def refused(self, attempt: Attempt, code: str, detail: Mapping[str, Any]) -> None:
        with self._lock:
            attempt.answered, attempt.refused = next(self._moments), (code, detail)

    def so_far(self) -> list[Attempt]:
        """What was known at this moment."""
        with self._lock:
            return [replace(attempt) for attempt in self.attempts]


def check(attempts: Sequence[Attempt], log: Sequence[Sequence[int] | None]) -> dict[str, int]:
    """Assert that the history can have happened. `log` has the number of the attempt and the index of each record, from
    seq 1 on; None is a seq that was given out and is empty. Returns the fences that the topic must have then."""
    starts = _placed(attempts, log)
    registers = _replayed(attempts, starts, [seq for seq, entry in enumerate(log, 1) if entry is None])
    assert registers.heads[-1] == len(log)
    _check_time(attempts, starts)
    _check_refusals(attempts, starts, registers)
    return {name: tokens[-1][1] for name, tokens in registers.fences.items()}


def _placed(attempts: Sequence[Attempt], log: Sequence[Sequence[int] | None]) -> dict[int, int]:
    """The first seq of each attempt that is in the log, in the order of seqs."""
    starts: dict[int, int] = {}
    seq = 1
    while seq <= len(log):
        entry = log[seq - 1]
        if entry is None:
            seq += 1
            continue
        number = entry[0]
        assert number not in starts, f"attempt {number} is there twice"
        attempt = attempts[number]
        found = [list(entry or ()) for entry in log[seq - 1 : seq - 1 + attempt.records]]
        assert found == [[number, i] for i in range(attempt.records)], f"attempt {number} is there in part"
        assert attempt.refused is None, f"attempt {number} was refused, and is there"
        starts[number] = seq
        seq += attempt.records
    for attempt in attempts:
        if attempt.first_seq is not None:
            assert starts.get(attempt.number) == attempt.first_seq, f"attempt {attempt.number} is elsewhere"
    return starts


@dataclass
class _Registers:
    """The states that the topic went through: by head, and per name the seq from which on a value held."""

    heads: list[int]
    tags: dict[str, list[tuple[int, int]]]
    fences: dict[str, list[tuple[int, int]]]


def _replayed(attempts: Sequence[Attempt], starts: Mapping[int, int], empty: Sequence[int]) -> _Registers:
    found = _Registers([0, *empty], {}, {})
    for number, first in starts.items():
        attempt = attempts[number]
        expected, tags, fence = attempt.conditions
        assert expected in (None, first - 1), f"attempt {number} is at {first}, and expected the head {expected}"
        for tag, seq in tags.items():
            newest = found.tags.get(tag, [(0, 0)])[-1][1]
            assert newest == seq, f"attempt {number} expected {seq} for tag {tag!r}, and it was {newest}"
        last = first + attempt.records - 1
        if fence is not None:
            tokens = found.fences.setdefault(fence.name, [])
            assert not tokens or fence.token >= tokens[-1][1], f"attempt {number} was fenced off, and is there"
            if not tokens or fence.token > tokens[-1][1]:
                tokens.append((last, fence.token))
        if attempt.tag is not None:
            found.tags.setdefault(attempt.tag, [(0, 0)]).append((last, last))
        found.heads.append(last)
    found.heads.sort()
    return found


def _check_time(attempts: Sequence[Attempt], starts: Mapping[int, int]) -> None:
    lowest = _highest_before(attempts, starts, lambda attempt: attempt.answered if attempt.first_seq else None)
    for number, first in starts.items():
        assert lowest(attempts[number].invoked) < first, f"attempt {number} is before one that was acked before it"


def _check_refusals(attempts: Sequence[Attempt], starts: Mapping[int, int], registers: _Registers) -> None:
    lowest = _highest_before(attempts, starts, lambda attempt: attempt.answered if attempt.first_seq else None)
    highest = _highest_before(attempts, starts, lambda attempt: attempt.invoked)
    for attempt in attempts:
        if attempt.refused is None:
            continue
        assert attempt.answered is not None
        low, high = lowest(attempt.invoked), highest(attempt.answered)
        code, detail = attempt.refused
        if code == "fenced":
            fence = attempt.conditions.fence
            assert fence is not None
            assert detail["name"] == fence.name
            assert detail["token"] > fence.token
            states, value = registers.fences.get(fence.name, []), detail["token"]
        elif "tag" in detail:
            assert attempt.conditions.tag_seqs[detail["tag"]] == detail["expected"] != detail["actual"]
            states, value = registers.tags.get(detail["tag"], [(0, 0)]), detail["actual"]
        else:
            assert detail["head_seq"] != attempt.conditions.head_seq
            states, value = [(head, head) for head in registers.heads], detail["head_seq"]
        assert _held(states, value, low, high), f"attempt {attempt.number}: {detail} was not so from {low} to {high}"


def _held(states: Sequence[tuple[int, int]], value: int, low: int, high: int) -> bool:
    """Whether a register had the value while the head was at some place from `low` to `high`."""
    for i, (since, held) in enumerate(states):
        if held == value:
            until = states[i + 1][0] - 1 if i + 1 < len(states) else high
            return since <= high and until >= low
    return False


def _highest_before(
    attempts: Iterable[Attempt], starts: Mapping[int, int], moment: Callable[[Attempt], int | None]
) -> Callable[[int], int]:
    """A function that returns the last seq of all attempts in the log whose moment is before another one."""
    known = [(at, attempt) for attempt in attempts if attempt.number in starts and (at := moment(attempt)) is not None]
    known.sort(key=lambda entry: entry[0])
    moments = [at for at, _ in known]
    tops = list(accumulate((starts[one.number] + one.records - 1 for _, one in known), max, initial=0))
    return lambda at: tops[bisect_left(moments, at)]
