"""Parts, manifests and segments of all topics in a restored directory, made from the pages of a base.

Pages are worked on side by side, and so are sealed segments. Everything of a topic that is not a sealed segment is
written by the page that it is in.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

from topics.bucket.base_format import Base, BlobRef, SegmentEntry, TopicEntry
from topics.bucket.bucket_reader import BucketDamaged, BucketReader
from topics.bucket.object_names import base_name
from topics.bucket.restore.restored_segments import RestoredSegments, SegmentPlan
from topics.log.losses import Hole
from topics.log.topic_log import TopicLog
from topics.storage.files.datadir import DataDir
from topics.storage.files.fs import Fs, write_all
from topics.storage.files.progress import Progress
from topics.storage.segments.topic_segments import Segment
from topics.storage.snapshots.snapshot import SnapshotDamaged, TopicPart, decode_part, encode_manifest, encode_part

_MOST_PAGES: Final = 1 << 56


class RestoredPage(NamedTuple):
    """What is left to do of a page: its parts go into the snapshot, its sealed segments have to be copied."""

    parts: list[bytes]
    sealed: list[SegmentPlan]


class _LoadedTopic(NamedTuple):
    """A topic of a page, with its blobs."""

    entry: TopicEntry
    part: bytes | None
    """As it goes into the snapshot."""
    generation: int
    plans: list[SegmentPlan]


class RestoredTopics:
    """Writes what a base says of topics. Methods raise BucketDamaged, StoreError, OSError."""

    def __init__(self, fs: Fs, datadir: DataDir, reader: BucketReader, base: Base, progress: Progress) -> None:
        self._fs = fs
        self._datadir = datadir
        self._reader = reader
        self._number = base.head.number
        self._base = base_name(base.head.number)
        self._progress = progress
        self.segments = RestoredSegments(fs, datadir, reader, self._base, self._note)
        numbers = [page for page, _ in base.body.pages]
        if numbers != sorted(set(numbers)) or any(not 0 <= page < _MOST_PAGES for page in numbers):
            raise BucketDamaged(self._base, "its pages are not in order")

    def page(self, number: int, ref: BlobRef) -> RestoredPage:
        """Write what a page says, but for sealed segments."""
        loaded = list(self._loaded(self._reader.page(self._number, number, ref)))
        active: list[SegmentPlan] = []
        sealed: list[SegmentPlan] = []
        for topic in loaded:
            for plan in topic.plans:
                self.segments.check(plan)
                (active if plan.entry.data is None else sealed).append(plan)
        self._progress.total += sum(_size(plan.entry) for plan in active + sealed)
        for topic in loaded:
            if topic.plans or topic.entry.has_manifest:
                self._fs.mkdir(self._datadir.topic_dir(topic.entry.id))
            if topic.entry.has_manifest and topic.part is not None:
                path = self._datadir.manifest_path(topic.entry.id, topic.generation)
                with self._fs.open(path, exclusive=True) as file:
                    write_all(file, encode_manifest(topic.part), 0)
        self._write_pieces(active)
        for plan in active:
            self.segments.finish_active(plan)
        return RestoredPage([topic.part for topic in loaded if topic.part is not None], sealed)

    def _loaded(self, topics: list[TopicEntry]) -> Iterator[_LoadedTopic]:
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
                yield _LoadedTopic(topic, None, 0, plans)
                continue
            blob = blobs[topic.part] if isinstance(topic.part, BlobRef) else topic.part
            try:
                part = decode_part(blob)
                yield self._of_part(topic, part, blob, deleted)
            except (SnapshotDamaged, ValueError, KeyError, TypeError, IndexError, AttributeError) as error:
                raise BucketDamaged(self._base, f"the part of topic {topic.id} is malformed: {error}") from error

    def _of_part(self, topic: TopicEntry, part: TopicPart, blob: bytes, deleted: dict[int, bytes]) -> _LoadedTopic:
        if part.id != topic.id or not 0 <= part.generation < 1_000_000_000:
            raise BucketDamaged(self._base, f"the part of topic {topic.id} is that of another one")
        log = TopicLog.load(part.log)
        entries = {entry.first: entry for entry in topic.segments}
        segments: list[Segment] = []
        spans = len(log.stored.all())
        for i, wire in enumerate(part.segments):
            segment = Segment.from_wire(topic.id, wire)
            if segment.first in entries:
                segment.tier = "hot"
            elif i >= spans:
                continue  # it has yet to be removed, and here it never was
            elif segment.tier != "gone":
                raise BucketDamaged(self._base, f"segment {segment.first} of topic {topic.id} is not in its page")
            segments.append(segment)
        wires = [segment.to_wire() for segment in segments]
        if wires != part.segments:
            part.segments = wires
            blob = encode_part(part)
        by_first = {segment.first: segment for segment in segments}
        holes: list[Hole] = log.losses.holes or []
        plans = [
            SegmentPlan(topic.id, entry, by_first.get(entry.first), holes, deleted.get(entry.first, b""))
            for entry in topic.segments
        ]
        return _LoadedTopic(topic, blob, part.generation, plans)

    def _write_pieces(self, plans: list[SegmentPlan]) -> None:
        """Write the `.data` of active segments. The same content may belong to several places."""
        places: dict[BlobRef, list[tuple[str, int]]] = {}
        for plan in plans:
            path, at = self._datadir.segment_path(plan.topic_id, plan.entry.first, "data"), 0
            self._fs.open(path, exclusive=True).close()
            for piece in plan.entry.pieces:
                places.setdefault(piece, []).append((path, at))
                at += piece.size
        for ref, content in self._reader.blobs(places, self._base):
            for path, at in places[ref]:
                with self._fs.open(path) as file:
                    write_all(file, content, at)
                self._note(len(content))

    def _note(self, count: int) -> None:
        self._progress.done += count


def _size(entry: SegmentEntry) -> int:
    """Return the bytes of a segment's files."""
    files = (entry.data, entry.idx, entry.tags)
    return sum(file.size for file in files if file is not None) + sum(piece.size for piece in entry.pieces)
