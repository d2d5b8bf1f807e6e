"""Seqs that a topic has reserved on disk ahead of its head (`docs/spec/semantics.md` section 1).

A block doubles while raises come faster than `IDLE_MS`, and starts over when they do not. Logging a raise, and who
waits for it, is left to the caller.
"""

from __future__ import annotations

from typing import Final

MIN_CEILING_BLOCK: Final = 1024
MAX_CEILING_BLOCK: Final = 262_144
"""How many seqs are reserved in one go: at least, and at most."""

IDLE_MS: Final = 1000
"""A topic without an append for this long (ms) gives its reserve back. Raises closer together than this double the
block."""


class SeqCeiling:
    """The ceiling of one topic. Pure. A commit that takes a seq above `synced` waits for a sync."""

    __slots__ = ("block", "queued", "raised_ms", "synced")

    def __init__(self) -> None:
        self.synced = 0
        """Seqs up to it are reserved on disk."""
        self.queued = 0
        """The ceiling when everything that is logged by now is synced."""
        self.block = MIN_CEILING_BLOCK
        """How many seqs the last raise has reserved."""
        self.raised_ms = 0
        """When it was last raised, by the monotonic clock."""

    @property
    def highest(self) -> int:
        """The highest seq that may have been given out by the next start."""
        return max(self.synced, self.queued)

    def set(self, ceiling: int) -> None:
        """The disk holds this ceiling, and no other one is on its way."""
        self.synced = self.queued = ceiling

    def raise_above(self, seq: int, now_ms: int) -> int:
        """Reserve another block above a seq. Returns the ceiling that is to be logged."""
        fast = now_ms - self.raised_ms < IDLE_MS
        self.raised_ms = now_ms
        self.block = min(self.block * 2, MAX_CEILING_BLOCK) if fast else MIN_CEILING_BLOCK
        self.queued = seq + self.block
        return self.queued

    def note_synced(self, ceiling: int) -> None:
        """A sync has covered a ceiling that was logged."""
        if ceiling <= self.queued:  # else a later frame has lowered it again
            self.synced = max(self.synced, ceiling)

    def lower(self, head: int) -> None:
        """Give everything above the head back."""
        self.set(head)
        self.block = MIN_CEILING_BLOCK
