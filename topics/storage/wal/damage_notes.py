"""Notes in the log about records that were found damaged (`docs/design/segments.md` section 6).

A damaged record is a `corrupt` hole in memory at once, and on disk with the next checkpoint. In between, a Hole frame
in the topic's shard records it. Later deletions come after it in the log too, so a start after a crash sees both in the
order in which readers were told.

Nothing waits for such a frame. It is on disk before anything that was logged after it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

from topics.errors import ApiError
from topics.model import TopicConfig
from topics.storage.wal import frames
from topics.storage.wal.batches import ControlBatch
from topics.storage.wal.followed_shard import FollowedShard
from topics.storage.wal.frames import FrameType
from topics.storage.wal.shard_writer import ShardWriter


class DamagedTopic(Protocol):
    """The topic that has lost records."""

    id: int
    config: TopicConfig
    shard: int
    deleted: bool


class DamageNotes:
    """Logs damage, for readers (the engine's loader) and for checkpoints."""

    def __init__(self, writers: Callable[[], Sequence[ShardWriter]], now_ms: Callable[[], int]) -> None:
        """`writers` returns the writers of the shards, by number."""
        self._writers = writers
        self._now_ms = now_ms

    def is_for_others(self, topic: DamagedTopic, what: str) -> bool:
        """Return True if damage must not be told to readers, because this is a standby: the bucket has what is damaged
        here. Then the standby is told `what` is damaged, and makes its directory anew."""
        if topic.deleted:
            return False
        writer = self._writers()[topic.shard]
        if not isinstance(writer, FollowedShard):
            return False
        writer.note_damage(what)
        return True

    def note(self, topic: DamagedTopic, ranges: Iterable[tuple[int, int]]) -> None:
        """Log that these seqs (inclusive ranges) of a topic are lost. Must be called in the step in which they become
        holes.

        Never waits and never fails: a shard that is read-only or stopping logs nothing, and the damage is found again
        later.
        """
        if topic.deleted or topic.config.durability == "ephemeral":
            return
        now = self._now_ms()
        for first, last in ranges:
            payload = {"first": first, "last": last, "reason": "corrupt", "within": True}
            frame = frames.encode_control(FrameType.HOLE, payload, topic_id=topic.id, ts=now)
            try:
                self._writers()[topic.shard].submit(ControlBatch(frame, 1, topic_id=topic.id))
            except ApiError:
                return
