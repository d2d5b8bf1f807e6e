"""The tags of a topic's records, as far as memory knows them: finding live records by tag, and removing stale postings.

The tags of a sealed segment are in its files. So the index in memory is complete only for live records from
`known_from` on, and `matching` answers for those. A caller that wants all records also reads the files of
`spans_in_files`. Postings below `known_from` are garbage like those of dead records, and are counted once:

    postings - garbage = live records with a tag, at or above known_from

A sweep of the garbage needs no columns: postings that it cannot judge stay.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

from topics.log.dumped_values import whole
from topics.log.record_index import RecordIndex
from topics.log.span import Span, SpanSum
from topics.log.tag_index import Postings, TagIndex, postings_of
from topics.log.tag_match import TagMatch

# Sweeping begins when a quarter of the postings (1 / `_SWEEP_SHARE`) is garbage, and at least `_SWEEP_MIN` of them. It
# does four units of work for each further death, so a round ends before half of the postings is garbage. One call does
# at most `SWEEP_UNITS`: a few ms.
SWEEP_UNITS: Final = 4096
_SWEEP_SHARE: Final = 4
_SWEEP_UNITS_PER_DEATH: Final = 4
_SWEEP_MIN: Final = 64

_LOOKED_AT: Final = 256
"""Postings that a search for the newest live record looks at in one step."""

_NOTED_TAGS: Final = 16
_NOTED_CHARACTERS: Final = 64
"""Of so many tags that files know, and not longer, a topic notes the newest record."""


class TopicTags:
    """Which records of one topic instance have which tag.

    `index` is None while there are no postings. `known_from` is the first seq whose tag `matching` knows; it never goes
    back.
    """

    __slots__ = ("_in_files", "_records", "index", "known_from")

    def __init__(self, records: RecordIndex) -> None:
        self._records = records
        self.index: TagIndex | None = None
        self.known_from = 1
        self._in_files: dict[str, int] | None = None
        """The newest records with some tags below `known_from`, which were live when they were looked up; 0 for
        none."""

    def add(self, first_seq: int, tags: Sequence[str | None]) -> None:
        """Add the tags of the records from `first_seq` on (None = no tag), which follow all records added so far."""
        if self.index is None:
            self.index = TagIndex()
        self.index.add_batch(first_seq, tags)

    def by_name(self) -> Iterator[tuple[str, Sequence[int]]]:
        """Yield every tag with the seqs of its records from `known_from` on; dead ones may be among them. The topic
        must not change before the end of the iteration."""
        return self.index.items() if self.index is not None else iter(())

    # -- finding -----------------------------------------------------------------------------------------------------

    def matching(self, match: TagMatch, *, before_seq: int | None, bound: int) -> array[int]:
        """Return the live seqs with a matching tag, below `before_seq` (None = any) and at most `bound`, ascending
        (u64).

        Only seqs from `known_from` on; see `spans_in_files` for the others. Raises one NotLoaded for all spans.
        """
        spans = self._records.spans
        if self.index is None or not spans:
            return array("Q")
        first = max(spans[0].first + spans[0].start, self.known_from)
        last = bound if before_seq is None else min(bound, before_seq - 1)
        return self._records.only_live(self.index.find(match, first, last))

    def postings_of(self, matches: Sequence[TagMatch], most: int) -> list[Postings] | None:
        """Return the postings of each tag that is known here and matches one of `matches`: among them are all live
        records from `known_from` on. None if more than `most` tags match."""
        return postings_of(self.index, matches, most) if self.index is not None else []

    def newest(self, tag: str, lowest: int, removals: Sequence[Callable[[int], bool]] = ()) -> int:
        """Return the newest live seq with this tag, from `lowest` on, that none of `removals` is True for; 0 for none.

        Only seqs from `known_from` on; see `spans_in_files` for the others. Raises NotLoaded. Dead records that were
        not swept yet cost a step each.
        """
        spans = self._records.spans
        if self.index is None or not spans:
            return 0
        last = self.index.last(tag)
        if not last:
            return 0  # nearly always for a tag that is new
        lowest = max(lowest, spans[0].first + spans[0].start, self.known_from)
        if last < lowest:
            return 0
        before = spans[-1].end
        if not removals and last < before and self._records.is_live(last):
            return last  # nearly always
        while some := self.index.before(tag, lowest, before, _LOOKED_AT):
            for seq in reversed(self._records.only_live(some)):
                if not any(removes(seq) for removes in removals):
                    return seq
            before = some[0]
        return 0

    def newest_in_files(self, tag: str) -> int | None:
        """Return the newest live seq with a tag below `known_from`, 0 for none, if that was noted; None if it has to be
        looked up in files. Raises NotLoaded."""
        if self._in_files is None:
            return None
        seq = self._in_files.get(tag)
        return seq if not seq or self._records.is_live(seq) else None

    def note_newest_in_files(self, tag: str, seq: int) -> None:
        """Note the newest live seq with a tag below `known_from`, 0 for none, unless the tag is long. That stays true
        until the record dies or `known_from` moves."""
        if len(tag) > _NOTED_CHARACTERS:
            return
        if self._in_files is None:
            self._in_files = {}
        elif len(self._in_files) >= _NOTED_TAGS:
            del self._in_files[next(iter(self._in_files))]
        self._in_files[tag] = seq

    def spans_in_files(self, bound: int) -> list[Span]:
        """Return the stored spans up to `bound` with live tagged records that `matching` does not know, ascending.

        Their tags are in their files; `RecordIndex.only_live` tells which of the seqs found there are still live. Needs
        no columns.
        """
        found = []
        for span in self._records.spans[: self._records.n_stored]:
            if span.first > bound or span.first >= self.known_from:
                break
            if span.unindexed:
                found.append(span)
        return found

    # -- dead records ------------------------------------------------------------------------------------------------

    def died(self, gone: SpanSum) -> None:
        """Count the postings of records that have died as garbage."""
        if self.index is not None:
            self.index.garbage += gone.tagged - gone.unindexed

    def correct(self, more: int) -> None:
        """Correct the garbage after a span was loaded that has `more` (or, negative, fewer) live records with a tag
        known here than its summary said."""
        if self.index is not None:
            self.index.garbage -= more
            self.index.stuck = 0

    def leave_to_files(self, seq: int) -> int:
        """Leave the tags of records below `seq`, all of them stored, to their files. Return how many live records that
        concerns.

        Raises NotLoaded if `seq` is inside a span. Costs a step per span.
        """
        records = self._records
        cut = records.at(seq)
        if cut is not None and cut[1] > cut[0].start and cut[0].tagged > cut[0].unindexed:
            cut[0].need()
        gone = sum([span.forget_tags(seq) for span, _, _ in records.parts(self.known_from, seq)])
        self.known_from = seq
        self._in_files = None
        if self.index is not None:
            self.index.garbage += gone
        return gone

    def sweep(self, deaths: int, front: int, head_seq: int) -> None:
        """Remove a share of the garbage if there is much of it. The share grows with `deaths`, the tagged records that
        have just died.

        `front` and `head_seq` are the first live and the last published seq.
        """
        index = self.index
        if index is None:
            return
        if index.garbage == index.postings:
            self.index = None
        elif index.garbage >= _SWEEP_MIN and self.littered:
            units = min(SWEEP_UNITS, _SWEEP_UNITS_PER_DEATH * deaths)
            # In dense spans every seq from the front on is live, without a look at the columns.
            front = max(front, self.known_from)
            if self._records.is_dense(front):
                index.sweep(units, front, None)
                return

            def not_known_dead(seqs: array[int]) -> array[int]:
                at = bisect_right(seqs, head_seq)  # unpublished records are not dead
                return self._records.not_known_dead(seqs[:at]) + seqs[at:]

            index.sweep(units, front, not_known_dead)

    @property
    def littered(self) -> bool:
        """Return True if there is enough garbage for `sweep` to do something."""
        index = self.index
        if index is None:
            return False
        litter = index.garbage - index.stuck
        return litter >= _SWEEP_MIN and litter * _SWEEP_SHARE > index.postings

    # -- keeping -----------------------------------------------------------------------------------------------------

    def dump(self) -> dict[str, Any] | None:
        """Return the postings, None without any. A dump also needs `loadable_from`."""
        return self.index.dump() if self.index is not None else None

    @property
    def loadable_from(self) -> int:
        """`known_from`, or the end of the span that contains it: a summary does not say how many live records are on
        each side."""
        cut = self._records.at(self.known_from)
        return self.known_from if cut is None or cut[1] <= cut[0].start else cut[0].end

    @classmethod
    def load(cls, value: object, known_from: object, records: RecordIndex) -> TopicTags:
        """Rebuild the tags from what `dump` returned and `loadable_from` was; None means the first seq behind the
        stored spans.

        Raises ValueError if `value` is no such dump, or `known_from` is inside a span.
        """
        tags = cls(records)
        stored = records.spans[: records.n_stored]
        if known_from is None:
            known_from = stored[-1].end if stored else 1
        tags.known_from = known_from = whole(known_from)
        if value is not None:
            tags.index = TagIndex.load(value)
        for span in stored:
            if span.first + span.start >= known_from:
                break
            if span.end > known_from:
                raise ValueError("topic log: tags begin inside a span")
            span.forget_tags(known_from)
        if tags.index is not None:
            tags.index.garbage = tags.index.postings - tags._indexed()
        return tags

    def _indexed(self) -> int:
        """Return how many live records the index knows."""
        return sum(span.tagged - span.unindexed for span in self._records.spans)

    def check_counts(self) -> None:
        """Assert the counts that can be checked without the postings. Costs a step per span at most."""
        if self.index is not None:
            assert 0 <= self.index.garbage <= self.index.postings, "tag garbage"
        else:
            assert self._indexed() == 0, "tagged records, and no tags"

    def check(self, head_seq: int) -> None:
        """Assert every invariant by examining every posting. None may be past the head."""
        for span in self._records.spans:
            if span.first + span.start >= self.known_from:
                assert span.unindexed == 0, "tags of the tag index"
            elif span.end <= self.known_from:
                assert span.unindexed == span.tagged, "tags of the files"
            else:
                assert span.tags_from == self.known_from, "tags on both sides"
        if self.index is None:
            return
        self.index.check()
        everything = self.index.find(TagMatch("", prefix=True), 0, head_seq)
        assert len(everything) == self.index.postings
        assert self.index.postings - self.index.garbage == self._indexed()
        for span in self._records.spans:
            if span.loaded or span.dense:
                lo, hi = max(self.known_from, span.first + span.start), span.end
                inside = everything[bisect_left(everything, lo) : bisect_left(everything, hi)]
                assert len(self._records.only_live(inside)) == span.tagged - span.unindexed
