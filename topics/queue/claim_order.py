"""In which order a claim takes jobs where some have another priority than the default one (`docs/design/jobs.md` 4).
Pure.

Jobs of one priority are a lane. Within a lane the order is that of a queue without priorities: free jobs first, the
smallest seq first, then fresh ones, which all have the default priority. The lane is served next whose first job is the
most urgent: that of the highest priority, where each job counts as one higher for each `aging_ms` since it could be
claimed first. Among equals it is the smallest seq. Nothing is kept for this but the priority: the age is computed from
the time of the record when a claim needs it.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from typing import NamedTuple

from topics.queue.job_pages import DEFAULT_PRIORITY, MOST_PRIORITY, JobPage, priority_of
from topics.queue.job_table import JobTable


class Ages(NamedTuple):
    """How jobs age. `ts_of` is the time of a job's record (epoch ms); `now_ms` is the time of the claim, by the same
    clock. With an `aging_ms` of 0 they do not."""

    ts_of: Callable[[int], int]
    now_ms: int
    aging_ms: int

    def urgency(self, priority: int, seq: int, not_before: int) -> int:
        """Return the priority that a job counts as having. `not_before`: when it could be claimed first, 0 for the time
        of its record."""
        if not self.aging_ms or priority == MOST_PRIORITY:
            return priority
        age_ms = self.now_ms - max(self.ts_of(seq), not_before)
        return min(priority + max(age_ms, 0) // self.aging_ms, MOST_PRIORITY)


class Choice(NamedTuple):
    """The jobs of a claim, in its order, and how many of them are fresh; the jobs to be parked; and True if the search
    stopped at too many of those."""

    seqs: array[int]
    fresh: int
    exhausted: array[int]
    more: bool


class _Lane:
    """The jobs of one priority, of which `seq` is the next, with its urgency; 0 if there is none."""

    __slots__ = ("jobs", "priority", "seq", "urgency")

    def __init__(self, priority: int, jobs: Iterator[tuple[JobPage, int, int]]) -> None:
        self.priority = priority
        self.jobs = jobs
        self.seq = self.urgency = 0


def choose(table: JobTable, fresh: array[int], limit: int, max_deliveries: int, ages: Ages, most_parked: int) -> Choice:
    """Choose up to `limit` jobs among the free ones of a table and the `fresh` ones (ascending). Jobs that have had
    `max_deliveries` (0: no limit) are to be parked, at most `most_parked`. Changes nothing, and raises what
    `ages.ts_of` raises."""
    free = chain(table.free(), ((*table.at(seq), seq) for seq in fresh))
    lanes = [
        _Lane(DEFAULT_PRIORITY, free),
        *(_Lane(priority_of(lane), table.free(lane)) for lane in table.other_lanes()),
    ]
    exhausted: array[int] = array("Q")

    def advance(lane: _Lane) -> bool:
        """Go to the next job of a lane that can be claimed. Return False if the search is to stop."""
        lane.seq = 0
        for page, slot, seq in lane.jobs:
            if not 0 < max_deliveries <= page.deliveries[slot]:
                lane.seq, lane.urgency = seq, ages.urgency(lane.priority, seq, page.due_ms[slot])
                break
            if len(exhausted) == most_parked:
                return False
            exhausted.append(seq)
        return True

    found: array[int] = array("Q")
    goes_on = all(advance(lane) for lane in lanes)
    while goes_on and len(found) < limit:
        lane = _first(lanes)
        if lane is None:
            break
        found.append(lane.seq)
        if len(found) < limit:
            goes_on = advance(lane)
    among = set(fresh)
    return Choice(found, sum(seq in among for seq in found), exhausted, not goes_on)


def _first(lanes: Iterable[_Lane]) -> _Lane | None:
    """Return the lane that is served next, None if none has jobs."""
    return max((lane for lane in lanes if lane.seq), key=lambda lane: (lane.urgency, -lane.seq), default=None)
