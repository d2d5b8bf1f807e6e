"""The files that the answers of a hold have named (`docs/spec/crash.md` 13): while it lasts no file of them is written
to, replaced or removed, though checkpoints go on (`docs/design/holds.md`). Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from topics.storage.segments.topic_segments import Segment


class NamedFiles:
    """The files named so far. Made by the compactor for each hold. Files of the log, the snapshot in reserve and whole
    directories are not listed: none of them is replaced or removed during a hold."""

    __slots__ = ("manifests", "segments", "snapshots")

    def __init__(self, snapshots: Iterable[int] = ()) -> None:
        self.snapshots = frozenset(snapshots)
        """The snapshots by number. All answers of a hold name the same ones."""
        self.manifests: dict[int, int] = {}
        """The highest generation of a topic's manifest that was named, by topic id."""
        self.segments: set[Segment] = set()


NOTHING: Final = NamedFiles()
"""For no hold. Never changed."""
