"""The live records of a topic with a tag and data null: where `keep_per_tag` is on, they take away the earlier records
of their tag, and go themselves after a time (`docs/spec/evidence.md` section 3). Pure.

Only records from the time in which the topic had `keep_per_tag`, or was a stage, are known; `KeptTags` knows the nulls
among the others.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise, takewhile
from typing import Any

from topics.log.dumped_values import from_little_endian, little_endian


class NullRecords:
    """The nulls of one topic, with their times. About 100 bytes for each."""

    __slots__ = ("_times",)

    def __init__(self) -> None:
        self._times: dict[int, int] = {}
        """Times (epoch ms) by seq, both ascending."""

    def __len__(self) -> int:
        return len(self._times)

    def __contains__(self, seq: object) -> bool:
        return seq in self._times

    def __iter__(self) -> Iterator[int]:
        """Yield the seqs, ascending."""
        return iter(self._times)

    def add(self, seqs: Sequence[int], ts: int) -> None:
        """Add records of one time, which follow all others."""
        self._times.update(dict.fromkeys(seqs, ts))

    def drop(self, seqs: Sequence[int]) -> None:
        """Drop those of `seqs` that have died."""
        if self._times:
            for seq in seqs:
                self._times.pop(seq, None)

    def drop_below(self, front: int) -> None:
        """Drop all below a seq."""
        for seq in list(takewhile(front.__gt__, self._times)):
            del self._times[seq]

    def before(self, ts: int, most: int) -> list[int]:
        """Return the seqs of the oldest that are older than a time, at most `most`."""
        found: list[int] = []
        for seq, at in self._times.items():
            if at >= ts or len(found) >= most:
                break
            found.append(seq)
        return found

    def dump(self) -> dict[str, Any]:
        """Return them as two arrays for `load`; nothing if there are none."""
        if not self._times:
            return {}
        seqs, times = array("Q", self._times), array("Q", self._times.values())
        return {"nulls": little_endian(seqs), "null_times": little_endian(times)}

    @classmethod
    def load(cls, value: Mapping[str, Any]) -> NullRecords | None:
        """Return what `dump` has put into a map, None if it has put nothing. Raises ValueError or KeyError if the
        values are no such dump."""
        if "nulls" not in value:
            return None
        seqs, times = from_little_endian("Q", value["nulls"]), from_little_endian("Q", value["null_times"])
        nulls = cls()
        nulls._times = dict(zip(seqs, times, strict=True))
        if len(nulls._times) != len(seqs) or any(a >= b for a, b in pairwise(seqs)):
            raise ValueError("nulls: not ascending")
        return nulls
