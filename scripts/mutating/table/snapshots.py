"""Mutations. Checkpoints, and what a start makes of them and of the log."""

from __future__ import annotations

from typing import Final

from mutating.mutation import Mutation

CHECKPOINT: Final = (
    Mutation(
        "position-later-than-the-parts",
        "checkpoint",
        "topics/storage/maintenance/compactor.py",
        "checkpoint = await self._write_snapshot(starts, named=named)",
        "checkpoint = await self._write_snapshot([ReplayStart(*one.synced_position()) for one in self._store.writers])",
        "rule 8: replay begins where the parts end, or before",
        "crash",
    ),
    Mutation(
        "captured-before-the-queue-is-drained",
        "checkpoint",
        "topics/storage/maintenance/topic_checkpoint.py",
        """
        if sync_shards:
            await self._store.sync_shards()
        """,
        """
        if sync_shards:
            await trio.lowlevel.checkpoint()
        """,
        "rule 8: a part is written when everything queued by its capture is synced",
        "unit",
    ),
    Mutation(
        "wal-file-dropped-one-snapshot-too-early",
        "checkpoint",
        "topics/storage/maintenance/compactor.py",
        "if any(kept[writer.shard].position.ordinal < following.ordinal for kept in self._kept):",
        "if any(kept[writer.shard].position.ordinal < following.ordinal for kept in self._kept[1:]):",
        "rule 9: a WAL file goes when both kept snapshots are past it",
        "crash",
    ),
    Mutation(
        "log-cut-without-a-reserve",
        "checkpoint",
        "topics/storage/maintenance/compactor.py",
        "if self._reserve != newest:",
        "if self._reserve == newest:",
        "rule 9: two bad snapshots are not the end of a log that was cut",
        "unit",
    ),
    Mutation(
        "uncertain-manifest-written-over",
        "checkpoint",
        "topics/storage/snapshots/manifests.py",
        "self._generations[topic_id] = generation = self.generation(topic_id) + 1",
        "self._generations[topic_id] = generation = self.generation(topic_id)",
        "rule 8: a manifest that may be on disk counts for nobody before its files are written again",
        "unit",
    ),
    Mutation(
        "named-manifest-replaced",
        "checkpoint",
        "topics/storage/snapshots/manifests.py",
        "return max(self.generation(topic_id), named.get(topic_id, -1) + 1)",
        "return self.generation(topic_id)",
        "rule 13: a manifest that a hold names stays as it is",
        "unit",
    ),
    Mutation(
        "named-segment-written-to",
        "checkpoint",
        "topics/storage/maintenance/topic_capture.py",
        "if self.runs and segment in self.named.segments:",
        "if self.runs and segment is None:",
        "rule 13: a segment that a hold names takes no more records",
        "unit",
    ),
    Mutation(
        "log-cut-during-a-hold",
        "checkpoint",
        "topics/storage/maintenance/compactor.py",
        """
            if hold is None:
                await self._drop_files()
        """,
        """
            if named is not None:
                await self._drop_files()
        """,
        "rule 13: the log that a hold names stays",
        "unit",
    ),
    Mutation(
        "skipped-topics-forgotten",
        "checkpoint",
        "topics/storage/maintenance/compactor.py",
        "starts[topic.shard] = self._previous(topic.shard)",
        "pass",
        "rule 8: the log of a topic that was not stored stays",
        "crash",
    ),
    Mutation(
        "manifest-renamed-before-sync",
        "checkpoint",
        "topics/storage/snapshots/manifests.py",
        """
                if sync:
                    handle.fdatasync()
        """,
        """
                if sync:
                    pass
        """,
        "rule 8: a manifest is the old one or the new one, whole",
        "crash",
    ),
    Mutation(
        "same-mount-assumed",
        "recovery",
        "topics/storage/files/witness.py",
        'mount = fs.mount(datadir.root) or f"unknown:{fs.salt():016x}"',
        'mount = "the one there is"',
        "rule 3: the page cache goes with an unmount",
        "crash",
    ),
    Mutation(
        "failure-not-witnessed",
        "recovery",
        "topics/storage/files/witness.py",
        """
            self.failed.add(shard)
            try:
                self._write()
        """,
        """
            self.failed.add(shard)
            try:
                pass
        """,
        "rule 3: a failure that cannot be noted counts",
        "crash",
    ),
    Mutation(
        "synced-through-another-descriptor",
        "checkpoint",
        "topics/storage/files/unsynced_files.py",
        """
            if path not in self._open:
                file.close()
        """,
        """
            if self._open.pop(path, file):
                file.close()
        """,
        "8.1: a file is synced through the descriptor that has written it",
        "crash",
    ),
    Mutation(
        "segment-data-not-synced",
        "checkpoint",
        "topics/storage/files/unsynced_files.py",
        """
            for _, file in sorted(self._open.items()):
                file.fdatasync()
        """,
        """
            for _, file in sorted(self._open.items()):
                pass
        """,
        "rule 10: the length in a manifest is synced",
        "crash",
    ),
    Mutation(
        "one-snapshot-kept",
        "checkpoint",
        "topics/storage/snapshots/snapshot.py",
        "for number in numbers[:-KEPT]:",
        "for number in numbers[:-1]:",
        "rule 9: the newest snapshot may be damaged, the one before is there",
        "unit",
    ),
    Mutation(
        "one-snapshot-names-the-new-layout",
        "checkpoint",
        "topics/storage/maintenance/compactor.py",
        "for _ in range(KEPT):",
        "for _ in range(1):",
        "rule 14: two snapshots before the old layout goes",
        "unit",
    ),
    Mutation(
        "uncertain-manifest-trusted",
        "checkpoint",
        "topics/storage/maintenance/topic_checkpoint.py",
        "self.stuck.update(one.topic for one in captures if one.topic.id in written)",
        "pass",
        "rule 8: what a manifest that may be on disk names is not written again",
        "crash",
    ),
    Mutation(
        "sealed-without-the-newest-records",
        "checkpoint",
        "topics/storage/maintenance/segment_growth.py",
        "pieces[-1] = pieces[-1]._replace(seals=True)",
        "pass",
        "consumers 7: after a call for sealing, what could be read before it is in sealed segments",
        "unit",
    ),
    Mutation(
        "sealing-answered-by-a-capture-before-it",
        "checkpoint",
        "topics/storage/maintenance/topic_checkpoint.py",
        "topic.on_disk.seals_done = max(topic.on_disk.seals_done, capture.seals)",
        "topic.on_disk.seals_done = topic.on_disk.seals_asked",
        "consumers 7: after a call for sealing, what could be read before it is in sealed segments",
        "unit",
    ),
    Mutation(
        "sealing-without-rest",
        "checkpoint",
        "topics/storage/maintenance/compactor.py",
        "if rest <= 0:",
        "if rest is not None:",
        "8.7: one client that seals all the time delays nothing else",
        "unit",
    ),
    Mutation(
        "segments-of-a-topic-without-bound",
        "checkpoint",
        "topics/storage/segments/topic_segments.py",
        "return self.own if self.segments + more < MANY_SEGMENTS else self.if_many",
        "return self.own",
        "8.7: one topic whose segments are small delays nothing else",
        "unit",
    ),
)

RECOVERY: Final = (
    Mutation(
        "damage-mistaken-for-the-end",
        "recovery",
        "topics/storage/recovery/log_end.py",
        "if following is None and not cut and known and end.batch_at >= vouched:",
        "if following is None:",
        "8.10: damage is never mistaken for the end of a log",
        "crash",
    ),
    Mutation(
        "zeros-taken-for-the-end",
        "recovery",
        "topics/storage/recovery/log_end.py",
        'clean = end.reason == "zeros" and only_zeros(handle, end.at, search.size)',
        'clean = end.reason == "zeros"',
        "rule 4: zeros end the log only with nothing behind them",
        "crash",
    ),
    Mutation(
        "synced-frame-believed-about-what-is-behind-it",
        "recovery",
        "topics/storage/wal/frame_search.py",
        "if not ours or offset > at or (file.salt is None and offset != at):",
        "if not ours:",
        "8.10: a torn end is never mistaken for damage",
        "unit",
    ),
    Mutation(
        "search-without-a-bound",
        "recovery",
        "topics/storage/wal/frame_search.py",
        "if self._work <= 0:",
        "if False:",
        "8.10: a start takes as long as its bytes take, not as long as they claim",
        "unit",
    ),
    Mutation(
        "verdict-not-synced",
        "recovery",
        "topics/storage/wal/shard_writer.py",
        """
            write_all(handle, opening.sealed(file.head.salt, file.end), file.end)
            handle.fdatasync()
        """,
        """
            write_all(handle, opening.sealed(file.head.salt, file.end), file.end)
            pass
        """,
        "8.6, rule 2: a second crash decides the same",
        "crash",
    ),
    Mutation(
        "another-boot-forgiven",
        "recovery",
        "topics/storage/recovery/verdicts.py",
        "and shard.boot_id == boot_id",
        "and shard.boot_id",
        "rule 3: only the boot that wrote has its page cache",
        "crash",
    ),
    Mutation(
        "frames-replayed-twice",
        "recovery",
        "topics/storage/recovery/shard_replay.py",
        "if (file.ordinal, first[0]) < topic.end:",
        "if (file.ordinal, first[0]) < (0, 0):",
        "rule 8: frames before a part's own position are in it",
        "crash",
    ),
    Mutation(
        "older-part-wins",
        "recovery",
        "topics/storage/recovery/stored_parts.py",
        "if part.id == topic_id and (topic is None or LogPosition(*part.end) >= topic.end):",
        "if part.id == topic_id and (topic is None or LogPosition(*part.end) > topic.end):",
        "rule 12: the manifest decides where segments are",
        "crash",
    ),
    Mutation(
        "salvage-without-a-hole",
        "recovery",
        "topics/storage/recovery/log_end.py",
        "losses[topic_id] = LostSeqs(head + 1, None)",
        "pass",
        "rule 15: the head advances by the most that a lost range can have held",
        "crash",
    ),
    Mutation(
        "clock-of-retention-not-restored",
        "recovery",
        "topics/storage/recovery/replay.py",
        "clock.retention = snapshot.clock",
        "clock.retention = 0",
        "8.2, rule 6: what has expired does not come back when the clock is set back",
        "life",
    ),
)
