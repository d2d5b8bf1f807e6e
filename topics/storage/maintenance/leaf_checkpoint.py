"""The leaves of a topic's Merkle tree, as a checkpoint makes them durable (`docs/design/evidence.md` section 3)."""

from __future__ import annotations

import errno
from collections.abc import Sequence
from contextlib import suppress
from functools import partial

from topics.evidence.merkle import Leaves
from topics.evidence.topic_tree import TopicTree, first_of
from topics.runtime.offload import Offload, Pool
from topics.storage.evidence.leaf_files import LeavesDamaged
from topics.storage.evidence.leaf_hashes import hash_queued
from topics.storage.evidence.leaf_writer import LeafWriter, StoredLeaves, remove_obsolete
from topics.storage.files.datadir import DataDir
from topics.storage.files.fs import Fs
from topics.storage.files.unsynced_files import UnsyncedFiles
from topics.storage.maintenance.topic_capture import TopicCapture


class LeafCheckpoint:
    """Writes the leaves of captures."""

    def __init__(self, datadir: DataDir, fs: Fs, offload: Offload) -> None:
        self._datadir = datadir
        self._fs = fs
        self._offload = offload

    async def write(self, capture: TopicCapture, tree: TopicTree, files: UnsyncedFiles) -> None:
        """Write the leaves that the tree had when it was captured, and say so in the part. Raises OSError."""
        await hash_queued(tree, self._offload, capture.leaves)
        stored = StoredLeaves(tree.stored, tree.blank_runs)
        new = first_of(tree.pending().parts, capture.leaves - stored.tree.size)
        if new:
            write = partial(self._write, capture.topic.id, tree, stored, new, files)
            stored = capture.stored_leaves = await self._offload.run(Pool.FILES, write)
        capture.part.evidence = tree.to_wire(*stored)

    async def clear(self, captures: Sequence[TopicCapture]) -> None:
        """Remove the files of these topics whose leaves are in larger ones by now, according to parts that are on disk.
        Files that cannot be removed have no effect."""
        todo = [one for one in captures if one.stored_leaves is not None and not one.topic.deleted]
        if todo:
            await self._offload.run(Pool.FILES, partial(self._clear, todo))

    def _clear(self, captures: Sequence[TopicCapture]) -> None:
        """In a worker thread."""
        for one in captures:
            assert one.tree is not None
            assert one.stored_leaves is not None
            directory = self._datadir.topic_dir(one.topic.id)
            with suppress(OSError):
                remove_obsolete(self._fs, directory, one.tree.identity, one.stored_leaves.tree.size)

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
        try:
            writer = LeafWriter(self._fs, directory, tree.identity, stored, files)
            return writer.write(new)
        except LeavesDamaged as error:
            raise OSError(errno.EIO, f"leaves of a Merkle tree are damaged: {error}", directory) from error
