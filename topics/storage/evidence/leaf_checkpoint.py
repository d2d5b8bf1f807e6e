"""The leaves of a topic's Merkle tree, as a checkpoint of the topic makes them durable (`docs/design/evidence.md`
section 3)."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from typing import NamedTuple

from topics.evidence.merkle import Leaves
from topics.evidence.topic_tree import TopicTree, first_of
from topics.runtime.offload import Offload, Pool
from topics.storage.evidence.leaf_hashes import hash_queued
from topics.storage.evidence.leaf_writer import LeafWriter, StoredLeaves, remove_obsolete
from topics.storage.files.datadir import DataDir
from topics.storage.files.fs import Fs
from topics.storage.files.unsynced_files import UnsyncedFiles


class CapturedTree(NamedTuple):
    """The tree of a topic at the moment of a checkpoint."""

    topic_id: int
    tree: TopicTree
    leaves: int
    """How many leaves it had."""


class LeafCheckpoint:
    """Writes the leaves of captured trees. Made once by the checkpoints of topics."""

    def __init__(self, datadir: DataDir, fs: Fs, offload: Offload) -> None:
        self._datadir = datadir
        self._fs = fs
        self._offload = offload

    async def write(self, captured: CapturedTree, files: UnsyncedFiles) -> StoredLeaves | None:
        """Write the leaves that a tree had when it was captured; they are durable when `files` are. Return the leaves
        that are in files then, None if nothing changed. Raises OSError."""
        topic_id, tree, leaves = captured
        await hash_queued(tree, self._offload, leaves)
        stored = StoredLeaves(tree.stored, tree.blank_runs)
        new = first_of(tree.pending().parts, leaves - stored.tree.size)
        if not new:
            return None
        return await self._offload.run(Pool.FILES, partial(self._write, topic_id, tree, stored, new, files))

    async def clear(self, captured: Sequence[CapturedTree]) -> None:
        """Remove the files of these topics whose leaves are in larger ones by now, according to parts that are on disk.
        Files that cannot be removed have no effect."""
        if captured:
            await self._offload.run(Pool.FILES, partial(self._clear, captured))

    def _clear(self, captured: Sequence[CapturedTree]) -> None:
        """In a worker thread."""
        for topic_id, tree, leaves in captured:
            with suppress(OSError):
                remove_obsolete(self._fs, self._datadir.topic_dir(topic_id), tree.identity, leaves)

    def _write(
        self,
        topic_id: int,
        tree: TopicTree,
        stored: StoredLeaves,
        new: Sequence[Leaves],
        files: UnsyncedFiles,
    ) -> StoredLeaves:
        """In a worker thread."""
        directory = self._datadir.topic_dir(topic_id)
        return LeafWriter(self._fs, directory, tree.identity, stored, files).write(new)
