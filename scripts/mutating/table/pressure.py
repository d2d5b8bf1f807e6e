"""Mutations. What bounds the load, and turns."""

from __future__ import annotations

from typing import Final

from mutating.mutation import Mutation

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
            self._unacked.begin(group)
            due = self._due
        """,
        """
            due = self._due
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
            self.queue.settle_requests(self.stall.refusal, self.synced_position()[0])
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
        "has_turn, takes_turn = takes_turn, False  # a turn ends when the task waits for anything else",
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
