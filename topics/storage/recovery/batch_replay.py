"""One batch about a topic in replay: at a start (`shard_replay`), and when a standby follows the rounds of a bucket
(`topics.engine.following`). Both go through this one door, so they cannot come to different states.

Responsible for what transactions and schedules have to hear of a batch, for finding its topic, and for leaving out the
frames that the topic has already. `topic_replay` says what the frames mean.
"""

from __future__ import annotations

from typing import Final

from topics.storage.recovery.frame_batches import FrameBatch
from topics.storage.recovery.recovered_state import RecoveredShard
from topics.storage.recovery.schedule_replay import ScheduleReplay
from topics.storage.recovery.topic_catalog import TopicCatalog
from topics.storage.recovery.transaction_replay import TransactionReplay
from topics.storage.wal.frames import FrameType
from topics.storage.wal.wal_files import LogPosition

_TOPIC_DELETE: Final = int(FrameType.TOPIC_DELETE)


class BatchReplay:
    """Applies batches about topics, in the order of each shard."""

    def __init__(self, topics: TopicCatalog, transactions: TransactionReplay, schedules: ScheduleReplay) -> None:
        self._topics = topics
        self._transactions = transactions
        self._schedules = schedules

    def apply(self, shard: RecoveredShard, batch: FrameBatch) -> None:
        """Apply a batch that was found in `shard`. Raises OSError, UnknownFrameType, and any exception for a malformed
        payload."""
        topics, file, first = self._topics, batch.file, batch.rows[0]
        self._transactions.note(batch)
        self._schedules.note(batch)
        topic = topics.of_batch(batch)
        if topic is None:
            return
        if topic.doomed:
            if any(row[2] == _TOPIC_DELETE for row in batch.rows):
                del topics.by_id[topic.id]
            return
        if (file.ordinal, first[0]) < topic.end:
            # Frames before the topic's own position are in the snapshot already; a run may begin among them.
            batch.rows = [row for row in batch.rows if (file.ordinal, row[0]) >= topic.end]
        if batch.rows:
            topic.part = None
            topic.end = LogPosition(file.ordinal, batch.end)
            self._transactions.take(topic, shard, batch)
