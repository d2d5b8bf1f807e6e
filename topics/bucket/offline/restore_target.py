"""Which base and which round a restore uses (`docs/design/bucket.md` sections 3 and 6).

A restore goes to the end of a cut. It uses the newest base that is not beyond that, and the rounds from this base's
first one on. All rounds behind the base must be of its history.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from typing import NamedTuple

from topics.bucket.object_names import round_name
from topics.bucket.offline.bucket_reader import BucketReader
from topics.bucket.round_format import RoundHead

MapHeads = Callable[[Callable[[int], RoundHead], Iterable[int]], Iterable[RoundHead]]
"""`map`, or one that makes several calls at a time."""


class RestoreRefused(Exception):
    """There is nothing in the bucket that a restore could use. The message is one sentence for the operator."""


class NothingToRestore(RestoreRefused):
    """The bucket has no base yet, or no round that ends a cut behind one."""


class RestoreTarget(NamedTuple):
    """The numbers of the base and of the last round."""

    base: int
    round: int
    wall_ms: int
    """When the cut of the round was taken (epoch ms)."""


def choose_target(
    reader: BucketReader, *, number: int | None = None, to_ms: int | None = None, map_heads: MapHeads = map
) -> RestoreTarget:
    """Return the target: the end of round `number`; or the last cut that was taken at `to_ms` (epoch ms) or before; or
    the last one that there is. Raises RestoreRefused, BucketDamaged, StoreError."""
    reader.format()
    bases = [base.number for base in reader.bases()]
    if not bases:
        raise NothingToRestore("the bucket has no base, so there is nothing to restore")
    if number is not None:
        return _of_number(reader, bases, number, map_heads)
    while bases:
        rounds, base = _rounds_to(reader, bases, to_ms)
        heads = _same_history(list(map_heads(reader.round_head, rounds)))
        for head in reversed(heads):
            if head.ends_cut and (to_ms is None or head.wall_ms <= to_ms):
                return RestoreTarget(base, head.number, head.wall_ms)
        bases = bases[: bases.index(base)]
    raise NothingToRestore("the bucket has no round that ends a cut behind one of its bases")


def _of_number(reader: BucketReader, bases: Sequence[int], number: int, map_heads: MapHeads) -> RestoreTarget:
    before = bases[: bisect_right(bases, number)]
    if not before:
        raise RestoreRefused(f"round {number} is older than the oldest base, which is for round {bases[0]}")
    known = [one.number for one in reader.rounds(before[-1])]
    if known and number > known[-1]:
        raise RestoreRefused(f"there is no round {number}: the last one is {known[-1]}")
    heads = list(map_heads(reader.round_head, range(before[-1], number + 1)))
    if not heads[-1].ends_cut:
        raise RestoreRefused(f"round {number} does not end a cut: use an earlier or a later one")
    same = _same_history(heads)
    if len(same) < len(heads):
        raise RestoreRefused(
            f"{round_name(number)} is of the history that begins with round {heads[len(same)].number}, which has no "
            "base up to there: use a later round"
        )
    return RestoreTarget(before[-1], number, heads[-1].wall_ms)


def _rounds_to(reader: BucketReader, bases: Sequence[int], to_ms: int | None) -> tuple[list[int], int]:
    """Return the numbers of rounds among which the target is, ascending, and the base that they begin with."""
    at = len(bases)
    if to_ms is not None:
        at = bisect_right(bases, to_ms, key=lambda base: reader.round_head(base).wall_ms)
        if not at:
            oldest = datetime.fromtimestamp(reader.round_head(bases[0]).wall_ms / 1000, UTC)
            raise RestoreRefused(f"the oldest state in the bucket is of {oldest:%Y-%m-%dT%H:%M:%S.%fZ}")
    base = bases[at - 1]
    last = base
    for one in reader.rounds(base):
        if at < len(bases) and one.number >= bases[at]:
            break
        last = one.number
    return list(range(base, last + 1)), base


def _same_history(heads: Sequence[RoundHead]) -> list[RoundHead]:
    """Return the first ones of the rounds from a base's on, up to the beginning of another history."""
    end = next((i for i, head in enumerate(heads) if i and head.begins_history), len(heads))
    return list(heads[:end])
