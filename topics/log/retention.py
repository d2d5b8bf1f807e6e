"""The bounds of a topic: its caps, its ttl, and the seq below which records must be evicted so that they hold.

Computes only; the caller then calls `TopicLog.evict_below`. `expire` does both.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from itertools import accumulate, compress
from typing import Final

from topics.log.record_index import RecordIndex
from topics.log.span import ONE_IF_LIVE
from topics.log.topic_log import TopicLog
from topics.model import TopicConfig

# Slots summed up at a time when looking for an eviction point: few at first, because mostly a record or two go, then
# doubled up to the longest stride.
_FIRST_STRIDE: Final = 32
_LONGEST_STRIDE: Final = 4096


def eviction_watermark(log: TopicLog, config: TopicConfig, incoming: Sequence[array[int]]) -> int:
    """Return the seq below which everything must be evicted so that the caps (0 = off) hold, 0 for nothing to evict.
    For `discard: "old"`.

    `incoming` are the record sizes of the batches that have seqs but are not published, in order, the caller's own
    batch last; the caps will hold once all of them are published. The watermark may lie among them: a batch larger than
    the cap keeps only its newest records, or none. Costs as much as there is to evict. Raises NotLoaded.
    """
    cap_records, cap_bytes = config.cap_records, config.cap_bytes
    new_records = sum(map(len, incoming))
    watermark = 0
    if cap_records and (over := log.count + new_records - cap_records) > 0:
        point, rest = _eviction_point(log.index, over, by_bytes=False)
        watermark = log.head_seq + rest + 1 if rest else point
    if cap_bytes and (over := log.bytes + sum(map(sum, incoming)) - cap_bytes) > 0:
        point, rest = _eviction_point(log.index, over, by_bytes=True)
        if rest:
            point = log.head_seq + _shortest_prefix(incoming, rest) + 1
        watermark = max(watermark, point)
    return watermark


def watermark_beside(
    log: TopicLog, config: TopicConfig, sizes: array[int], taken: Sequence[int], taken_sizes: Sequence[int]
) -> int:
    """As `eviction_watermark`, for a batch that takes the records `taken` away before the caps count. These ascend;
    those past the head are of the batch itself; some may have expired, or be lost, since that was decided. Nothing else
    is unpublished. Raises NotLoaded."""
    published = bisect_right(taken, log.head_seq)
    own = [seq - log.head_seq - 1 for seq in taken[published:]]
    alive = slice(bisect_left(taken, log.earliest_seq), published)
    gone, gone_sizes = taken[alive], taken_sizes[alive]
    if log.losses.holes:
        there = [not log.losses.inside_holes(seq, seq) for seq in gone]
        gone, gone_sizes = list(compress(gone, there)), list(compress(gone_sizes, there))
    watermark = 0
    caps = ((config.cap_records, log.count, False), (config.cap_bytes, log.bytes, True))
    for cap, held, by_bytes in caps:
        if not cap:
            continue
        weights = gone_sizes if by_bytes else array("I", (1,)) * len(gone)
        incoming = sizes[:] if by_bytes else array("I", (1,)) * len(sizes)
        for i in own:
            incoming[i] = 0
        over = held - sum(weights) + sum(incoming) - cap
        if over > 0:
            watermark = max(watermark, _point_beside(log, over, gone, weights, incoming, by_bytes=by_bytes))
    return watermark


def _point_beside(
    log: TopicLog, over: int, gone: Sequence[int], weights: Sequence[int], incoming: array[int], *, by_bytes: bool
) -> int:
    """Return the least seq below which the records that are not `gone` amount to `over`."""
    passed = 0
    while True:
        point, rest = _eviction_point(log.index, over + passed, by_bytes=by_bytes)
        below = len(gone) if rest else bisect_left(gone, point)
        if (weight := sum(weights[:below])) == passed:
            break
        passed = weight  # these do not count, so the point is further on
    return log.head_seq + _shortest_prefix([incoming], rest) + 1 if rest else point


def has_room(log: TopicLog, config: TopicConfig, pending_records: int, pending_bytes: int, n: int, nbytes: int) -> bool:
    """Return True if `n` records of `nbytes` in all fit the caps (0 = off) beside the published and the pending
    records. For `discard: "reject"`."""
    cap_records, cap_bytes = config.cap_records, config.cap_bytes
    return (not cap_records or log.count + pending_records + n <= cap_records) and (
        not cap_bytes or log.bytes + pending_bytes + nbytes <= cap_bytes
    )


def expire(log: TopicLog, now_ms: int, ttl_ms: int) -> int:
    """Evict the records older than `ttl_ms` (`now - ts > ttl_ms`; 0 = off) at `now_ms` (epoch ms), and return how many.

    Raises NotLoaded.
    """
    if not ttl_ms or not log.count:
        return 0
    oldest_to_stay = now_ms - ttl_ms
    if log.index.spans[0].first_ts >= oldest_to_stay:
        return 0
    first_to_stay = log.index.first_at_or_after(oldest_to_stay)
    return log.evict_below(log.head_seq + 1 if first_to_stay is None else first_to_stay, "ttl")


def _eviction_point(index: RecordIndex, over: int, *, by_bytes: bool) -> tuple[int, int]:
    """Return the least seq below which the live records amount to `over` (> 0) records or bytes, and 0.

    If all live records together are less, return one past the last slot (0 without slots) and the rest of `over`. Costs
    as much as there is below that seq, not as much as is stored.
    """
    for span in index.spans:
        total = span.bytes if by_bytes else span.live
        if total < over:
            over -= total
            continue
        if not by_bytes and span.dense:
            return span.first + span.start + over, 0
        span.need()
        i, stride = span.start, _FIRST_STRIDE
        while i < span.n:
            j = i + stride
            weights: Sequence[int] = span.size[i:j] if by_bytes else span.dead[i:j].translate(ONE_IF_LIVE)
            total = sum(weights)
            if total >= over:
                return span.first + i + bisect_left(list(accumulate(weights)), over) + 1, 0
            over -= total
            i, stride = j, min(2 * stride, _LONGEST_STRIDE)
        raise AssertionError("the sums of a span are more than its slots")
    return (index.spans[-1].end if index.spans else 0), over


def _shortest_prefix(batches: Sequence[array[int]], total: int) -> int:
    """Return how many records, from the first on, it takes to reach `total` bytes."""
    records = 0
    for sizes in batches:
        if sum(sizes) < total:
            total -= sum(sizes)
            records += len(sizes)
            continue
        for size in sizes:
            records += 1
            total -= size
            if total <= 0:
                return records
    return records
