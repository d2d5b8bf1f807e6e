"""The seqs that a group has finished: a floor, and runs of seqs above it.

Every seq up to the floor is finished. The runs are disjoint, do not touch one another or the floor, and are kept sorted
by their first seqs. So a group that works in order has one number, for a log of any length.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence

from sortedcontainers import SortedDict

from topics.log.dumped_values import from_little_endian, little_endian


class FinishedRuns:
    """The finished seqs of one group. `floor`: all up to it are. `total`: how many above it are."""

    __slots__ = ("_lasts", "floor", "total")

    def __init__(self, floor: int = 0) -> None:
        self.floor = floor
        self.total = 0
        self._lasts: SortedDict[int, int] = SortedDict()
        """The last seq of each run, by its first."""

    def __len__(self) -> int:
        """Return how many runs there are above the floor."""
        return len(self._lasts)

    def __contains__(self, seq: int) -> bool:
        if seq <= self.floor:
            return True
        at = self._lasts.bisect_right(seq) - 1
        return at >= 0 and bool(self._lasts.peekitem(at)[1] >= seq)

    @property
    def last(self) -> int:
        """The highest finished seq."""
        return int(self._lasts.peekitem(-1)[1]) if self._lasts else self.floor

    def runs(self) -> Iterator[tuple[int, int]]:
        """Yield the runs above the floor, both ends inclusive."""
        return iter(self._lasts.items())

    def end_of_run(self, seq: int) -> int:
        """Return the last of the finished seqs right behind `seq`; `seq` itself if the next one is not finished."""
        if seq < self.floor:
            return self.floor
        at = self._lasts.bisect_right(seq + 1) - 1
        return seq if at < 0 else max(seq, int(self._lasts.peekitem(at)[1]))

    def add(self, first: int, last: int) -> None:
        """Finish the seqs `first` to `last` (inclusive). O(log n), and a step for each run that it swallows."""
        first = max(first, self.floor + 1)
        if last < first:
            return
        at = self._lasts.bisect_right(first) - 1
        if at >= 0:
            begin, end = self._lasts.peekitem(at)
            if end >= last:
                return
            if end >= first - 1:
                first = begin
        else:
            at = 0
        at = self._lasts.bisect_left(first)
        while at < len(self._lasts):
            begin, end = self._lasts.peekitem(at)
            if begin > last + 1:
                break
            self._lasts.popitem(at)
            self.total -= end - begin + 1
            last = max(last, end)
        if first == self.floor + 1:
            self.floor = last
        else:
            self._lasts[first] = last
            self.total += last - first + 1

    def add_seqs(self, seqs: Sequence[int]) -> None:
        """Finish seqs, ascending or not. Neighbours are taken together."""
        ordered = sorted(seqs)
        at = 0
        while at < len(ordered):
            end = at
            while end + 1 < len(ordered) and ordered[end + 1] <= ordered[end] + 1:
                end += 1
            self.add(ordered[at], ordered[end])
            at = end + 1

    def remove(self, seq: int) -> None:
        """Take a seq out of its run. One up to the floor stays: the floor never goes back."""
        at = self._lasts.bisect_right(seq) - 1
        if at < 0:
            return
        begin, end = self._lasts.peekitem(at)
        if end < seq:
            return
        del self._lasts[begin]
        if begin < seq:
            self._lasts[begin] = seq - 1
        if seq < end:
            self._lasts[seq + 1] = end
        self.total -= 1

    def outside(self, first: int, last: int) -> list[tuple[int, int]]:
        """Return the parts of the inclusive range `first` to `last` that are not finished."""
        first = max(first, self.floor + 1)
        parts = []
        at = max(0, self._lasts.bisect_right(first) - 1)
        while first <= last and at < len(self._lasts):
            begin, end = self._lasts.peekitem(at)
            if begin > last:
                break
            if begin > first:
                parts.append((first, begin - 1))
            first = max(first, end + 1)
            at += 1
        if first <= last:
            parts.append((first, last))
        return parts

    # -- keeping -----------------------------------------------------------------------------------------------------

    def dump(self) -> list[object]:
        """Return the floor and the runs, for `load`."""
        ends = array("Q", bytes(16 * len(self._lasts)))
        firsts = array("Q", self._lasts)  # 100,000 runs in 10 ms: an iteration over the items takes four times as long
        ends[::2], ends[1::2] = firsts, array("Q", map(self._lasts.__getitem__, firsts))
        return [self.floor, little_endian(ends)]

    @classmethod
    def load(cls, value: object) -> FinishedRuns:
        """Rebuild from what `dump` returned. Raises ValueError if `value` is no such dump."""
        match value:
            case [int(floor), bytes(packed)] if floor >= 0:
                ends = from_little_endian("Q", packed)
                runs = cls(floor)
                before = floor
                if len(ends) % 2:
                    raise ValueError("finished runs: half a run")
                for first, last in zip(ends[::2], ends[1::2], strict=True):
                    if not before + 1 < first <= last:
                        raise ValueError("finished runs: out of order, or touching")
                    runs._lasts[first] = last
                    runs.total += last - first + 1
                    before = last
                return runs
        raise ValueError("finished runs: not a dump")

    def check(self) -> None:
        """Assert every invariant. O(n)."""
        before = self.floor
        for first, last in self._lasts.items():
            assert before + 1 < first <= last, (before, first, last)
            before = last
        assert self.total == sum(last - first + 1 for first, last in self._lasts.items())
