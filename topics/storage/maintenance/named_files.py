"""What the answers of a hold name (`docs/spec/crash.md` 13): while it lasts nobody writes into these files, replaces or
removes them, though checkpoints go on (`docs/design/holds.md`). Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from topics.storage.segments.topic_segments import Segment


class NamedFiles:
    """See the module. Files of the log, the snapshot in reserve and whole directories are not listed here: as long as a
    hold lasts, none of them is replaced or removed."""

    __slots__ = ("manifests", "segments", "snapshots")

    def __init__(self, snapshots: Iterable[int] = ()) -> None:
        self.snapshots = frozenset(snapshots)
        """By number. All answers of a hold name the same ones."""
        self.manifests: dict[int, int] = {}
        """By topic id the highest generation that was named."""
        self.segments: set[Segment] = set()


NOTHING: Final = NamedFiles()
"""No hold lasts. Never changed."""
