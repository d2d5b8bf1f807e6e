"""Records as filters read them, and a walk through the records that may match, by the tag index.

Theory of operation. If a filter can only match records with certain tags (`Filter.tags`), a read does not look at all
records, but walks from one such record to the next (`TagWalk`). Tags of recent records are in memory
(`topics.log.topic_tags`), those of old ones in the `.tags` files of their segments, which the loader reads. It is not
asked for those of segments that are known to have none of the tags. The index has postings of dead records too, so a
walk asks the log whether a seq is live.

Finding the next seq costs a step for each tag that matches. A prefix may have so many tags that it is cheaper to look
at the records themselves. Which of the two it is depends on how dense the matching records are, which nobody knows. So
the walk first leads through as many records as there are tags, and only then asks the index: at most twice the cost of
the better way.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from typing import Final, NamedTuple

from topics.engine.registry import MayHaveTags
from topics.engine.topic import Topic
from topics.filters.json_places import Buffer
from topics.filters.record_filter import Filter
from topics.log.block import Block
from topics.log.tag_index import Postings, PostingsSource, merged_from, postings_of
from topics.log.tag_match import TagMatch
from topics.raw_bytes import content_type_of
from topics.storage.segments.tag_summary import key_of
from topics.storage.segments.topic_segments import Segment

FEW_TAGS: Final = 64
"""With at most so many tags, the index is asked at once."""

MOST_TAGS: Final = 10_000
"""With more tags, the index is not asked."""

MOST_PASSED: Final = 4096
_PASS_COST: Final = 12
"""A read passes segments that have none of its tags, worth `MOST_PASSED` tags in one step (some 2 ms). A segment counts
as `_PASS_COST` tags, and as the tags that it was asked for."""

_MOST_SEQS: Final = 4096
"""The index is asked for at most so many seqs at a time."""


class BlockRecord:
    """A record of a block, for the evaluation of a filter. `seq` moves from record to record."""

    __slots__ = ("block", "seq")

    def __init__(self, block: Block) -> None:
        self.block = block
        self.seq = block.first_seq

    @property
    def tag(self) -> str | None:
        return self.block.tag_of(self.seq)

    @property
    def node(self) -> str | None:
        return self.block.node_of(self.seq)

    @property
    def meta(self) -> Buffer | None:
        return self.block.meta_of(self.seq)

    @property
    def data(self) -> Buffer | None:
        return filtered_data(self.block.data_of(self.seq))


def filtered_data(data: bytes) -> bytes | None:
    """Return the JSON of a record's data for filters: None if the record is raw bytes."""
    return None if content_type_of(data) is not None else data


class TagsNeeded(NamedTuple):
    """The walk needs the tags of this segment (`TagWalk.know`)."""

    segment: Segment


class _KnownTags(NamedTuple):
    """The matching tags of the first `n` slots of a segment; seqs count from its first."""

    segment: Segment
    tags: PostingsSource
    n: int


class TagWalk:
    """Leads through the records of a topic whose tags fit a filter, and some others. For one read; never waits.

    It knows a *window* of seqs at a time: which of them to look at.
    """

    __slots__ = (
        "_asked",
        "_empty",
        "_first",
        "_keys",
        "_known",
        "_known_from",
        "_known_to",
        "_may_have_any",
        "_passed",
        "_seqs",
        "_topic",
        "matches",
        "paused",
    )

    def __init__(self, topic: Topic, matches: Sequence[TagMatch], may_have_any: MayHaveTags) -> None:
        self.matches = matches
        """Conditions on the tags of the records that the walk visits."""
        self.paused = False
        """True if `next` has returned the seq at which to continue after other tasks have run."""
        self._topic = topic
        self._may_have_any = may_have_any
        prefixes = any(match.prefix for match in matches)
        self._keys = [] if prefixes else [key_of(match.pattern.encode()) for match in matches]
        """The keys of the tags in directories; empty if directories cannot rule tags out (prefixes)."""
        self._passed = 0
        """The cost of the records and segments that were passed since the last pause or wait."""
        self._first, self._known_to = 1, 0
        """The window, both ends inclusive."""
        self._seqs: array[int] | None = None
        """The seqs of the window to visit, ascending; None for all seqs of the window."""
        self._known_from = 0
        """From which seq on the topic has its tags in memory. When that changes, the walk forgets what it knows."""
        self._asked = True
        """True if the window comes from the index."""
        self._empty = (1, 0)
        """Seqs, both ends inclusive, among which there is none to look at: those before the segment that it asked
        for."""
        self._known: _KnownTags | None = None

    def know(self, segment: Segment, tags: PostingsSource, n: int) -> None:
        """Take the matching tags of the first `n` slots of a segment, in place of those of an older one."""
        self._known = _KnownTags(segment, tags, n)

    def next(self, begin: int, end: int) -> int | TagsNeeded:
        """Return the first seq from `begin` up to `end` to look at, `end + 1` if there is none. `end` is at most the
        head.

        If `paused` is True afterwards, there is none before the seq that it returns, and nothing is known of that.
        """
        self.paused = False
        if self._known_from != self._topic.log.tags.known_from:
            self._known_from = self._topic.log.tags.known_from
            self._first, self._known_to, self._empty = 1, 0, (1, 0)
        first, last = self._empty
        if first <= begin <= last:
            begin = last + 1
        else:
            first = begin
        while begin <= end:
            if not self._first <= begin <= self._known_to:
                need = self._move(begin, end)
                if need is not None:
                    self._empty = (first, begin - 1)
                    self._passed = 0
                    return need
                if self.paused:
                    self._passed = 0
                    return begin
            if self._seqs is None:
                return begin
            at = bisect_left(self._seqs, begin)
            if at < len(self._seqs):
                return min(self._seqs[at], end + 1)
            begin = self._known_to + 1
        return end + 1

    def run_end(self, seq: int, most: int) -> int:
        """Return the last seq of the run to look at that begins with `seq`, which `next` has returned. The run is cut
        after `most` seqs."""
        if self._seqs is None:
            return min(self._known_to, seq + most - 1)
        at = bisect_left(self._seqs, seq)
        last = seq
        while last - seq + 1 < most and at + 1 < len(self._seqs) and self._seqs[at + 1] == last + 1:
            at, last = at + 1, last + 1
        return last

    def _move(self, begin: int, end: int) -> TagsNeeded | None:
        """Make a window that begins at `begin`."""
        tags = self._topic.log.tags
        if begin >= tags.known_from:
            self._fill(tags.postings_of(self.matches, MOST_TAGS), 0, begin, end)
            return None
        return self._move_in_files(begin)

    def _move_in_files(self, begin: int) -> TagsNeeded | None:
        index, known_from = self._topic.log.index, self._known_from
        for at in range(max(0, index.span_at(begin)), index.n_stored):
            span = index.spans[at]
            if span.end <= begin or not span.unindexed:
                continue
            if span.first >= known_from:
                break
            if begin < span.first:
                self._set(array("Q"), begin, span.first - 1)
                return None
            segment, last = span.segment, min(span.end, known_from) - 1
            assert isinstance(segment, Segment)
            known = self._known
            if known is not None and known.segment is segment and last < segment.first + known.n:
                self._fill(postings_of(known.tags, self.matches, MOST_TAGS), segment.first, begin, last)
                return None
            if not self._keys or self._may_have_any(segment, self._keys):
                return TagsNeeded(segment)
            if self._passed >= MOST_PASSED:
                self.paused = True
                return None
            self._passed += _PASS_COST + len(self._keys)
            self._set(array("Q"), begin, last)
            return None
        self._set(array("Q"), begin, known_from - 1)
        return None

    def _fill(self, parts: list[Postings] | None, base: int, begin: int, last: int) -> None:
        """Make a window from `begin` up to `last` at most out of postings, which count from seq `base` on; None for too
        many tags."""
        if parts is None or (len(parts) > FEW_TAGS and self._asked):
            self._asked = False
            self._set(None, begin, min(last, begin + (MOST_TAGS if parts is None else len(parts)) - 1))
            return
        self._asked = True
        found, known_to = merged_from(parts, max(0, begin - base), _MOST_SEQS)
        if base:
            found = array("Q", [base + seq for seq in found])
        if known_to is not None:
            last = min(last, base + known_to)
        self._set(found[: bisect_right(found, last)], begin, last)

    def _set(self, seqs: array[int] | None, first: int, last: int) -> None:
        self._seqs, self._first, self._known_to = seqs, first, last


def walk_of(topic: Topic, wanted: Filter | None, may_have_any: MayHaveTags) -> TagWalk | None:
    """Return a walk through the records that a filter may match; None if all records have to be looked at."""
    if wanted is None or wanted.tags is None:
        return None
    return TagWalk(topic, [TagMatch(rule.pattern, rule.prefix) for rule in wanted.tags], may_have_any)
