"""Which topics exist, while the log is replayed (`docs/spec/semantics.md` 1, `docs/spec/crash.md` 20).

Responsible for finding the topic that a batch is about: from the snapshot, from a newer manifest, or created by the
log; and for checking all topics when the log has been read. `topic_replay` applies batches to their topics.
"""

from __future__ import annotations

from collections.abc import Iterable, MutableMapping
from typing import Any, Protocol

from topics.log.dumped_values import text
from topics.log.stages import StageTarget
from topics.log.topic_config import config_from_wire
from topics.storage.files.datadir import DataDir, DataDirError
from topics.storage.recovery.frame_batches import FrameBatch
from topics.storage.recovery.recovered_state import RecoveredTopic
from topics.storage.recovery.replay_clock import ReplayClock
from topics.storage.wal.frames import Frame, FrameType
from topics.telemetry.logs import get_logger

log = get_logger(__name__)

_CREATE = int(FrameType.TOPIC_CREATE)
_STAGE = int(FrameType.STAGE)


class PartSource(Protocol):
    """Where topics are stored (`StoredParts`)."""

    def of_snapshot(self, blob: bytes) -> RecoveredTopic:
        """Return the topic of a part of the snapshot."""
        ...

    def newer(self, topic_id: int, topic: RecoveredTopic | None) -> RecoveredTopic | None:
        """Return the topic as of its manifest, if that is newer; else `topic`."""
        ...


class TopicCatalog:
    """The topics by id. Blocking."""

    def __init__(
        self, parts: PartSource, clock: ReplayClock, topics: MutableMapping[int, RecoveredTopic] | None = None
    ) -> None:
        """`topics` are those that there are before the log is read, if they do not come by `load`."""
        self.by_id: MutableMapping[int, RecoveredTopic] = {} if topics is None else topics
        self.next_id = 1
        """Above every id that was given out in the part of the log that has been read."""
        self.replayed: set[int] = set()
        """Ids of topics with frames in the replayed range."""
        self.unknown: set[int] = set()
        """Ids in the log whose topic was deleted or is unknown."""
        self._parts = parts
        self._clock = clock
        self._newest: dict[str, int] = {}
        """The highest id with a creation in the log, by name."""

    def load(self, parts: Iterable[bytes]) -> None:
        """Take over the topics of a snapshot. Raises SnapshotDamaged, one of MALFORMED, OSError."""
        for blob in parts:
            topic = self._parts.of_snapshot(blob)
            self.by_id[topic.id] = topic

    def of_batch(self, batch: FrameBatch) -> RecoveredTopic | None:
        """Return the topic of a batch; None if the topic does not exist (any more). Raises OSError, and any exception
        for a malformed creation."""
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
        """Return the topic of an id, unless its files are missing."""
        topic = self.by_id.get(topic_id)
        return topic if topic is not None and not topic.doomed else None

    def consulted(self, topic_id: int) -> RecoveredTopic | None:
        """Return the topic of an id as of its manifest, as for a frame of the topic at this place of the log. Raises
        OSError."""
        topic = self.with_files(topic_id)
        if topic is not None and topic_id not in self.replayed:
            self.replayed.add(topic_id)
            self._newer(topic_id, topic)
            topic = self.with_files(topic_id)
        return topic

    def consult_all(self) -> None:
        """Consult the manifests of all topics that are known at this place of the log. Raises OSError."""
        for topic_id in sorted(self.by_id):
            self.consulted(topic_id)

    def _newer(self, topic_id: int, topic: RecoveredTopic | None) -> RecoveredTopic | None:
        """Return the topic as of its manifest, if that is newer than the snapshot."""
        found = self._parts.newer(topic_id, topic)
        if found is not None and found is not topic:
            self.by_id[topic_id] = found
            self.next_id = max(self.next_id, topic_id + 1)
        return found

    def _create(self, topic: RecoveredTopic | None, frame: Frame, payload: dict[str, Any]) -> RecoveredTopic:
        """Make the topic of a TopicCreate frame or a Stage frame, unless a part has made it already."""
        self.next_id = max(self.next_id, frame.topic_id + 1)
        self._clock.note_write(frame.ts)
        name = text(payload["name"])
        if frame.type == FrameType.TOPIC_CREATE:
            self._newest[name] = max(self._newest.get(name, 0), frame.topic_id)
        if topic is not None:
            return topic
        topic = RecoveredTopic(frame.topic_id, name, config_from_wire(payload["config"]))
        topic.ceiling = payload.get("ceiling", 0)
        topic.bucket_ceiling = payload.get("bucket_ceiling", 0)
        if frame.type == FrameType.STAGE:
            topic.stage = StageTarget(payload["target"], payload["stage"])
            topic.last_write = frame.ts  # its creation counts as use
        self.by_id[topic.id] = topic
        return topic

    # -- when the log has been read -----------------------------------------------------------------------------------

    def check_files(self, datadir: DataDir) -> None:
        """Raise DataDirError if the files of a topic are missing and the log does not say that it was deleted."""
        doomed = min((topic.id for topic in self.by_id.values() if topic.doomed), default=None)
        if doomed is not None:
            raise DataDirError(f"files of topic {self.by_id[doomed].name!r} are missing in {datadir.topic_dir(doomed)}")

    def drop_superseded(self) -> None:
        """Keep only the topic with the highest id of each name (`docs/spec/semantics.md` 1), even if this topic was
        deleted.

        Two ids have the same name if a failed creation reached the disk all the same, and a later creation in another
        shard succeeded.
        """
        for topic in list(self.by_id.values()):
            newest = self._newest.get(topic.name, 0)
            if topic.id < newest:
                log.info("topic_superseded", topic=topic.name, id=topic.id, by=newest)
                del self.by_id[topic.id]
