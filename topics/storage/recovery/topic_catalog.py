"""Which topics there are, while the log is replayed (`docs/spec/semantics.md` 1, `docs/spec/crash.md` 20).

Responsible for finding the topic that a batch is about: as the snapshot has it, as a newer manifest has it, or as the
log creates it; and for what has to hold of all topics when the log has been read. What a batch does to its topic is
`topic_replay`'s business.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from topics.log.stages import StageOf
from topics.log.topic_config import config_from_wire
from topics.storage.files.datadir import DataDir, DataDirError
from topics.storage.recovery.frame_batches import FrameBatch
from topics.storage.recovery.recovered_state import RecoveredTopic
from topics.storage.recovery.replay_clock import ReplayClock
from topics.storage.recovery.stored_parts import StoredParts
from topics.storage.wal.frames import Frame, FrameType
from topics.telemetry.logs import get_logger

log = get_logger(__name__)

_CREATE = int(FrameType.TOPIC_CREATE)
_STAGE = int(FrameType.STAGE)


class TopicCatalog:
    """The topics by id. Blocking."""

    def __init__(self, parts: StoredParts, clock: ReplayClock) -> None:
        self.by_id: dict[int, RecoveredTopic] = {}
        self.next_id = 1
        """Above every id that was given out, as far as the log has been read."""
        self.replayed: set[int] = set()
        """Ids of topics with frames in the range that was replayed."""
        self.unknown: set[int] = set()
        """Ids that the log has frames of and that are no topic's: of one that is gone, or that nothing tells of."""
        self._parts = parts
        self._clock = clock
        self._newest: dict[str, int] = {}
        """By name, the highest id that the log has a creation for."""

    def load(self, parts: Iterable[bytes]) -> None:
        """Take the topics of a snapshot. Raises SnapshotDamaged, one of MALFORMED, OSError."""
        for blob in parts:
            topic = self._parts.of_snapshot(blob)
            self.by_id[topic.id] = topic

    def of_batch(self, batch: FrameBatch) -> RecoveredTopic | None:
        """The topic that a batch is about; None if there is none (any more). Raises OSError, and anything if a
        creation is not what it should be."""
        first = batch.rows[0]
        kind, topic_id = first[2], first[4]
        topic = self.by_id.get(topic_id)
        creates = kind == _CREATE or (kind == _STAGE and "target" in batch.extras[first[0]])
        if topic_id not in self.replayed and (topic is not None or creates):
            self.replayed.add(topic_id)
            topic = self._newer(topic_id, topic)
        if creates:
            topic = self._create(topic, batch.first, batch.extras[first[0]])
        if topic is None:
            if topic_id not in self.unknown and topic_id >= self.next_id:
                log.warning("frames_of_unknown_topic", topic_id=topic_id, file=batch.file.path, offset=first[0])
            self.unknown.add(topic_id)
        return topic

    def with_files(self, topic_id: int) -> RecoveredTopic | None:
        """The topic of an id, unless its files are gone."""
        topic = self.by_id.get(topic_id)
        return topic if topic is not None and not topic.doomed else None

    def consulted(self, topic_id: int) -> RecoveredTopic | None:
        """The same as of its manifest, as if the log had a frame of it here. Raises OSError."""
        topic = self.with_files(topic_id)
        if topic is not None and topic_id not in self.replayed:
            self.replayed.add(topic_id)
            self._newer(topic_id, topic)
            topic = self.with_files(topic_id)
        return topic

    def _newer(self, topic_id: int, topic: RecoveredTopic | None) -> RecoveredTopic | None:
        """The topic as of its manifest, if it has one and that is newer than what the snapshot has."""
        found = self._parts.newer(topic_id, topic)
        if found is not None and found is not topic:
            self.by_id[topic_id] = found
            self.next_id = max(self.next_id, topic_id + 1)
        return found

    def _create(self, topic: RecoveredTopic | None, frame: Frame, payload: dict[str, Any]) -> RecoveredTopic:
        """Make the topic that a TopicCreate frame or a Stage frame is about, if a part has not made it already."""
        self.next_id = max(self.next_id, frame.topic_id + 1)
        self._clock.note_write(frame.ts)
        if frame.type == FrameType.TOPIC_CREATE:
            self._newest[payload["name"]] = max(self._newest.get(payload["name"], 0), frame.topic_id)
        if topic is not None:
            return topic
        topic = RecoveredTopic(frame.topic_id, payload["name"], config_from_wire(payload["config"]))
        topic.ceiling = payload.get("ceiling", 0)
        if frame.type == FrameType.STAGE:
            topic.stage = StageOf(payload["target"], payload["stage"])
            topic.last_write = frame.ts  # it is as if it had been used then
        self.by_id[topic.id] = topic
        return topic

    # -- when the log has been read -----------------------------------------------------------------------------------

    def check_files(self, datadir: DataDir) -> None:
        """Raises DataDirError if a topic is without its files, and the log does not say that it was deleted."""
        doomed = min((topic.id for topic in self.by_id.values() if topic.doomed), default=None)
        if doomed is not None:
            raise DataDirError(f"files of topic {self.by_id[doomed].name!r} are missing in {datadir.topic_dir(doomed)}")

    def drop_superseded(self) -> None:
        """For one name the highest id wins (`docs/spec/semantics.md` 1), whether that topic is still there or was
        deleted.

        There are two if a creation failed and was found on the disk all the same, and another one in a shard that had
        not failed succeeded.
        """
        for topic in list(self.by_id.values()):
            newest = self._newest.get(topic.name, 0)
            if topic.id < newest:
                log.info("topic_superseded", topic=topic.name, id=topic.id, by=newest)
                del self.by_id[topic.id]
