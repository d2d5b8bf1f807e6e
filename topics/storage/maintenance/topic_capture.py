"""The state of one topic that a checkpoint captures in one step of the loop, and how much of it was written since.

Responsible for the copy of a topic's state that a checkpoint works with while the topic goes on, and for the part that
is made of it (`TopicPart`). Who writes the files is not known here.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator
from copy import copy
from itertools import accumulate
from typing import Any, NamedTuple

from topics.log.dumped_spans import grow_dump, set_unflagged, summary_first
from topics.log.span import Span
from topics.runtime.instant import Instant
from topics.storage.evidence.leaf_checkpoint import CapturedTree
from topics.storage.evidence.leaf_writer import StoredLeaves
from topics.storage.maintenance.live_topic import LiveCommit, LiveTopic
from topics.storage.maintenance.named_files import NOTHING, NamedFiles
from topics.storage.segments.flag_patches import FlagPatch
from topics.storage.segments.topic_segments import Segment, SegmentPiece, Tier, TopicLimits
from topics.storage.snapshots.group_dump import FrozenGroups
from topics.storage.snapshots.queue_dump import FrozenQueue


class Growth(NamedTuple):
    """The new records that one segment takes up in one go. Offsets and lengths are those of the new slots."""

    segment: Segment
    new: bool
    pieces: list[SegmentPiece]
    offsets: array[int]
    frame_lens: array[int]
    data_bytes: int
    frames: int
    seals: bool
    sha256: bytes | None
    """Of the segment, if this seals it."""

    def segment_after(self, now_ms: int) -> Segment:
        """Return the segment with the records that it has taken up. A new one was opened at `now_ms`, ms since the
        epoch."""
        segment = self.segment
        return Segment(
            segment.topic_id,
            segment.first,
            n=segment.n + len(self.offsets),
            data_bytes=self.data_bytes,
            frames=segment.frames + self.frames,
            opened_ms=now_ms if self.new else segment.opened_ms,
            sealed=self.seals,
            tier=segment.tier,
            salt=segment.salt,
            sha256=self.sha256,
        )


class TopicCapture:
    """A topic as of one step of the loop, and how much of it is written."""

    def __init__(
        self,
        topic: LiveTopic,
        instant: Callable[[], Instant],
        now_ms: int,
        limits: TopicLimits,
        *,
        moved: Segment | None = None,
        tier: Tier = "hot",
        named: NamedFiles = NOTHING,
    ) -> None:
        """`instant` says what time it is; `now_ms` is the retention clock, ms since the epoch; `limits` are those of
        the topic's segments. As of this capture the segment `moved` is in `tier`; a hold has `named` files that are to
        stay as they are."""
        log_ = topic.log
        self.topic = topic
        self.moved = moved
        self.tier: Tier = tier
        self.named = named
        self.limits = limits
        self.seals = topic.on_disk.seal_to_do
        """The last call for sealing that this capture answers: its records end a segment. 0 without one."""
        self.ephemeral = topic.config.durability == "ephemeral"
        self.unwritten: list[LiveCommit] = list(topic.unwritten or ())
        self.earliest = log_.earliest_seq
        """The front: the part of an `ephemeral` topic gives everything up, this life does not."""
        self.spans = log_.stored.all()
        # A segment on its way has been copied: a flag that is written to its old files now would be lost with them.
        pending = [span for span in self.spans if span.segment is not moved]
        self.unflagged = [(span, span.unflagged[:]) for span in pending if span.unflagged]
        # Of an `ephemeral` topic the records that are in the WAL: those from before it became so. Records without a
        # place in front of them were lost.
        self.runs = log_.index.capture_raw(log_.index.last_placed() if self.ephemeral else log_.head_seq)
        self.copies = topic.copies.seal() if topic.copies is not None else []
        self.head_seq = log_.head_seq
        self.part = topic.dump_part()
        self.tree: CapturedTree | None = None
        """Its Merkle tree, if it has one."""
        if topic.tree is not None:
            topic.tree.fill(self.head_seq)
            self.tree = CapturedTree(topic.id, topic.tree, topic.tree.published)
        self.new_leaves: StoredLeaves | None = None
        """The leaves of the tree that are in files once the part counts, if these are more than before."""
        self.queue: FrozenQueue | None = None
        if topic.queue is not None:
            self.queue = topic.queue.freeze(instant(), keeps_jobs=not self.ephemeral)
        self.groups: FrozenGroups | None = topic.groups.freeze(instant()) if topic.groups is not None else None
        self.now_ms = now_ms
        self.growths: list[Growth] = []
        self.sealed: Segment | None = None
        """The segment that was active and is sealed as it is."""
        self.sealed_sha256: bytes | None = None
        """Its SHA-256."""
        self.flagged: list[tuple[Span, array[int]]] = []
        """Seqs whose deletions are flagged in `.data` by now."""
        self.index_patches: list[tuple[str, list[FlagPatch]]] = []
        """The same deletions as they are to be flagged in `.idx`, by path."""
        self.new_lists: list[tuple[str, str]] = []
        """New `.del` files: the path that each has now, and the one that it gets."""
        self.stale: list[Segment] = []
        """Segments that no span of the part points to: their files may go once it is durable."""
        self.encoded = b""
        """The part, once it is complete."""
        self.pieces: list[SegmentPiece] = []
        """Which slots go to which segment, if the topic is small."""
        self.written = False
        """Return True if its records are in the files of segments, or it has none."""

    @property
    def active(self) -> Segment | None:
        """The segment that takes new records. One that has lost all that it had takes no more."""
        newest = self.spans[-1].segment if self.spans else None
        return newest if isinstance(newest, Segment) and not newest.sealed else None

    @property
    def has_no_segment(self) -> bool:
        """Return True if the topic has no files of segments, as far as memory and this capture know."""
        segment_set = self.topic.segment_set
        return not self.spans and not self.growths and not (segment_set is not None and segment_set.segments)

    def place_unwritten(self) -> None:
        """Fill in where records lie that were not written when they were captured. Everything is by now."""
        for commit in self.unwritten:
            assert commit.end is not None, "everything captured is written by now"
            self.part.end = [commit.end.ordinal, commit.end.offset]
            if not commit.records or commit.frame_lens is None:
                continue
            offsets = list(accumulate(commit.frame_lens, initial=commit.offset))
            first = commit.last_seq - commit.records + 1
            for run in self.runs:
                lo, hi = max(first, run.first), min(commit.last_seq + 1, run.first + len(run.flags))
                for seq in range(lo, hi):
                    run.file[seq - run.first] = commit.file
                    run.offset[seq - run.first] = offsets[seq - first]

    def must_seal_active(self) -> bool:
        """Return True if the active segment is to be sealed without further records. It is, if it is too old, or of
        version 1; if there are records for it and a hold names it; or if there are none and a caller has asked for the
        sealing."""
        segment = self.active
        if segment is None or not segment.n:
            return False
        if self.runs and segment in self.named.segments:
            return True
        if self.seals and not self.runs:
            return True
        age_ms = self.limits.age_ms
        return segment.salt is None or (bool(age_ms) and self.now_ms - segment.opened_ms >= age_ms)

    def note_leaves(self, new: StoredLeaves | None) -> None:
        """Say in the part which leaves of the tree are in files: `new`, or those that were before."""
        assert self.tree is not None
        tree = self.tree.tree
        self.new_leaves = new
        self.part.evidence = tree.to_wire(*(new or StoredLeaves(tree.stored, tree.blank_runs)))

    def complete_part(self, generation: int) -> Iterator[None]:
        """Say in the part what its segments are, once everything is written. `generation` is that of the manifest that
        it is for. Yields after each piece of the work, for others to run."""
        part, segment_set = self.part, self.topic.segment_set
        part.generation = generation
        if self.has_no_segment:
            return
        entries = [self._entry(span.segment) for span in self.spans if isinstance(span.segment, Segment)]
        spans: list[Any] = part.log["spans"]
        flagged = {span.first: seqs for span, seqs in self.flagged}
        pending = {span.first: seqs for span, seqs in self.unflagged}
        for summary in spans:
            first = summary_first(summary)
            if first in flagged:
                set_unflagged(summary, sorted(set(pending[first]).difference(flagged[first])))
                yield
        for growth in self.growths:
            entry = growth.segment_after(self.now_ms).to_wire()
            if growth.new:
                entries.append(entry)
            else:
                entries[-1] = entry
            if not self.ephemeral:
                for i, piece in enumerate(growth.pieces):
                    grow_dump(spans, self.runs[piece.run], piece.a, piece.b, new=growth.new and i == 0)
                    yield
        # Segments that no span points to any more come last: the reclaimer or the next start has yet to remove them.
        referenced = {span.segment for span in self.spans} | {growth.segment for growth in self.growths}
        self.stale = [segment for segment in segment_set.segments if segment not in referenced] if segment_set else []
        part.segments = entries + [segment.to_wire() for segment in self.stale]

    def _entry(self, segment: Segment) -> list[Any]:
        """The segment's entry in the part."""
        changed = copy(segment)
        if segment is self.moved:
            changed.tier = self.tier
        if segment is self.sealed:
            changed.sealed, changed.sha256 = True, self.sealed_sha256
        return changed.to_wire()
