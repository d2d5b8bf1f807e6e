"""The mutations that `scripts/mutate` tries, subsystem by subsystem. See `mutation` for what one is.

Each breaks a promise: a change that nobody could ever notice is not in here. Where code that is mutated changes, so
does its entry; a test sees to it that all of them still fit.
"""

from __future__ import annotations

from typing import Final

from mutating.mutation import Mutation

WAL: Final = (
    Mutation(
        "wal-sync-skipped",
        "wal",
        "topics/storage/wal/shard_log.py",
        """
            handle.fdatasync()
            return self._clock.perf_ns() - file.written_ns
        """,
        """
            pass
            return self._clock.perf_ns() - file.written_ns
        """,
        "8.1: an acked fsync record survives any crash",
        "crash",
    ),
    Mutation(
        "ack-before-sync",
        "wal",
        "topics/engine/topic.py",
        """
            elif self.commit_point is not CommitPoint.SYNCED:
                self.ready = True
        """,
        """
            else:
                self.ready = True
        """,
        "8.1: fsync is published and acked after the sync that covers it",
        "unit",
    ),
    Mutation(
        "publish-before-write",
        "wal",
        "topics/engine/topic.py",
        "self.ready = commit_point is CommitPoint.HANDED",
        "self.ready = commit_point is not CommitPoint.SYNCED",
        "8.1: disk is published and acked after write(2)",
        "unit",
    ),
    Mutation(
        "batch-bit-dropped",
        "wal",
        "topics/storage/wal/frames.py",
        "flags = [base | own | MORE | CONTINUES for own in kept]",
        "flags = [base | own | CONTINUES for own in kept]",
        "8.3: a batch is there whole or not at all",
        "crash",
    ),
    Mutation(
        "one-record-stands-alone",
        "wal",
        "topics/storage/wal/frames.py",
        "flags = own | (DURABLE if durable else 0) | (0 if place.closes else MORE) | (0 if place.opens else CONTINUES)",
        "flags = own | (DURABLE if durable else 0) | (0 if place.opens else CONTINUES)",
        "8.3: a record and the key or the eviction of its append stand or fall together",
        "unit",
    ),
    Mutation(
        "batch-continuation-unmarked",
        "wal",
        "topics/storage/wal/frames.py",
        "flags = [base | own | MORE | CONTINUES for own in kept]",
        "flags = [base | own | MORE for own in kept]",
        "8.3, rule 15: salvage drops a batch whole that the bad range has cut",
        "crash",
    ),
    Mutation(
        "control-frames-stand-alone",
        "wal",
        "topics/storage/wal/frames.py",
        "flags = (CONTINUES if opened or i else 0) | (MORE if i < last else 0)",
        "flags = CONTINUES if opened or i else 0",
        "8.3: the frames of one change stand or fall together",
        "unit",
    ),
    Mutation(
        "vouches-for-what-is-not-synced",
        "wal",
        "topics/storage/wal/shard_writer.py",
        'pieces.append(frames.encode_control(FrameType.SYNCED, {"file": file.ordinal, "offset": self._synced_end}))',
        'pieces.append(frames.encode_control(FrameType.SYNCED, {"file": file.ordinal, "offset": start + 4096}))',
        "8.10: a torn end is never mistaken for damage",
        "unit",
    ),
    Mutation(
        "header-not-synced",
        "wal",
        "topics/storage/wal/shard_log.py",
        """
                write_all(handle, encode_file_header(self._spare_salt, ordinal), 0)
                handle.fdatasync()
        """,
        """
                write_all(handle, encode_file_header(self._spare_salt, ordinal), 0)
                pass
        """,
        "8.1: no crash leaves a named file whose frames nobody can verify",
        "crash",
    ),
    Mutation(
        "client-bytes-without-a-salt",
        "wal",
        "topics/storage/wal/shard_writer.py",
        "return file.head.salt is None or file.end + len(batch.data) > self._file_bytes",
        "return file.end + len(batch.data) > self._file_bytes",
        "8.10: no client can write what is read as a frame",
        "unit",
    ),
    Mutation(
        "rotation-without-sync",
        "wal",
        "topics/storage/wal/shard_log.py",
        """
            write_all(handle, ending, at)
            handle.fdatasync()
        """,
        """
            write_all(handle, ending, at)
            pass
        """,
        "rule 5: a file is synced whole before its successor gets its name",
        "crash",
    ),
    Mutation(
        "room-not-asked-for",
        "wal",
        "topics/storage/wal/shard_writer.py",
        """
            if not self._log.has_room(end):
                await self._offload.run(Pool.WAL, partial(self._log.make_room, end))
        """,
        """
            if end < 0:
                await self._offload.run(Pool.WAL, partial(self._log.make_room, end))
        """,
        "8.1, rule 27: a full disk is met before the log is written, where nothing is uncertain",
        "unit",
    ),
    Mutation(
        "failed-sync-shrugged-off",
        "wal",
        "topics/storage/wal/shard_writer.py",
        """
            except OSError as error:
                self._fail(error)

        def _is_full_for(self, batch: WalBatch) -> bool:
        """,
        """
            except OSError as error:
                self._synced()

        def _is_full_for(self, batch: WalBatch) -> bool:
        """,
        "8.1, rule 27: after a failed sync nothing is acked any more",
        "unit",
    ),
    Mutation(
        "group-that-waits-for-a-sync-written-on-the-loop",
        "wal",
        "topics/storage/wal/group_writes.py",
        "if sync or size > LOOP_BYTES or not shard.has_room(start + size) or not self._is_loop_allowed():",
        "if size > LOOP_BYTES or not shard.has_room(start + size) or not self._is_loop_allowed():",
        "8.1: an acked fsync record survives any crash",
        "unit",
    ),
    Mutation(
        "large-group-written-on-the-loop",
        "wal",
        "topics/storage/wal/group_writes.py",
        "if sync or size > LOOP_BYTES or not shard.has_room(start + size) or not self._is_loop_allowed():",
        "if sync or not shard.has_room(start + size) or not self._is_loop_allowed():",
        "speed 3: only small batches are written on the loop",
        "unit",
    ),
    Mutation(
        "room-allocated-on-the-loop",
        "wal",
        "topics/storage/wal/group_writes.py",
        "if sync or size > LOOP_BYTES or not shard.has_room(start + size) or not self._is_loop_allowed():",
        "if sync or size > LOOP_BYTES or not self._is_loop_allowed():",
        "speed 3: no sync and no allocation is on the loop",
        "unit",
    ),
    Mutation(
        "written-on-the-loop-beside-a-sync",
        "wal",
        "topics/storage/wal/group_writes.py",
        "return self._offload.is_disk_free()",
        "return True",
        "speed 3: nothing is written on the loop while a sync is in flight on that file system",
        "unit",
    ),
    Mutation(
        "syncs-are-not-counted",
        "wal",
        "topics/runtime/offload.py",
        "self._holding += holding",
        "self._holding += 0",
        "speed 3: nothing is written on the loop while a sync is in flight on that file system",
        "unit",
    ),
    Mutation(
        "slow-write-on-the-loop-shrugged-off",
        "wal",
        "topics/storage/wal/group_writes.py",
        """
                if taken_ns > SLOW_NS and self._clock.thread_waits() > waits:
                    self._pause(taken_ns)
        """,
        """
                if taken_ns > SLOW_NS and self._clock.thread_waits() > waits:
                    pass
        """,
        "speed 3: a slow write on the loop sends the next ones to worker threads for a while",
        "unit",
    ),
    Mutation(
        "slow-file-system-forgiven",
        "wal",
        "topics/storage/wal/group_writes.py",
        "if self._fast > CALM_WRITES:",
        "if self._fast > 0:",
        "speed 3: a file system that has shown to be slow gets its writes from worker threads",
        "unit",
    ),
)

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
        "8.2: no seq is given out twice, whatever a crash takes",
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
        'ceiling = max(reached, 0 if durability == "fsync" else ceiling)',
        'ceiling = 0 if durability == "fsync" else ceiling',
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

EVICTION: Final = (
    Mutation(
        "evict-watermark-not-logged",
        "eviction",
        "topics/engine/operations/append.py",
        "return tail + eviction_frames(topic, watermark)",
        "return tail",
        "8.2: what was evicted never comes back",
        "crash",
    ),
    Mutation(
        "ttl-floor-not-logged",
        "eviction",
        "topics/engine/commits.py",
        'return {"below": floor, "reason": "ttl"}',
        "return None",
        "8.4: replay knows what had expired before a deletion took the rest",
        "crash",
    ),
    Mutation(
        "ttl-floor-not-latched",
        "eviction",
        "topics/engine/operations/topic_lifecycle.py",
        "if old.ttl_ms and topic.log.losses.evict_floor > 1:",
        "if old.ttl_ms and topic.log.losses.evict_floor < 1:",
        "rule 6: what has expired stays so under a longer ttl",
        "crash",
    ),
    Mutation(
        "one-record-above-the-cap",
        "eviction",
        "topics/log/retention.py",
        "if cap_records and (over := log.count + new_records - cap_records) > 0:",
        "if cap_records and (over := log.count + new_records - cap_records - 1) > 0:",
        "8.5: a cap is exact",
        "unit",
    ),
    Mutation(
        "bytes-of-deleted-records-counted",
        "eviction",
        "topics/log/topic_log.py",
        "self.bytes -= gone.bytes",
        "pass",
        "8.5: bytes is what a full read would show",
        "unit",
    ),
)

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
        "8.10: a start takes as long as its bytes take, whatever they claim",
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

RECLAIMER: Final = (
    Mutation(
        "rewrite-takes-undecided-deletions",
        "reclaimer",
        "topics/storage/maintenance/segment_rewrite.py",
        "kept = i >= gone and size > 0 and state != LOST and (state != DELETED or first + i in since)",
        "kept = i >= gone and size > 0 and state != LOST and state != DELETED",
        "8.1, rule 12: files never forget more than the part on disk knows",
        "crash",
    ),
    Mutation(
        "rewrite-loses-flags",
        "reclaimer",
        "topics/storage/maintenance/segment_rewrite.py",
        "plan.flags.append(flag if kept else flag | (IDX_HOLE if state == LOST else IDX_DELETED))",
        "plan.flags.append(flag)",
        "8.4: what was deleted is silent, what was lost is announced",
        "unit",
    ),
    Mutation(
        "cold-flag-before-its-deletion-is-synced",
        "reclaimer",
        "topics/storage/maintenance/reclaimer.py",
        """
                if topic in self._source.changed:
                    self._source.attention.add(topic)  # whatever makes its part durable until then
        """,
        """
                if topic.deleted:
                    self._source.attention.add(topic)  # whatever makes its part durable until then
        """,
        "rule 11: a flag is written only after its Delete frame is synced",
        "crash",
    ),
    Mutation(
        "topic-removed-file-by-file",
        "reclaimer",
        "topics/storage/segments/segment_store.py",
        """
            self._fs.sync_dir(self._dirs.topics_dir)
            for path in present:
        """,
        """
            pass
            for path in present:
        """,
        "8.2: a deleted topic does not come back without some of its files",
        "unit",
    ),
)

SEGMENTS: Final = (
    Mutation(
        "segment-search-goes-back-in-seq",
        "reading",
        "topics/storage/segments/segment_scan.py",
        "if not fits or seq <= above or seq not in self._seqs or data_len < (21 if flags & HAS_ORIGIN else 4):",
        "if not fits or seq not in self._seqs or data_len < (21 if flags & HAS_ORIGIN else 4):",
        "8.2: bytes that a client chose are no record",
        "unit",
    ),
    Mutation(
        "segment-search-without-a-bound",
        "reading",
        "topics/storage/segments/segment_scan.py",
        "self._work -= size",
        "self._work -= 0",
        "8.10: a forged chain of lengths must not cost hours",
        "unit",
    ),
    Mutation(
        "short-file-reads-as-deletion",
        "reading",
        "topics/storage/segments/segment_reader.py",
        "return found if length is None else found._replace(damaged=_beyond(found.columns, first, length))",
        "return found",
        "8.4: no loss that nobody asked for without a tombstone",
        "unit",
    ),
    Mutation(
        "damage-not-noted",
        "reading",
        "topics/storage/cache/span_loader.py",
        """
            topic.log.add_hole(first, last, "corrupt")
            self._notes.note(topic, [(first, last)])
        """,
        """
            topic.log.add_hole(first, last, "corrupt")
        """,
        "8.4: a deletion does not hide damage that was found before it",
        "unit",
    ),
)

RELOCATOR: Final = (
    Mutation(
        "flip-before-the-copy",
        "relocator",
        "topics/storage/maintenance/relocator.py",
        "await self._offload.run(Pool.COLD_FILES, partial(_copy, tiers, segment))",
        "await self._offload.run(Pool.COLD_FILES, partial(_copy, tiers._replace(cold=tiers.hot), segment))",
        "rule 12: the pointer decides, so the copy is there before it",
        "crash",
    ),
    Mutation(
        "hot-copy-goes-before-the-flip",
        "relocator",
        "topics/storage/maintenance/relocator.py",
        """
                    await self._checkpoints.store([topic], moved=segment, tier="cold")
                    if topic.deleted or segment.tier != "cold":
                        return False
                    await self._offload.run(Pool.FILES, partial(_remove_hot, tiers, segment))
        """,
        """
                    await self._offload.run(Pool.FILES, partial(_remove_hot, tiers, segment))
                    await self._checkpoints.store([topic], moved=segment, tier="cold")
                    if topic.deleted or segment.tier != "cold":
                        return False
        """,
        "rule 12: before the flip the hot copy counts",
        "crash",
    ),
    Mutation(
        "flags-that-came-during-a-copy-forgotten",
        "relocator",
        "topics/storage/maintenance/relocator.py",
        "late, segment.flagged_meanwhile = sorted(segment.flagged_meanwhile), set()",
        "late, segment.flagged_meanwhile = [], set()",
        "8.2, rule 12: flags set during a copy are applied to it before the flip",
        "unit",
    ),
    Mutation(
        "cold-directory-of-somebody-else-taken-over",
        "relocator",
        "topics/storage/cold/identity.py",
        "if mine is None or its.data != mine.id or mine.cold not in (None, its.id):",
        "if mine is not None and its.data == its.id:",
        "8.2: nobody deletes the segments of another data directory",
        "unit",
    ),
    Mutation(
        "flags-of-a-moving-segment-written-to-its-old-files",
        "relocator",
        "topics/storage/maintenance/topic_capture.py",
        "pending = [span for span in self.spans if span.segment is not moved]",
        "pending = self.spans",
        "8.2, rule 12: a deletion during a move does not come back",
        "crash",
    ),
)

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
        "rule 18: bytes that copies are made of stay, whatever becomes of their topic",
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

QUEUES: Final = (
    Mutation(
        "ack-answered-before-its-sync",
        "queues",
        "topics/engine/queues/lease_commits.py",
        "commit_point = topic.commit_point",
        "commit_point = CommitPoint.HANDED",
        "8.1: an acked fsync ack survives any crash",
        "unit",
    ),
    Mutation(
        "ack-not-logged",
        "queues",
        "topics/engine/queues/lease_commits.py",
        "data, count = deletion_batch(topic, selector, ts, moved)",
        'data, count = b"", 0',
        "8.2: a job whose ack was synced does not come back",
        "life",
    ),
    Mutation(
        "lease-id-not-checked",
        "queues",
        "topics/queue/leases.py",
        "and (lease_id is None or page.lease_ids[slot] == lease_id)",
        "and lease_id != -1",
        "8.9: an ack never removes a job that its caller does not hold",
        "unit",
    ),
    Mutation(
        "holder-not-checked",
        "queues",
        "topics/queue/leases.py",
        "and (node is None or holder == node)",
        "and holder",
        "8.9: an ack never removes a job that its caller does not hold",
        "unit",
    ),
    Mutation(
        "two-holders",
        "queues",
        "topics/queue/leases.py",
        """
            self._reserve(seqs)
            self._reserve(exhausted)
        """,
        """
            pass
            self._reserve(exhausted)
        """,
        "8.9: a job never has two holders",
        "unit",
    ),
    Mutation(
        "durable-lease-not-waited-for",
        "queues",
        "topics/engine/queues/lease_commits.py",
        "commit_point = CommitPoint.SYNCED if topic.config.leases_durable and data else CommitPoint.HANDED",
        "commit_point = CommitPoint.HANDED",
        "8.9: with leases_durable no crash makes a second holder",
        "unit",
    ),
    Mutation(
        "leases-not-restored",
        "queues",
        "topics/storage/recovery/topic_replay.py",
        "topic.queue.apply(event_from_wire(payload, self._clock.started))",
        "pass",
        "8.9: with leases_durable no restart makes a second holder",
        "life",
    ),
    Mutation(
        "dead-letter-deleted-before-its-copy-is-synced",
        "queues",
        "topics/engine/queues/dead_letters.py",
        """
            await self._sync(config.dead_letter)
            await self._delete(topic, queue, moved)
        """,
        """
            await self._delete(topic, queue, moved)
            await self._sync(config.dead_letter)
        """,
        "semantics 6: a crash leaves the job, its dead letter or both, never neither",
        "crash",
    ),
    Mutation(
        "nack-delay-ignored",
        "queues",
        "topics/queue/leases.py",
        "available_at = now.after(delay_ms) if delay_ms else None",
        "available_at = None",
        "semantics 6: a delayed job is not claimed before its time",
        "unit",
    ),
    Mutation(
        "one-poisoned-job-holds-up-all",
        "queues",
        "topics/engine/queues/dead_letters.py",
        "elif len(failed) < SINGLES or moved:",
        "elif len(failed) < 0:",
        "8.7: one poisoned job holds up nobody else",
        "life",
    ),
)

STAGING: Final = (
    Mutation(
        "stages-not-synced",
        "staging",
        "topics/engine/operations/stage_commits.py",
        """
            for stage in {stage.shard: stage for stage in stages}.values():
                await self._commits.sync_shard(stage)
        """,
        """
            for stage in {stage.shard: stage for stage in stages}.values():
                await trio.lowlevel.checkpoint()
        """,
        "8.3, rule 23: a commit refers to nothing that can be lost without it",
        "crash",
    ),
    Mutation(
        "commit-in-pieces",
        "staging",
        "topics/storage/wal/frames.py",
        """
            flags = (CONTINUES if i else 0) | (MORE if i < last else 0)
            bodies.append(_BODY.pack(kind, flags, topic_id, seq, ts, 0, 0, len(blob)) + blob)
        """,
        """
            flags = CONTINUES if i else 0
            bodies.append(_BODY.pack(kind, flags, topic_id, seq, ts, 0, 0, len(blob)) + blob)
        """,
        "8.3: a staged commit is there whole or not at all",
        "crash",
    ),
    Mutation(
        "commit-key-not-remembered",
        "staging",
        "topics/engine/operations/stage_commits.py",
        "target.commit_keys.remember(decided.key, decided.first_seq, commit.records, decided.at, names)",
        "pass",
        "rule 23: a commit is repeated as it was",
        "life",
    ),
    Mutation(
        "commit-key-not-restored",
        "staging",
        "topics/storage/recovery/topic_replay.py",
        'topic.commit_keys.remember(payload["key"], payload["first"], payload["count"], at, payload["stages"])',
        "pass",
        "rule 23: a commit is repeated as it was, after a restart too",
        "life",
    ),
    Mutation(
        "committed-stage-comes-back",
        "staging",
        "topics/storage/recovery/verdicts.py",
        "if target is None or closed or topic.log.count != topic.log.head_seq:",
        "if target is None or topic.log.count != topic.log.head_seq:",
        "rule 23: a committed stage is closed, whatever a crash takes",
        "crash",
    ),
    Mutation(
        "partial-stage-kept",
        "staging",
        "topics/storage/recovery/verdicts.py",
        "if target is None or closed or topic.log.count != topic.log.head_seq:",
        "if target is None or closed:",
        "8.3: no commit publishes a part of what was staged",
        "crash",
    ),
    Mutation(
        "damaged-stage-committed",
        "staging",
        "topics/engine/operations/stage_commits.py",
        "if stage.deleted or _is_damaged(stage):",
        "if stage.deleted:",
        "8.3: no commit publishes a part of what was staged",
        "life",
    ),
)

IDEMPOTENCY: Final = (
    Mutation(
        "keys-of-parts-not-restored",
        "idempotency",
        "topics/storage/recovery/stored_parts.py",
        "topic.keys = DedupeWindow.load(part.keys) if part.keys else None",
        "topic.keys = None",
        "8.2: a repeat under a key that was acked makes no second record",
        "life",
    ),
    Mutation(
        "keys-of-the-log-not-restored",
        "idempotency",
        "topics/storage/recovery/topic_replay.py",
        'topic.keys.remember(payload["key"], payload["first"], payload["count"], at)',
        "pass",
        "8.2: a repeat under a key that was acked makes no second record",
        "life",
    ),
    Mutation(
        "repeat-does-not-wait-for-the-first",
        "idempotency",
        "topics/engine/idempotency_keys.py",
        "topic.keys_in_flight[key] = commit.done",
        "pass",
        "api 1: an append and its repeat make one record, at the same time too",
        "unit",
    ),
    Mutation(
        "key-of-a-failed-append-remembered",
        "idempotency",
        "topics/engine/idempotency_keys.py",
        "commit.on_fail = partial(self._fail, topic, key)",
        "commit.on_fail = partial(self.remember, topic, key, commit.last_seq, commit.records, 0)",
        "8.1: a repeat is acked only if the first append was",
        "life",
    ),
    Mutation(
        "key-not-logged",
        "idempotency",
        "topics/engine/operations/append.py",
        'tail.append((FrameType.IDEMPOTENCY, {"key": key, "first": first_seq, "count": count, "at": at}))',
        "pass",
        "8.2: a repeat after a restart makes no second record",
        "life",
    ),
    Mutation(
        "windows-by-the-wall-clock",
        "idempotency",
        "topics/runtime/window_clock.py",
        "return self._ahead + self._clock.monotonic_ms()",
        "return self._clock.now_ms()",
        "8.2: a wall clock that is set makes no second record of a repeat",
        "unit",
    ),
    Mutation(
        "boot-of-the-mark-not-asked",
        "idempotency",
        "topics/runtime/window_clock.py",
        "passed = boottime - mark.boottime",
        "passed = wall - mark.wall",
        "8.2: a wall clock that is set between two lives makes no second record of a repeat",
        "unit",
    ),
)

CLASSES: Final = (
    Mutation(
        "ephemeral-records-not-written-out",
        "classes",
        "topics/engine/operations/topic_lifecycle.py",
        "await self._write_out(topic)",
        "pass",
        "rule 24: leaving ephemeral writes its live records",
        "life",
    ),
    Mutation(
        "full-disk-not-noticed",
        "classes",
        "topics/engine/commits.py",
        "if shortage is not None:",
        "if shortage is not None and self.saturated:",
        "rule 27: below TOPICS_MIN_FREE_BYTES appends are refused",
        "life",
    ),
    Mutation(
        "dead-letters-may-be-ephemeral",
        "classes",
        "topics/engine/operations/topic_lifecycle.py",
        'if config.durability == "ephemeral" and named:',
        'if config.durability == "ephemeral" and not named:',
        "rule 26: a referenced dead-letter topic does not turn ephemeral",
        "life",
    ),
)

READING: Final = (
    Mutation(
        "floor-gap-not-told",
        "reading",
        "topics/log/topic_log.py",
        "if from_seq + 1 < self.losses.evict_floor:",
        "if from_seq + 1 < 0:",
        "8.4: no involuntary loss without a tombstone",
        "unit",
    ),
    Mutation(
        "hole-not-told",
        "reading",
        "topics/engine/record_collector.py",
        "self.tombstone = log.tombstone_of(step)",
        "pass",
        "8.4: no involuntary loss without a tombstone",
        "unit",
    ),
    Mutation(
        "floor-not-advanced",
        "reading",
        "topics/engine/record_collector.py",
        "self._registry.expire(self.topic)",
        "pass",
        "rule 7: a read advances the floor first",
        "life",
    ),
    Mutation(
        "times-go-back",
        "reading",
        "topics/engine/operations/append.py",
        "ts = topic.last_ts = max(self._registry.now_ms(), topic.last_ts)",
        "ts = topic.last_ts = self._clock.now_ms()",
        "semantics 1: $ts never decreases, whatever the clock does",
        "life",
    ),
    Mutation(
        "export-without-tombstones",
        "reading",
        "topics/engine/operations/export.py",
        "tombstone = self._within(found.tombstone)",
        "tombstone = None",
        "8.4: diff, SSE, WebSocket and export agree",
        "life",
    ),
    Mutation(
        "deletion-outlives-its-bound",
        "reading",
        "topics/log/topic_log.py",
        "end = min(before_seq, bound + 1, self.head_seq + 1)",
        "end = min(before_seq, self.head_seq + 1)",
        "rule 11: a deletion takes what was there when it was decided",
        "unit",
    ),
)

DELIVERY: Final = (
    Mutation(
        "topic-that-is-waited-for-not-delivered",
        "delivery",
        "topics/engine/delivery/topic_delivery.py",
        "for feed in self._awaited.take(topic.name):",
        "for feed in []:",
        "api 8: a watcher who waits for a topic is given all of it",
        "unit",
    ),
    Mutation(
        "wakeup-lost",
        "delivery",
        "topics/sched/audience.py",
        "self.due.update(self.live)",
        "pass",
        "8.4: a watcher is told what a diff would show",
        "unit",
    ),
    Mutation(
        "frames-of-other-places",
        "delivery",
        "topics/engine/delivery/topic_delivery.py",
        "key = (state, feed.epoch, feed.position, feed.wish, feed.outbox and feed.outbox.form)",
        "key = (state, feed.epoch, feed.wish, feed.outbox and feed.outbox.form)",
        "8.4: frames are shared only by those in the same place",
        "life",
    ),
    Mutation(
        "delivered-before-the-sync",
        "delivery",
        "topics/engine/delivery/feed.py",
        "return min(head, self.topic.synced_seq) if self.strong and not self.topic.ephemeral else head",
        "return head",
        "semantics 2: a strong watcher sees what is synced",
        "life",
    ),
    Mutation(
        "id-ignored",
        "delivery",
        "topics/engine/delivery/watch_sessions.py",
        "session.rewind(cursors)",
        "pass",
        "8.4: a stream goes on where its id says",
        "unit",
    ),
    Mutation(
        "id-ahead-of-what-was-sent",
        "delivery",
        "topics/engine/delivery/watch_sessions.py",
        "text = msgspec.json.encode({feed.name: feed.position for feed in self._order if self._goes_on(feed)})",
        "text = msgspec.json.encode({feed.name: feed.position + 1 for feed in self._order if self._goes_on(feed)})",
        "8.4: a stream goes on behind what its id was sent with",
        "unit",
    ),
    Mutation(
        "dropped-frames-forgotten",
        "delivery",
        "topics/engine/delivery/outbox.py",
        "feed.go_back(marks[-1] if marks else feed.sent)",
        "pass",
        "8.8: what a slow client was spared for now it gets later",
        "unit",
    ),
    Mutation(
        "recreated-topic-not-told",
        "delivery",
        "topics/engine/delivery/topic_delivery.py",
        "return Collector(self._registry, topic, wish, feed.position, same_epoch=feed.epoch == topic.id, up_to=up_to)",
        "return Collector(self._registry, topic, wish, feed.position, same_epoch=True, up_to=up_to)",
        "8.4: a watcher of an older instance is told `recreated`",
        "life",
    ),
)

PRESSURE: Final = (
    Mutation(
        "coalescing-drops-news",
        "pressure",
        "topics/sched/workers.py",
        """
            shard.hold(item, until)
            return
        """,
        """
            pass
            return
        """,
        "8.8: pressure changes when, never whether",
        "unit",
    ),
    Mutation(
        "paused-topics-dropped",
        "pressure",
        "topics/sched/workers.py",
        "shard.ready.resume_lowest(_now_ms())",
        "pass",
        "8.8: pressure changes when, never whether",
        "unit",
    ),
    Mutation(
        "group-without-room-forgotten",
        "pressure",
        "topics/storage/wal/shard_writer.py",
        """
        self._in_group = group = self.queue.take_group(max(self._file_bytes - self.file.end, 0))
        """,
        """
        group = self.queue.take_group(max(self._file_bytes - self.file.end, 0))
        """,
        "8.8: whose batch is in a group for which no room is made hears of it",
        "unit",
    ),
    Mutation(
        "late-refusal-not-tried-again",
        "pressure",
        "topics/storage/wal/shard_writer.py",
        "self._wake.set()  # to look at the clock: the spare is made beside the writer, which may be asleep",
        "pass",
        "8.8: a shard without room goes on by itself",
        "unit",
    ),
    Mutation(
        "checkpoint-waits-for-room",
        "pressure",
        "topics/storage/wal/shard_writer.py",
        """
            self.queue.settle_requests(self.stall.refusal)
        """,
        """
            pass
        """,
        "8.8: a checkpoint does not keep its topics locked while there is no room",
        "unit",
    ),
    Mutation(
        "room-not-told",
        "pressure",
        "topics/storage/wal/write_queue.py",
        """
            self.is_urgent = bool(self._batches)
            if not self.is_full:
                self.wake_waiting()
            return group
        """,
        """
            self.is_urgent = bool(self._batches)
            if self._closed:
                self.wake_waiting()
            return group
        """,
        "8.8: an append that waits for room gets it",
        "unit",
    ),
    Mutation(
        "control-frames-wait-for-appends",
        "pressure",
        "topics/storage/wal/shard_writer.py",
        """
            if self._stopping:
                raise ApiError("shutting_down", "the daemon is shutting down", retry_after_s=1)
        """,
        """
            if self._stopping or self.queue.is_full:
                raise ApiError("shutting_down", "the daemon is shutting down", retry_after_s=1)
        """,
        "rule 25: control frames use reserved room",
        "unit",
    ),
)

TURNS: Final = (
    Mutation(
        "turn-never-given",
        "pressure",
        "topics/runtime/turns.py",
        """
            if self._spent + size > TURN_BYTES:
                await _others_run()
                self._spent = 0
        """,
        """
            if self._spent + size > TURN_BYTES:
                pass
                self._spent = 0
        """,
        "8.7: a small request waits for one piece of bulk work, not for those of all bulk clients",
        "unit",
    ),
    Mutation(
        "turn-kept-while-waiting",
        "pressure",
        "topics/engine/operations/append.py",
        "has_turn, takes_turn = takes_turn, False  # a turn is over once something else has been waited for",
        "has_turn = takes_turn",
        "8.7: large batches that waited for room are not committed all in one pass of the loop",
        "unit",
    ),
    Mutation(
        "each-piece-a-batch",
        "wal",
        "topics/engine/operations/large_batches.py",
        "opens_batch=piece.start == 0,",
        "opens_batch=True,",
        "8.3: a batch that is encoded in pieces is one batch",
        "unit",
    ),
)

SOCKETS: Final = (
    Mutation(
        "busiest-of-the-idle-evicted",
        "sockets",
        "topics/http/connections/server.py",
        """
            for connection in self.idle:
                self.forget(connection)
        """,
        """
            for connection in reversed(self.idle):
                self.forget(connection)
        """,
        "8.7: a crowd that asks for nothing keeps nobody out",
        "unit",
    ),
    Mutation(
        "a-byte-is-progress",
        "sockets",
        "topics/http/connections/connection.py",
        """
            if taken - self._progress >= PROGRESS_BYTES:
                self._progress, self._progress_at = taken, now
        """,
        """
            if taken != self._progress:
                self._progress, self._progress_at = taken, now
        """,
        "8.7: a reader that takes a byte now and then holds no answer for hours",
        "unit",
    ),
    Mutation(
        "a-byte-less-for-hypercorn",
        "sockets",
        "topics/http/connections/lane.py",
        'rest, self._input = self._input, b""',
        'rest, self._input = self._input[1:], b""',
        "api 1: a request that the lane does not take is served as if there were none",
        "unit",
    ),
    Mutation(
        "a-byte-less-for-the-lane",
        "sockets",
        "topics/http/connections/protocols/http1.py",
        "return self.connection.trailing_data[0]",
        "return self.connection.trailing_data[0][1:]",
        "api 1: requests that are sent behind one another are all answered",
        "unit",
    ),
    Mutation(
        "chunks-on-the-lane",
        "sockets",
        "topics/http/connections/request_heads.py",
        "if len(headers) != count or count > MAX_FIELDS or not _NOT_PLAIN.isdisjoint(headers):",
        "if len(headers) != count or count > MAX_FIELDS:",
        "api 1: a body in chunks ends where its chunks say, and is no other request",
        "unit",
    ),
    Mutation(
        "the-lane-reads-behind-a-body",
        "sockets",
        "topics/http/connections/lane.py",
        "return await self._read(min(most, BULK_READ_BYTES))",
        "return await self._read(BULK_READ_BYTES)",
        "api 1: a request behind a body is a request",
        "unit",
    ),
    Mutation(
        "the-lane-goes-on-within-a-body",
        "sockets",
        "topics/http/connections/lane.py",
        "return self._ended and self.body_complete and not self._closes and not self.connection.is_broken",
        "return self._ended and not self._closes and not self.connection.is_broken",
        "api 1: a body that was not received is no other request",
        "unit",
    ),
    Mutation(
        "half-an-answer-and-then-a-frame",
        "sockets",
        "topics/http/connections/lane.py",
        "lock.acquire_nowait()  # at once: nothing may be sent, and nothing cancelled, behind the first part",
        "await lock.acquire()  # at once: nothing may be sent, and nothing cancelled, behind the first part",
        "api 1: nothing is sent in the middle of an answer",
        "unit",
    ),
    Mutation(
        "a-drain-goes-on-with-the-next-request",
        "sockets",
        "topics/http/connections/server.py",
        "if self.is_draining or connection.is_ending or connection.is_broken:",
        "if connection.is_ending or connection.is_broken:",
        "api 11: a daemon that stops finishes the requests in progress and takes no others",
        "unit",
    ),
)

MUTATIONS: Final = (
    *WAL,
    *DIRECTORIES,
    *CEILINGS,
    *EVICTION,
    *CHECKPOINT,
    *RECOVERY,
    *RECLAIMER,
    *SEGMENTS,
    *RELOCATOR,
    *ROUTERS,
    *QUEUES,
    *STAGING,
    *IDEMPOTENCY,
    *CLASSES,
    *READING,
    *DELIVERY,
    *PRESSURE,
    *TURNS,
    *SOCKETS,
)
"""All of them."""
