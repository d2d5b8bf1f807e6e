"""What metrics and readiness say of the bucket: the figures of archive, bases, collector, repairs and calls."""

from __future__ import annotations

from topics.bucket.archive import Archive
from topics.bucket.bases.base_writer import BaseWriter
from topics.bucket.bases.collector import BucketCollector
from topics.bucket.bounded_objects import BoundedObjects
from topics.bucket.bucket_segments import BucketSegments
from topics.storage.recovery.start_repairs import StartRepairs
from topics.storage.segments.segment_repairs import SegmentRepairs
from topics.telemetry.figures import BucketFigures


class BucketLook:
    """Puts the figures together. Made by the daemon."""

    def __init__(
        self,
        archive: Archive,
        bases: BaseWriter,
        collector: BucketCollector,
        objects: BoundedObjects | None = None,
        repairs: SegmentRepairs | None = None,
        at_start: StartRepairs | None = None,
        segments: BucketSegments | None = None,
    ) -> None:
        self._archive = archive
        self._bases = bases
        self._collector = collector
        self._objects = objects
        self._repairs = repairs
        self._at_start = at_start
        self._segments = segments

    def figures(self) -> BucketFigures:
        """Return the figures as of now. Never waits."""
        figures = self._archive.look()
        self._bases.look(figures)
        figures.objects_put["rounds"] = figures.rounds
        figures.bytes_put["rounds"] = figures.round_bytes
        figures.objects_deleted = self._collector.deleted
        if self._objects is not None:
            self._objects.look(figures)
        if self._repairs is not None:
            figures.segments_repaired, figures.repaired_bytes = self._repairs.repaired, self._repairs.repaired_bytes
            figures.repairs_waiting = self._repairs.waiting
        if self._at_start is not None:
            figures.segments_repaired += self._at_start.repaired
            figures.repaired_bytes += self._at_start.repaired_bytes
            figures.log_files_repaired = self._at_start.log_files
        if self._segments is not None:
            figures.segments_repaired += self._segments.remade
        return figures
