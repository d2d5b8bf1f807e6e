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
from tests.log.test_topic_log_model import BATCH, PLACE, TopicLogMachine, everything
from topics.log import record_index, tag_index, topic_log
from topics.log.record_index import NotLoaded, Span
from topics.log.tag_match import Match
from topics.log.topic_log import (
    FrameRange,
    Gap,
    RawRun,
    Run,
    SpanColumns,
    TopicLog,
    grow_dump,
    set_unflagged,
    summary_first,
)

DELETED, LOST = record_index.DELETED, record_index.LOST


@pytest.fixture
def _tiny_limits() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(record_index, "SPAN_RECORDS", 4)
        patch.setattr(record_index, "MIN_TRIM", 3)
        patch.setattr(record_index, "_FIRST_STRIDE", 2)
        patch.setattr(tag_index, "RUN_NAMES", 2)
        patch.setattr(tag_index, "_CHUNK", 2)
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
            all_here = all(span.loaded for span in self.log.stored_spans())
            before = None if all_here else state_of(self.log)
            try:
                return self.watched(operation)
            except NotLoaded as needed:
                assert not all_here
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
        """Attach those of them that are not here; one at least."""
        assert not all(span.loaded for span in spans)
        for span in spans:
            if span.loaded:
                continue
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
            except NotLoaded:
                span = log.stored_span_at(seq)
                assert span is not None
                assert not span.loaded

    def teardown(self) -> None:
        for from_seq in self.starts():
            self.compare(from_seq, 3)
        for span in self.driven.log.stored_spans():
            if not span.loaded:
                self.driven.load([span])
        self.driven.log.check()
        live = set(self.model.live)
        for seq in range(self.model.head + 3):
            assert self.driven.log.is_live(seq) == (seq in live)


TestStoredSpans = pytest.mark.usefixtures("_tiny_limits")(StoredMachine.TestCase)
TestStoredSpans.settings = settings(max_examples=25, stateful_step_count=50, deadline=None)


# -- stories ---------------------------------------------------------------------------------------------------------


def checkpoint(log: TopicLog, *segments: int) -> Driven:
    """Store all raw records of a log, so many in each segment, and unload them."""
    driven = Driven(log, Disk())
    sizes = list(segments)
    for run in log.capture_raw(log.head_seq):
        a = 0
        while a < len(run.dead):
            b = min(len(run.dead), a + (sizes.pop(0) if sizes else len(run.dead)))
            offsets, lens = driven.disk.write(run, a, b)
            log.store(run.first + a, b - a, Segment(), offsets, lens, was_dead=run.dead[a:b])
            a = b
    for span in log.stored_spans():
        log.detach(span)
    log.check()
    return driven


def spans_asked_for(operation: Callable[[], object]) -> list[int]:
    """The first seqs of the spans that this call asks for."""
    with pytest.raises(NotLoaded) as caught:
        operation()
    return [span.first for span in caught.value.spans]


def test_a_dense_segment_is_read_without_columns_up_to_the_places_of_its_frames() -> None:
    log = log_of(30)
    driven = checkpoint(log, 10, 10, 10)
    assert steps(log) == [Run(1, 30)]
    assert log.is_live(17)
    assert log.step(12, 5) == Run(13, 17)
    assert spans_asked_for(lambda: log.locate(15, 25)) == [11, 21]
    found = driven.locate(15, 25)
    assert [(part.file, list(part.seqs)) for part in found] == [
        (0, [15, 16, 17, 18, 19, 20]),
        (0, [21, 22, 23, 24, 25]),
    ]
    assert [part.segment for part in found] == [span.segment for span in log.stored_spans()[1:]]


def test_a_segment_with_dead_records_is_loaded_to_be_read() -> None:
    log = log_of(30)
    log.delete_seqs([15])
    driven = checkpoint(log, 10, 10, 10)
    assert log.step(0, 8) == Run(1, 8)
    assert spans_asked_for(lambda: log.step(0, 15)) == [11]
    assert driven.step(0, 100) == Run(1, 14)
    assert driven.asked == [11]


def test_evicting_whole_segments_needs_no_columns() -> None:
    log = log_of(40)
    checkpoint(log, 10, 10, 10, 10)
    assert log.missing_below(21) == ()
    assert log.evict_below(21, "cap") == 20
    assert (log.earliest_seq, log.evict_floor, log.count, log.bytes) == (21, 21, 20, 200)
    assert log.evict_below(41, "cap") == 20
    assert log.stored_spans() == []
    log.check()


def test_evicting_a_part_of_a_segment_asks_for_that_one_and_has_changed_nothing() -> None:
    log = log_of(40)
    driven = checkpoint(log, 10, 10, 10, 10)
    before = state_of(log)
    assert spans_asked_for(lambda: log.evict_below(25, "cap")) == [21]
    assert [span.first for span in log.missing_below(25)] == [21]
    assert state_of(log) == before
    assert driven.evict_below(25, "cap") == 24
    assert (log.earliest_seq, log.evict_floor, log.bytes) == (25, 25, 160)
    assert log.summary_of(log.stored_spans()[0]) == (21, 10, 4, 6, 0, 60, 0, 1000, 1000)
    assert driven.asked == [21]
    log.check()


def test_a_cap_on_records_is_found_by_counting_and_one_on_bytes_by_loading() -> None:
    log = log_of(40)
    checkpoint(log, 10, 10, 10, 10)
    assert log.eviction_watermark(25, 0, []) == 16
    assert spans_asked_for(lambda: log.eviction_watermark(0, 255, [])) == [11]


def test_times_of_whole_segments_are_in_their_summaries() -> None:
    log = log_of(10, ts=1000)
    log.extend(extent(11, 10, ts=2000))
    log.extend(extent(21, 10, ts=3000))
    driven = checkpoint(log, 15, 15)
    assert log.expire(1600, 600) == 0
    assert spans_asked_for(lambda: log.expire(1700, 600)) == [1]
    assert driven.expire(1700, 600) == 10
    assert (log.earliest_seq, log.stored_spans()[0].first_ts) == (11, 2000)
    log.detach(log.stored_spans()[0])
    assert log.expire(2600, 600) == 0
    assert driven.asked == [1]


def test_a_deletion_in_the_middle_asks_for_that_segment_only() -> None:
    log = log_of(40)
    driven = checkpoint(log, 10, 10, 10, 10)
    assert spans_asked_for(lambda: log.delete_seqs([25])) == [21]
    assert [span.first for span in log.missing_for([25, 35])] == [21, 31]
    assert driven.delete_seqs([25]) == 1
    assert driven.asked == [21]
    assert list(log.stored_spans()[2].unflagged or ()) == [25]
    log.check()


def test_deleting_the_whole_front_segment_asks_for_what_the_new_front_takes() -> None:
    log = log_of(30)
    log.delete_seqs([12])
    driven = checkpoint(log, 10, 10, 10)
    assert [span.first for span in log.missing_for(range(1, 11))] == [1, 11]
    assert driven.delete_seqs(range(1, 11)) == 10
    assert (log.earliest_seq, log.evict_floor) == (11, 1)
    log.check()


def test_deleting_below_a_hole_needs_no_columns_and_the_estimate_stays_exact() -> None:
    log = log_of(20)
    log.delete_seqs([4, 15])
    log.add_hole(21, 200, "lost")
    log.extend(extent(201, 20))
    checkpoint(log, 10, 10, 10, 10)
    assert log.delete_below(201, 999) == 18
    assert (log.earliest_seq, log.evict_floor) == (201, 201)
    assert told(log, 0) == (1, 200, "lost", 180)
    log.check()


def test_deletions_in_a_segment_that_is_evicted_unloaded_may_count_as_missed() -> None:
    for unload, missed in ((False, 18), (True, 20)):
        log = log_of(30)
        log.delete_seqs([4, 5])
        driven = checkpoint(log, 10, 10, 10)
        if not unload:
            driven.load(log.stored_spans())
        assert log.evict_below(21, "cap") == 18
        assert told(log, 0) == (1, 20, "cap", missed)


def test_damage_to_a_whole_dense_segment_needs_no_columns() -> None:
    log = log_of(30)
    driven = checkpoint(log, 10, 10, 10)
    log.add_hole(11, 20, "corrupt")
    assert steps(log) == [Run(1, 10), Gap(11, 20, "corrupt", 10), Run(21, 30)]
    driven.load([log.stored_spans()[1]])
    assert log.count == 20
    log.check()


def test_what_a_hole_took_stays_lost_when_the_columns_come_back() -> None:
    log = log_of(20)
    driven = checkpoint(log, 10, 10)
    driven.add_hole(4, 6, "corrupt")
    log.detach(log.stored_spans()[0])
    assert driven.step(0, 100) == Run(1, 3)
    assert log.columns_of(log.stored_spans()[0]).dead == bytes([0, 0, 0, LOST, LOST, LOST, 0, 0, 0, 0])
    log.check()


def test_a_deletion_on_disk_that_the_summary_does_not_know_is_reconciled() -> None:
    log = log_of(20, tags=["a"] * 20)
    driven = checkpoint(log, 10, 10)
    driven.disk.flag([1, 2, 5])
    span = log.stored_spans()[0]
    assert log.attach(span, driven.disk.columns(span))
    assert (log.count, log.bytes, log.earliest_seq, log.evict_floor) == (17, 170, 3, 1)
    assert steps(log) == [Run(3, 4), Run(6, 20)]
    assert not log.attach(span, driven.disk.columns(span)), "it is loaded"
    log.check()


def test_a_front_that_is_gone_on_disk_waits_for_the_segment_with_the_next_one() -> None:
    log = log_of(30)
    log.delete_seqs([12])
    driven = checkpoint(log, 10, 10, 10)
    driven.disk.flag([*range(1, 11), 11])
    first, second, _ = log.stored_spans()
    before = state_of(log)
    assert spans_asked_for(lambda: log.attach(first, driven.disk.columns(first))) == [11]
    assert state_of(log) == before
    assert not first.loaded
    assert log.attach(second, driven.disk.columns(second))
    assert (log.count, log.earliest_seq) == (28, 1)
    assert log.attach(first, driven.disk.columns(first))
    assert (log.count, log.earliest_seq, log.evict_floor) == (18, 13, 1)
    assert not log.holds(first)
    assert not log.attach(first, driven.disk.columns(first)), "it is not of this log any more"
    log.check()


def test_what_is_lost_on_disk_without_a_hole_becomes_one() -> None:
    log = log_of(20)
    driven = checkpoint(log, 10, 10)
    for seq in (1, 15, 16):
        driven.disk.slots[seq] = driven.disk.slots[seq]._replace(dead=LOST)
    for span in log.stored_spans():
        assert log.attach(span, driven.disk.columns(span))
    assert told(log, 0) == (1, 1, "corrupt", 1)
    assert steps(log) == [Run(2, 14), Gap(15, 16, "corrupt", 2), Run(17, 20)]
    log.check()


def test_more_live_on_disk_than_the_summary_says_leaves_its_tags_to_the_files() -> None:
    log = log_of(20, tags=["a"] * 20)
    log.delete_seqs([4])
    driven = checkpoint(log, 10, 10)
    driven.disk.slots[4] = driven.disk.slots[4]._replace(dead=record_index.LIVE, size=10)
    span = log.stored_spans()[0]
    assert log.attach(span, driven.disk.columns(span))
    assert (log.count, log.bytes, log.tags_from) == (20, 200, 11)
    log.check()


@pytest.mark.parametrize("change", [{"ts": array("Q", [1])}, {"dead": bytes([3] * 10)}, {"flags": b""}])
def test_columns_that_cannot_be_those_of_the_span_are_refused(change: dict[str, Any]) -> None:
    log = log_of(10)
    driven = checkpoint(log)
    span = log.stored_spans()[0]
    with pytest.raises(ValueError, match="columns of span"):
        log.attach(span, driven.disk.columns(span)._replace(**change))
    assert not span.loaded


def test_what_died_between_capture_and_store_is_not_forgotten() -> None:
    log = log_of(10)
    log.delete_seqs([3])
    driven = Driven(log, Disk())
    (run,) = log.capture_raw(10)
    log.delete_seqs([5, 6])
    log.add_hole(8, 8, "corrupt")
    offsets, lens = driven.disk.write(run, 0, 10)
    log.store(1, 10, Segment(), offsets, lens, was_dead=run.dead)
    span = log.stored_spans()[0]
    assert list(span.unflagged or ()) == [5, 6]
    log.detach(span)
    driven.load([span])
    log.check()
    driven.disk.flag([5])
    log.flagged(span, [5])
    assert list(span.unflagged or ()) == [6]
    log.flagged(span, [6])
    assert span.unflagged is None


def test_what_was_dropped_between_capture_and_store_keeps_its_place_in_the_span() -> None:
    log = log_of(10)
    driven = Driven(log, Disk())
    (run,) = log.capture_raw(10)
    offsets, lens = driven.disk.write(run, 0, 10)
    log.evict_below(5, "cap")
    log.store(1, 3, Segment(), offsets[:3], lens[:3], was_dead=run.dead[:3])
    assert log.stored_spans() == []
    segment = Segment()
    log.store(4, 4, segment, offsets[3:7], lens[3:7], was_dead=run.dead[3:7])
    (span,) = log.stored_spans()
    assert log.summary_of(span) == (4, 4, 1, 3, 0, 30, 0, 1000, 1000)
    assert span.segment is segment
    log.check()
    log.detach(span)
    driven.load([span])
    assert [list(part.seqs) for part in log.locate(1, 7)] == [[5, 6, 7]]
    log.check()


def test_an_unloaded_segment_grows_by_its_summary() -> None:
    log = log_of(10, tags=["a"] * 10)
    driven = Driven(log, Disk())
    segment = Segment()
    for run in [*log.capture_raw(4), *log.capture_raw(10)]:
        a = log.stored_to + 1 - run.first
        n = len(run.dead) - a
        offsets, lens = driven.disk.write(run, a, a + n)
        log.store(run.first + a, n, segment, offsets, lens, was_dead=run.dead[a:])
        log.detach(log.stored_spans()[0])
    (span,) = log.stored_spans()
    assert log.summary_of(span) == (1, 10, 0, 10, 0, 100, 10, 1000, 1000)
    driven.load([span])
    log.check()


def test_tags_of_stored_records_are_found_through_their_files() -> None:
    log = log_of(20, tags=["a", "b"] * 10)
    driven = checkpoint(log, 10, 10)
    assert log.spans_with_tags(20) == []
    log.drop_tags_below(11)
    log.check()
    everything = Match("", prefix=True)
    assert list(log.matching(everything, before_seq=None, bound=20)) == list(range(11, 21))
    assert [span.first for span in log.spans_with_tags(20)] == [1]
    assert log.spans_with_tags(0) == []
    driven.delete_seqs([2, 12])
    assert list(log.live_among(array("Q", [1, 2, 3]))) == [1, 3]
    assert log._tags is not None
    assert log._tags.postings - log._tags.garbage == 9
    log.check()
    log.drop_tags_below(99)
    assert log.tags_from == 21
    assert log.dump()["tags"] is None
    log.check()


def test_sweeping_asks_for_no_columns_and_comes_to_an_end() -> None:
    log = log_of(2000, tags=[f"t{seq}" for seq in range(2000)])
    driven = checkpoint(log, 1000, 1000)
    driven.delete_seqs(range(2, 1900, 2))
    for span in log.stored_spans():
        log.detach(span)
    assert sum(log.tidy() for _ in range(100)) < 99
    assert log._tags is not None
    garbage = log._tags.garbage
    driven.load(log.stored_spans())
    while log.tidy():
        pass
    assert garbage == 0 or log._tags.garbage < garbage
    log.check()


def test_a_call_that_asks_says_for_what() -> None:
    log = log_of(20)
    checkpoint(log, 10, 10)
    with pytest.raises(NotLoaded, match=r"columns of \[1, 10\], \[11, 20\]"):
        log.locate(1, 20)


def test_segments_that_become_one_are_one_span() -> None:
    log = log_of(30)
    driven = checkpoint(log, 10, 10, 10)
    driven.delete_seqs([3, 13])
    driven.evict_below(3, "cap")
    segment = Segment()
    span = log.replace(1, 20, segment)
    assert log.summary_of(span) == (1, 20, 3, 16, 0, 160, 0, 1000, 1000)
    assert (span.segment, span.loaded, sorted(span.unflagged or ())) == (segment, False, [3, 13])
    log.check()
    driven.load([span])
    assert steps(log, 3) == [Run(4, 12), Run(14, 30)]
    log.check()


def test_the_dump_of_what_is_stored_is_complete_with_what_is_being_stored() -> None:
    log = log_of(10)
    driven = checkpoint(log)
    driven.delete_seqs([4])
    log.extend(extent(11, 10, tags=["a"] * 10))
    log.delete_seqs([15])
    part = log.dump(raw=False)
    (run,) = log.capture_raw(20)
    grow_dump(part["spans"], run, 0, 3, new=False)
    grow_dump(part["spans"], run, 3, 10, new=True)
    assert [summary_first(dumped) for dumped in part["spans"]] == [1, 14]
    loaded = TopicLog.load(part)
    assert (loaded.count, loaded.bytes, loaded.tags_from, loaded.stored_to) == (18, 180, 21, 20)
    assert [list(span.unflagged or ()) for span in loaded.stored_spans()] == [[4], []]
    set_unflagged(part["spans"][0], [5, 6])
    assert list(TopicLog.load(part).stored_spans()[0].unflagged or ()) == [5, 6]
    set_unflagged(part["spans"][0], [])
    assert TopicLog.load(part).stored_spans()[0].unflagged is None


@pytest.mark.parametrize(
    "change",
    [
        {"n": 0},
        {"n": 11},
        {"start": 10},
        {"start": 1},
        {"live": 11},
        {"live": 0},
        {"lost": 3},
        {"lost": -1},
        {"tagged": 9},
        {"first_ts": 1001},
        {"last_ts": 2001},
        {"first": 2},
        {"first": "x"},
        {"unflagged": b"x"},
        {"unflagged": (11).to_bytes(8, "little")},
        {"unflagged": 2 * (3).to_bytes(8, "little")},
    ],
)
def test_a_stored_span_that_contradicts_itself_does_not_load(change: dict[str, Any]) -> None:
    log = log_of(10)
    log.delete_seqs([3, 4])
    checkpoint(log)
    log.extend(extent(11, 2, ts=2000))
    dumped = log.dump()
    mark, *values = dumped["spans"][0]
    names = [*record_index.SUMMARY_FIELDS, "unflagged"]
    assert TopicLog.load(dumped).dump() == dumped
    damaged = dict(zip(names, values, strict=True)) | change
    with pytest.raises(ValueError):  # noqa: PT011
        TopicLog.load(dumped | {"spans": [[mark, *damaged.values()], *dumped["spans"][1:]]})
    with pytest.raises(ValueError, match="span"):
        TopicLog.load(dumped | {"spans": [*reversed(dumped["spans"])]})
