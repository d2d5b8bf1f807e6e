"""Logs whose records are on a disk made of a dict, and a driver that loads what they ask for.

The driver catches NotLoaded, sees to it that nothing has changed, attaches what was asked for and calls again, as the
loader does.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeVar

import pytest

from topics.log.missing_columns import missing_below, missing_to_delete
from topics.log.record_index import RawRun
from topics.log.span import DELETED, NotLoaded, Span, SpanColumns
from topics.log.tag_match import TagMatch
from topics.log.topic_log import TopicLog

T = TypeVar("T")


class Segment:
    """What the storage layer knows of a segment is nothing to the log."""


class Slot(NamedTuple):
    ts: int
    offset: int
    frame_len: int
    size: int
    flags: int
    dead: int


class Disk:
    """The bytes that were written of each seq, in any segment."""

    def __init__(self) -> None:
        self.slots: dict[int, Slot] = {}

    def write(self, run: RawRun, a: int, b: int) -> tuple[array[int], array[int]]:
        """Store slots of a captured run; where they are."""
        offsets, lens = array("I"), array("I")
        for i in range(a, b):
            seq = run.first + i
            offsets.append(100 * seq)
            lens.append(run.frame_len[i])
            slot = Slot(run.ts[i], 100 * seq, run.frame_len[i], run.size[i], run.flags[i], run.dead[i])
            self.slots[seq] = slot
        return offsets, lens

    def flag(self, seqs: Sequence[int]) -> None:
        """Write delete flags."""
        for seq in seqs:
            self.slots[seq] = self.slots[seq]._replace(dead=DELETED)

    def columns(self, span: Span) -> SpanColumns:
        slots = [self.slots[seq] for seq in range(span.first, span.end)]
        ts, offset, frame_len, size, flags, dead = zip(*slots, strict=True)
        places = array("Q", ts), array("I", offset), array("I", frame_len), array("I", size)
        return SpanColumns(*places, bytes(flags), bytes(dead))


def state_of(log: TopicLog) -> object:
    """Everything that a failed call could have changed."""
    spans = [
        (span, *span.summary(), span.unindexed, span.ts[:], span.size[:], span.flags[:], span.dead[:])
        for span in log.index.spans
    ]
    garbage = log.tags.index.garbage if log.tags.index is not None else 0
    return log.dump(), log.count, log.bytes, log.tags.known_from, garbage, spans


class Driven:
    """A log whose columns are loaded when it asks for them. `asked` has the first seqs of the spans it asked for."""

    def __init__(self, log: TopicLog, disk: Disk) -> None:
        self.log = log
        self.disk = disk
        self.asked: list[int] = []
        self.asks_first = False
        # Whether deletions may have been forgotten because they were in spans that were not loaded.
        self.forgetful = False

    def __getattr__(self, name: str) -> Any:
        found = getattr(self.log, name)
        if not callable(found):
            return found

        def call(*args: Any, **kwargs: Any) -> Any:
            return self.run(name, lambda: found(*args, **kwargs), args)

        return call

    def do(self, operation: Callable[[TopicLog], T]) -> T:
        """The same for what is called on a part of the log."""
        done: T = self.run("", lambda: operation(self.log), ())
        return done

    def run(self, name: str, operation: Callable[[], Any], args: tuple[Any, ...]) -> Any:
        if self.asks_first and name in ("evict_below", "delete_below", "delete_seqs"):
            ask = missing_to_delete if name == "delete_seqs" else missing_below
            below = min(args[0], args[1] + 1) if name == "delete_below" else args[0]
            while missing := ask(self.log.index, below):
                self.load(missing)
            return self.watched(operation)
        for _ in range(100):
            all_here = all(span.loaded for span in self.log.stored.all())
            before = None if all_here else state_of(self.log)
            try:
                return self.watched(operation)
            except NotLoaded as needed:
                assert not all_here
                assert state_of(self.log) == before
                self.load(needed.spans)
        raise AssertionError("it never has enough")

    def watched(self, operation: Callable[[], Any]) -> Any:
        floor = self.log.losses.evict_floor
        unknown = any(not span.loaded and span.deleted for span in self.log.stored.all())
        result = operation()
        self.forgetful |= unknown and self.log.losses.evict_floor > floor
        return result

    def load(self, spans: Sequence[Span]) -> None:
        """Attach those of them that are not here; one at least."""
        assert not all(span.loaded for span in spans)
        for span in spans:
            if span.loaded:
                continue
            assert self.log.stored.holds(span)
            self.asked.append(span.first)
            assert not self.log.attach(span, self.disk.columns(span)), "disk and summary differ"
            assert span.loaded

    def matching(self, match: TagMatch, *, before_seq: int | None, bound: int) -> array[int]:
        """All of them, those that only segment files know among them."""
        end = bound if before_seq is None else min(bound, before_seq - 1)
        seqs: array[int] = array("Q")
        for span in self.log.tags.spans_in_files(end):
            seqs.extend(range(span.first, min(span.end, end + 1, self.log.tags.known_from)))
        seqs = array("Q", [seq for seq in seqs if match.matches(self.tag_of(seq))])
        found = self.do(lambda log: log.index.only_live(seqs))
        rest = self.do(lambda log: log.tags.matching(match, before_seq=before_seq, bound=bound))
        assert not rest or rest[0] >= self.log.tags.known_from
        return array("Q", [*found, *rest])

    def tag_of(self, seq: int) -> str | None:
        raise NotImplementedError


def checkpoint(log: TopicLog, *segments: int) -> Driven:
    """Store all raw records of a log, so many in each segment, and unload them."""
    driven = Driven(log, Disk())
    sizes = list(segments)
    for run in log.index.capture_raw(log.head_seq):
        a = 0
        while a < len(run.dead):
            b = min(len(run.dead), a + (sizes.pop(0) if sizes else len(run.dead)))
            offsets, lens = driven.disk.write(run, a, b)
            log.stored.store(run.first + a, b - a, Segment(), offsets, lens, was_dead=run.dead[a:b])
            a = b
    for span in log.stored.all():
        span.detach()
    log.check()
    return driven


def spans_asked_for(operation: Callable[[], object]) -> list[int]:
    """The first seqs of the spans that this call asks for."""
    with pytest.raises(NotLoaded) as caught:
        operation()
    return [span.first for span in caught.value.spans]
