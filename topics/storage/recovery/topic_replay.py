"""Applies frames of the log to their topics (`docs/spec/storage.md` section 3).

Replay applies what the log says and decides nothing by itself: evictions and deletions are logged, and so are the holes
that an earlier recovery has found (`docs/spec/crash.md` 8). `topic_catalog` finds the topic of a batch; `copy_replay`
applies Forwarded frames.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final

from topics.conditions.fences import fences_of
from topics.consumers import consumer_events
from topics.consumers.consumers import Consumers
from topics.evidence.merkle import Leaves
from topics.evidence.record_leaf import BLANK
from topics.evidence.topic_tree import TopicTree, identity_of
from topics.groups.group import Group
from topics.groups.group_events import DeleteGroupEvent, PutGroupEvent, group_event_from_wire
from topics.log.dedupe_window import DedupeWindow
from topics.log.dumped_values import from_little_endian, text, whole
from topics.log.stages import CommitKeys
from topics.log.tag_match import parse_match
from topics.log.topic_config import config_from_wire
from topics.log.topic_log import TopicLog
from topics.log.transaction_keys import TransactionKeys, members_from_wire
from topics.queue.lease_events import event_from_wire
from topics.routing.origin_set import OriginSet
from topics.routing.router_state import Router
from topics.storage.recovery.copy_replay import CopyReplay, keep_origins, note_origins
from topics.storage.recovery.frame_batches import FrameBatch
from topics.storage.recovery.recovered_state import ColumnLoader, RecoveredShard, RecoveredTopic, StashedRecords
from topics.storage.recovery.replay_clock import ReplayClock
from topics.storage.recovery.topic_catalog import TopicCatalog
from topics.storage.segments.segment_reader import load_tags
from topics.storage.segments.topic_segments import EMPTIED, Segment
from topics.storage.snapshots.group_dump import groups_dumped_at, load_groups
from topics.storage.snapshots.queue_dump import dumped_at, load_queue
from topics.storage.wal.frames import (
    HAS_NODE,
    HAS_ORIGIN,
    HAS_TAG,
    ORIGIN_BYTES,
    Frame,
    FrameType,
    Row,
    UnknownFrameType,
)
from topics.storage.wal.keep_frames import keep_from_wire
from topics.telemetry.logs import get_logger

log = get_logger(__name__)

Payload = dict[str, Any]

_APPEND: Final = int(FrameType.APPEND)
_FORWARDED: Final = int(FrameType.FORWARDED)
_INDEXED_FLAGS: Final = HAS_TAG | HAS_NODE | HAS_ORIGIN
"""The flags of an Append that the index keeps."""
_META_LEN_BYTES: Final = 4


class TopicReplay:
    """Applies batches to topics. Blocking."""

    def __init__(self, topics: TopicCatalog, clock: ReplayClock, columns: ColumnLoader, copies: CopyReplay) -> None:
        self._topics = topics
        self._clock = clock
        self._columns = columns
        self._copies = copies
        self._appliers: dict[int, Callable[[RecoveredTopic, Frame, Payload], None]] = {
            FrameType.TOPIC_CREATE: _nothing,  # done by the catalog
            FrameType.TOPIC_DELETE: self._delete_topic,
            FrameType.ROUTER_CREATE: self._create_router,
            FrameType.ROUTER_DELETE: self._delete_router,
            FrameType.DELETE: self._delete,
            FrameType.EVICT_WATERMARK: self._evict,
            FrameType.CHECKPOINT_MARK: self._empty,
            FrameType.CONFIG_UPDATE: self._configure,
            FrameType.LEASE: self._lease,
            FrameType.HEAD_WATERMARK: self._set_ceiling,
            FrameType.BUCKET_CEILING: self._set_bucket_ceiling,
            FrameType.IDEMPOTENCY: self._remember_key,
            FrameType.HOLE: self._hole,
            FrameType.STAGE: self._remember_commit,
            FrameType.FENCE: self._set_fence,
            FrameType.CONSUMER: self._change_consumer,
            FrameType.GROUP: self._change_group,
            FrameType.TRANSACTION: self._remember_transaction,
            FrameType.TRANSACTION_DECISION: _nothing,  # `transaction_replay` has taken note
            FrameType.SCHEDULE: _nothing,  # and `schedule_replay`
            FrameType.EVIDENCE: self._begin_tree,
            FrameType.KEEP: self._take_away,
        }

    def apply(self, topic: RecoveredTopic, shard: RecoveredShard, batch: FrameBatch) -> None:
        """Apply a batch of one topic, found in `shard`: its records first, then its control frames.

        Raises OSError if the disk does not answer, UnknownFrameType, and any exception for a malformed payload.
        """
        if not batch.controls:
            self._append(topic, shard, batch, batch.rows)
            return
        appends = [row for row in batch.rows if row[2] == _APPEND]
        if appends:
            self._append(topic, shard, batch, appends)
        for row in batch.rows:
            kind = row[2]
            if kind == _APPEND:
                continue
            frame, payload = Frame._make(row), batch.extras[row[0]]
            self._clock.note_write(frame.ts)
            if kind == _FORWARDED:
                self._copies.apply(topic, shard, frame, payload)
                continue
            apply = self._appliers.get(kind)
            if apply is None:
                raise UnknownFrameType(f"a frame of type {kind} at offset {frame.offset} is not known to this version")
            apply(topic, frame, payload)

    def undo(self, topic: RecoveredTopic, shard: RecoveredShard, batch: FrameBatch) -> None:
        """Apply a batch of a transaction that was undone: its seqs count as used, without records. Records that it
        would have deleted stay, and its event of a group has not happened. The batch itself has evicted no records, but
        it logs earlier evictions by ttl. Raises like `apply`."""
        appends = [row for row in batch.rows if row[2] == _APPEND]
        if appends:
            batch.leaves = BLANK * len(appends)  # nobody has ever seen these records
            self._append(topic, shard, batch, appends)
            seqs = range(appends[0][5], appends[-1][5] + 1)
            self._columns.run(topic, partial(topic.log.delete_seqs, seqs))
            topic.jobs_gone(seqs)
        for row in batch.rows:
            if row[2] == FrameType.EVICT_WATERMARK and batch.extras[row[0]]["reason"] == "ttl":
                self._evict(topic, Frame._make(row), batch.extras[row[0]])

    # -- records ------------------------------------------------------------------------------------------------------

    def _append(self, topic: RecoveredTopic, shard: RecoveredShard, batch: FrameBatch, appends: Sequence[Row]) -> None:
        file, extras = batch.file, batch.extras
        offsets, frame_lens, _, flags, _, seqs, times, _, _, data_lens = zip(*appends, strict=True)
        totals = [length + 4 for length in frame_lens]
        if topic.config.durability == "ephemeral":
            origins = [extras.get(~offset) for offset in offsets]
            topic.stash.append(StashedRecords(seqs[0], file.file_id, list(offsets), totals, origins))
            return
        log_ = topic.log
        if seqs[0] > log_.head_seq + 1:
            log.error("seqs_missing", topic=topic.name, first=log_.head_seq + 1, last=seqs[0] - 1, file=file.path)
            self._columns.add_hole(topic, log_.head_seq + 1, seqs[0] - 1, "corrupt")
        if seqs[0] <= log_.head_seq:
            log.error("seqs_repeated", topic=topic.name, first=seqs[0], head=log_.head_seq, file=file.path)
            return
        with_origin = any(flag & HAS_ORIGIN for flag in flags)
        sizes = [
            size - _META_LEN_BYTES - (ORIGIN_BYTES if with_origin and flag & HAS_ORIGIN else 0)
            for size, flag in zip(data_lens, flags, strict=True)
        ]
        tags = None
        if any(flag & HAS_TAG for flag in flags):
            tags = [extras.get(offset) for offset in offsets]
        log_.extend_records(
            seqs[0],
            array("Q", times),
            file.file_id,
            offsets,
            array("I", totals),
            array("I", sizes),
            bytes([flag & _INDEXED_FLAGS for flag in flags]),
            tags,
        )
        if topic.tree is not None:
            topic.tree.publish(seqs[0], Leaves(batch.leaves))
        if with_origin:
            note_origins(topic, seqs[0], [extras.get(~offset) for offset in offsets])
        shard.last_seqs[topic.id] = seqs[-1]
        topic.last_write = times[-1]
        self._clock.note_write(times[-1])

    def _begin_tree(self, topic: RecoveredTopic, frame: Frame, payload: Payload) -> None:
        """Begin the Merkle tree of the topic; or give it another uuid, because leaves may have been lost."""
        if "start" in payload:
            topic.tree = TopicTree(identity_of(payload["tree"], payload["start"], payload["key"]))
        elif topic.tree is not None:
            topic.tree.renewed(text(payload["tree"]), text(payload["key"]))
        topic.proved_from = topic.end

    def _evict(self, topic: RecoveredTopic, frame: Frame, payload: Payload) -> None:
        self._columns.run(topic, partial(topic.log.evict_below, payload["below"], payload["reason"]))

    def _hole(self, topic: RecoveredTopic, frame: Frame, payload: Payload) -> None:
        """Make a hole that an earlier recovery has logged: seqs between others, or all seqs up to a new head."""
        if payload.get("within"):
            self._columns.add_hole(topic, payload["first"], payload["last"], payload["reason"])
        elif payload["last"] > topic.log.head_seq:
            # An older snapshot of an `ephemeral` topic has a lower head than the recovery that logged this.
            if topic.config.durability != "ephemeral" and payload["first"] > topic.log.head_seq + 1:
                self._columns.add_hole(topic, topic.log.head_seq + 1, payload["first"] - 1, "corrupt")
            self._columns.add_hole(topic, topic.log.head_seq + 1, payload["last"], payload["reason"])

    def _empty(self, topic: RecoveredTopic, _frame: Frame, payload: Payload) -> None:
        """Delete all records of some segments, also those that the replayed deletions by tag have not found there."""
        for first, n in payload.get(EMPTIED, ()):
            named = range(whole(first), whole(first) + whole(n))
            self._columns.run(topic, partial(topic.log.delete_seqs, named))
            topic.jobs_gone(named)

    def _delete(self, topic: RecoveredTopic, frame: Frame, payload: Payload) -> None:
        bound, before, after = payload["bound"], payload.get("before_seq"), payload.get("after_seq")
        if "seqs" in payload:
            named = from_little_endian("Q", payload["seqs"])
            self._columns.run(topic, partial(topic.log.delete_seqs, named))
            topic.jobs_gone(named)
        elif "match" in payload:
            self._delete_matching(topic, payload["match"], before, bound, after or 0)
        elif after is not None:
            self._delete_range(topic, after, bound if before is None else min(bound, before - 1))
        elif before is not None:
            self._columns.run(topic, partial(topic.log.delete_below, before, bound))

    def _take_away(self, topic: RecoveredTopic, frame: Frame, payload: Payload) -> None:
        """Delete what records of the batch took away, and note which records are null."""
        found = keep_from_wire(payload, frame.ts)
        for seq, ts in zip(found.nulls, found.times, strict=True):
            topic.log.add_nulls((seq,), ts)
        if found.seqs:
            self._columns.run(topic, partial(topic.log.take_away, found.seqs, found.sizes))
            topic.jobs_gone(found.seqs)

    def _delete_range(self, topic: RecoveredTopic, after: int, last: int) -> None:
        """Delete the records above `after` and up to `last` (inclusive)."""
        log_ = topic.log
        if after < log_.earliest_seq:
            self._columns.run(topic, partial(log_.delete_below, last + 1, last))
            return
        # One span after another, so that only a few need their columns at a time.
        for span, a, b in list(log_.index.parts(after + 1, last + 1)):
            if span.live:
                named = range(span.first + a, span.first + b)
                self._columns.run(topic, partial(log_.delete_seqs, named))
                topic.jobs_gone(named)

    def _delete_matching(self, topic: RecoveredTopic, written: Any, before: int | None, bound: int, after: int) -> None:
        """Delete the records with these tags above `after`, up to `bound` (inclusive) and below `before`."""
        match, log_ = parse_match(written), topic.log
        end = bound if before is None else min(bound, before - 1)
        for span in log_.tags.spans_in_files(end):
            segment = span.segment
            assert isinstance(segment, Segment)
            tags = load_tags(self._columns.tiers, segment, segment.n).tags
            seqs = [segment.first + i for i in tags.find(match)]
            # One segment after another, so that only a few spans need their columns at a time.
            first = max(log_.earliest_seq, after + 1)
            hit = array("Q", [seq for seq in seqs if seq < log_.tags.known_from and first <= seq <= end])
            if hit:
                self._columns.run(topic, partial(log_.delete_seqs, hit))
                topic.jobs_gone(hit)
        found = self._columns.run(topic, partial(log_.tags.matching, match, before_seq=before, bound=bound))
        rest = found[bisect_right(found, after) :]
        self._columns.run(topic, partial(log_.delete_seqs, rest))
        topic.jobs_gone(rest)

    # -- other state of a topic --------------------------------------------------------------------------------------

    def _set_ceiling(self, topic: RecoveredTopic, frame: Frame, payload: Payload) -> None:
        topic.ceiling = payload["ceiling"]

    def _set_bucket_ceiling(self, topic: RecoveredTopic, frame: Frame, payload: Payload) -> None:
        topic.bucket_ceiling = whole(payload["ceiling"])

    def _remember_key(self, topic: RecoveredTopic, frame: Frame, payload: Payload) -> None:
        if topic.keys is None:
            topic.keys = DedupeWindow()
        at = payload.get("at")  # absent in version 1, whose windows ran by the wall clock
        at = max(frame.ts, topic.log.last_ts) if at is None else whole(at)
        topic.keys.remember(payload["key"], payload["first"], payload["count"], at)
        self._clock.note_keys(topic)

    def _remember_commit(self, topic: RecoveredTopic, frame: Frame, payload: Payload) -> None:
        """Remember a commit of stages. A Stage frame without a key creates a stage instead."""
        if "key" in payload:
            topic.commit_keys = topic.commit_keys or CommitKeys()
            at = whole(payload.get("at", frame.ts))
            topic.commit_keys.remember(payload["key"], payload["first"], payload["count"], at, payload["stages"])
            self._clock.note_keys(topic)

    def _set_fence(self, topic: RecoveredTopic, frame: Frame, payload: Payload) -> None:
        """Raise a fence. A Fence frame without a token removes it."""
        if payload.get("token") is None:
            topic.fences.pop(payload["name"], None)
        else:
            topic.fences.update(fences_of({payload["name"]: payload["token"]}))

    def _change_consumer(self, topic: RecoveredTopic, frame: Frame, payload: Payload) -> None:
        event = consumer_events.event_from_wire(payload, frame.ts)
        self._clock.note_window(event.at)
        if topic.consumers is None:  # empty `Consumers` still know the last generation
            topic.consumers = Consumers(topic.name)
        consumer = topic.consumers.apply(event)
        if consumer is not None:
            topic.forwarded_to = max(
                topic.forwarded_to, consumer.seq
            )  # the head by which the commit was judged was at least as high

    def _change_group(self, topic: RecoveredTopic, frame: Frame, payload: Payload) -> None:
        """Apply an event of a group. One of a group whose creation salvage has given up changes nothing."""
        name, at, event = group_event_from_wire(payload, self._clock.started)
        self._clock.note_window(at)
        group = topic.groups.get(name)
        if isinstance(event, DeleteGroupEvent):
            topic.groups.pop(name, None)
        elif isinstance(event, PutGroupEvent):
            if group is None:
                topic.groups[name] = Group(name, event)
            else:
                group.change(event)
            topic.forwarded_to = max(topic.forwarded_to, event.seq)
        elif group is not None:
            group.apply(event)
            if event.seqs:
                topic.forwarded_to = max(topic.forwarded_to, event.seqs[-1])  # it was there when the group held it

    def _remember_transaction(self, topic: RecoveredTopic, frame: Frame, payload: Payload) -> None:
        """Remember the key of a transaction; the frames of its other topics have none."""
        if "key" in payload:
            topic.transactions = topic.transactions or TransactionKeys()
            topic.transactions.remember(payload["key"], members_from_wire(payload["answer"]), whole(payload["at"]))
            self._clock.note_keys(topic)

    def _lease(self, topic: RecoveredTopic, frame: Frame, payload: Payload) -> None:
        self._clock.note_window(whole(payload.get("at", 0)))
        if topic.queue is not None:
            topic.queue.apply(event_from_wire(payload, self._clock.started))

    def _create_router(self, topic: RecoveredTopic, frame: Frame, payload: Payload) -> None:
        """A RouterCreate frame is an upsert (`docs/spec/crash.md` 20)."""
        router = Router.load(payload["router"])
        known = topic.incoming.get(router.name)
        if known is not None and known.source_id == router.source_id:
            known.config = router.config  # its cursor stays where later frames have moved it
        else:
            topic.incoming[router.name] = router
        keep_origins(topic)

    def _delete_router(self, topic: RecoveredTopic, frame: Frame, payload: Payload) -> None:
        topic.incoming.pop(payload["name"], None)
        keep_origins(topic)

    def _delete_topic(self, topic: RecoveredTopic, frame: Frame, payload: Payload) -> None:
        del self._topics.by_id[topic.id]

    def _configure(self, topic: RecoveredTopic, frame: Frame, payload: Payload) -> None:
        topic.config = config_from_wire(payload["config"])
        topic.ceiling = payload["ceiling"]
        topic.bucket_ceiling = whole(payload.get("bucket_ceiling", topic.bucket_ceiling))
        if "log" in payload and not self._leave_ephemeral(topic, payload):
            topic.doomed = True
            return
        topic.stash = []
        if not topic.config.keep_per_tag:
            topic.log.nulls = None

    def _leave_ephemeral(self, topic: RecoveredTopic, payload: Payload) -> bool:
        """Rebuild the topic's log from the frame and the records written out before it (`docs/spec/crash.md` 24).
        Return False if the files that it names are missing.

        The places of records in the frame are of no use: they name files by numbers of the process that wrote it.
        """
        topic.log = TopicLog.load(payload["log"])
        topic.log.index.forget_places()
        for span in topic.log.stored.all():
            inside = (one for one in topic.segments if one.first <= span.first and span.end <= one.end)
            span.segment = next(inside, None)
            if span.segment is None:
                return False
        topic.copies = None  # copies in no segment have been written out as records
        for stashed in topic.stash:
            topic.log.index.place(stashed.first_seq, stashed.file_id, stashed.offsets, array("I", stashed.totals))
            note_origins(topic, stashed.first_seq, stashed.origins)
        for seq in topic.log.index.unplaced():  # salvage has given up its frame
            log.error("record_damaged", topic=topic.name, seq=seq)
            self._columns.add_hole(topic, seq, seq, "corrupt")
        topic.keys = DedupeWindow.load(payload["keys"]) if payload["keys"] else None
        self._clock.note_keys(topic)
        if payload.get("origins") is not None:
            topic.origins = OriginSet.load(payload["origins"])
        if payload.get("groups") is not None:
            self._clock.note_window(groups_dumped_at(payload["groups"]))
            topic.groups = load_groups(payload["groups"], self._clock.started)
        if payload.get("queue") is not None:
            self._clock.note_window(dumped_at(payload["queue"]))
            topic.queue = load_queue(payload["queue"], self._clock.started)
        return True


def _nothing(topic: RecoveredTopic, frame: Frame, payload: Payload) -> None:
    """Do nothing."""
