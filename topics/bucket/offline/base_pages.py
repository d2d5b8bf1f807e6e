"""The pages of a base, with everything in them checked before anybody relies on it.

A page may be of an adversary: what it says of topics and segments is compared with their parts, and with what can be.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import compress
from typing import Final, NamedTuple

from topics.bucket.base_format import Base, BlobRef, SealedFile, SegmentEntry, TopicEntry
from topics.bucket.object_names import SegmentKind, SegmentName, base_name, parse_segment, segment_name
from topics.bucket.offline.bucket_reader import BucketDamaged, BucketReader
from topics.log.dumped_spans import set_unflagged
from topics.log.dumped_values import from_little_endian
from topics.log.losses import Hole
from topics.log.span import STORED_MARK, SpanSummary
from topics.log.topic_log import TopicLog
from topics.storage.recovery.recovered_state import MALFORMED
from topics.storage.segments.topic_segments import Segment
from topics.storage.snapshots.snapshot import SnapshotDamaged, TopicPart, decode_part, encode_part

KINDS: Final[Sequence[SegmentKind]] = ("data", "idx", "tags")

MOST_SLOTS: Final = 1 << 24
"""Records of a segment; the settings allow a million."""

_MOST_BYTES: Final = 1 << 62
_MOST_PAGES: Final = 1 << 56
_MOST_GENERATIONS: Final = 1_000_000_000


class SegmentPlan(NamedTuple):
    """A segment that is to be restored."""

    topic_id: int
    entry: SegmentEntry
    segment: Segment | None
    """As the topic's part has it; None for a segment of a deleted topic."""
    holes: Sequence[Hole]
    deleted: bytes
    """The bitmap of deletions; empty without one."""

    @property
    def deleted_seqs(self) -> list[int]:
        """The seqs of the deleted records, ascending."""
        return _seqs_of(self.entry.first, self.deleted)

    @property
    def stays(self) -> bool:
        """Return True if the segment is to stay in the bucket."""
        return self.segment is not None and self.segment.tier == "cold"

    @property
    def size(self) -> int:
        """The bytes of its files that a restore reads."""
        read = KINDS[1:] if self.stays else KINDS
        sealed = sum(file.size for kind in read if (file := self.file(kind)) is not None)
        return sealed + sum(piece.size for piece in self.entry.pieces)

    def file(self, kind: SegmentKind) -> SealedFile | None:
        """Return what the base says of a file of a sealed segment."""
        entry = self.entry
        return entry.data if kind == "data" else entry.idx if kind == "idx" else entry.tags

    def name(self, kind: SegmentKind) -> str:
        """Return the name of the object of a file."""
        entry = self.entry
        return segment_name(SegmentName(self.topic_id, entry.first, entry.epoch, entry.salt), kind)


class LoadedTopic(NamedTuple):
    """A topic of a page, with its blobs."""

    entry: TopicEntry
    name: str
    """Empty if it is deleted."""
    part: bytes | None
    """As it goes into the snapshot."""
    generation: int
    plans: list[SegmentPlan]


def _seqs_of(first: int, deleted: bytes) -> list[int]:
    """Return the seqs of a bitmap, ascending."""
    bits = (byte >> bit & 1 for byte in deleted for bit in range(8))
    return list(compress(range(first, first + 8 * len(deleted)), bits))


def _can_stay(entry: SegmentEntry) -> bool:
    """Return True if all files of a segment are objects, so that no `.data` has to be read for the others."""
    return entry.data is not None and entry.idx is not None and entry.tags is not None


def _unflag(part: TopicPart, cold: Sequence[Segment], deleted: dict[int, bytes]) -> bool:
    """Say in a part what is deleted in segments that stay in the bucket, as their objects need not say it. Return True
    if there is something to be said."""
    changed = False
    for dumped in part.log["spans"]:
        if not dumped or dumped[0] != STORED_MARK:
            continue
        span = SpanSummary(*dumped[1:-1])
        for segment in cold:
            if segment.first <= span.first < segment.end and segment.first in deleted:
                known = set(from_little_endian("Q", dumped[-1])) if dumped[-1] else set()
                known.update(
                    seq
                    for seq in _seqs_of(segment.first, deleted[segment.first])
                    if span.first <= seq < span.first + span.n
                )
                set_unflagged(dumped, sorted(known))
                changed = True
    return changed


class BasePages:
    """Loads the pages of a base. Raises BucketDamaged if they are not in order."""

    def __init__(self, reader: BucketReader, base: Base, *, leaves: Callable[[str], bool] = lambda _: False) -> None:
        """`leaves` is given the name of a topic: True if its sealed segments are to stay in the bucket, as cold
        ones."""
        self._reader = reader
        self._leaves = leaves
        self._number = base.head.number
        self._base = base_name(base.head.number)
        numbers = [page for page, _ in base.body.pages]
        if numbers != sorted(set(numbers)) or any(not 0 <= page < _MOST_PAGES for page in numbers):
            raise BucketDamaged(self._base, "its pages are not in order")

    def load(self, number: int, ref: BlobRef) -> list[LoadedTopic]:
        """Return the topics of a page. Raises BucketDamaged, StoreError."""
        loaded = list(self._loaded(self._reader.page(self._number, number, ref)))
        for topic in loaded:
            for plan in topic.plans:
                self._check(plan)
        return loaded

    def _check(self, plan: SegmentPlan) -> None:
        """Check that a segment can be restored as the base says, before anything of it is written."""
        entry, segment = plan.entry, plan.segment
        what = f"segment {entry.first} of topic {plan.topic_id}"
        if parse_segment(plan.name("data")) is None:
            raise BucketDamaged(self._base, f"{what} has a name that cannot be")
        if (entry.data is None) == (not entry.pieces):
            raise BucketDamaged(self._base, f"{what} is neither sealed nor active")
        if any(
            file is not None and not 0 <= max(file.size, file.unpacked) < 1 << 62
            for file in (entry.data, entry.idx, entry.tags)
        ):
            raise BucketDamaged(self._base, f"{what} has a file of a size that cannot be")
        if segment is None:
            return
        if segment.n > MOST_SLOTS or len(plan.deleted) > (segment.n + 7) // 8:
            raise BucketDamaged(self._base, f"{what} has {segment.n} slots")
        if (segment.salt or 0) != entry.salt:
            raise BucketDamaged(self._base, f"{what} is of another generation in the topic's part")
        size = entry.data.length if entry.data is not None else sum(piece.size for piece in entry.pieces)
        if size < segment.data_bytes:
            raise BucketDamaged(self._base, f"{what} has {size} bytes, and its part says {segment.data_bytes}")
        if entry.data is not None and entry.data.unpacked > segment.data_bytes:
            problem = f"unpacked {what} has {size} bytes, and its part says {segment.data_bytes}"
            raise BucketDamaged(self._base, problem)

    def _loaded(self, topics: list[TopicEntry]) -> Iterator[LoadedTopic]:
        refs = [topic.part for topic in topics if isinstance(topic.part, BlobRef)]
        refs += [entry.deleted for topic in topics for entry in topic.segments if entry.deleted is not None]
        blobs = dict(self._reader.blobs(refs, self._base))
        for topic in topics:
            firsts = [entry.first for entry in topic.segments]
            if len(set(firsts)) < len(firsts):
                raise BucketDamaged(self._base, f"topic {topic.id} has a segment twice")
            deleted = {entry.first: blobs[entry.deleted] for entry in topic.segments if entry.deleted is not None}
            if topic.part is None:
                plans = [SegmentPlan(topic.id, entry, None, (), b"") for entry in topic.segments]
                yield LoadedTopic(topic, "", None, 0, plans)
                continue
            blob = blobs[topic.part] if isinstance(topic.part, BlobRef) else topic.part
            try:
                part = decode_part(blob)
                yield self._of_part(topic, part, blob, deleted)
            except (SnapshotDamaged, *MALFORMED) as error:
                raise BucketDamaged(self._base, f"the part of topic {topic.id} is malformed: {error}") from error

    def _of_part(self, topic: TopicEntry, part: TopicPart, blob: bytes, deleted: dict[int, bytes]) -> LoadedTopic:
        if part.id != topic.id or not 0 <= part.generation < 1_000_000_000:
            raise BucketDamaged(self._base, f"the part of topic {topic.id} is that of another one")
        log = TopicLog.load(part.log)
        entries = {entry.first: entry for entry in topic.segments}
        segments: list[Segment] = []
        leaves = self._leaves(part.name)
        spans = len(log.stored.all())
        for i, wire in enumerate(part.segments):
            segment = Segment.from_wire(topic.id, wire)
            if segment.first in entries:
                # Before any bit of it is looked at: it may be a gigabyte.
                if len(deleted.get(segment.first, b"")) > (min(segment.n, MOST_SLOTS) + 7) // 8:
                    raise BucketDamaged(
                        self._base, f"segment {segment.first} of topic {topic.id} has {segment.n} slots"
                    )
                stays = leaves and segment.sealed and _can_stay(entries[segment.first])
                segment.tier = "cold" if stays else "hot"
            elif i >= spans:
                continue  # it has yet to be removed, and here it never was
            elif segment.tier != "gone":
                raise BucketDamaged(self._base, f"segment {segment.first} of topic {topic.id} is not in its page")
            segments.append(segment)
        wires = [segment.to_wire() for segment in segments]
        if (
            _unflag(part, [segment for segment in segments if segment.tier == "cold"], deleted)
            or wires != part.segments
        ):
            part.segments = wires
            blob = encode_part(part)
        by_first = {segment.first: segment for segment in segments}
        holes: list[Hole] = log.losses.holes or []
        plans = [
            SegmentPlan(topic.id, entry, by_first.get(entry.first), holes, deleted.get(entry.first, b""))
            for entry in topic.segments
        ]
        return LoadedTopic(topic, part.name, blob, part.generation, plans)
