"""Slots in spans: what they cost, and what they say of a record."""

from __future__ import annotations

import pytest

from tests.log.logs import caps, extent, log_of
from topics.log.retention import eviction_watermark
from topics.log.span import SPAN_RECORDS
from topics.log.topic_log import SeqRun, TopicLog


def test_the_time_of_a_record_that_is_gone_is_a_key_error() -> None:
    log = log_of(3, ts=77)
    log.delete_seqs([2])
    assert log.index.ts_of(3) == 77
    for seq in (0, 2, 4):
        with pytest.raises(KeyError):
            log.index.ts_of(seq)


def test_no_more_than_32_bytes_of_index_a_record() -> None:
    columns = ("ts", "file", "offset", "frame_len", "size", "flags", "dead")
    for cap in (0, 60_000):
        log = TopicLog()
        for batch in range(100):
            log.extend(extent(batch * 1000 + 1, 1000))
            log.evict_below(eviction_watermark(log, caps(cap, 0), []), "cap")
        total = sum(getattr(span, name).__sizeof__() for span in log.index.spans for name in columns)
        assert total <= 32 * log.count


def test_a_batch_larger_than_a_span_is_stored_whole() -> None:
    log = log_of(2 * SPAN_RECORDS + 5)
    assert log.step(0, 10**6) == SeqRun(1, 2 * SPAN_RECORDS + 5)
    log.check()
