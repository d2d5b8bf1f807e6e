"""The copies of one Forwarded frame, and how a copy follows from the record that it was taken from.

A Forwarded frame says where the bytes of its copies are, and also which seqs of which topic they were taken from. A
directory that has the log of another one may not have those bytes in that place. It makes such copies anew from the
records, as their readers see them: a restore offline (`topics.bucket.offline.restored_copies`), a standby while it
follows (`topics.engine.standby.copy_sources`). Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from topics.log.copies import MAX_HOPS, CopyKind, Origin, each_kind, stamped
from topics.storage.segments.copy_frames import CopyRecipe, decode_chosen, decode_recipe, is_staged
from topics.storage.wal.frames import HAS_NODE, HAS_TAG, Frame, OpenedRecord
from topics.storage.wal.wal_files import Place

DEEPEST: Final = MAX_HOPS + 2
"""How many Forwarded frames may lie between a copy and the record that it was made from: its hops, and the commit of a
stage. A log of an adversary may have a circle."""


class FrameCopies(NamedTuple):
    """The copies of one Forwarded frame."""

    topic_id: int
    first: int
    ts: int
    source: int
    """The topic from which they were taken."""
    chosen: Sequence[int]
    """Their seqs there."""
    recipe: CopyRecipe
    kinds: Sequence[CopyKind]
    """One for each."""
    staged: bool

    @property
    def end(self) -> int:
        """One past the last seq."""
        return self.first + len(self.kinds)

    def origin(self, i: int) -> Origin:
        """The origin that the frame of a stand-in has: that of a committed record, too, is the staged one."""
        kind = self.kinds[i]
        return Origin(kind.topic_id, self.recipe.origin_seqs[i], kind.hops)


def copies_of(frame: Frame, payload: Mapping[str, Any], file_of: Callable[[Place], int]) -> FrameCopies | None:
    """Return the copies of a Forwarded frame; None if it has no recipe. Raises any exception for a malformed
    payload."""
    recipe = decode_recipe(payload, file_of)
    if recipe is None:
        return None
    kinds, chosen = list(each_kind(recipe.kinds)), decode_chosen(payload)
    if len(chosen) != len(kinds):
        raise ValueError("a Forwarded frame has chosen another number of records than it has copied")
    staged = is_staged(payload)
    return FrameCopies(frame.topic_id, frame.seq, frame.ts, payload["source"], chosen, recipe, kinds, staged)


def made_from(copies: FrameCopies, i: int, found: OpenedRecord) -> OpenedRecord | None:
    """Return the copy that is made from a record; None if it is not the one that was copied.

    The record may be one to which some of the changes were made before. Making them again changes nothing.
    """
    recipe, kind, seq = copies.recipe, copies.kinds[i], copies.recipe.origin_seqs[i]
    if found.origin[:2] != (kind.topic_id, seq):
        return None
    node = b"" if kind.changes.drop_node else found.node
    tag = b"" if kind.changes.drop_tag else found.tag
    meta = stamped(found.meta, kind.topic_id, seq, kind.changes.stamp)
    flags = (HAS_NODE if node else 0) | (HAS_TAG if tag else 0)
    if recipe.flags[i] & (HAS_NODE | HAS_TAG) != flags or recipe.sizes[i] != len(meta) + len(found.data):
        return None
    origin = Origin(copies.topic_id, copies.first + i, 0) if copies.staged else Origin(*found.origin[:2], kind.hops)
    return OpenedRecord(origin, node, tag, meta, found.data)
