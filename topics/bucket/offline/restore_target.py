"""Which base and which round a restore uses (`docs/design/bucket.md` sections 3 and 6).

A restore goes to the end of a cut. It uses the newest base that is not beyond that, and the rounds from this base's
first one on. All rounds behind the base must be of its history.

If that base, or a pack that it names, is missing or damaged, an older base of the same history gives the same state,
with more rounds: the rounds that a base needs are kept as long as the base.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Final, NamedTuple, TypeVar

from topics.bucket.object_names import BASES, PACKS, round_name
from topics.bucket.offline.bucket_reader import BucketDamaged, BucketReader
from topics.bucket.round_format import RoundHead
from topics.telemetry.logs import get_logger

log = get_logger(__name__)

T = TypeVar("T")

MOST_BASES: Final = 3
"""So many bases are tried before a restore fails: packs are shared by bases, and each attempt reads the bucket."""

MapHeads = Callable[[Callable[[int], RoundHead], Iterable[int]], Iterable[RoundHead]]
"""`map`, or one that makes several calls at a time."""


class RestoreRefused(Exception):
    """There is nothing in the bucket that a restore could use. The message is one sentence for the operator."""


class NothingToRestore(RestoreRefused):
    """The bucket has no base yet, or no round that ends a cut behind one."""


class NoBase(NothingToRestore):
    """The bucket has no base, of any history."""


class RestoreTarget(NamedTuple):
    """The numbers of the base and of the last round."""

    base: int
    round: int
    wall_ms: int
    """When the cut of the round was taken (epoch ms)."""
    passed_over: str = ""
    """Which newer base is not used, because of which damage; empty if there is none."""


def choose_target(
    reader: BucketReader,
    *,
    number: int | None = None,
    to_ms: int | None = None,
    map_heads: MapHeads = map,
    damaged: Mapping[int, BucketDamaged] | None = None,
) -> RestoreTarget:
    """Return the target: the end of round `number`; or the last cut that was taken at `to_ms` (epoch ms) or before; or
    the last one that there is. The base can be read, and is none of `damaged`. Raises RestoreRefused, BucketDamaged,
    StoreError."""
    reader.format()
    bases = [base.number for base in reader.bases()]
    if not bases:
        raise NoBase("the bucket has no base, so there is nothing to restore")
    if number is not None:
        target = _of_number(reader, bases, number, map_heads)
    else:
        target = _newest(reader, bases, to_ms, map_heads)
    return _on_whole_base(reader, bases[: bisect_right(bases, target.base)], target, map_heads, damaged or {})


def with_whole_base(
    choose: Callable[[Mapping[int, BucketDamaged]], RestoreTarget], make: Callable[[RestoreTarget], T]
) -> T:
    """Return what `make` makes of a target; if it finds a base or a pack of it damaged, that of an older base for the
    same state. `choose` returns a target without the bases that it is given. Raises what both raise."""
    damaged: dict[int, BucketDamaged] = {}
    while True:
        target = choose(damaged)
        try:
            return make(target)
        except BucketDamaged as error:
            if not may_pass_over(error) or len(damaged) + 1 >= MOST_BASES:
                raise next(iter(damaged.values()), error) from None
            damaged[target.base] = error


def may_pass_over(error: BucketDamaged) -> bool:
    """Return True if an older base may do without the damaged object. Rounds and segments are needed by all."""
    return error.name.startswith((BASES, PACKS))


def _on_whole_base(
    reader: BucketReader,
    bases: Sequence[int],
    target: RestoreTarget,
    map_heads: MapHeads,
    damaged: Mapping[int, BucketDamaged],
) -> RestoreTarget:
    """Return the target with the newest of `bases` that is whole and leads to the same state. Raises BucketDamaged,
    with what can be done, if there is none."""
    problem: BucketDamaged | None = None
    way = ""
    for base in reversed(bases):
        try:
            if base in damaged:
                raise damaged[base]
            first = reader.base(base).head.first_round
        except BucketDamaged as error:
            problem = problem or error
            continue
        if problem is None:
            return target
        last = _last_cut(reader, base, first, target, map_heads)
        if last == target.round:
            log.warning(
                "base_passed_over",
                object=problem.name,
                problem=problem.problem,
                base=base,
                round=target.round,
                consequence="an older base gives the same state; look with topics bucket verify",
            )
            return target._replace(base=base, passed_over=str(problem))
        way = f"An older state can be restored: --round {last}. " if last else ""
        break
    assert problem is not None
    raise BucketDamaged(
        problem.name,
        f"{problem.problem}; no older base leads to round {target.round}. {way}"
        "The next base of the owner (TOPICS_BUCKET_BASE_MS) mends this; or bring the object back from a version or a "
        "copy that the store keeps",
    )


def _last_cut(reader: BucketReader, base: int, first: int, target: RestoreTarget, map_heads: MapHeads) -> int:
    """Return the last cut up to the target that a base leads to; 0 if it leads to none, because rounds are missing."""
    there = {one.number for one in reader.rounds(first) if one.number <= target.round}
    if not all(number in there for number in range(first, target.round + 1)):
        return 0
    same = _same_history(list(map_heads(reader.round_head, range(base, target.round + 1))))
    return max((head.number for head in same if head.ends_cut), default=0)


def _newest(reader: BucketReader, bases: Sequence[int], to_ms: int | None, map_heads: MapHeads) -> RestoreTarget:
    """Return the last cut, or the last one up to `to_ms`."""
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


def _rounds_to(reader: BucketReader, bases: Sequence[int], to_ms: int | None) -> tuple[range, int]:
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
        if one.number > last + 1:  # the list of numbers would have as many as the name of this object says
            raise BucketDamaged(round_name(last + 1), f"it is missing, and round {one.number} is there")
        last = one.number
    return range(base, last + 1), base


def _same_history(heads: Sequence[RoundHead]) -> list[RoundHead]:
    """Return the first ones of the rounds from a base's on, up to the beginning of another history."""
    end = next((i for i, head in enumerate(heads) if i and head.begins_history), len(heads))
    return list(heads[:end])
