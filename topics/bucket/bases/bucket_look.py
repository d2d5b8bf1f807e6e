"""What metrics and readiness say of the bucket: the figures of the archive, of the bases and of the collector."""

from __future__ import annotations

from topics.bucket.archive import Archive
from topics.bucket.bases.base_writer import BaseWriter
from topics.telemetry.figures import BucketFigures


class BucketLook:
    """Puts the figures together. Made by the daemon."""

    def __init__(self, archive: Archive, bases: BaseWriter) -> None:
        self._archive = archive
        self._bases = bases

    def figures(self) -> BucketFigures:
        """Return the figures as of now. Never waits."""
        figures = self._archive.look()
        self._bases.look(figures)
        return figures
