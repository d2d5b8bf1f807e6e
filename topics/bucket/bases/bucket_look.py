"""What metrics and readiness say of the bucket: the figures of the archive, of bases, of the collector and of calls."""

from __future__ import annotations

from topics.bucket.archive import Archive
from topics.bucket.bases.base_writer import BaseWriter
from topics.bucket.bases.collector import BucketCollector
from topics.bucket.bounded_objects import BoundedObjects
from topics.telemetry.figures import BucketFigures


class BucketLook:
    """Puts the figures together. Made by the daemon."""

    def __init__(
        self, archive: Archive, bases: BaseWriter, collector: BucketCollector, objects: BoundedObjects | None = None
    ) -> None:
        self._archive = archive
        self._bases = bases
        self._collector = collector
        self._objects = objects

    def figures(self) -> BucketFigures:
        """Return the figures as of now. Never waits."""
        figures = self._archive.look()
        self._bases.look(figures)
        figures.objects_put["rounds"] = figures.rounds
        figures.bytes_put["rounds"] = figures.round_bytes
        figures.objects_deleted = self._collector.deleted
        if self._objects is not None:
            self._objects.look(figures)
        return figures
