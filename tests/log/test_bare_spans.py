"""Bare spans: a log that gives the memory of deleted slots back answers like one that never does, and is small."""

from __future__ import annotations

import random
import sys
from array import array
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from typing import TypeVar

import pytest

from tests.log.logs import extent, steps, tiny_limits, told
from topics.log.frame_ranges import locate
from topics.log.record_index import RawRun
from topics.log.span import DELETED, LIVE, SPAN_RECORDS
from topics.log.tables import bare_spans
from topics.log.tables.bare_spans import LEAST_RUN, MOST_JOINED
from topics.log.topic_log import Extent, TopicLog

T = TypeVar("T")


@contextmanager
def never() -> Iterator[None]:
    """Nothing is given back."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bare_spans, "is_due", lambda _span: False)
        yield


class Twins:
    """Two logs to which the same happens. Only the first gives memory back."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.log, self.twin = TopicLog(), TopicLog()
        self.ts = 1000
        self.bare = 0
        """The most bare spans at one time."""

    def both(self, call: Callable[[TopicLog], T]) -> T:
        found = call(self.log)
        with never():
            expected = call(self.twin)
        assert found == expected
        self.bare = max(self.bare, sum(span.is_bare for span in self.log.index.spans))
        return found

    def publish(self) -> None:
        n = self.random.randint(1, 9)
        self.ts += self.random.randint(0, 3)
        first, ts = self.log.head_seq + 1, self.ts
        sizes = array("I", [self.random.randint(1, 9) for _ in range(n)])
        tags = [self.random.choice((None, "a", "b")) for _ in range(n)]
        flags = bytes(tag is not None for tag in tags)
        file = 0 if self.random.random() < 0.9 else 7
        some = tags if any(flags) else None
        lens = array("I", [20]) * n
        self.both(lambda log: log.extend(Extent(first, ts, file, [5] * n, lens[:], sizes[:], flags, some)))

    def delete(self) -> None:
        """Most of a run, as an overwritten table has it, or all of it."""
        first = self.random.randint(1, self.log.head_seq)
        last = min(self.log.head_seq, first + self.random.randint(0, 15))
        keeps = self.random.choice((0.0, 0.1, 0.4))
        seqs = [seq for seq in range(first, last + 1) if self.random.random() >= keeps]
        if seqs:
            self.both(lambda log: log.delete_seqs(seqs))

    def hole(self) -> None:
        first = self.random.randint(1, self.log.head_seq + 1)
        last = first + self.random.randint(0, 3)
        self.both(lambda log: log.add_hole(first, last, "lost"))

    def move_front(self) -> None:
        seq = min(self.log.earliest_seq + self.random.randint(1, 12), self.log.head_seq)
        which = self.random.randint(0, 2)
        if which == 0:
            self.both(lambda log: log.evict_below(seq, "cap"))
        elif which == 1:
            self.both(lambda log: log.delete_below(seq, log.head_seq))
        else:
            self.both(lambda log: log.evict_below(log.index.first_at_or_after(self.ts - 6) or 0, "ttl"))

    def place(self) -> None:
        """Frames of published records get their places, wherever the records are by now."""
        first = self.random.randint(1, self.log.head_seq)
        n = self.random.randint(1, 6)
        lens = array("I", [30]) * n
        self.both(lambda log: log.index.place(first, 9, range(n), lens))

    def load(self) -> None:
        self.log, self.twin = (TopicLog.load(log.dump()) for log in (self.log, self.twin))

    def compare(self) -> None:
        self.log.check()
        log = self.log
        lo = self.random.randint(1, log.head_seq + 1)
        hi = self.random.randint(lo, log.head_seq + 2)
        self.both(lambda log: (log.head_seq, log.earliest_seq, log.count, log.bytes, log.losses.evict_floor))
        self.both(lambda log: [log.is_live(seq) for seq in range(log.head_seq + 3)])
        self.both(lambda log: log.index.deleted_in(max(lo, log.earliest_seq), hi))
        self.both(lambda log: log.index.unplaced())
        self.both(lambda log: (log.index.last_live(hi), log.index.next_live(lo)))
        self.both(lambda log: (told(log, lo - 1), steps(log, lo - 1)))
        self.both(lambda log: log.start(hi - 1, False))
        self.both(lambda log: [log.losses.why_missing(seq, log.earliest_seq) for seq in range(1, log.head_seq + 1)
                               if not log.is_live(seq)])  # fmt: skip
        self.both(lambda log: locate(log.index, lo, hi))
        self.both(lambda log: _slots(log.index.capture_raw(hi, lo)))
        self.both(lambda log: list(map(list, _deleted(log, lo, hi))))
        runs = log.index.capture_raw(log.head_seq)
        assert all(a.ts[-1] <= b.ts[0] for a, b in pairwise(runs))
        placed = [run.first + i for run in runs for i, file in enumerate(run.file) if file]
        assert log.index.last_placed() == max(placed, default=0)


def _slots(runs: list[RawRun]) -> list[tuple[int, ...]]:
    """The state of each captured slot, and all of a live one."""
    return [
        (run.first + i, dead, *((run.ts[i], run.file[i], run.frame_len[i], run.size[i]) if dead == LIVE else ()))
        for run in runs
        for i, dead in enumerate(run.dead)
    ]


def _deleted(log: TopicLog, lo: int, hi: int) -> Iterator[range]:
    """The deleted seqs of a range, as runs: neighbours that touch are one."""
    run = range(0)
    for first, last in log.index.deleted_runs(max(lo, log.earliest_seq), hi, 1000):
        if run and first == run.stop:
            run = range(run.start, last + 1)
            continue
        if run:
            yield run
        run = range(first, last + 1)
    if run:
        yield run


@pytest.mark.parametrize("seed", range(20))
def test_a_log_that_gives_memory_back_answers_like_one_that_does_not(seed: int) -> None:
    with tiny_limits():
        twins = Twins(seed)
        twins.publish()
        for _ in range(60):
            calls = [twins.publish, twins.publish, twins.delete, twins.delete, twins.delete, twins.hole, twins.place]
            calls += [twins.move_front, twins.load] if twins.random.random() < 0.2 else []
            twins.random.choice(calls)()
            twins.compare()
    assert twins.bare


def overwritten(writes: int, keys: Callable[[int], int]) -> TopicLog:
    """A table in memory: each write takes away the one before with its key, `keys` of the number of the write."""
    log, newest = TopicLog(), dict[int, int]()
    for at in range(0, writes, 100):
        first, dead = log.head_seq + 1, []
        for seq in range(first, first + 100):
            before = newest.get(key := keys(seq))
            newest[key] = seq
            if before is not None:
                dead.append(before)
        batch = extent(first, 100, ts=1000 + at)
        log.extend(batch._replace(file=0))
        log.delete_seqs(sorted(dead))
    log.check()
    assert log.count == len(newest)
    return log


def bytes_of(log: TopicLog) -> int:
    """What the index takes in memory, without what spans share."""
    total = 0
    for span in log.index.spans:
        total += sys.getsizeof(span)
        if not span.is_bare:
            columns = (span.ts, span.file, span.offset, span.frame_len, span.size, span.flags, span.dead)
            total += sum(map(sys.getsizeof, columns))
    return total


def test_the_index_of_a_table_does_not_grow_with_what_is_overwritten() -> None:
    """One key that is written once, in front, and 50 that are written for ever."""
    tail = 32 * SPAN_RECORDS
    log = overwritten(100_000, lambda n: 0 if n == 1 else n % 50 + 1)
    assert bytes_of(log) < tail
    assert len(log.index.spans) == 3, "the first record, all that is gone, and the last span"
    assert sum(span.n for span in log.index.spans if span.is_bare) > 80_000
    assert log.index.deleted_in(1, log.head_seq + 1) == log.head_seq - log.count


def test_records_that_stay_among_overwritten_ones_keep_few_dead_slots() -> None:
    """Every thousandth write is of a key that is never written again."""
    writes = 100_000
    log = overwritten(writes, lambda n: n if n % 1000 == 0 else -1 - n % 10)
    raw = sum(span.n for span in log.index.spans[:-1] if not span.is_bare)
    assert log.count > writes // 1000
    assert raw < 2 * LEAST_RUN * writes // 1000
    assert bytes_of(log) < 26 * (writes // 5 + SPAN_RECORDS)


def test_shorter_runs_and_slots_that_the_log_has_a_place_for_stay() -> None:
    log = overwritten(2 * SPAN_RECORDS, lambda n: n if n % LEAST_RUN == 0 else -1)
    assert not any(span.is_bare for span in log.index.spans)
    placed = TopicLog()
    placed.extend(extent(1, 2 * SPAN_RECORDS))
    placed.delete_seqs(range(2, SPAN_RECORDS + 1))
    assert not any(span.is_bare for span in placed.index.spans)
    assert bytes(placed.index.spans[0].dead).count(DELETED) == SPAN_RECORDS - 1


def test_a_bare_span_has_at_most_so_many_slots() -> None:
    count = MOST_JOINED + 3 * SPAN_RECORDS
    log = TopicLog()
    log.extend(extent(1, count)._replace(file=0))
    log.delete_seqs(range(2, count - SPAN_RECORDS + 1))
    bare = [span.n for span in log.index.spans if span.is_bare]
    assert max(bare) <= MOST_JOINED
    assert sum(bare) == count - SPAN_RECORDS - 1
    assert len(bare) == 2
    log.check()
