"""`TopicLog` against a model that keeps every seq in a dict and knows no arrays, floors or indexes.

The floors, the reasons and the estimates are derived here from the fate of each single seq, as `docs/spec/semantics.md`
section 3 words them. Spans, runs and strides are tiny, so that every border is met in a few records.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import takewhile
from typing import TypeVar

import cbor2
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tests.log.logs import caps, tiny_limits
from topics.log.frame_ranges import locate
from topics.log.losses import Gap, LossReason
from topics.log.retention import eviction_watermark, expire, has_room
from topics.log.tag_match import TagMatch
from topics.log.topic_log import Extent, SeqRun, TopicLog


@pytest.fixture(scope="module", autouse=True)
def _tiny_limits() -> Iterator[None]:
    with tiny_limits():
        yield


T = TypeVar("T")

LIVE = "live"
DELETED = "deleted"

TAGS = st.sampled_from([None, None, "a", "ab", "b", "b*", "b*c", "ü"])
MATCHES = st.builds(TagMatch, st.sampled_from(["", "a", "ab", "b", "b*", "ü", "zz"]), st.booleans())
RECORD = st.tuples(TAGS, st.integers(1, 20), st.integers(0, 3))
BATCH = st.lists(RECORD, min_size=1, max_size=9)
# A place in the topic, mostly near the front or the head, where things happen. A share of the whole would be drawn at
# its ends too often, and the topic be wiped before anything has come together.
PLACE = st.one_of(
    st.tuples(st.just("front"), st.integers(-6, 10)),
    st.tuples(st.just("front"), st.integers(-2, 4)),
    st.tuples(st.just("head"), st.integers(-10, 2)),
    st.tuples(st.just("percent"), st.integers(1, 99)),
)
REASONS = st.sampled_from(["lost", "corrupt", "source_trim"])


@dataclass
class Seq:
    ts: int
    size: int
    tag: str | None
    fate: str  # LIVE, DELETED or the reason of its loss
    hole: str | None = None  # the reason of the hole it is in, also if it was deleted before


class Model:
    def __init__(self) -> None:
        self.seqs: dict[int, Seq] = {}
        self.floor = 1

    @property
    def head(self) -> int:
        return len(self.seqs)

    @property
    def live(self) -> list[int]:
        return [seq for seq, it in self.seqs.items() if it.fate == LIVE]

    @property
    def earliest(self) -> int:
        return next(iter(self.live), self.head + 1)

    @property
    def bytes(self) -> int:
        return sum(self.seqs[seq].size for seq in self.live)

    def lost(self, first: int, last: int) -> list[str]:
        fates = [self.seqs[seq].fate for seq in range(first, last + 1)]
        return [fate for fate in fates if fate not in (LIVE, DELETED)]

    @property
    def evict_floor(self) -> int:
        return max((s for s in range(1, self.earliest) if self.lost(s, s)), default=0) + 1

    def missed(self, first: int, last: int) -> int:
        return sum(self.seqs[seq].fate != DELETED for seq in range(first, last + 1))

    def evict(self, below: int, reason: str) -> None:
        for seq in self.live:
            if seq < below:
                self.seqs[seq].fate = reason

    def make_room(self, cap_records: int, cap_bytes: int) -> None:
        while (cap_records and len(self.live) > cap_records) or (cap_bytes and self.bytes > cap_bytes):
            self.seqs[self.live[0]].fate = "cap"

    def add_hole(self, first: int, last: int, reason: str) -> None:
        earliest, head = self.earliest, self.head
        pieces: list[list[int]] = [[]]
        for seq in range(max(first, earliest), min(last, head) + 1):
            if self.seqs[seq].hole:
                pieces.append([])
            else:
                pieces[-1].append(seq)
        for piece in pieces:
            live = [seq for seq in piece if self.seqs[seq].fate == LIVE]
            for seq in range(live[0], live[-1] + 1) if live else ():
                self.seqs[seq].hole = reason
                if self.seqs[seq].fate == LIVE:
                    self.seqs[seq].fate = reason
        for seq in range(head + 1, last + 1):
            self.seqs[seq] = Seq(0, 0, None, reason, hole=reason)

    def read(self, from_seq: int) -> list[tuple[object, ...]]:
        """What a reader is told from `from_seq` on: tombstones and records, one by one."""
        told: list[tuple[object, ...]] = []
        at = from_seq
        if at > self.head:
            told.append(("gap", 1, self.head, "recreated", self.missed(1, self.head)))
            at = self.earliest - 1
        elif at + 1 < self.evict_floor:
            first, last = at + 1, self.earliest - 1
            reasons = set(self.lost(first, last))
            reason = reasons.pop() if len(reasons) == 1 else "mixed"
            told.append(("gap", first, last, reason, self.missed(first, last)))
            at = last
        at = max(at, self.earliest - 1)
        while at < self.head:
            at += 1
            it = self.seqs[at]
            if it.hole:
                rest = range(at, self.head + 1)
                last = list(takewhile(lambda seq, it=it: self.seqs[seq].hole == it.hole, rest))[-1]  # type: ignore[misc]
                told.append(("gap", at, last, it.hole, self.missed(at, last)))
                at = last
            elif it.fate == LIVE:
                told.append(("record", at))
        return told


def everything(log: TopicLog, from_seq: int, limit: int) -> list[tuple[object, ...]]:
    """The same, as `TopicLog` plans it."""
    at, tombstone = log.start(from_seq, True)
    told: list[tuple[object, ...]] = []
    if tombstone is not None:
        assert (tombstone.earliest_seq, tombstone.head_seq) == (log.earliest_seq, log.head_seq)
        told.append(("gap", tombstone.gap_from, tombstone.gap_to, tombstone.reason, tombstone.missed_estimate))
    while (found := log.step(at, limit)) is not None:
        assert found.first > at
        match found:
            case SeqRun(first, last):
                assert last - first < limit
                told += [("record", seq) for seq in range(first, last + 1)]
            case Gap(first, last, reason, missed):
                told.append(("gap", first, last, reason, missed))
        at = found.last
    return told


class TopicLogMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.log = TopicLog()
        self.model = Model()
        self.now = 1000
        self.caps = (0, 0)
        self.floors = (1, 1)

    @initialize(batches=st.lists(BATCH, max_size=6))
    def begin(self, batches: list[list[tuple[str | None, int, int]]]) -> None:
        for batch in batches:
            self.publish(batch, one_time=False)

    def do(self, operation: Callable[[TopicLog], T]) -> T:
        """What the operation does to the log, or to a part of it."""
        return operation(self.log)

    def matching(self, match: TagMatch, *, before_seq: int | None, bound: int) -> array[int]:
        return self.log.tags.matching(match, before_seq=before_seq, bound=bound)

    def seq(self, place: tuple[str, int]) -> int:
        base, n = place
        match base:
            case "front":
                return max(0, self.model.earliest + n)
            case "head":
                return max(0, self.model.head + n)
            case _:
                return self.model.head * n // 100

    def publish(self, batch: list[tuple[str | None, int, int]], *, one_time: bool) -> None:
        first = self.model.head + 1
        times = []
        for tag, size, later in batch:
            self.now += 0 if one_time else later
            times.append(self.now)
            self.model.seqs[self.model.head + 1] = Seq(self.now, size, tag, LIVE)
        n = len(batch)
        sizes = array("I", [size for _, size, _ in batch])
        flags = bytes(0x20 | (tag is not None) for tag, _, _ in batch)
        own_tags = [tag for tag, _, _ in batch]
        some_tags = own_tags if any(tag is not None for tag in own_tags) else None
        lens = array("I", [size + 30 for size in sizes])
        if one_time:
            self.log.extend(Extent(first, self.now, 0, [0] * n, lens, sizes, flags, some_tags))
        else:
            self.log.extend_records(first, array("Q", times), 0, array("I", [0] * n), lens, sizes, flags, some_tags)

    @rule(batches=st.lists(BATCH, min_size=1, max_size=3), later=st.integers(0, 10), one_time=st.booleans())
    def append(self, batches: list[list[tuple[str | None, int, int]]], later: int, one_time: bool) -> None:
        self.now += later
        sizes = [array("I", [size for _, size, _ in batch]) for batch in batches]
        watermark = self.do(lambda log: eviction_watermark(log, caps(*self.caps), sizes))
        for batch in batches:
            self.publish(batch, one_time=one_time)
        self.model.make_room(*self.caps)
        if watermark:
            assert self.log.evict_below(watermark, "cap") > 0
            assert self.log.evict_below(watermark, "ttl") == 0

    @rule(cap_records=st.sampled_from([0, 0, 4, 20, 30]), cap_bytes=st.sampled_from([0, 0, 0, 50, 250]))
    def change_caps(self, cap_records: int, cap_bytes: int) -> None:
        self.caps = (cap_records, cap_bytes)
        self.model.make_room(*self.caps)
        self.log.evict_below(self.do(lambda log: eviction_watermark(log, caps(*self.caps), [])), "cap")

    @rule(below=PLACE, reason=st.sampled_from(["cap", "ttl"]))
    def evict(self, below: tuple[str, int], reason: LossReason) -> None:
        before, seq = len(self.model.live), self.seq(below)
        self.model.evict(seq, reason)
        assert self.log.evict_below(seq, reason) == before - len(self.model.live)

    @rule(later=st.integers(0, 10), ttl_ms=st.sampled_from([0, 20, 50, 100, 200]))
    def expire(self, later: int, ttl_ms: int) -> None:
        self.now += later
        before = len(self.model.live)
        for seq in self.model.live:
            if ttl_ms and self.now - self.model.seqs[seq].ts > ttl_ms:
                self.model.seqs[seq].fate = "ttl"
        assert self.do(lambda log: expire(log, self.now, ttl_ms)) == before - len(self.model.live)

    @precondition(lambda self: self.model.head > 60)
    @rule()
    def lose_all(self) -> None:
        self.model.evict(self.model.head + 1, "lost")
        self.log.lose_all("lost")

    @rule(n=st.integers(1, 6), reason=REASONS)
    def add_hole_at_the_head(self, n: int, reason: LossReason) -> None:
        first = self.model.head + 1
        self.model.add_hole(first, first + n - 1, reason)
        self.log.add_hole(first, first + n - 1, reason)

    @rule(at=PLACE, n=st.integers(1, 8), reason=REASONS, twice=st.booleans())
    def add_hole_inside(self, at: tuple[str, int], n: int, reason: LossReason, twice: bool) -> None:
        first = min(max(1, self.seq(at)), self.model.head + 1)
        self.model.add_hole(first, first + n - 1, reason)
        for _ in range(1 + twice):
            self.log.add_hole(first, first + n - 1, reason)

    @rule(before=PLACE, bound=PLACE)
    def delete_below(self, before: tuple[str, int], bound: tuple[str, int]) -> None:
        before_seq, last = self.seq(before), self.seq(bound)
        doomed = [seq for seq in self.model.live if seq < before_seq and seq <= last]
        for seq in doomed:
            self.model.seqs[seq].fate = DELETED
        assert self.log.delete_below(before_seq, last) == len(doomed)

    @rule(picked=st.lists(PLACE, max_size=6))
    def delete_some(self, picked: list[tuple[str, int]]) -> None:
        seqs = sorted(self.seq(place) for place in picked)
        doomed = set(seqs) & set(self.model.live)
        for seq in doomed:
            self.model.seqs[seq].fate = DELETED
        assert self.log.delete_seqs(seqs) == len(doomed)

    @rule(match=MATCHES, before=st.none() | PLACE, bound=PLACE)
    def delete_matching(self, match: TagMatch, before: tuple[str, int] | None, bound: tuple[str, int]) -> None:
        before_seq = None if before is None else self.seq(before)
        doomed = [
            seq
            for seq in self.model.live
            if match.matches(self.model.seqs[seq].tag)
            and seq <= self.seq(bound)
            and (before_seq is None or seq < before_seq)
        ]
        found = self.matching(match, before_seq=before_seq, bound=self.seq(bound))
        assert list(found) == doomed
        for seq in doomed:
            self.model.seqs[seq].fate = DELETED
        assert self.log.delete_seqs(found) == len(doomed)

    @rule()
    def dump_and_load(self) -> None:
        dumped = self.log.dump()
        self.log = TopicLog.load(cbor2.loads(cbor2.dumps(dumped, canonical=True)))
        assert self.log.dump() == dumped

    @rule()
    def tidy(self) -> None:
        while self.log.tidy():
            pass

    @rule(first=PLACE, n=st.integers(1, 12), file=st.integers(1, 3), apart=st.sampled_from([0, 4096, 4097]))
    def place_and_locate(self, first: tuple[str, int], n: int, file: int, apart: int) -> None:
        if not self.model.head:
            return
        low = min(max(1, self.seq(first)), self.model.head)
        high = min(low + n - 1, self.model.head)
        offsets, at = [], 100
        for seq in range(low, high + 1):
            offsets.append(at)
            at += self.model.seqs[seq].size + 30 + apart
        self.log.index.place(low, file, offsets)
        live = [seq for seq in self.model.live if low <= seq <= high]
        found = []
        for part in locate(self.log.index, low, high, max_range=5000):
            assert part.file == file
            assert part.length <= 5000
            assert part.starts[-1] + part.frame_lens[-1] == part.length
            found += [
                (seq, part.offset + start, length)
                for seq, start, length in zip(part.seqs, part.starts, part.frame_lens, strict=True)
            ]
        assert found == [(seq, offsets[seq - low], self.model.seqs[seq].size + 30) for seq in live]

    @rule(from_seq=PLACE, limit=st.integers(1, 9))
    def read(self, from_seq: tuple[str, int], limit: int) -> None:
        assert everything(self.log, self.seq(from_seq), limit) == self.model.read(self.seq(from_seq))

    @rule(n=st.integers(1, 5), nbytes=st.integers(1, 50), pending=st.integers(0, 3))
    def ask_for_room(self, n: int, nbytes: int, pending: int) -> None:
        cap_records, cap_bytes = self.caps
        fits = (not cap_records or len(self.model.live) + pending + n <= cap_records) and (
            not cap_bytes or self.model.bytes + 7 * pending + nbytes <= cap_bytes
        )
        assert has_room(self.log, caps(*self.caps), pending, 7 * pending, n, nbytes) == fits

    @invariant()
    def agrees_with_the_model(self) -> None:
        log, model = self.log, self.model
        log.check()
        assert (log.head_seq, log.count, log.bytes) == (model.head, len(model.live), model.bytes)
        assert (log.earliest_seq, log.losses.evict_floor) == (model.earliest, model.evict_floor)
        assert log.earliest_seq >= self.floors[0]
        assert log.losses.evict_floor >= self.floors[1]
        self.floors = (log.earliest_seq, log.losses.evict_floor)

    @invariant()
    def every_seq_is_what_it_is(self) -> None:
        live = set(self.model.live)
        for seq in range(self.model.head + 3):
            assert self.log.is_live(seq) == (seq in live)
            if seq in live:
                assert self.log.index.ts_of(seq) == self.model.seqs[seq].ts

    @invariant()
    def a_missing_record_has_its_reason(self) -> None:
        log, model = self.log, self.model
        for seq, it in model.seqs.items():
            if it.fate == LIVE:
                continue
            reason = log.losses.why_missing(seq, log.earliest_seq)
            if it.fate == DELETED or seq >= model.evict_floor:
                assert reason == it.fate
            else:
                assert reason in model.lost(seq, model.evict_floor - 1)

    def starts(self) -> range:
        """Where reading begins in the end: everywhere, but of a long log at a sample, as each reads the rest."""
        stride = 1 + self.model.head // 40
        return range(self.model.head % stride, self.model.head + 3, stride)

    def teardown(self) -> None:
        for from_seq in self.starts():
            assert everything(self.log, from_seq, 3) == self.model.read(from_seq)


TestTopicLog = TopicLogMachine.TestCase
TestTopicLog.settings = settings(max_examples=40, stateful_step_count=40, deadline=None)
