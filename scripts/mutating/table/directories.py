"""Mutations. The data directory, and the reserves of seqs."""

from __future__ import annotations

from typing import Final

from mutating.mutation import Mutation

DIRECTORIES: Final = (
    Mutation(
        "wal-name-not-synced",
        "directories",
        "topics/storage/wal/shard_log.py",
        """
                self._fs.sync_dir(self._directory)
                self._name_current(name)
        """,
        """
                pass
                self._name_current(name)
        """,
        "8.1: what was synced stays, its file's name included",
        "crash",
    ),
    Mutation(
        "root-not-synced",
        "directories",
        "topics/storage/files/datadir.py",
        """
                fs.mkdir(directory)
            fs.sync_dir(datadir.root)
        """,
        """
                fs.mkdir(directory)
            pass
        """,
        "8.1: what was synced stays, the directories above it included",
        "unit",
    ),
    Mutation(
        "atomic-file-name-not-synced",
        "directories",
        "topics/storage/files/fs.py",
        """
                _unlink_quietly(fs, temporary)
                raise
            fs.sync_dir(parent(path))
        """,
        """
                _unlink_quietly(fs, temporary)
                raise
            pass
        """,
        "rule 9: a snapshot is durable before the log that it replaces goes",
        "unit",
    ),
    Mutation(
        "atomic-file-renamed-before-sync",
        "directories",
        "topics/storage/files/fs.py",
        """
                file.truncate(0)
                write_all(file, data, 0)
                file.fdatasync()
        """,
        """
                file.truncate(0)
                write_all(file, data, 0)
                pass
        """,
        "rule 9: a snapshot is the old one or the new one, whole",
        "unit",
    ),
    Mutation(
        "manifest-name-not-synced",
        "directories",
        "topics/storage/snapshots/manifests.py",
        """
            for one in manifests:
                self._fs.sync_dir(self._datadir.topic_dir(one.topic_id))
        """,
        """
            for one in manifests:
                pass
        """,
        "rule 8: a topic's part is durable before replay begins behind it",
        "crash",
    ),
    Mutation(
        "segment-names-not-synced",
        "directories",
        "topics/storage/files/unsynced_files.py",
        """
            for directory in sorted({parent(path) for path in self._paths}):
                self._fs.sync_dir(directory)
        """,
        """
            for directory in sorted({parent(path) for path in self._paths}):
                pass
        """,
        "8.1: a segment is durable before the manifest that names it",
        "crash",
    ),
    Mutation(
        "store-object-not-synced",
        "directories",
        "topics/storage/segments/segment_store.py",
        """
                    length += len(chunk)
                file.fdatasync()
        """,
        """
                    length += len(chunk)
                pass
        """,
        "rule 12: a copy is whole before it takes the name of what it replaces",
        "unit",
    ),
    Mutation(
        "store-name-not-synced",
        "directories",
        "topics/storage/segments/segment_store.py",
        """
                self._unlink_quietly(temporary)
                raise
            self._fs.sync_dir(parent(path))
        """,
        """
                self._unlink_quietly(temporary)
                raise
            pass
        """,
        "rule 12: a copy is durable before the original goes",
        "unit",
    ),
)

CEILINGS: Final = (
    Mutation(
        "raise-not-waited-for",
        "ceilings",
        "topics/engine/ceilings.py",
        "return commit_point if last_seq <= ceiling.synced else CommitPoint.SYNCED",
        "return commit_point",
        "8.2: no seq is given out twice, after any crash",
        "crash",
    ),
    Mutation(
        "late-raise-undoes-the-lowering",
        "ceilings",
        "topics/log/seq_ceiling.py",
        "if ceiling <= self.queued:  # else a later frame has lowered it again",
        "if ceiling:",
        "rule 1: after the step that lowers a ceiling the next append waits for a new raise",
        "unit",
    ),
    Mutation(
        "seqs-used-again",
        "ceilings",
        "topics/storage/recovery/verdicts.py",
        "if ceiling > head and not exempt:",
        "if ceiling > head and False:",
        "8.2: after a crash the head is the ceiling, and no seq is used again",
        "crash",
    ),
    Mutation(
        "routed-seqs-used-again",
        "ceilings",
        "topics/storage/recovery/verdicts.py",
        "ceiling = max(reached, 0 if durability in SYNCED_CLASSES else ceiling)",
        "ceiling = 0 if durability in SYNCED_CLASSES else ceiling",
        "rule 15: no router's cursor stands above its source's head",
        "crash",
    ),
    Mutation(
        "restored-seqs-used-again",
        "ceilings",
        "topics/storage/recovery/verdicts.py",
        "reached = max(head, ceiling, reached) + skipped",
        "reached = max(head, ceiling, reached)",
        "8.2: no seq is given out twice, by a restored directory neither",
        "unit",
    ),
    Mutation(
        "part-forgets-the-raise-on-its-way",
        "ceilings",
        "topics/engine/topic.py",
        "ceiling=self.ceiling.highest,",
        "ceiling=self.log.head_seq,",
        "rule 1: a part holds the ceiling",
        "crash",
    ),
)
