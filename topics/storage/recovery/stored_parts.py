"""Topics as snapshots and manifests have them, to which the log is applied (`docs/spec/crash.md` 8 and 12).

Responsible for making a topic from its part, and for finding a manifest that is newer than the snapshot's part. A
topic's manifest is read at the topic's first frame in the log, not before: most topics have none in the replayed range.
"""

from __future__ import annotations

from topics.conditions.fences import fences_of
from topics.consumers.consumers import Consumers
from topics.evidence.topic_tree import TopicTree
from topics.log.dedupe_window import DedupeWindow
from topics.log.stages import CommitKeys, StageTarget
from topics.log.topic_config import config_from_wire
from topics.log.topic_log import TopicLog
from topics.log.transaction_keys import TransactionKeys
from topics.routing.origin_set import OriginSet
from topics.routing.router_state import Router
from topics.storage.files.datadir import DataDir, manifest_name, parse_topic_name
from topics.storage.files.fs import Fs, join
from topics.storage.recovery.recovered_state import MALFORMED, RecoveredTopic
from topics.storage.recovery.replay_clock import ReplayClock
from topics.storage.recovery.without_manifest import find_files
from topics.storage.segments.segment_reader import SegmentTiers
from topics.storage.segments.topic_segments import Segment
from topics.storage.snapshots.group_dump import groups_dumped_at, load_groups
from topics.storage.snapshots.manifests import newest_generation
from topics.storage.snapshots.queue_dump import dumped_at, load_queue
from topics.storage.snapshots.snapshot import (
    USUAL_LOG,
    SnapshotDamaged,
    TopicPart,
    decode_manifest,
    decode_part,
    encode_part,
    load_rows,
)
from topics.storage.wal.wal_files import LogPosition
from topics.telemetry.logs import get_logger

log = get_logger(__name__)


class StoredParts:
    """Makes topics from their parts. Blocking; methods raise OSError if the disk does not answer."""

    def __init__(self, fs: Fs, datadir: DataDir, tiers: SegmentTiers, clock: ReplayClock) -> None:
        self.directories = {
            topic_id for name in fs.listdir(datadir.topics_dir) if (topic_id := parse_topic_name(name)) is not None
        }
        """Ids of topics, deleted ones among them, that have a directory."""
        self.generations: dict[int, int] = {}
        """Generations of the manifests that count, by topic id, if not 0."""
        self._fs = fs
        self._datadir = datadir
        self._tiers = tiers
        self._clock = clock

    def of_snapshot(self, blob: bytes) -> RecoveredTopic:
        """Return the topic of a part of the snapshot. Raises SnapshotDamaged, or one of MALFORMED."""
        return self._load(decode_part(blob), blob)

    def newer(self, topic_id: int, topic: RecoveredTopic | None) -> RecoveredTopic | None:
        """Return the topic as of its manifest if the manifest is at least as new as `topic`, which is the snapshot's;
        else `topic`.

        Logs a manifest that cannot be read. If files of the snapshot's topic are missing, the topic is `doomed`.
        """
        if topic_id not in self.directories and (topic is None or not topic.segments):
            return topic
        directory = self._datadir.topic_dir(topic_id)
        generation = newest_generation(self._fs.listdir(directory)) or 0
        if generation:
            self.generations[topic_id] = max(generation, self.generations.get(topic_id, 0))
        try:
            part = decode_manifest(self._fs.read(join(directory, manifest_name(generation))))
        except FileNotFoundError as error:
            if topic is None or not topic.segments:
                return topic
            if self._fs.exists(directory):
                # A topic that is being removed loses its directory's name before its files. So this is damage.
                return self._without_manifest(topic_id, topic, error)
            topic.doomed = any(segment.tier == "cold" for segment in topic.segments)
            return topic
        except SnapshotDamaged as error:
            return self._without_manifest(topic_id, topic, error)
        try:
            # A manifest that is just as new may know of segments that were replaced since the snapshot.
            if part.id == topic_id and (topic is None or LogPosition(*part.end) >= topic.end):
                return self._load(part, None)
        except MALFORMED as error:
            return self._without_manifest(topic_id, topic, error)
        return topic

    def _load(self, part: TopicPart, blob: bytes | None) -> RecoveredTopic:
        """Make a topic. `blob` is the encoded part if it is the snapshot's."""
        log_ = TopicLog.load(part.log) if part.log != USUAL_LOG else TopicLog()
        topic = RecoveredTopic(part.id, part.name, config_from_wire(part.config), log_)
        topic.part = blob
        topic.base = encode_part(part) if blob is None else blob
        topic.segments = [Segment.from_wire(part.id, entry) for entry in part.segments]
        for span, segment in zip(topic.log.stored.all(), topic.segments, strict=False):
            span.segment = segment
        if part.generation:
            self.generations[topic.id] = max(part.generation, self.generations.get(topic.id, 0))
        topic.ceiling = part.ceiling
        topic.bucket_ceiling = part.bucket_ceiling
        topic.end = topic.proved_from = LogPosition(*part.end)
        topic.last_write, topic.last_read = part.last_write, part.last_read
        topic.keys = DedupeWindow.load(part.keys) if part.keys else None
        topic.incoming = {router.name: router for router in map(Router.load, part.routers)}
        topic.origins = OriginSet.load(part.origins) if part.origins is not None else None
        if part.stage is not None:
            target_id, stage, *used_at = part.stage
            topic.stage = StageTarget(target_id, stage)
            topic.used_at = used_at[0] if used_at else None
        topic.commit_keys = CommitKeys.load(part.commits) if part.commits else None
        topic.fences = fences_of(part.fences) if part.fences else {}
        if part.consumers is not None:
            topic.consumers = Consumers.load(part.name, part.consumers, load_rows)
            self._clock.note_window(topic.consumers.last_at)
        if part.groups is not None:
            self._clock.note_window(groups_dumped_at(part.groups))
            topic.groups = load_groups(part.groups, self._clock.started)
        topic.tree = _tree_of(part, topic.log)
        topic.transactions = TransactionKeys.load(part.transactions) if part.transactions else None
        # A manifest may be newer than the snapshot, and the frames that it covers are not read.
        self._clock.note_write(part.last_ts)
        self._clock.note_keys(topic)
        if part.queue is not None:
            self._clock.note_window(dumped_at(part.queue))
            topic.queue = load_queue(part.queue, self._clock.started)
        return topic

    def _without_manifest(self, topic_id: int, topic: RecoveredTopic | None, error: Exception) -> RecoveredTopic | None:
        """Return the topic as the snapshot has it, with its files as they are found."""
        log.warning("manifest_damaged", topic_id=topic_id, problem=str(error))
        if topic is not None:
            find_files(self._tiers, topic)
        return topic


def _tree_of(part: TopicPart, log_: TopicLog) -> TopicTree | None:
    """Return the Merkle tree of a topic with this log, None if it has no evidence. Raises any exception for malformed
    content: a tree of other seqs than the log has could not grow with it."""
    if part.evidence is None:
        return None
    tree = TopicTree.from_wire(part.evidence)
    if tree.next_seq != log_.head_seq + 1:
        raise ValueError(f"a Merkle tree without seq {tree.next_seq}, and a log with head {log_.head_seq}")
    return tree
