"""Records in segment files: the log shows the same as with all records in memory, after any sequence of operations.

The state machine of `test_topic_log_model` runs again here, on a log that stores its records on a disk made of a dict
(`stored_logs`).
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator
from typing import Any

import cbor2
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, precondition, rule

from tests.log.logs import tiny_limits
from tests.log.stored_logs import Disk, Driven, Segment, T
from tests.log.test_topic_log_model import BATCH, DELETED, LIVE, PLACE, TopicLogMachine, everything
from topics.log.dumped_spans import grow_dump
from topics.log.frame_ranges import FrameRange, locate
from topics.log.record_index import RawRun
from topics.log.span import NotLoaded, Span
from topics.log.tag_match import TagMatch
from topics.log.topic_log import TopicLog


@pytest.fixture
def _tiny_limits() -> Iterator[None]:
    with tiny_limits():
        yield


PIECES = st.lists(st.tuples(st.integers(1, 9), st.booleans()), min_size=1, max_size=6)
"""How captured slots are divided: how many go on, and whether to a new segment."""

some_stored = precondition(lambda self: self.driven.log.stored.last_seq > 0)


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

    def do(self, operation: Callable[[TopicLog], T]) -> T:
        return self.driven.do(operation)

    def matching(self, match: TagMatch, *, before_seq: int | None, bound: int) -> array[int]:
        return self.driven.matching(match, before_seq=before_seq, bound=bound)

    def pick(self, n: int) -> Span:
        spans = self.driven.log.stored.all()
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
        self.captured = log.index.capture_raw(last)
        expected = range(max(model.earliest, log.stored.last_seq + 1), min(last, model.head) + 1)
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
        spans = log.stored.all()
        segment = spans[-1].segment if spans else Segment()
        end = log.stored.last_seq + 1
        for run in self.captured:
            a = 0
            while a < len(run.dead):
                n, new = pieces[number % len(pieces)]
                b = min(len(run.dead), a + n)
                new = new or run.first + a != end
                if new:
                    segment = Segment()
                offsets, lens = self.disk.write(run, a, b)
                log.stored.store(run.first + a, b - a, segment, offsets, lens, was_dead=run.dead[a:b])
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
        assert (loaded.earliest_seq, loaded.losses.evict_floor) == (earliest, evict_floor)
        assert loaded.tags.known_from == max(loaded.stored.last_seq + 1, 1)
        # Deletions since may have reached the disk already; nothing else may differ.
        driven = Driven(loaded, self.disk)
        for span in loaded.stored.all():
            while not span.loaded and loaded.stored.holds(span):
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
        self.pick(n).detach()

    @some_stored
    @rule()
    def unload_all(self) -> None:
        for span in self.driven.log.stored.all():
            span.detach()

    @some_stored
    @rule(n=st.integers(0, 50), most=st.integers(1, 5))
    def write_flags(self, n: int, most: int) -> None:
        span = self.pick(n)
        if span.unflagged:
            seqs = span.unflagged[:most]
            self.disk.flag(seqs)
            span.flagged(seqs)

    @some_stored
    @rule(n=st.integers(0, 50), most=st.integers(1, 4))
    def replace(self, n: int, most: int) -> None:
        spans = self.driven.log.stored.all()
        k = n % len(spans)
        group = [spans[k]]
        for span in spans[k + 1 : k + most]:
            if span.first == group[-1].end:
                group.append(span)
            else:
                break
        sums = [span.summary() for span in group]
        new = self.driven.log.stored.replace(group[0].first, group[-1].end - 1, Segment())
        after = new.summary()
        assert (after.live, after.bytes) == (sum(one.live for one in sums), sum(one.bytes for one in sums))
        assert not new.loaded
        assert not any(self.driven.log.stored.holds(span) for span in group)

    @some_stored
    @rule(n=st.integers(0, 50), less=st.sampled_from([0, 0, 0, 1, 2]))
    def drop_tags(self, n: int, less: int) -> None:
        span = self.pick(n)
        self.driven.drop_tags_below(max(1, span.end - less))
        assert self.driven.log.tags.known_from >= span.end - less

    @rule(asks=st.booleans())
    def ask_before(self, asks: bool) -> None:
        self.driven.asks_first = asks

    # -- what the machine does otherwise -----------------------------------------------------------------------------

    @rule()
    def dump_and_load(self) -> None:
        self.dump_what_an_ephemeral_restart_leaves()
        old = self.driven
        segments = {span.first: span.segment for span in old.log.stored.all()}
        dumped = old.log.dump()
        loaded = TopicLog.load(cbor2.loads(cbor2.dumps(dumped, canonical=True)))
        assert loaded.dump() == dumped
        assert loaded.tags.known_from >= old.log.tags.known_from
        driven = self.drive(loaded)
        driven.asks_first, driven.forgetful = old.asks_first, old.forgetful
        for span in loaded.stored.all():
            span.segment = segments[span.first]

    def dump_what_an_ephemeral_restart_leaves(self) -> None:
        lost = TopicLog.load(self.driven.log.dump_lost())
        assert (lost.head_seq, lost.earliest_seq, lost.count) == (self.model.head, self.model.head + 1, 0)
        floor = max((seq for seq, it in self.model.seqs.items() if it.fate != "deleted"), default=0) + 1
        assert lost.losses.evict_floor >= floor
        if all(span.loaded or span.dense for span in self.driven.log.stored.all()):
            assert lost.losses.evict_floor == floor

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
        log.index.place(low, file, offsets)
        ranges: list[FrameRange] = self.driven.do(lambda log: locate(log.index, low, high, max_range=5000))
        found = []
        for part in ranges:
            spans = [log.stored.at(seq) for seq in part.seqs]
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
                self.disk.slots[seq].offset if seq <= log.stored.last_seq else offsets[seq - low],
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
                    assert log.index.ts_of(seq) == self.model.seqs[seq].ts
            except NotLoaded:
                span = log.stored.at(seq)
                assert span is not None
                assert not span.loaded

    @invariant()
    def a_missing_record_has_its_reason(self) -> None:
        """Likewise; and what was deleted in spans that were not loaded may count as lost."""
        losses, model = self.driven.log.losses, self.model
        for seq, it in model.seqs.items():
            if it.fate == LIVE:
                continue
            try:
                reason = losses.why_missing(seq, model.earliest)
            except NotLoaded:
                continue
            if seq >= model.evict_floor or (it.fate == DELETED and not self.driven.forgetful):
                assert reason == it.fate
            else:
                assert reason in model.lost(seq, model.evict_floor - 1) or reason == it.fate == DELETED

    def teardown(self) -> None:
        for from_seq in self.starts():
            self.compare(from_seq, 3)
        for span in self.driven.log.stored.all():
            if not span.loaded:
                self.driven.load([span])
        self.driven.log.check()
        live = set(self.model.live)
        for seq in range(self.model.head + 3):
            assert self.driven.log.is_live(seq) == (seq in live)


TestStoredSpans = pytest.mark.usefixtures("_tiny_limits")(StoredMachine.TestCase)
TestStoredSpans.settings = settings(max_examples=25, stateful_step_count=50, deadline=None)
