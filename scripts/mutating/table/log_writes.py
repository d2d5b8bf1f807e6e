"""Mutations. The log and the writing of it."""

from __future__ import annotations

from typing import Final

from mutating.mutation import Mutation

WAL: Final = (
    Mutation(
        "wal-sync-skipped",
        "wal",
        "topics/storage/wal/shard_log.py",
        """
            self.handle.fdatasync()
            return self._clock.perf_ns() - began_ns
        """,
        """
            pass
            return self._clock.perf_ns() - began_ns
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
        "sync-forgotten-behind-a-write-on-the-loop",
        "wal",
        "topics/storage/wal/group_writes.py",
        "if sync:",
        "if sync and False:",
        "8.1: an acked fsync record survives any crash",
        "unit",
    ),
    Mutation(
        "large-group-written-on-the-loop",
        "wal",
        "topics/storage/wal/group_writes.py",
        "is_small = size <= LOOP_BYTES and shard.has_room(start + size)",
        "is_small = shard.has_room(start + size)",
        "speed 3: only small batches are written on the loop",
        "unit",
    ),
    Mutation(
        "room-allocated-on-the-loop",
        "wal",
        "topics/storage/wal/group_writes.py",
        "is_small = size <= LOOP_BYTES and shard.has_room(start + size)",
        "is_small = size <= LOOP_BYTES",
        "speed 3: no sync and no allocation is on the loop",
        "unit",
    ),
    Mutation(
        "synced-by-a-call-that-can-be-cancelled",
        "wal",
        "topics/storage/wal/group_writes.py",
        "with trio.CancelScope(shield=True):",
        "with trio.CancelScope(shield=False):",
        "speed 3: a writer that is cancelled knows what it has written",
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
