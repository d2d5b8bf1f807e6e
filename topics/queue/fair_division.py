"""The even division of a coalescing window (`docs/spec/semantics.md` section 6): who of a cohort gets how many jobs.

Round robin: the claimers of a window take one job each in turn, in the order in which they came, each until it has its
`max`, until there are no more. That is *filling up to a level*: everybody gets `min(max, level)`, where level is the
number of full turns, and what is left over is one more for the first of those who still have room. So it is worked out
from the sorted `max`s, without going round, at a cost that does not depend on the number of jobs.

Which seqs are dealt to whom does not matter, so each gets a run of them, and his answer is ascending as it must be.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence


def divide(maxima: Sequence[int], jobs: int) -> list[int]:
    """How many of `jobs` jobs each claimer gets; `maxima` has what each takes at most, in the order of arrival.

    None is left while somebody has room, and nobody has two more than another who has room. O(n log n) for n claimers.
    """
    level, left = _full_turns(maxima, jobs)
    shares = []
    for most in maxima:
        one_more = most > level and left > 0
        left -= one_more
        shares.append(min(most, level) + one_more)
    return shares


def deal(seqs: array[int], shares: Sequence[int]) -> list[array[int]]:
    """The seqs of each claimer: `shares[i]` of them, in the order of `seqs`. What `shares` do not cover is nobody's."""
    hands = []
    at = 0
    for share in shares:
        hands.append(seqs[at : at + share])
        at += share
    return hands


def _full_turns(maxima: Sequence[int], jobs: int) -> tuple[int, int]:
    """How many full turns there are, and how many jobs are left after them for a turn that is not full.

    No more turns are counted than somebody has room for.
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
