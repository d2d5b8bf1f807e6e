"""What may go from the bucket (`docs/design/bucket.md` section 7). Pure.

Kept are the newest base that is old enough by the setting, every base after it, every base that an unexpired pin names,
all that these need, and the first round of each epoch, which is an empty one. Until a base is old enough, everything
is kept.

Something goes only if it was found to be needed by nobody an hour before, too (`Candidates`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence, Set
from typing import Final, NamedTuple

from topics.bucket.base_format import BlobRef, SegmentEntry, TopicEntry
from topics.bucket.object_names import SegmentKind, SegmentName, base_name, pack_name, segment_name
from topics.bucket.pin_format import Pin

CANDIDATE_MS: Final = 3_600_000
"""Something goes so long after it was found to be needed by nobody (ms)."""


class BaseFacts(NamedTuple):
    """What retention has to know of a base."""

    number: int
    first_round: int
    wall_ms: int
    """When it was captured (epoch ms)."""


class Kept(NamedTuple):
    """What stays."""

    bases: frozenset[int]
    rounds_from: int
    """This round and all after it stay."""
    pinned: tuple[tuple[int, int], ...]
    """Earlier rounds that stay, as inclusive ranges."""

    def has_round(self, number: int) -> bool:
        """Return True if a round stays, whatever its epoch."""
        return number >= self.rounds_from or any(first <= number <= last for first, last in self.pinned)


def kept_of(bases: Sequence[BaseFacts], pins: Iterable[Pin], *, now_ms: int, retain_ms: int) -> Kept | None:
    """Return what stays of these bases (ascending by number), and which rounds they need. None: nothing may go, because
    there is no base that is old enough."""
    old = [base for base in bases if base.wall_ms <= now_ms - retain_ms]
    if not old:
        return None
    oldest = old[-1]
    wanted = {pin.base for pin in pins if pin.expires > now_ms}
    kept = [base for base in bases if base.number >= oldest.number]
    pinned = [base for base in bases if base.number < oldest.number and base.number in wanted]
    return Kept(
        bases=frozenset(base.number for base in kept + pinned),
        rounds_from=min(base.first_round for base in kept),
        pinned=tuple((base.first_round, base.number) for base in pinned),
    )


def needed_anew(pins: Mapping[str, Pin], going: Set[str], now_ms: int) -> bool:
    """Return True if one of these pins (by name) counts, and it or its base is among what was found to be needed by
    nobody: it was made or renewed since."""
    return any(pin.expires > now_ms and not going.isdisjoint((name, base_name(pin.base))) for name, pin in pins.items())


def epoch_beginnings(rounds: Sequence[int], epoch_of: Callable[[int], int], before: int | None) -> set[int]:
    """Return those of these rounds (ascending) that are the first of their epoch. `before` is the epoch of the round in
    front of them, None if there is none. Epochs never decrease, so `epoch_of` is asked a few times for each epoch."""
    found: set[int] = set()
    at, epoch = 0, before
    while at < len(rounds):
        here = epoch_of(rounds[at])
        if here != epoch:
            found.add(rounds[at])
        lo, hi = at + 1, len(rounds)  # the first one of another epoch is in here
        while lo < hi:
            middle = (lo + hi) // 2
            if epoch_of(rounds[middle]) == here:
                lo = middle + 1
            else:
                hi = middle
        at, epoch = lo, here
    return found


class Candidates:
    """Since when things are known to be needed by nobody. Memory: some 150 bytes for each of them."""

    def __init__(self, wait_ms: int = CANDIDATE_MS) -> None:
        self._wait_ms = wait_ms
        self._since: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self._since)

    def ripe(self, unneeded: Collection[str], now_ms: int) -> list[str]:
        """Note what is needed by nobody now, and return what may go: it was so at every look since long enough ago.
        `now_ms` is of a clock that never goes back. Bases come first, then rounds, then the rest: a base never lacks
        anything."""
        self._since = {name: self._since.get(name, now_ms) for name in unneeded}
        ripe = [name for name, since in self._since.items() if now_ms - since >= self._wait_ms]
        return sorted(ripe, key=lambda name: (_ORDER.get(name.partition("/")[0], len(_ORDER)), name))


_ORDER: Final = {"bases": 0, "rounds": 1, "packs": 2, "segments": 3, "pins": 4, "standbys": 5}


def stale_packs(live: Collection[tuple[str, int]], ages: dict[str, tuple[int, int]], *, retain_ms: int) -> set[str]:
    """Return the packs that are to be packed again: of which the newest base does not need everything, and that are
    older than a third of the retention. `live` has the name of each pack that it needs with the bytes of it that it
    needs; `ages` each pack's size and age (ms).

    A blob that nobody needs may have what a user has deleted. So it goes a third of the retention after its pack was
    written at the latest, and then the time of retention.
    """
    found: set[str] = set()
    for name, needed in live:
        size, age_ms = ages.get(name, (0, 0))
        if age_ms > retain_ms / 3 and needed + PACK_FRAME_BYTES < size:
            found.add(name)
    return found


PACK_FRAME_BYTES: Final = 8 + 4 + 1 + 32
"""Bytes of a pack that belong to no blob: magic, length of the header, header, hash."""

KINDS: Final[tuple[SegmentKind, ...]] = ("data", "idx", "tags")


def objects_named(topic: TopicEntry) -> set[str]:
    """Return the packs and segments that a topic in a base needs."""
    refs: list[BlobRef] = [topic.part] if isinstance(topic.part, BlobRef) else []
    named: set[str] = set()
    for entry in topic.segments:
        refs += entry.pieces
        if entry.deleted is not None:
            refs.append(entry.deleted)
        named.update(names_of(topic.id, entry))
    named.update(pack_name(ref.pack_name) for ref in refs)
    return named


def names_of(topic_id: int, entry: SegmentEntry) -> list[str]:
    """Return the names of the files of a sealed segment."""
    segment = SegmentName(topic_id, entry.first, entry.epoch, entry.salt)
    files = {"data": entry.data, "idx": entry.idx, "tags": entry.tags}
    return [segment_name(segment, kind) for kind in KINDS if files[kind] is not None]
