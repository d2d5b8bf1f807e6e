"""The losses of a topic: its holes, the floor below which no record is left, and the reasons (`docs/spec/semantics.md`
section 3). Which slots there are is the business of `record_index`; `TopicLog` decides when something is lost or
deleted.

A seq up to the head is in one of three states. A live seq becomes one of the other two, which are final:

    live       a reader gets the record
    deleted    a client asked for the deletion: never announced
    lost       for another reason (cap, ttl, restart, crash, damage, a router's gap): always announced, with the reason

Two floors say how far the front has moved.

    1 ... evict_floor ... earliest_seq ... head_seq
      |             |               |
      |             |               '- live, deleted or lost (a *hole*); earliest_seq itself is live
      |             '- every seq in [evict_floor, earliest_seq) was deleted
      '- lost or deleted; evict_floor - 1 was lost

`earliest_seq` is the first live seq, `head_seq + 1` when there is none: `TopicLog` keeps it. `evict_floor` is one past
the highest seq below `earliest_seq` that was lost, 1 if none was. So a reader that continues at or above `evict_floor`
has missed only deleted seqs and is told nothing. One that continues below `evict_floor` has missed at least seq
`evict_floor - 1` and gets a tombstone.

What moves the floors:

- *Eviction* (cap, ttl) makes live seqs at the front lost: both floors move. `evict_floor` follows the last record that
  was live, not the watermark: deleted slots below the watermark are no loss.
- *Deletion* makes live seqs anywhere deleted. At the front it moves `earliest_seq` alone, in the middle neither.
- A *hole* begins above `earliest_seq` and is announced when a reader meets it. When no live record is left before it,
  the front passes it: `earliest_seq` moves past it, the hole is forgotten, and `evict_floor` moves past its end. A
  deletion can thereby move `evict_floor`, but only past a hole, never past the seqs that it deleted.

What can never happen: a floor that goes back; `evict_floor > earliest_seq`; a hole that reaches below `earliest_seq` or
contains a live seq; a seq in [earliest_seq, head_seq] that has no slot and is in no hole.

A floor gap always ends at `earliest_seq - 1`. Whether a reason belongs to it depends therefore only on the highest seq
that was lost for that reason, so one seq per reason is enough. The `reason` of the gap is the one whose highest seq is
inside the gap, `mixed` if there are several. `missed_estimate` needs to know which seqs below `evict_floor` were
deleted. They are kept as at most `MAX_DELETED_RUNS` runs; beyond that the oldest are forgotten, so the estimate may be
too high, never too low. Deletions in a segment that is evicted while it is not loaded are forgotten too: they are not
worth a disk access. At or above `evict_floor` nothing needs to be remembered, and a topic that never lost anything
remembers nothing.
"""

from __future__ import annotations

import re
from array import array
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice, pairwise
from typing import Any, Final, Literal, NamedTuple

from topics.log.dumped_values import from_little_endian, little_endian, whole
from topics.log.record_index import RecordIndex
from topics.log.span import LIVE_TO_LOST, LOST, Span

LossReason = Literal["cap", "ttl", "mixed", "source_trim", "lost", "corrupt"]
REASONS: Final = frozenset({"cap", "ttl", "mixed", "source_trim", "lost", "corrupt"})

# Deleted runs remembered below `evict_floor`: 4 KiB per topic. Beyond that the oldest are forgotten, and a reader far
# behind gets a `missed_estimate` that is too high.
MAX_DELETED_RUNS = 256

_LOST_RUN: Final = re.compile(rb"\x02+")


class Hole(NamedTuple):
    """Lost seqs above the front, both ends inclusive. Some of them may have been deleted before they were lost."""

    first: int
    last: int
    reason: LossReason


class Gap(NamedTuple):
    """Seqs that a reader has missed, both ends inclusive. `missed` leaves out the seqs known to have been deleted."""

    first: int
    last: int
    reason: LossReason
    missed: int


class Losses:
    """The holes of one topic instance, its `evict_floor`, and the facts that are remembered of the seqs below it.

    `holes` are ascending, disjoint, and all at or above the front; neighbours that touch differ in their reason. None
    when there are none. Only the methods change them.
    """

    __slots__ = ("_causes", "_deleted", "_index", "evict_floor", "holes")

    def __init__(self, index: RecordIndex) -> None:
        self._index = index
        self.evict_floor = 1
        self.holes: list[Hole] | None = None
        # Reason -> the highest seq below the front that was lost for it.
        self._causes: dict[LossReason, int] | None = None
        # Known deleted seqs below evict_floor: first and last of each run, flat, ascending.
        self._deleted: array[int] | None = None

    @property
    def nothing(self) -> bool:
        """Return True if nothing was ever lost."""
        return self.evict_floor == 1 and not (self.holes or self._causes or self._deleted)

    # -- holes -------------------------------------------------------------------------------------------------------

    def outside_holes(self, first: int, last: int) -> list[tuple[int, int]]:
        """Return the parts of the inclusive range `first` to `last` that are in no hole."""
        parts = []
        for hole in self._holes_from(first):
            if hole.first > last:
                break
            if hole.first > first:
                parts.append((first, hole.first - 1))
            first = hole.last + 1
        if first <= last:
            parts.append((first, last))
        return parts

    def inside_holes(self, first: int, last: int, *, most: int | None = None) -> list[tuple[int, int]]:
        """Return the parts of the inclusive range `first` to `last` that are in holes, `most` at most."""
        parts: list[tuple[int, int]] = []
        for hole in self._holes_from(first):
            if hole.first > last or len(parts) == most:
                break
            parts.append((max(first, hole.first), min(last, hole.last)))
        return parts

    def _holes_from(self, seq: int) -> Iterator[Hole]:
        """The holes that end at or above `seq`."""
        holes = self.holes or []
        return islice(holes, bisect_left(holes, seq, key=_last), None)

    def add_hole(self, first: int, last: int, reason: LossReason) -> None:
        """Insert a hole that overlaps no other. Neighbours that touch it and have the same reason are joined with
        it."""
        if self.holes is None:
            self.holes = []
        hole, holes = Hole(first, last, reason), self.holes
        at = bisect_left(holes, hole)
        if at < len(holes) and holes[at].first == hole.last + 1 and holes[at].reason == hole.reason:
            hole = Hole(hole.first, holes.pop(at).last, hole.reason)
        if at and holes[at - 1].last + 1 == hole.first and holes[at - 1].reason == hole.reason:
            at -= 1
            hole = Hole(holes.pop(at).first, hole.last, hole.reason)
        holes.insert(at, hole)

    def lay_over(self, span: Span, dead: bytearray) -> list[tuple[int, int]]:
        """Mark as lost, in `dead` (a state per slot of `span`, read from a file), the live slots that are in a hole.

        Returns, as inclusive ranges, the seqs that the file says are lost although they are in no hole.
        """
        damage: list[tuple[int, int]] = []
        if self.holes or dead.find(LOST, span.start) >= 0:
            for lo, hi in self.inside_holes(span.first + span.start, span.end - 1):
                a, b = lo - span.first, hi + 1 - span.first
                dead[a:b] = dead[a:b].translate(LIVE_TO_LOST)
            for run in _LOST_RUN.finditer(dead, span.start):
                damage += self.outside_holes(span.first + run.start(), span.first + run.end() - 1)
        return damage

    # -- what a reader has missed ------------------------------------------------------------------------------------

    def gap_at(self, seq: int, live: int | None) -> Gap | None:
        """Return the rest, from `seq` on, of the hole that comes before `live`, the next live record (None: there is
        none). Return None if there is no hole before it. Raises NotLoaded."""
        holes = self.holes
        if not holes:
            return None
        at = bisect_left(holes, seq, key=_last)
        if at == len(holes) or (live is not None and holes[at].first >= live):
            return None
        hole = holes[at]
        first = max(hole.first, seq)
        missed = hole.last - first + 1 - self._index.deleted_in(first, hole.last + 1)
        return Gap(first, hole.last, hole.reason, missed)

    def reason_from(self, first: int) -> LossReason:
        """Return the reason for a floor gap of a reader that wants everything from `first` on; `first` is below
        `evict_floor`."""
        reasons = [reason for reason, last in (self._causes or {}).items() if last >= first]
        return reasons[0] if len(reasons) == 1 else "mixed"

    def deleted_below(self, front: int, first: int) -> int:
        """Return how many seqs of [first, front) are known to have been deleted; `first` is at most `evict_floor`."""
        total = front - self.evict_floor
        runs = self._deleted or ()
        # From the newest back, because most readers are not far behind.
        for at in range(len(runs) - 2, -1, -2):
            if runs[at + 1] < first:
                break
            total += runs[at + 1] - max(runs[at], first) + 1
        return total

    def why_missing(self, seq: int, front: int) -> LossReason | Literal["deleted"]:
        """Return why there is no live record at `seq`, which is at most the head and not live. Raises NotLoaded.

        Below `evict_floor` the answer is as good as the memory of the topic: a record whose deletion was forgotten
        counts as lost. Of several reasons it is the one whose highest seq comes next.
        """
        if seq < self.evict_floor:
            runs = self._deleted or ()
            at = bisect_left(runs, seq)
            if at < len(runs) and (at % 2 or runs[at] == seq):
                return "deleted"
            return min((last, reason) for reason, last in (self._causes or {}).items() if last >= seq)[1]
        for hole in self._holes_from(seq) if seq >= front else ():
            if hole.first <= seq and not self._index.deleted_in(seq, seq + 1):
                return hole.reason
            break
        return "deleted"

    # -- the front moves ---------------------------------------------------------------------------------------------

    def move_front(self, old_front: int, front: int, reason: LossReason | None, last_lost: int) -> None:
        """Move the first live seq from `old_front` to `front`. Must be called before the slots below `front` are
        dropped.

        Holes below `front` are passed. With a `reason`, the live records below it are lost for that reason, the highest
        being `last_lost`; without one they were deleted.
        """
        causes = self._causes or {}
        if reason is not None:
            causes[reason] = last_lost  # it was live, so nothing lost before is higher
        passed: list[Hole] = []
        if self.holes:
            at = bisect_left(self.holes, front, key=_last)
            passed = self.holes[:at]
            self.holes = self.holes[at:] or None
            for hole in passed:
                causes[hole.reason] = max(hole.last, causes.get(hole.reason, 0))
        if causes:
            self._causes = causes
            floor = max(causes.values()) + 1
            if floor > self.evict_floor:
                self._raise_floor(floor, old_front, None if reason is not None else passed)

    def _raise_floor(self, floor: int, old_front: int, passed: Sequence[Hole] | None) -> None:
        """Raise `evict_floor` and remember the deletions below it.

        `passed` are the holes below the new front if everything else there is deleted; None if it may be lost.
        """
        runs = []
        if self.evict_floor < old_front:
            runs.append((self.evict_floor, old_front - 1))
        if floor > old_front and passed is None:
            runs += self._index.deleted_runs(old_front, floor, MAX_DELETED_RUNS)
        elif floor > old_front and passed is not None:
            runs += self._deleted_around(passed, old_front, floor)
        self.evict_floor = floor
        if not runs:
            return
        known = self._deleted if self._deleted is not None else array("Q")
        for first, last in runs:
            if known and known[-1] + 1 == first:
                known[-1] = last
            else:
                known.extend((first, last))
        # A slice, because deleting in place would leave the array allocated at its longest.
        self._deleted = known[-2 * MAX_DELETED_RUNS :] if len(known) > 2 * MAX_DELETED_RUNS else known

    def _deleted_around(self, holes: Sequence[Hole], lo: int, hi: int) -> list[tuple[int, int]]:
        """Return the deleted seqs of `lo` to `hi` (exclusive) as inclusive runs, ascending, given that every seq
        outside `holes` is deleted. If there are many runs, at least the newest `MAX_DELETED_RUNS`."""
        newest_first: list[tuple[int, int]] = []
        for hole in reversed(holes):
            if len(newest_first) >= MAX_DELETED_RUNS:
                break
            if hole.last + 1 < hi:
                newest_first.append((hole.last + 1, hi - 1))
            newest_first += reversed(self._index.deleted_runs(hole.first, hole.last + 1, MAX_DELETED_RUNS))
            hi = hole.first
        else:
            if lo < hi:
                newest_first.append((lo, hi - 1))
        newest_first.reverse()
        return newest_first

    # -- keeping -----------------------------------------------------------------------------------------------------

    def copy(self, index: RecordIndex) -> Losses:
        """Return the same losses for a topic whose slots are in `index`."""
        copy = Losses(index)
        copy.evict_floor = self.evict_floor
        copy.holes = self.holes[:] if self.holes else None
        copy._causes = dict(self._causes) if self._causes else None
        copy._deleted = self._deleted[:] if self._deleted else None
        return copy

    def dump(self) -> dict[str, Any]:
        """Return everything but `evict_floor`, for `load`."""
        return {
            "holes": [list(hole) for hole in self.holes or ()],
            "causes": dict(self._causes or {}),
            "deleted": little_endian(self._deleted) if self._deleted is not None else b"",
        }

    @classmethod
    def load(cls, value: Mapping[str, Any], index: RecordIndex) -> Losses:
        """Rebuild the losses from what `dump` returned plus "evict_floor".

        Raises ValueError, KeyError, TypeError or AttributeError if `value` is not a dump.
        """
        losses = cls(index)
        losses.evict_floor = whole(value["evict_floor"])
        losses.holes = [Hole(whole(first), whole(last), reason) for first, last, reason in value["holes"]] or None
        losses._causes = {reason: whole(last) for reason, last in value["causes"].items()} or None
        losses._deleted = from_little_endian("Q", value["deleted"]) or None
        return losses

    def check(self, front: int, head_seq: int) -> None:
        """Assert every invariant, including those of the floors and of the slots from `front` to the head. Costs a step
        per span, hole or run."""
        holes, index = self.holes or [], self._index
        assert 1 <= self.evict_floor <= front <= head_seq + 1, "floors"
        assert all(front <= hole.first <= hole.last <= head_seq for hole in holes), "hole outside"
        assert all(hole.reason in REASONS for hole in holes), "reason of a hole"
        assert all(a.last < b.first for a, b in pairwise(holes)), "holes overlap"
        for lo, hi in self.outside_holes(front, head_seq):
            slots = list(index.parts(lo, hi + 1))
            assert sum(b - a for _, a, b in slots) == hi + 1 - lo, "neither slot nor hole"
            assert all(not span.lost or span.dead.find(LOST, a, b) < 0 for span, a, b in slots), "lost outside a hole"
        for hole in holes:
            for span, a, b in index.parts(hole.first, hole.last + 1):
                assert span.dead.find(0, a, b) < 0, "live record in a hole"
                assert span.live <= span.n - span.start - (b - a), "more live records than slots outside of holes"
        causes = self._causes or {}
        assert REASONS.issuperset(causes), "reason of a loss"
        assert self.evict_floor == max(causes.values(), default=0) + 1, "evict_floor"
        runs = self._deleted if self._deleted is not None else array("Q")
        assert len(runs) % 2 == 0, "deleted runs"
        assert all(a <= b for a, b in pairwise(runs)), "deleted runs"
        assert not runs or runs[-1] < self.evict_floor, "deleted run above the floor"


def _last(hole: Hole) -> int:
    return hole.last
