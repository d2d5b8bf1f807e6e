"""Finds the newest records with some tags, in the tag files of segments. Used to judge conditions.

Theory of operation. A `TagSearch` belongs to one call and one topic. It goes through the segments from the newest to
the oldest, once for all wanted tags, so that each file is read once. In a segment it looks up those tags for which no
newer segment has a record that counts. The content of a file never becomes wrong, so the results are kept; whether a
record is live is checked each time. Segments come and go between two look-ups: `newest` raises `MissingTags` if it
needs a further search, and then the call searches and starts over.

Invariant: in each segment of `_slots` from seq `_down_to[tag]` on, all records with the tag are in `_hits[tag]`.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Callable, Collection, Sequence
from typing import Final

import trio

from topics.engine.loader import Loader
from topics.engine.topic import Topic
from topics.log.span import Span
from topics.log.tag_match import TagMatch
from topics.storage.segments.tag_summary import key_of
from topics.storage.segments.topic_segments import Segment

SEARCHED: Final = 256
"""How many tags are looked up or skipped before other tasks run: 2 ms at most."""


class MissingTags(Exception):
    """A tag must be looked up in segment files before conditions can be judged."""


class Files:
    """The segments whose tags are only in their files, as of one step."""

    __slots__ = ("spans", "unseen_end")

    def __init__(self, spans: Sequence[Span], unseen_end: int) -> None:
        self.spans = spans
        """Ascending."""
        self.unseen_end = unseen_end
        """The end of the newest segment that the search has not seen, 0 if it has seen all."""


class TagSearch:
    """The results of one call's search in files for the tags of a topic."""

    __slots__ = ("_down_to", "_hits", "_slots")

    def __init__(self) -> None:
        self._slots: dict[Segment, int] = {}
        """The number of slots of each segment when the search saw it."""
        self._hits: dict[str, list[array[int]]] = {}
        """The seqs of the records with a tag, one array for each segment that has any."""
        self._down_to: dict[str, float] = {}
        """For each tag, the seq from which on the seen segments were searched for it."""

    def files(self, topic: Topic) -> Files:
        """Return the segments of a topic as they are now."""
        spans = topic.log.tags.spans_in_files(topic.log.head_seq)
        unseen = next((span.end for span in reversed(spans) if not self._has_seen(span)), 0)
        return Files(spans, unseen)

    def newest(self, topic: Topic, files: Files, tag: str, floor: int, counts: Callable[[int], bool]) -> int:
        """Return the newest live record with a tag, from `floor` on and before those in memory, for which `counts` is
        True; 0 for none. Raises MissingTags and NotLoaded."""
        newest = 0
        log = topic.log
        for seqs in self._hits.get(tag, ()):
            if seqs[-1] > newest:
                live = (seq for seq in reversed(log.index.only_live(seqs)) if seq < log.tags.known_from)
                newest = max(newest, next((seq for seq in live if seq >= floor and counts(seq)), 0))
        if files.unseen_end > max(newest, floor):
            raise MissingTags
        lowest = next((span.first for span in files.spans if span.end > floor), None)
        if not newest and lowest is not None and lowest < self._down_to.get(tag, math.inf):
            raise MissingTags
        return newest

    async def go_on(
        self, loader: Loader, topic: Topic, wanted: Collection[str], floor: int, counts: Callable[[int], bool]
    ) -> None:
        """Look up the wanted tags as far as `newest` needs them with the present segments. Raises `503 not_ready` if
        the disk does not answer."""
        for tag in self._down_to.keys() - wanted:
            del self._down_to[tag]  # this tag is not searched for in segments that are seen from now on
            self._hits.pop(tag, None)
        left, steps = {tag: (key_of(tag.encode()),) for tag in wanted}, 0
        for span in reversed(topic.log.tags.spans_in_files(topic.log.head_seq)):
            segment = span.segment
            assert isinstance(segment, Segment)
            n_slots, is_new = segment.n, not self._has_seen(span)
            for tag, keys in list(left.items()):
                looks = is_new or span.first < self._down_to.get(tag, math.inf)
                if looks and loader.spans.may_have_any(segment, keys):
                    seqs = await loader.stored_tags(topic, span, TagMatch(tag, prefix=False))
                    if seqs is None or topic.deleted:
                        return
                    if seqs:
                        self._hits.setdefault(tag, []).append(seqs)
                steps += 1
                if steps % SEARCHED == 0:
                    await trio.lowlevel.checkpoint()
            self._slots[segment] = n_slots
            for tag in list(left):
                self._down_to[tag] = min(span.first, self._down_to.get(tag, math.inf))
                if self._may_count(topic, span, tag, floor, counts):
                    self._down_to[tag] = span.first
                    self._hits[tag] = [seqs for seqs in self._hits[tag] if seqs[-1] >= span.first]
                    del left[tag]
            if not left:
                break
        await trio.lowlevel.checkpoint()  # the caller starts over, so other tasks must have run in between

    def _has_seen(self, span: Span) -> bool:
        segment = span.segment
        assert isinstance(segment, Segment)
        return self._slots.get(segment) == segment.n

    def _may_count(self, topic: Topic, span: Span, tag: str, floor: int, counts: Callable[[int], bool]) -> bool:
        """Return True if a span has a record that `newest` could return, or if the columns of the span are not
        loaded."""
        found = (seqs for seqs in self._hits.get(tag, ()) if span.first <= seqs[-1] < span.end)
        return any(seq >= floor and counts(seq) for seqs in found for seq in topic.log.index.not_known_dead(seqs))
