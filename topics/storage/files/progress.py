"""How far a start, or an offline command, has got with the bytes that it reads."""

from __future__ import annotations


class Progress:
    """Bytes replayed of bytes to replay; read by the readiness answer from another thread."""

    __slots__ = ("done", "total")

    def __init__(self) -> None:
        self.done = 0
        self.total = 0

    @property
    def share(self) -> float:
        """0..1."""
        return self.done / self.total if self.total else 0.0
