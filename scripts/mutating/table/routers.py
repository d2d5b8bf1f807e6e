"""Mutations. Routers."""

from __future__ import annotations

from typing import Final

from mutating.mutation import Mutation

ROUTERS: Final = (
    Mutation(
        "wal-file-dropped-under-copies",
        "routers",
        "topics/storage/maintenance/compactor.py",
        "if file.file_id in needed:",
        "if not file.file_id:",
        "rule 18: bytes that copies are made of stay",
        "unit",
    ),
    Mutation(
        "segment-dropped-under-copies",
        "routers",
        "topics/storage/maintenance/reclaimer.py",
        """
            if segment.first in needed:
                continue
        """,
        """
            if not segment.first:
                continue
        """,
        "rule 18: bytes that copies are made of stay",
        "crash",
    ),
    Mutation(
        "directory-removed-under-copies",
        "routers",
        "topics/storage/maintenance/reclaimer.py",
        "if self._file_holds.needed_segments(topic_id):",
        "if not topic_id:",
        "rule 18: bytes that copies are made of stay, also if their topic is deleted",
        "crash",
    ),
    Mutation(
        "segment-moved-under-copies",
        "routers",
        "topics/storage/maintenance/relocator.py",
        "if segment.first in self._file_holds.needed_segments(topic.id):",
        "if not segment.first:",
        "rule 18: copies are not left to a cold store",
        "unit",
    ),
    Mutation(
        "origin-ignored",
        "routers",
        "topics/engine/forwarding/forwarders.py",
        "chosen = [i for i in chosen if origins[i][0].topic_id != dest.id and origins[i][0].hops < MAX_HOPS]",
        "chosen = [i for i in chosen if origins[i][0].hops < MAX_HOPS]",
        "semantics 5: a copy is never forwarded into its origin",
        "life",
    ),
    Mutation(
        "hops-not-counted",
        "routers",
        "topics/engine/forwarding/source_columns.py",
        "return CopyKind(kind.topic_id, kind.hops + 1, CopyChanges(*drops, changes.stamp or kind.changes.stamp))",
        "return CopyKind(kind.topic_id, kind.hops, CopyChanges(*drops, changes.stamp or kind.changes.stamp))",
        "semantics 5: no copy goes beyond 15 hops",
        "life",
    ),
    Mutation(
        "cursor-in-a-batch-of-its-own",
        "routers",
        "topics/engine/forwarding/copy_commits.py",
        """
            durable=dest.commit_point is CommitPoint.SYNCED,
            closes_batch=False,
        """,
        """
            durable=dest.commit_point is CommitPoint.SYNCED,
            closes_batch=True,
        """,
        "rules 18 and 19: a cursor is in the same batch as what it has made",
        "crash",
    ),
    Mutation(
        "cursor-not-restored",
        "routers",
        "topics/storage/recovery/copy_replay.py",
        "router.cursor = max(router.cursor, forwarded.last)",
        "pass",
        "rule 19: a single path never duplicates",
        "crash",
    ),
    Mutation(
        "pins-not-kept",
        "routers",
        "topics/engine/forwarding/copy_commits.py",
        "dest.copy_table().need(set(recipe.files), seqs.last)",
        "pass",
        "rule 18: bytes that copies are made of stay until the copies are stored",
        "life",
    ),
    Mutation(
        "origins-of-parts-not-restored",
        "routers",
        "topics/storage/recovery/stored_parts.py",
        "topic.origins = OriginSet.load(part.origins) if part.origins is not None else None",
        "topic.origins = OriginSet() if part.origins is not None else None",
        "rule 19: exactly_once remembers what it has taken across restarts",
        "life",
    ),
    Mutation(
        "origins-on-their-way-ignored",
        "routers",
        "topics/engine/forwarding/forwarders.py",
        "if origin not in known and origin not in arriving:",
        "if origin not in known:",
        "semantics 5: exactly_once takes each origin once, over several paths too",
        "life",
    ),
    Mutation(
        "copy-stronger-than-its-source",
        "routers",
        "topics/engine/forwarding/forwarders.py",
        """
            if self._waits_for_sync(forwarder):
                return min(source.synced_seq, source.log.head_seq)
        """,
        """
            if self._waits_for_sync(forwarder):
                return source.log.head_seq
        """,
        "8.1: a copy into a stronger class is made of what is synced",
        "life",
    ),
    Mutation(
        "copy-synced-before-its-source",
        "routers",
        "topics/engine/topic.py",
        "if not missing and not self.lagging:",
        "if not self.lagging:",
        "rule 16: a copy counts as synced when the bytes it is made of are",
        "unit",
    ),
    Mutation(
        "source-trim-not-told",
        "routers",
        "topics/engine/forwarding/forwarders.py",
        """
            else:
                self._copy_commits.trim(forwarder, last)
        """,
        """
            else:
                self._copy_commits.move(forwarder, last)
        """,
        "8.4: what a source has lost is announced in the dest",
        "life",
    ),
)
