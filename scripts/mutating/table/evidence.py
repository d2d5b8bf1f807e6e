"""Mutations. Evidence: leaves, trees and what `verify` finds."""

from __future__ import annotations

from typing import Final

from mutating.mutation import Mutation

EVIDENCE: Final = (
    Mutation(
        "leaf-without-its-time",
        "evidence",
        "topics/evidence/record_leaf.py",
        "_HEAD.pack(epoch, seq, ts, len(node)),",
        "_HEAD.pack(epoch, seq, 0, len(node)),",
        "evidence 1: the leaf of a record has its time",
        "unit",
    ),
    Mutation(
        "path-may-be-longer",
        "evidence",
        "topics/evidence/proofs.py",
        """
        if not last:
            raise BadProof("the proof has more hashes than it may have")
        if position & 1 or position == last:
            node = inner_node(one, node)
        """,
        """
        if not last:
            break
        if position & 1 or position == last:
            node = inner_node(one, node)
        """,
        "evidence 1: a proof of anything else is none",
        "unit",
    ),
    Mutation(
        "joined-leaves-of-an-older-part-removed",
        "evidence",
        "topics/storage/evidence/leaf_writer.py",
        "return {file.name for file in (*needed, *_only_ones(beyond, needed, end_seq))}",
        "return {file.name for file in needed}",
        "evidence 1: a record keeps its leaf",
        "unit",
    ),
    Mutation(
        "pieces-not-joined",
        "evidence",
        "topics/storage/evidence/leaf_writer.py",
        "if len(self._pieces(start)) >= leaf_files.MAX_PIECES:",
        "if len(self._pieces(start)) >= 1000:",
        "evidence 1: leaves are in few files",
        "unit",
    ),
    Mutation(
        "undone-records-have-leaves",
        "evidence",
        "topics/storage/recovery/topic_replay.py",
        "batch.leaves = BLANK * len(appends)  # nobody has ever seen these records",
        "batch.leaves = batch.leaves[: 32 * len(appends)]",
        "evidence 1: a seq that never had a record has the blank leaf",
        "unit",
    ),
    Mutation(
        "checkpoint-beyond-the-disk",
        "evidence",
        "topics/engine/evidence/evidence_calls.py",
        "size = max(min(topic.synced_seq + 1 - tree.identity.start_seq, tree.published), 0)",
        "size = max(tree.published, 0)",
        "evidence 1: a checkpoint covers only what is synced",
        "unit",
    ),
    Mutation(
        "rewritten-record-not-compared",
        "evidence",
        "topics/storage/offline/verify_trees.py",
        "if known != leaf and not (known == BLANK and self._is_lost(seq)):",
        "if len(known) != len(leaf):",
        "evidence 1: verify recomputes every tree from the segments",
        "unit",
    ),
    Mutation(
        "rewritten-leaf-not-noticed",
        "evidence",
        "topics/storage/offline/verify_trees.py",
        "elif root_of_range(reader, 0, size) != root:",
        "elif not root_of_range(reader, 0, size):",
        "evidence 1: --against compares size and root with a kept checkpoint",
        "unit",
    ),
    Mutation(
        "leaves-beyond-an-older-part-kept",
        "evidence",
        "topics/storage/evidence/leaf_writer.py",
        "if file.end_seq > end_seq:",
        "if file.end_seq > end_seq + (1 << 60):",
        "evidence 1: leaves of records that were given up are in no file",
        "unit",
    ),
    Mutation(
        "transaction-in-doubt-counts-as-in-the-bucket",
        "evidence",
        "topics/engine/registry.py",
        "self._cut.update((topic, topic.decided_seq) for topic in self.common.unarchived)",
        "self._cut.update((topic, topic.assigned) for topic in self.common.unarchived)",
        "evidence 1: with a bucket a checkpoint covers what is in a written round",
        "unit",
    ),
    Mutation(
        "leaves-behind-a-transaction-in-doubt-forgotten",
        "evidence",
        "topics/storage/recovery/shard_replay.py",
        "if topic.tree is not None or self._transactions.begins_tree(topic):",
        "if topic.tree is not None:",
        "evidence 1: a replay comes to the same tree",
        "unit",
    ),
)
