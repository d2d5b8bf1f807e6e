"""The two orders in which the projection looks for jobs: by seq, and by when something is over.

In both, entries are not taken out when a job moves on: they cease to be *live*, which is the owner's to say. Such
entries are dropped when they come to the front, and all of them in `tidy`, which the owner calls when jobs have moved
on. So a heap holds at most twice what lives in it and a little, at amortised constant cost.

An entry may be in twice. It is served twice then, unless the owner sees that it is not live the second time.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from heapq import heapify, heappop, heappush
from itertools import repeat
from typing import Final

# Below this a heap is not worth tidying.
TIDY_MIN: Final = 64

# Where more than an eighth of a heap comes or goes at once, it is cheaper to make the heap anew.
_HEAPIFY_SHARE: Final = 8


class SeqHeap:
    """Seqs, the smallest first."""

    __slots__ = ("_heap",)

    def __init__(self) -> None:
        self._heap: list[int] = []

    def __len__(self) -> int:
        return len(self._heap)

    def push(self, seq: int) -> None:
        """Add `seq`: O(1) if it is the largest, else O(log n)."""
        heappush(self._heap, seq)

    def push_all(self, seqs: Sequence[int]) -> None:
        """Add all of `seqs`."""
        if len(seqs) * _HEAPIFY_SHARE > len(self._heap):
            self._heap.extend(seqs)
            heapify(self._heap)
        else:
            for seq in seqs:
                heappush(self._heap, seq)

    def first(self, is_live: Callable[[int], object]) -> int | None:
        """The smallest live seq. It stays where it is."""
        heap = self._heap
        while heap:
            if is_live(heap[0]):
                return heap[0]
            heappop(heap)
        return None

    def pop(self) -> int:
        """Take out what `first` returned."""
        return heappop(self._heap)

    def take_below(self, end: int) -> list[int]:
        """Take out everything smaller than `end`, live or not, ascending. O(log n) each, or O(n) for most of them."""
        heap = self._heap
        few = len(heap) // _HEAPIFY_SHARE
        out: list[int] = []
        while heap and heap[0] < end:
            if len(out) > few:
                out += sorted(seq for seq in heap if seq < end)
                self._heap = [seq for seq in heap if seq >= end]
                heapify(self._heap)
                break
            out.append(heappop(heap))
        return out

    def entries(self) -> set[int]:
        """Everything that is in, live or not. For checks."""
        return set(self._heap)

    def tidy(self, live: int, is_live: Callable[[int], object]) -> None:
        """Drop what is not live, if that can be more than half. `live` is how many live ones there are at most."""
        if len(self._heap) > 2 * live + TIDY_MIN:
            # The set, because a seq that is in twice must not make every further call do this again.
            self._heap = sorted({seq for seq in self._heap if is_live(seq)})


class DueHeap:
    """Seqs by the millisecond from which on they are due. What is due at the same one shares an entry: an array."""

    __slots__ = ("_at", "_size", "_times")

    def __init__(self) -> None:
        self._at: dict[int, array[int]] = {}
        self._times: list[int] = []
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def push_all(self, due_ms: int, seqs: Sequence[int]) -> None:
        """Add `seqs`, due from `due_ms` on: O(1) each, and once O(log n) if nothing else is due then."""
        there = self._at.get(due_ms)
        if there is None:
            if not seqs:
                return
            self._at[due_ms] = array("Q", seqs)
            heappush(self._times, due_ms)
        else:
            there.extend(seqs)
        self._size += len(seqs)

    def first_time(self, is_live: Callable[[int, int], object]) -> int | None:
        """The earliest time at which a live seq is due (`is_live` is given that time and the seq)."""
        while self._times:
            due_ms = self._times[0]
            seqs = self._at[due_ms]
            dead = next((i for i, live in enumerate(map(is_live, repeat(due_ms), seqs)) if live), len(seqs))
            if dead < len(seqs):
                if dead:  # so that nobody looks at them again
                    self._size -= dead
                    del seqs[:dead]
                return due_ms
            self.pop(due_ms)
        return None

    def pop_time(self, now_ms: int) -> int | None:
        """The earliest time that is not after `now_ms`, for `pop`; None if there is none."""
        return self._times[0] if self._times and self._times[0] <= now_ms else None

    def pop(self, due_ms: int) -> array[int]:
        """Take out everything that is due at the earliest time, live or not."""
        assert self._times[0] == due_ms
        heappop(self._times)
        seqs = self._at.pop(due_ms)
        self._size -= len(seqs)
        return seqs

    def entries(self) -> set[tuple[int, int]]:
        """Everything that is in, live or not. For checks."""
        return {(due_ms, seq) for due_ms, seqs in self._at.items() for seq in seqs}

    def tidy(self, live: int, is_live: Callable[[int, int], object]) -> None:
        """Drop what is not live, if that can be more than half. `live` is how many live ones there are at most."""
        if self._size <= 2 * live + TIDY_MIN:
            return
        kept = {}
        for due_ms, seqs in self._at.items():
            # Each once, for the same reason as in `SeqHeap`; a dict, because it keeps their order.
            left = array("Q", dict.fromkeys(seq for seq in seqs if is_live(due_ms, seq)))
            if left:
                kept[due_ms] = left
        self._at = kept
        self._times = sorted(kept)
        self._size = sum(map(len, kept.values()))
