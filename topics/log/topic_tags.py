"""The tags of a topic's records, as far as memory knows them: finding live records by tag, and clearing away the rest.

The tag index of a sealed segment is in its files. So the one in memory is complete only for live records from
`known_from` on; `matching` answers for those, and whoever wants all of them looks into the files of `spans_in_files`
for the others. Postings below `known_from` are garbage like those of dead records, and counted once:

    postings - garbage = live records with a tag, at or above known_from

A sweep of the garbage asks for no columns: what it cannot tell, it keeps.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from typing import Any, Final

from topics.log.dumped_values import whole
from topics.log.record_index import RecordIndex
from topics.log.span import Span, Sum
from topics.log.tag_index import TagIndex
from topics.log.tag_match import Match

# Sweeping begins when a quarter of the tag postings is garbage and does four units of work for each further one that
# dies, so a round of it ends before half is. A call is bounded all the same: to a few ms.
SWEEP_UNITS: Final = 4096
_SWEEP_SHARE: Final = 4
_SWEEP_UNITS_PER_DEATH: Final = 4
_SWEEP_MIN: Final = 64


class TopicTags:
    """Which records of one topic instance have which tag.

    `index` is None while there is nothing to know. `known_from`: the first seq whose tag `matching` knows; it never
    goes back.
    """

    __slots__ = ("_records", "index", "known_from")

    def __init__(self, records: RecordIndex) -> None:
        self._records = records
        self.index: TagIndex | None = None
        self.known_from = 1

    def add(self, first_seq: int, tags: Sequence[str | None]) -> None:
        """The records from `first_seq` on, past every one that has been added, have these tags (None = no tag)."""
        if self.index is None:
            self.index = TagIndex()
        self.index.add_batch(first_seq, tags)

    def by_name(self) -> Iterator[tuple[str, Sequence[int]]]:
        """Every tag with the seqs of its records, those from `known_from` on; gone records may be among them. Nothing
        may change the topic before the end of it."""
        return self.index.items() if self.index is not None else iter(())

    # -- finding -----------------------------------------------------------------------------------------------------

    def matching(self, match: Match, *, before_seq: int | None, bound: int) -> array[int]:
        """The live seqs with a matching tag, below `before_seq` (None = any) and at most `bound`, ascending (u64).

        Only those from `known_from` on; see `spans_in_files` for the others. Raises NotLoaded for all spans at once.
        """
        spans = self._records.spans
        if self.index is None or not spans:
            return array("Q")
        first = max(spans[0].first + spans[0].start, self.known_from)
        last = bound if before_seq is None else min(bound, before_seq - 1)
        return self._records.only_live(self.index.find(match, first, last))

    def spans_in_files(self, bound: int) -> list[Span]:
        """The stored spans up to `bound` with live tagged records that `matching` does not know, ascending.

        Their files say which tags they have; `RecordIndex.only_live` says which of those seqs are still live. Asks for
        no columns.
        """
        found = []
        for span in self._records.spans[: self._records.n_stored]:
            if span.first > bound or span.first >= self.known_from:
                break
            if span.unindexed:
                found.append(span)
        return found

    # -- what is gone ------------------------------------------------------------------------------------------------

    def died(self, gone: Sum) -> None:
        """These records are not live any more."""
        if self.index is not None:
            self.index.garbage += gone.tagged - gone.unindexed

    def correct(self, more: int) -> None:
        """A span was loaded, and of its live records with a tag that are known here there are so many more (or fewer)
        than its summary said."""
        if self.index is not None:
            self.index.garbage -= more
            self.index.stuck = 0

    def leave_to_files(self, seq: int) -> int:
        """The tags of records below `seq`, all of them stored, are found in their files from now on; of how many live
        ones.

        Raises NotLoaded if `seq` is inside a span. Costs a step per span.
        """
        records = self._records
        cut = records.at(seq)
        if cut is not None and cut[1] > cut[0].start and cut[0].tagged > cut[0].unindexed:
            cut[0].need()
        gone = sum([span.forget_tags(seq) for span, _, _ in records.parts(self.known_from, seq)])
        self.known_from = seq
        if self.index is not None:
            self.index.garbage += gone
        return gone

    def sweep(self, deaths: int, front: int, head_seq: int) -> None:
        """Clear away a share of the garbage, when there is much of it: more, the more records with a tag have died.

        `front` and `head_seq` are the first live and the last published seq.
        """
        index = self.index
        if index is None:
            return
        if index.garbage == index.postings:
            self.index = None
        elif index.garbage >= _SWEEP_MIN and self.littered:
            units = min(SWEEP_UNITS, _SWEEP_UNITS_PER_DEATH * deaths)
            # With dense spans whatever is not below the front is live, and nobody has to look.
            front = max(front, self.known_from)
            if self._records.is_dense(front):
                index.sweep(units, front, None)
                return

            def not_known_dead(seqs: array[int]) -> array[int]:
                at = bisect_right(seqs, head_seq)  # what is not published yet is not dead
                return self._records.not_known_dead(seqs[:at]) + seqs[at:]

            index.sweep(units, front, not_known_dead)

    @property
    def littered(self) -> bool:
        """Whether there is so much garbage that `sweep` has something to do."""
        index = self.index
        if index is None:
            return False
        litter = index.garbage - index.stuck
        return litter >= _SWEEP_MIN and litter * _SWEEP_SHARE > index.postings

    # -- keeping -----------------------------------------------------------------------------------------------------

    def dump(self) -> dict[str, Any] | None:
        """The postings, None without any. `loadable_from` goes with them."""
        return self.index.dump() if self.index is not None else None

    @property
    def loadable_from(self) -> int:
        """`known_from`, or the end of the span that it cuts: a summary does not say how many live are on each side."""
        cut = self._records.at(self.known_from)
        return self.known_from if cut is None or cut[1] <= cut[0].start else cut[0].end

    @classmethod
    def load(cls, value: object, known_from: object, records: RecordIndex) -> TopicTags:
        """The tags that `dump` was called on, with what `loadable_from` was then; None = behind the stored spans.

        Raises ValueError if `value` cannot have come from there, or a span is cut.
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
        """How many live records the index knows."""
        return sum(span.tagged - span.unindexed for span in self._records.spans)

    def check_counts(self) -> None:
        """Assert what can be told without a look at the postings. Costs a step per span at most."""
        if self.index is not None:
            assert 0 <= self.index.garbage <= self.index.postings, "tag garbage"
        else:
            assert self._indexed() == 0, "tagged records, and no tags"

    def check(self, head_seq: int) -> None:
        """Assert every invariant, by a look at every posting. None may be past the head."""
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
        everything = self.index.find(Match("", prefix=True), 0, head_seq)
        assert len(everything) == self.index.postings
        assert self.index.postings - self.index.garbage == self._indexed()
        for span in self._records.spans:
            if span.loaded or span.dense:
                lo, hi = max(self.known_from, span.first + span.start), span.end
                inside = everything[bisect_left(everything, lo) : bisect_left(everything, hi)]
                assert len(self._records.only_live(inside)) == span.tagged - span.unindexed
