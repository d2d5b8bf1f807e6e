"""The even division of a coalescing window (`docs/spec/semantics.md` section 6): how many jobs each claimer of a cohort
gets.

Round robin: the claimers of a window take one job each in turn, in the order in which they came, each until it has its
`max`, until there are no more jobs. That is *filling up to a level*: each gets `min(max, level)`, where level is the
number of full turns, and the jobs left over go one each to the first claimers that still have room. The level is
computed from the sorted `max`s, at a cost that does not depend on the number of jobs.

Which seqs a claimer gets does not matter, so each gets a run of them, and its answer is ascending as it must be.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence


def divide(maxima: Sequence[int], jobs: int) -> list[int]:
    """Return how many of `jobs` jobs each claimer gets; `maxima` has the most that each takes, in the order of arrival.

    No job is left while a claimer has room, and no claimer gets two more than another that has room. O(n log n) for n
    claimers.
    """
    level, left = _full_turns(maxima, jobs)
    shares = []
    for most in maxima:
        one_more = most > level and left > 0
        left -= one_more
        shares.append(min(most, level) + one_more)
    return shares


def deal(seqs: array[int], shares: Sequence[int]) -> list[array[int]]:
    """Return the seqs of each claimer: `shares[i]` of them, in the order of `seqs`. Seqs beyond the sum of `shares` are
    left out."""
    hands = []
    at = 0
    for share in shares:
        hands.append(seqs[at : at + share])
        at += share
    return hands


def _full_turns(maxima: Sequence[int], jobs: int) -> tuple[int, int]:
    """Return the number of full turns, and how many jobs are left for the last turn, which is not full.

    Turns are counted only while a claimer has room.
    """
    level, left = 0, jobs
    with_room = len(maxima)
    for most in sorted(maxima):
        step = most - level
        if step * with_room > left:
            turns, left = divmod(left, with_room)
            return level + turns, left
        left -= step * with_room
        level = most
        with_room -= 1
    return level, 0
