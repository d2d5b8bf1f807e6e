"""Small logs, and what readers of them are told."""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from topics.log import record_index, retention, span, tag_index, topic_log, topic_tags
from topics.log.losses import Gap
from topics.log.tables import bare_spans
from topics.log.topic_log import Extent, SeqRun, TopicLog
from topics.model import TopicConfig


@contextmanager
def tiny_limits() -> Iterator[None]:
    """Spans, runs and strides are tiny, so that every border is met in a few records."""
    with pytest.MonkeyPatch.context() as patch:
        for module in (span, record_index):
            patch.setattr(module, "SPAN_RECORDS", 4)
        patch.setattr(span, "MIN_TRIM", 3)
        patch.setattr(bare_spans, "LEAST_RUN", 2)
        patch.setattr(bare_spans, "MOST_JOINED", 7)
        patch.setattr(retention, "_FIRST_STRIDE", 2)
        patch.setattr(tag_index, "RUN_NAMES", 2)
        patch.setattr(tag_index, "_CHUNK", 2)
        patch.setattr(topic_log, "_SHORT_HOLE", 2)
        patch.setattr(topic_tags, "_SWEEP_MIN", 1)
        yield


def extent(first: int, n: int, ts: int = 1000, size: int = 10, tags: list[str | None] | None = None) -> Extent:
    flags = bytes(tag is not None for tag in tags) if tags else bytes(n)
    return Extent(first, ts, 1, range(n), array("I", [20]) * n, array("I", [size]) * n, flags, tags)


def log_of(n: int, **fields: Any) -> TopicLog:
    log = TopicLog()
    log.extend(extent(1, n, **fields))
    return log


def caps(records: int, nbytes: int) -> TopicConfig:
    """A configuration with these caps, 0 = off."""
    return TopicConfig(cap_records=records, cap_bytes=nbytes)


def told(log: TopicLog, from_seq: int) -> tuple[int, int, str, int] | None:
    """The tombstone at the start of a read: gap, reason, missed."""
    tombstone = log.start(from_seq, True)[1]
    if tombstone is None:
        return None
    return tombstone.gap_from, tombstone.gap_to, tombstone.reason, tombstone.missed_estimate


def steps(log: TopicLog, from_seq: int = 0) -> list[SeqRun | Gap]:
    found = []
    at = log.start(from_seq, True)[0]
    while (step := log.step(at, 1000)) is not None:
        found.append(step)
        at = step.last
    return found
