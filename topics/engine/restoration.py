"""Makes live topics of what recovery has found: in slices, before requests are served (`docs/spec/crash.md`).

Responsible for copying every part of a recovered topic to the live one, and for removing files that belong to no topic.
`topics.storage.recovery` decides which frames are on disk and which of them count.
"""

from __future__ import annotations

from typing import Final

import trio

from topics.conditions.fences import Fences
from topics.engine.forwarding.router_lifecycle import RouterLifecycle
from topics.engine.group_queue import TopicGroups
from topics.engine.job_queue import JobQueue
from topics.engine.operations.topic_lifecycle import TopicLifecycle
from topics.engine.registry import Registry
from topics.engine.tables.topic_tables import TopicTables
from topics.engine.topic import Topic
from topics.log.bucket_ceiling import BucketCeiling
from topics.storage.maintenance.reclaimer import Reclaimer
from topics.storage.recovery.recovered_state import RecoveredState, RecoveredTopic
from topics.storage.segments.topic_segments import SegmentSet
from topics.storage.snapshots.disk_state import DiskState
from topics.storage.store import Store

SLICE: Final = 256
"""Topics that are restored in one step of the loop."""


async def restore(
    recovered: RecoveredState,
    *,
    store: Store,
    registry: Registry,
    topic_lifecycle: TopicLifecycle,
    routers: RouterLifecycle,
    reclaimer: Reclaimer,
    tables: TopicTables,
) -> None:
    """Restore everything that recovery has found: schedules, topics, then their stages, then routers.

    Cancelling leaves an engine that must not be used.
    """
    registry.next_topic_id = max(registry.next_topic_id, recovered.next_topic_id)
    registry.time_floor = max(registry.time_floor, recovered.clock)
    registry.schedules.adopt(recovered.schedules)
    targets_first = sorted(recovered.topics.values(), key=lambda found: found.stage is not None)
    for i, found in enumerate(targets_first, 1):
        topic = make_topic(found, store, registry, topic_lifecycle)
        if not registry.follows:
            await tables.restore(topic)
        if found.part is not None:
            _match_part(topic, registry)
        if i % SLICE == 0:
            await trio.lowlevel.checkpoint()
    routers.adopt()
    for topic_id in recovered.copied_topics - registry.by_id.keys():
        reclaimer.remove_topic(topic_id, None)  # as soon as no copy points to their files any more


def make_topic(found: RecoveredTopic, store: Store, registry: Registry, topic_lifecycle: TopicLifecycle) -> Topic:
    """Make the live topic of one that replay has made, and let it be found. Its routers are adopted by the caller."""
    topic = registry.make(found.id, found.name, found.config, store.shard_of(found.id))
    _fill(topic, found)
    if (store.right.lease is not None or registry.follows) and found.bucket_ceiling and found.stage is None:
        topic.bucket_ceiling = BucketCeiling(found.bucket_ceiling, registry.monotonic_ms())
    if registry.follows:
        topic.log.kept = None  # records of tags are looked up: a table is for those who append
    topic_lifecycle.adopt(topic)
    if found.copies is not None:
        topic.copies = found.copies
        registry.common.copying[topic] = None
    return topic


def replayed_view(topic: Topic) -> RecoveredTopic:
    """Return a live topic in the form in which replay changes topics. Both have the same log, leases, groups, keys and
    consumers; `take_over` brings the rest back."""
    found = RecoveredTopic(topic.id, topic.name, topic.config, topic.log)
    found.ceiling = topic.ceiling.highest
    found.bucket_ceiling = topic.bucket_ceiling.queued if topic.bucket_ceiling is not None else 0
    found.end = topic.on_disk.applied_end or found.end
    found.keys, found.transactions, found.commit_keys = topic.keys, topic.transactions, topic.commit_keys
    found.last_write, found.last_read = topic.last_write_ms, topic.last_read_ms
    if topic.segment_set is not None:
        found.segments = sorted(topic.segment_set.segments, key=lambda segment: segment.first)
    found.queue = topic.queue.leases if topic.queue is not None else None
    found.copies, found.origins = topic.copies, topic.origins
    found.incoming = dict(topic.incoming or {})
    found.stage, found.used_at = topic.stage, topic.used_at
    found.fences = dict(topic.fences.published) if topic.fences is not None else {}
    found.consumers, found.tree = topic.consumers, topic.tree
    if topic.groups is not None:
        found.groups = {name: one.state for name, one in topic.groups.by_name.items()}
    return found


def take_over(topic: Topic, found: RecoveredTopic, registry: Registry) -> None:
    """Bring a live topic to the state to which replay has brought its view, but for its config and its routers, of
    which other parts of the engine have to be told."""
    if found.log is not topic.log:  # it was `ephemeral`
        topic.blocks.clear()
        topic.log = found.log
        if topic.queue is not None:
            topic.set_queue(topic.queue)
        if topic.groups is not None:
            topic.set_groups(topic.groups)
    if found.queue is not None and (topic.queue is None or topic.queue.leases is not found.queue):
        topic.set_queue(JobQueue(found.queue, restored=True))
    _set_state(topic, found)
    topic.on_disk.applied_end = found.end if found.end.ordinal >= 0 else None
    known = topic.groups.by_name if topic.groups is not None else {}
    if known.keys() != found.groups.keys() or any(known[name].state is not one for name, one in found.groups.items()):
        topic.set_groups(TopicGroups(found.groups.values()))
    ceiling = found.bucket_ceiling
    topic.bucket_ceiling = BucketCeiling(ceiling, registry.monotonic_ms()) if ceiling and found.stage is None else None
    topic.copies = found.copies
    if found.copies is not None and found.copies.needs_files:
        registry.common.copying[topic] = None
    registry.remember(topic)
    registry.account(topic)


def _fill(topic: Topic, found: RecoveredTopic) -> None:
    """Set everything in a new topic that no other part of the engine has to be told of."""
    topic.log = found.log
    if found.queue is not None:
        topic.set_queue(JobQueue(found.queue, restored=True))
    _set_state(topic, found)
    topic.on_disk = DiskState(
        found.part,
        found.base,
        applied_end=found.end if found.end.ordinal >= 0 else None,
        floor_logged=found.log.losses.evict_floor,
    )
    topic.last_read_ms = found.last_read
    topic.incoming = found.incoming or None
    topic.stage = found.stage
    if found.groups:
        topic.set_groups(TopicGroups(found.groups.values()))
    # Appends since the checkpoint do not have the time of this clock: the stage counts as used now.
    topic.used_at = found.used_at if found.part is not None else None
    if found.segments:
        topic.segment_set = SegmentSet()
        topic.segment_set.segments = {segment for segment in found.segments if segment.tier != "gone"}
        topic.segment_set.earliest_stored = found.log.earliest_seq


def _set_state(topic: Topic, found: RecoveredTopic) -> None:
    """Set what replay may change in any topic, and what no other part has to be told of."""
    topic.assigned = topic.synced_seq = topic.blocks.written_seq = found.log.head_seq
    topic.last_ts = found.log.last_ts
    topic.ceiling.set(found.ceiling)
    topic.keys, topic.commit_keys, topic.transactions = found.keys, found.commit_keys, found.transactions
    topic.last_write_ms = found.last_write
    topic.origins = found.origins
    topic.fences = Fences(found.fences) if found.fences else None
    topic.consumers = found.consumers
    topic.tree = found.tree


def _match_part(topic: Topic, registry: Registry) -> None:
    """Note that the topic is as its part on disk: nothing has happened since that was written."""
    registry.changed.discard(topic)
    if topic.segment_set is not None:
        # Files that the part names without needing them may or may not exist.
        needed = {span.segment for span in topic.log.stored.all()}
        topic.segment_set.gone = [segment for segment in topic.segment_set.segments if segment not in needed]
