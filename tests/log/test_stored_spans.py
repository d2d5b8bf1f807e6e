"""Records in segment files: the log is what it would be with all of them in memory, and seldom asks for columns.

The state machine of `test_topic_log_model` runs again here, on a log that stores its records on a disk made of a dict.
A driver stands between them: it catches NotLoaded, sees to it that nothing has changed, attaches what was asked for and
calls again, as the loader does.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import cbor2
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, precondition, rule

from tests.log.test_topic_log import extent, log_of, steps, told
from tests.log.test_topic_log_model import BATCH, MATCHES, PLACE, TopicLogMachine, everything
from topics.log import index, tags, topic_log
from topics.log.index import NotLoaded, Span
from topics.log.match import Match
from topics.log.topic_log import FrameRange, Gap, RawRun, Run, SpanColumns, TopicLog, clear_unflagged, grow_dump

DELETED, LOST = index.DELETED, index.LOST


@pytest.fixture
def _tiny_limits() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(index, "SPAN_RECORDS", 4)
        patch.setattr(index, "MIN_TRIM", 3)
        patch.setattr(index, "_FIRST_STRIDE", 2)
        patch.setattr(tags, "RUN_NAMES", 2)
        patch.setattr(tags, "_CHUNK", 2)
        patch.setattr(topic_log, "_SHORT_HOLE", 2)
        patch.setattr(topic_log, "_SWEEP_MIN", 1)
        yield


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
    """What was written of each seq, whatever segment it is in."""

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
        (span, *log.summary_of(span), span.unindexed, span.ts[:], span.size[:], span.flags[:], span.dead[:])
        for span in log._index.spans
    ]
    garbage = log._tags.garbage if log._tags is not None else 0
    return log.dump(), log.count, log.bytes, log.tags_from, garbage, spans


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

    def run(self, name: str, operation: Callable[[], Any], args: tuple[Any, ...]) -> Any:
        if self.asks_first and name in ("evict_below", "delete_below", "delete_seqs"):
            ask = self.log.missing_for if name == "delete_seqs" else self.log.missing_below
            below = min(args[0], args[1] + 1) if name == "delete_below" else args[0]
            while missing := ask(below):
                self.load(missing)
            return self.watched(operation)
        for _ in range(100):
            before = state_of(self.log)
            try:
                return self.watched(operation)
            except NotLoaded as needed:
                assert state_of(self.log) == before
                self.load(needed.spans)
        raise AssertionError("it never has enough")

    def watched(self, operation: Callable[[], Any]) -> Any:
        floor = self.log.evict_floor
        unknown = any(not span.loaded and span.deleted for span in self.log.stored_spans())
        result = operation()
        self.forgetful |= unknown and self.log.evict_floor > floor
        return result

    def load(self, spans: Sequence[Span]) -> None:
        assert spans
        for span in spans:
            assert not span.loaded
            assert self.log.holds(span)
            self.asked.append(span.first)
            assert not self.log.attach(span, self.disk.columns(span)), "disk and summary differ"
            assert span.loaded

    def matching(self, match: Match, *, before_seq: int | None, bound: int) -> array[int]:
        """All of them, those that only segment files know among them."""
        end = bound if before_seq is None else min(bound, before_seq - 1)
        seqs: array[int] = array("Q")
        for span in self.log.spans_with_tags(end):
            seqs.extend(range(span.first, min(span.end, end + 1, self.log.tags_from)))
        seqs = array("Q", [seq for seq in seqs if match.matches(self.tag_of(seq))])
        found = self.run("live_among", lambda: self.log.live_among(seqs), ())
        rest = self.run(
            "matching", lambda: self.log.matching(match, before_seq=before_seq, bound=bound), (match, before_seq, bound)
        )
        assert not rest or rest[0] >= self.log.tags_from
        return array("Q", [*found, *rest])

    def tag_of(self, seq: int) -> str | None:
        raise NotImplementedError


PIECES = st.lists(st.tuples(st.integers(1, 9), st.booleans()), min_size=1, max_size=6)
"""How captured slots are divided: how many go on, and whether to a new segment."""

some_stored = precondition(lambda self: self.driven.log.stored_to > 0)


class StoredMachine(TopicLogMachine):
    def __init__(self) -> None:
        super().__init__()
        self.disk = Disk()
        self.driven = self.drive(TopicLog())
        # Captured and not settled: runs, the dump as of then, and the model's count, bytes, floors and live seqs.
        self.captured: list[RawRun] = []
        self.part: dict[str, Any] = {}
        self.then: tuple[tuple[int, ...], list[int]] = ((), [])

    def drive(self, log: TopicLog) -> Driven:
        driven = Driven(log, self.disk)
        driven.tag_of = lambda seq: self.model.seqs[seq].tag  # type: ignore[method-assign]
        self.log = driven  # type: ignore[assignment]
        self.driven = driven
        return driven

    def pick(self, n: int) -> Span:
        spans = self.driven.log.stored_spans()
        return spans[n % len(spans)]

    # -- what the storage layer does -----------------------------------------------------------------------------------

    @initialize(batches=st.lists(BATCH, min_size=2, max_size=6), pieces=PIECES, unload=st.booleans())
    def begin(
        self, batches: list[list[tuple[str | None, int, int]]], pieces: list[tuple[int, bool]], unload: bool
    ) -> None:
        for batch in batches:
            self.publish(batch, one_time=False)
        self.checkpoint(batches[:1], pieces, unload)

    @precondition(lambda self: not self.captured)
    @rule(batches=st.lists(BATCH, min_size=1, max_size=3), pieces=PIECES, unload=st.booleans())
    def checkpoint(
        self, batches: list[list[tuple[str | None, int, int]]], pieces: list[tuple[int, bool]], unload: bool
    ) -> None:
        self.capture(batches, None)
        if self.captured:
            self.settle(pieces, unload)

    @precondition(lambda self: not self.captured)
    @rule(batches=st.lists(BATCH, min_size=1, max_size=3), upto=st.none() | PLACE)
    def capture(self, batches: list[list[tuple[str | None, int, int]]], upto: tuple[str, int] | None) -> None:
        self.append(batches, 1, False)
        log, model = self.driven.log, self.model
        last = model.head if upto is None else self.seq(upto)
        self.captured = log.capture_raw(last)
        expected = range(max(model.earliest, log.stored_to + 1), min(last, model.head) + 1)
        got = [run.first + i for run in self.captured for i in range(len(run.dead))]
        assert [seq for seq in got if model.seqs[seq].fate == "live"] == [
            seq for seq in expected if model.seqs[seq].fate == "live"
        ]
        self.part = log.dump(raw=False) if last >= model.head else {}
        self.then = ((model.head, len(model.live), model.bytes, model.earliest, model.evict_floor), model.live)

    @precondition(lambda self: self.captured)
    @rule(pieces=PIECES, unload=st.booleans())
    def settle(self, pieces: list[tuple[int, bool]], unload: bool) -> None:
        log, number, end = self.driven.log, 0, 0
        spans = log.stored_spans()
        segment = spans[-1].segment if spans else Segment()
        end = log.stored_to + 1
        for run in self.captured:
            a = 0
            while a < len(run.dead):
                n, new = pieces[number % len(pieces)]
                b = min(len(run.dead), a + n)
                new = new or run.first + a != end
                if new:
                    segment = Segment()
                offsets, lens = self.disk.write(run, a, b)
                log.store(run.first + a, b - a, segment, offsets, lens, was_dead=run.dead[a:b])
                if self.part:
                    grow_dump(self.part["spans"], run, a, b, new=new)
                number, end, a = number + 1, run.first + b, b
        self.captured = []
        if self.part:
            self.check_part()
        if unload:
            self.unload_all()

    def check_part(self) -> None:
        """The dump without raw records, with what was stored added, is the topic as of the capture."""
        loaded = TopicLog.load(cbor2.loads(cbor2.dumps(self.part)))
        loaded.check()
        (head, count, nbytes, earliest, evict_floor), live = self.then
        assert (loaded.head_seq, loaded.count, loaded.bytes) == (head, count, nbytes)
        assert (loaded.earliest_seq, loaded.evict_floor) == (earliest, evict_floor)
        assert loaded.tags_from == max(loaded.stored_to + 1, 1)
        # Deletions since may have reached the disk already; nothing else may differ.
        driven = Driven(loaded, self.disk)
        for span in loaded.stored_spans():
            while not span.loaded and loaded.holds(span):
                try:
                    loaded.attach(span, self.disk.columns(span))
                except NotLoaded as needed:
                    for other in needed.spans:
                        assert other is not span
                        loaded.attach(other, self.disk.columns(other))
        loaded.check()
        now = [seq for seq in range(1, head + 1) if driven.is_live(seq)]
        still = {seq for seq, it in self.model.seqs.items() if it.fate != "deleted"}
        assert set(live) & still <= set(now) <= set(live)

    @some_stored
    @rule(n=st.integers(0, 50))
    def attach(self, n: int) -> None:
        span = self.pick(n)
        if not span.loaded:
            self.driven.load([span])
            assert not self.driven.log.attach(span, self.disk.columns(span))

    @some_stored
    @rule(n=st.integers(0, 50))
    def detach(self, n: int) -> None:
        self.driven.log.detach(self.pick(n))

    @some_stored
    @rule()
    def unload_all(self) -> None:
        for span in self.driven.log.stored_spans():
            self.driven.log.detach(span)

    @some_stored
    @rule(n=st.integers(0, 50), most=st.integers(1, 5))
    def write_flags(self, n: int, most: int) -> None:
        span = self.pick(n)
        if span.unflagged:
            seqs = span.unflagged[:most]
            self.disk.flag(seqs)
            self.driven.log.flagged(span, seqs)

    @some_stored
    @rule(n=st.integers(0, 50), most=st.integers(1, 4))
    def replace(self, n: int, most: int) -> None:
        spans = self.driven.log.stored_spans()
        k = n % len(spans)
        group = [spans[k]]
        for span in spans[k + 1 : k + most]:
            if span.first == group[-1].end:
                group.append(span)
            else:
                break
        sums = [self.driven.log.summary_of(span) for span in group]
        new = self.driven.log.replace(group[0].first, group[-1].end - 1, Segment())
        after = self.driven.log.summary_of(new)
        assert (after.live, after.bytes) == (sum(one.live for one in sums), sum(one.bytes for one in sums))
        assert not new.loaded
        assert not any(self.driven.log.holds(span) for span in group)

    @some_stored
    @rule(n=st.integers(0, 50), less=st.sampled_from([0, 0, 0, 1, 2]))
    def drop_tags(self, n: int, less: int) -> None:
        span = self.pick(n)
        self.driven.drop_tags_below(max(1, span.end - less))
        assert self.driven.log.tags_from >= span.end - less

    @rule(asks=st.booleans())
    def ask_before(self, asks: bool) -> None:
        self.driven.asks_first = asks

    # -- what the machine does otherwise -----------------------------------------------------------------------------

    @rule()
    def dump_and_load(self) -> None:
        self.dump_what_an_ephemeral_restart_leaves()
        old = self.driven
        segments = {span.first: span.segment for span in old.log.stored_spans()}
        dumped = old.log.dump()
        loaded = TopicLog.load(cbor2.loads(cbor2.dumps(dumped, canonical=True)))
        assert loaded.dump() == dumped
        assert loaded.tags_from >= old.log.tags_from
        driven = self.drive(loaded)
        driven.asks_first, driven.forgetful = old.asks_first, old.forgetful
        for span in loaded.stored_spans():
            span.segment = segments[span.first]

    def dump_what_an_ephemeral_restart_leaves(self) -> None:
        lost = TopicLog.load(self.driven.log.dump_lost())
        assert (lost.head_seq, lost.earliest_seq, lost.count) == (self.model.head, self.model.head + 1, 0)
        floor = max((seq for seq, it in self.model.seqs.items() if it.fate != "deleted"), default=0) + 1
        assert lost.evict_floor >= floor
        if all(span.loaded or span.dense for span in self.driven.log.stored_spans()):
            assert lost.evict_floor == floor

    @rule(first=PLACE, n=st.integers(1, 12), file=st.integers(1, 3), apart=st.sampled_from([0, 4096, 4097]))
    def place_and_locate(self, first: tuple[str, int], n: int, file: int, apart: int) -> None:
        if not self.model.head:
            return
        log = self.driven.log
        low = min(max(1, self.seq(first)), self.model.head)
        high = min(low + n - 1, self.model.head)
        offsets, at = [], 100
        for seq in range(low, high + 1):
            offsets.append(at)
            at += self.model.seqs[seq].size + 30 + apart
        log.place(low, file, offsets)
        ranges: list[FrameRange] = self.driven.locate(low, high, max_range=5000)
        found = []
        for part in ranges:
            spans = [log.stored_span_at(seq) for seq in part.seqs]
            if part.segment is None:
                assert (part.file, set(spans)) == (file, {None})
            else:
                assert part.file == 0
                assert all(span is not None and span.segment is part.segment for span in spans)
            assert part.length <= 5000
            assert part.starts[-1] + part.frame_lens[-1] == part.length
            found += [
                (seq, part.offset + start, length)
                for seq, start, length in zip(part.seqs, part.starts, part.frame_lens, strict=True)
            ]
        assert found == [
            (
                seq,
                self.disk.slots[seq].offset if seq <= log.stored_to else offsets[seq - low],
                self.model.seqs[seq].size + 30,
            )
            for seq in self.model.live
            if low <= seq <= high
        ]

    @rule(from_seq=PLACE, limit=st.integers(1, 9))
    def read(self, from_seq: tuple[str, int], limit: int) -> None:
        self.compare(self.seq(from_seq), limit)

    def compare(self, from_seq: int, limit: int) -> None:
        """What readers are told is the same, but what was deleted in spans that were not loaded may count as missed."""
        got, wanted = everything(self.log, from_seq, limit), self.model.read(from_seq)
        if self.driven.forgetful and got and got[0] != wanted[0]:
            *what, missed = got[0]
            *same, known = wanted[0]
            assert what == same
            assert isinstance(missed, int)
            assert isinstance(known, int)
            assert isinstance(what[1], int)
            assert isinstance(what[2], int)
            assert known <= missed <= what[2] - what[1] + 1
            got[0] = wanted[0]
        assert got == wanted

    @invariant()
    def every_seq_is_what_it_is(self) -> None:
        """As far as it can be told without loading anything."""
        log, live = self.driven.log, set(self.model.live)
        for seq in range(self.model.head + 3):
            try:
                assert log.is_live(seq) == (seq in live)
                if seq in live:
                    assert log.ts_of(seq) == self.model.seqs[seq].ts
            except NotLoaded as needed:
                assert [span.first <= seq < span.end for span in needed.spans] == [True]

    def teardown(self) -> None:
        for from_seq in range(self.model.head + 3):
            self.compare(from_seq, 3)
        for span in self.driven.log.stored_spans():
            if not span.loaded:
                self.driven.load([span])
        self.driven.log.check()
        live = set(self.model.live)
        for seq in range(self.model.head + 3):
            assert self.driven.log.is_live(seq) == (seq in live)


TestStoredSpans = pytest.mark.usefixtures("_tiny_limits")(StoredMachine.TestCase)
TestStoredSpans.settings = settings(max_examples=200, stateful_step_count=50, deadline=None)
