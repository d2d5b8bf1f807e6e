"""The progress of a start, or of an offline command, in bytes."""

from __future__ import annotations


class Progress:
    """Bytes read of bytes to read. The readiness answer reads it from another thread."""

    __slots__ = ("done", "total")

    def __init__(self) -> None:
        self.done = 0
        self.total = 0

    @property
    def share(self) -> float:
        """The share of the bytes that have been read, 0..1."""
        return self.done / self.total if self.total else 0.0
