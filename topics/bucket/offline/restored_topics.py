"""Parts, manifests and segments of all topics in a restored directory, made from the pages of a base.

Pages are worked on side by side, and so are sealed segments. Everything of a topic that is not a sealed segment is
written by the page that it is in.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from topics.bucket.base_format import Base, BlobRef
from topics.bucket.object_names import base_name
from topics.bucket.offline.base_pages import BasePages, LoadedTopic, SegmentPlan
from topics.bucket.offline.bucket_reader import BucketReader
from topics.bucket.offline.restored_segments import RestoredSegments
from topics.storage.evidence.leaf_files import LeafFile
from topics.storage.files.datadir import DataDir
from topics.storage.files.fs import Fs, join, write_all
from topics.storage.files.progress import Progress
from topics.storage.snapshots.snapshot import encode_manifest


class RestoredPage(NamedTuple):
    """What is left to do of a page: its parts go into the snapshot, its sealed segments have to be copied."""

    parts: list[bytes]
    sealed: list[SegmentPlan]
    names: list[str]
    """Of the topics."""


class RestoredTopics:
    """Writes what a base says of topics. Methods raise BucketDamaged, StoreError, OSError."""

    def __init__(
        self,
        fs: Fs,
        datadir: DataDir,
        reader: BucketReader,
        base: Base,
        progress: Progress,
        source: str | None = None,
        leaves: Callable[[str], bool] = lambda _: True,
    ) -> None:
        """`source`: the URL of the bucket if sealed segments are to stay there, those of the topics for whose names
        `leaves` returns True."""
        self._fs = fs
        self._datadir = datadir
        self._reader = reader
        self._base = base_name(base.head.number)
        self._progress = progress
        self._pages = BasePages(reader, base, leaves=leaves if source is not None else _copies)
        self.segments = RestoredSegments(fs, datadir, reader, self._base, self._note, source)

    def page(self, number: int, ref: BlobRef) -> RestoredPage:
        """Write what a page says, but for sealed segments."""
        loaded = self._pages.load(number, ref)
        plans = [plan for topic in loaded for plan in topic.plans]
        active = [plan for plan in plans if plan.entry.data is None]
        self._progress.total += sum(plan.size for plan in plans)
        for topic in loaded:
            if topic.plans or topic.entry.has_manifest or topic.entry.leaves is not None:
                self._fs.mkdir(self._datadir.topic_dir(topic.entry.id))
            if topic.entry.has_manifest and topic.part is not None:
                path = self._datadir.manifest_path(topic.entry.id, topic.generation)
                with self._fs.open(path, exclusive=True) as file:
                    write_all(file, encode_manifest(topic.part), 0)
        self._write_leaves(loaded)
        self._write_pieces(active)
        for plan in active:
            self.segments.finish_active(plan)
        sealed = [plan for plan in plans if plan.entry.data is not None]
        there = [topic for topic in loaded if topic.part is not None]
        return RestoredPage(
            [topic.part for topic in there if topic.part is not None], sealed, [one.name for one in there]
        )

    def _write_leaves(self, topics: list[LoadedTopic]) -> None:
        """Write the leaves of Merkle trees."""
        places: dict[BlobRef, list[str]] = {}
        for topic in topics:
            for file in topic.entry.leaves.files if topic.entry.leaves is not None else ():
                name = LeafFile(file.first_seq, file.leaves).name
                places.setdefault(file.content, []).append(join(self._datadir.topic_dir(topic.entry.id), name))
        self._progress.total += sum(ref.size for ref in places)
        for ref, content in self._reader.blobs(places, self._base):
            for path in places[ref]:
                with self._fs.open(path, exclusive=True) as target:
                    write_all(target, content, 0)
            self._note(len(content))

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


def _copies(_: str) -> bool:
    return False
